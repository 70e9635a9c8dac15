"""Switches and wake-ups that the kernel did not report: what depends on them is null, and nothing else; each is a row of `losses`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import pytrace_ebpf
from pytrace_ebpf.record.output.collect import Collector
from pytrace_ebpf.record.output.missing import Missing
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.trace.schema import TABLES, CallKind, SchedKind
from tests.unit.synthetic import FUTEX, GIL, table_of, write_trace

IN, OUT, WAKING, MIGRATE, FORK, EXIT = (SchedKind[name] for name in ("IN", "OUT", "WAKING", "MIGRATE", "FORK", "EXIT"))
READ = 0
PARTS = ["on_cpu_ns", "runq_wait_ns", "gil_wait_ns", "blocked_ns"]
Row = tuple[Any, ...]


def row(ts: int, kind: SchedKind, state: int = 0, syscall: int = -1, address: int = 0, tid: int = 8) -> Row:
    return (ts, 7, tid, kind, 1, state, syscall, address, 0, 3 if kind == WAKING else 0)


# On a core, blocked in read, in the run queue, on a core, waits for the GIL, in the run queue, on a core, preempted, on a core.
WHOLE = [
    row(0, IN), row(100, OUT, 1, READ, 5), row(150, WAKING), row(160, IN), row(200, OUT, 1, FUTEX, GIL[0]), row(270, WAKING), row(290, IN),
    row(300, OUT, 0x100), row(340, IN), row(400, OUT, 1, READ, 5), row(450, WAKING), row(460, IN),
]  # fmt: skip
# Calls of function 0 to 3: the whole, and each interval with one of these waits.
SPANS = [(10, 490), (20, 180), (185, 295), (296, 390)]
KNOWN = [[230, 80, 70, 100], [100, 10, 0, 50], [20, 20, 70, 0], [54, 40, 0, 0]]


def events(tid: int = 8) -> list[Row]:
    calls = [(start, CallKind.ENTRY, func) for func, (start, _) in enumerate(SPANS)] + [
        (end, CallKind.RETURN, func) for func, (_, end) in enumerate(SPANS)
    ]
    return [(ts, 7, tid, kind, func, 100 + func, 1) for ts, kind, func in sorted(calls)]


def trace_of(path: Path, sched: Sequence[Row], cuts: Sequence[int] = (), **more: Any) -> Trace:
    functions = [(number, "/app.py", f"f{number}", f"f{number}", 1 + number, "app") for number in range(4)]
    return pytrace_ebpf.open(
        write_trace(path, events=events(), sched=sorted(sched), functions=functions, start_ns=0, end_ns=500, cuts=list(cuts), **more)
    )


def split(trace: Trace, tid: int = 8) -> list[list[int | None]]:
    calls = trace.calls(tid=tid).sort_values("func_id")
    return [[None if pd.isna(part) else int(part) for part in parts] for parts in calls[PARTS].to_numpy(object)]


def without(*dropped: int) -> list[Row]:
    return [each for at, each in enumerate(WHOLE) if at not in dropped]


NONE = [None] * 4
CASES = {
    "nothing": ((), KNOWN, []),
    "a wake-up": ((2,), [[230, None, None, None], [100, None, None, None], *KNOWN[2:]], [("sched_waking", 100, 160)]),
    "a wake-up from the wait for the GIL": ((5,), [[230, None, None, None], KNOWN[1], [20, None, None, None], KNOWN[3]], [("sched_waking", 200, 290)]),
    "that it got a core": ((3,), [[None, None, 70, 100], [None, None, 0, 50], [None, None, 70, 0], KNOWN[3]], [("sched_in", 150, 200)]),
    "that it got one again": ((8,), [[None, None, 70, 100], *KNOWN[1:3], [None, None, 0, 0]], [("sched_in", 300, 400)]),
    "a wake-up and that it got a core": ((2, 3), [NONE, NONE, NONE, KNOWN[3]], [("sched_in", 100, 200), ("sched_waking", 100, 200)]),
    "that it left its core": ((4, 5), [NONE, NONE, NONE, KNOWN[3]], [("sched_out", 160, 290)]),
    "that it left its core, with the wake-up there": ((4,), [NONE, NONE, NONE, KNOWN[3]], [("sched_out", 160, 290)]),
    "that it got a core and left it": ((3, 4), [NONE, NONE, NONE, KNOWN[3]], [("sched_in", 150, 270), ("sched_out", 150, 270)]),
}  # fmt: skip


@pytest.mark.parametrize("cuts", [(), (120, 165, 280, 310)], ids=["one segment", "segments"])
@pytest.mark.parametrize("what", CASES)
def test_what_depends_on_it_is_null_and_nothing_else(what: str, cuts: tuple[int, ...], tmp_path: Path) -> None:
    dropped, expected, _ = CASES[what]
    if cuts and dropped == (3, 4):
        cuts = (120, 310)  # both wake-ups in one segment show it
    losses = [(*window, 1, 7, 8) for window in CASES[what][2]]
    assert split(trace_of(tmp_path / "trace", without(*dropped), cuts, losses=losses)) == expected


@pytest.mark.parametrize("cuts", [(500,), (120, 310, 500)], ids=["one segment", "segments"])
@pytest.mark.parametrize("what", CASES)
def test_each_is_a_row_with_its_thread_and_time(what: str, cuts: tuple[int, ...]) -> None:
    dropped, _, expected = CASES[what]
    rows, missing, found = without(*dropped), Missing(), list[Row]()
    beside = [row(ts, kind, 1 if kind == OUT else 0, READ, tid=9) for ts, kind in ((5, IN), (105, OUT), (205, WAKING), (305, IN))]
    for start, end in zip((0, *cuts), cuts, strict=False):
        sched = table_of("sched", sorted(each for each in rows + beside if start <= each[0] < end))
        found += [tuple(each.values()) for each in missing.found(sched, None).to_pylist()]
    assert sorted(found) == sorted((*window, 1, 7, 8) for window in expected)


def test_the_sums_lack_the_time_that_is_not_known_and_no_more(tmp_path: Path) -> None:
    sums = trace_of(tmp_path / "trace", without(2, 8)).tree().groupby("func_id")[["total_ns", *PARTS, "unknown_ns"]].sum()
    assert sums.loc[0].tolist() == [480, 230 - 60, 80 - 10 - 40, 70, 100 - 50, 60 + 100]
    assert sums.loc[2].tolist() == [110, *KNOWN[2], 0]


def test_nothing_of_another_thread_is_unknown(tmp_path: Path) -> None:
    others = [(*each[:2], 9, *each[3:]) for each in WHOLE]
    path = write_trace(
        tmp_path / "trace", events=[*events(8), *events(9)], sched=sorted([*without(2, 3, 8), *others]), start_ns=0, end_ns=500,
        losses=[("thread_map", 0, 500, 11), ("sched_waking", 100, 160, 1, 7, 8)],
    )  # fmt: skip
    assert split(pytrace_ebpf.open(path), 9) == KNOWN


def test_who_is_woken_while_it_leaves_its_core_waits_for_one(tmp_path: Path) -> None:
    sched = [row(0, IN), row(99, WAKING), row(100, OUT, 1, FUTEX, GIL[0]), row(160, IN)]
    trace = trace_of(tmp_path / "trace", sched)
    assert split(trace)[1] == [100, 60, 0, 0]
    wait = trace.waits().iloc[0]
    assert (wait["kind"], wait["start_ns"], wait["blocked_until_ns"], wait["end_ns"], wait["waker_tid"]) == ("gil", 100, 100, 160, 3)
    assert Missing().found(table_of("sched", sched), None).num_rows == 0


def test_who_is_woken_on_its_core_and_blocks_later_is_blocked(tmp_path: Path) -> None:
    sched = [row(0, IN), row(60, WAKING), row(100, OUT, 1, READ, 5), row(150, WAKING), row(160, IN)]
    assert split(trace_of(tmp_path / "trace", sched))[1] == [100, 10, 0, 50]


def test_the_wait_says_that_its_wake_up_was_not_seen(tmp_path: Path) -> None:
    waits = trace_of(tmp_path / "trace", without(2, 5)).waits().set_index("start_ns")
    assert waits["kind"].astype(str).to_dict() == {100: "io-read", 200: "gil", 300: "preempted", 400: "io-read"}
    assert waits["blocked_until_ns"].isna().to_dict() == {100: True, 200: True, 300: False, 400: False}
    assert (waits["waker_tid"][[100, 200]] == 0).all() and waits["waker_tid"][400] == 3


def test_where_events_were_lost_none_is_missing() -> None:
    lost = table_of("losses", [("sched_ring", 110, 155, 1)])
    assert Missing().found(table_of("sched", without(2)), lost).num_rows == 0


def test_the_collector_writes_them_and_counts_them() -> None:
    collector = Collector(0)
    columns = {
        name: np.array(values) for name, values in zip(TABLES["sched"].arrow.names, zip(*((*r, -1, 0) for r in without(2)), strict=True), strict=True)
    }
    collector.add({"sched": [columns]})
    collector.drained_ns = 10_000_000
    _, _, tables = collector.cut()
    assert tables["losses"].to_pylist() == [{"class": "sched_waking", "start_ns": 100, "end_ns": 160, "count": 1, "pid": 7, "tid": 8}]
    assert collector.lost["sched_waking"] == 1


def test_a_thread_that_exits_is_forgotten() -> None:
    missing = Missing()
    missing.found(table_of("sched", [row(0, FORK), row(1, WAKING), row(2, IN), row(3, EXIT), row(4, OUT, 64)]), None)
    assert not missing._last
