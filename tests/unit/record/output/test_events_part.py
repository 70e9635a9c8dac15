"""A part of `events`: every reader of Parquet finds in it what was written, whatever the numbers and however they lie in memory."""

from pathlib import Path

import duckdb
import numpy as np
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pytrace_ebpf.record.output.events_part import write_events
from pytrace_ebpf.trace.schema import EVENTS

LEAST, MOST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


def table(rows: int, seed: int = 1) -> pa.Table:
    """Times that run on by small and large steps, and any numbers elsewhere."""
    rng = np.random.default_rng(seed)
    columns = {
        "ts": 10**15 + np.cumsum(rng.integers(0, 1 << rng.integers(1, 40, rows), rows)),
        "pid": np.full(rows, 7), "tid": np.sort(rng.integers(1, 4, rows)), "kind": rng.integers(0, 7, rows),
        "func_id": rng.integers(-1, 100, rows), "frame": rng.integers(0, 1 << 32, rows), "line": rng.integers(-1, 1 << 24, rows),
    }  # fmt: skip
    return pa.table({name: pa.array(column, EVENTS.arrow.field(name).type) for name, column in columns.items()}, schema=EVENTS.arrow)


def written(path: Path, rows: pa.Table) -> Path:
    with path.open("wb") as file:
        write_events(file, rows)
    return path


@pytest.mark.parametrize("rows", [0, 1, 2, 8, 9, 32, 33, 127, 128, 129, 130, 5000, (1 << 17) + 1, (1 << 20) + 5])
def test_arrow_reads_what_was_written(rows: int, tmp_path: Path) -> None:
    wanted = table(rows)
    assert pq.read_table(written(tmp_path / "part", wanted)).equals(wanted)


@pytest.mark.parametrize("values", [[LEAST, MOST] * 100, [MOST, LEAST, 0], [0] * 300, [5], list(range(1000, 0, -7))])
def test_numbers_at_the_ends_of_their_types(values: list[int], tmp_path: Path) -> None:
    count = len(values)
    wanted = (
        table(count)
        .set_column(0, EVENTS.arrow.field("ts"), pa.array(values, pa.int64()))
        .set_column(5, EVENTS.arrow.field("frame"), pa.array(values[::-1], pa.int64()))
    )
    assert pq.read_table(written(tmp_path / "part", wanted)).equals(wanted)


@pytest.mark.parametrize("distinct", [1, 256, 257, 1 << 14, (1 << 14) + 1, 150_000])
@pytest.mark.parametrize("stride", [1, 0x9E3779B97F4A7C15])
def test_columns_of_few_and_of_many_values(distinct: int, stride: int, tmp_path: Path) -> None:
    """As many as have numbers of one byte, of two bytes, none; of the stride that undoes the hash many share a place."""
    rows, rng = 300_000, np.random.default_rng(1)
    inverse = pow(stride, -1, 1 << 64)
    values = (rng.permutation(rows).astype(np.uint64) % np.uint64(distinct) * np.uint64(inverse)).view(np.int64)
    wanted = table(rows).set_column(5, EVENTS.arrow.field("frame"), pa.array(values))
    wanted = wanted.set_column(6, EVENTS.arrow.field("line"), pa.array(values.astype(np.int32)))
    assert pq.read_table(written(tmp_path / "part", wanted)).equals(wanted)


@pytest.mark.parametrize("sizes", [[1] * 50, [20_000, 0, 1, 30_000], [200_000, 3]])
def test_rows_that_lie_in_several_places(sizes: list[int], tmp_path: Path) -> None:
    wanted = pa.concat_tables([table(size + 3, seed).slice(3) for seed, size in enumerate(sizes)])
    assert pq.read_table(written(tmp_path / "part", wanted)).equals(wanted)


@pytest.mark.parametrize("rows", [0, 1, 200_000])
def test_other_readers_read_the_same(rows: int, tmp_path: Path) -> None:
    wanted = table(rows)
    path = written(tmp_path / "part.parquet", wanted)
    assert polars.read_parquet(path).equals(polars.from_arrow(wanted))
    assert duckdb.read_parquet(str(path)).to_arrow_table().cast(EVENTS.arrow).equals(wanted)


@pytest.mark.parametrize("ts", [[], [5, 4], [LEAST, MOST], [0, MOST, -2, 3], [7, 7, 8]])
@pytest.mark.parametrize("threads", [4, 40_000])
def test_bounds_say_where_a_thread_and_a_time_are(ts: list[int], threads: int, tmp_path: Path) -> None:
    rows = table(len(ts) or 100_000)
    rows = rows.set_column(2, EVENTS.arrow.field("tid"), pa.array(np.arange(len(rows)) * 31 % threads, pa.int32()))
    if ts:
        rows = rows.set_column(0, EVENTS.arrow.field("ts"), pa.array(ts, pa.int64()))
    group = pq.ParquetFile(written(tmp_path / "part", rows)).metadata.row_group(0)
    for name in ("ts", "pid", "tid"):
        found = group.column(EVENTS.arrow.get_field_index(name)).statistics
        assert (found.min, found.max) == (min(rows[name].to_pylist()), max(rows[name].to_pylist()))
