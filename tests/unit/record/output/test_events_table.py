"""The rows of `events` of one segment: grouped by thread and in each thread's order, however the sources hand them over."""

import numpy as np
import pytest

from pytrace_ebpf.record.output.tables import Columns, cut_at, events_table
from pytrace_ebpf.trace.schema import EVENTS, CallKind


def batch(rng: np.random.Generator, start: int, runs: list[tuple[int, int]], shuffled: bool = False, opens: bool = False) -> Columns:
    """Runs of (tid, rows), each in the order of time; `line` numbers what a thread did."""
    columns: Columns = {column.name: np.zeros(sum(rows for _, rows in runs), column.type.to_pandas_dtype()) for column in EVENTS.arrow}
    columns["tid"][:] = np.concatenate([np.full(rows, tid) for tid, rows in runs])
    for tid in {tid for tid, _ in runs}:
        of = columns["tid"] == tid
        columns["ts"][of] = start + np.sort(rng.integers(0, 1000, of.sum()))
    if shuffled:
        columns["ts"] = columns["ts"][rng.permutation(len(columns["ts"]))]
    columns["kind"][0] = CallKind.OPEN if opens else CallKind.ENTRY
    columns["line"][:] = np.arange(len(columns["ts"])) + 10 * start
    return columns


@pytest.mark.parametrize("runs", [[(1, 900)], [(1, 900), (2, 700)], [(2, 500), (1, 500), (2, 500)], [(tid, 1) for tid in (1, 2)] * 200])
@pytest.mark.parametrize("opens", [False, True])
@pytest.mark.parametrize("ts", [1500, 2000, 5000])
def test_what_is_cut_is_whole_and_in_order(runs: list[tuple[int, int]], opens: bool, ts: int) -> None:
    rng = np.random.default_rng(1)
    batches = [batch(rng, start, runs, opens=opens) for start in (0, 1000, 2000)]
    early, late = cut_at(batches, ts)
    assert all(len(each["ts"]) for each in (*early, *late))
    rows = [events_table(some).to_pydict() for some in (early, late) if some]
    everything = sorted(row for each in batches for row in zip(each["tid"].tolist(), each["ts"].tolist(), each["line"].tolist(), strict=True))
    assert sorted(row for part in rows for row in zip(part["tid"], part["ts"], part["line"], strict=True)) == everything
    assert all(at < ts for at in rows[0]["ts"]) and all(at >= ts for part in rows[1:] for at in part["ts"])
    for part in rows:
        assert part["tid"] == sorted(part["tid"])
        for tid in set(part["tid"]):
            mine = [row for row, of in enumerate(part["tid"]) if of == tid]
            assert [part["ts"][row] for row in mine] == sorted(part["ts"][row] for row in mine)
            assert [part["line"][row] for row in mine] == sorted(part["line"][row] for row in mine)


@pytest.mark.parametrize("rows", [3, 3000])
def test_frames_that_were_read_beside_the_ring_come_to_their_place(rows: int) -> None:
    rng = np.random.default_rng(1)
    table = events_table([batch(rng, 1000, [(1, rows)]), batch(rng, 0, [(1, rows)], opens=True)])
    assert table["ts"].to_pylist() == sorted(table["ts"].to_pylist())


def test_a_thread_of_several_rings_is_put_in_the_order_of_time() -> None:
    rng = np.random.default_rng(1)
    table = events_table([batch(rng, 0, [(1, 3000)], shuffled=True)], streams=True)
    assert table["ts"].to_pylist() == sorted(table["ts"].to_pylist())
