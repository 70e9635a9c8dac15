"""Every table of a trace opens in pandas, DuckDB and Polars without us, as a folder of Parquet; also one that is empty."""

from collections.abc import Callable
from pathlib import Path

import duckdb
import pandas as pd
import polars
import pytest

import pytrace_ebpf
from pytrace_ebpf.record.output.description import new_manifest
from pytrace_ebpf.record.output.writer import Writer
from pytrace_ebpf.trace.schema import TABLES
from tests.unit.synthetic import sample, table_of

READERS: dict[str, Callable[[Path], pd.DataFrame]] = {
    "pandas": pd.read_parquet,
    "duckdb": lambda folder: duckdb.connect().execute(f"select * from read_parquet('{folder}/*.parquet')").df(),
    "polars": lambda folder: polars.scan_parquet(folder).collect().to_pandas(),
}
DERIVED = [name for name, table in TABLES.items() if table.derived]


@pytest.fixture(scope="module")
def derived(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = sample(tmp_path_factory.mktemp("plain") / "trace")
    for name in DERIVED:
        getattr(pytrace_ebpf.open(path), name)()
    return path


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("name", DERIVED)
def test_a_derived_table_opens_as_it_is(derived: Path, name: str, reader: str) -> None:
    ours, theirs = getattr(pytrace_ebpf.open(derived), name)(), READERS[reader](derived / name)
    assert list(theirs.columns) == list(ours.columns) and len(theirs) == len(ours)
    for column in ("wall_ns", "call_id", "total_ns", "end_ns"):
        if column in ours:
            assert sorted(theirs[column]) == sorted(ours[column])


@pytest.mark.parametrize("reader", READERS)
def test_a_recorded_table_opens_as_it_is_be_it_empty(tmp_path: Path, reader: str) -> None:
    counted = {"sources": [], "events": {}, "lost": {}, "cost": {}}
    writer = Writer(tmp_path / "trace", new_manifest(0, {"pid": 1, "command": "", "executable": "", "python_version": None}, ["test"], {}) | counted)
    for segment in range(2):
        writer.segment(segment, segment + 1, {"events": table_of("events", [(segment, 1, 1, 0, 0, 16, 1)])}, {})
    writer.close({"state": "complete", "end_ns": 2})
    for table in TABLES.values():
        if not table.derived:
            frame = READERS[reader](tmp_path / "trace" / table.name)
            assert list(frame.columns) == table.arrow.names and len(frame) == (2 if table.name == "events" else 0)
    trace = pytrace_ebpf.open(tmp_path / "trace")
    assert [len(trace.sizes(name)) for name in ("events", "sched")] == [2, 0]
