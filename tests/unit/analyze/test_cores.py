"""How a program used its cores, on schedules made up to be added up by hand."""

from pathlib import Path

import pandas as pd
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import pytrace_ebpf
from pytrace_ebpf.analyze.time import cores
from pytrace_ebpf.analyze.time.by_core import by_core
from pytrace_ebpf.derive import feed
from pytrace_ebpf.derive.scheduling import split
from pytrace_ebpf.derive.scheduling.trace_timeline import timeline_of
from pytrace_ebpf.derive.sinks.cores import sums_of
from pytrace_ebpf.trace.reader import Trace
from tests.unit import cores_reference
from tests.unit.derive.test_calls_properties import SCENARIOS, all_reported, seeds, story
from tests.unit.synthetic import sample, write_trace

TIMELINE = pd.DataFrame(
    # Thread 1 is on core 0, moves to core 1; thread 2 is on core 1 and then, while 1 has it, off.
    [(7, 1, 0, 40, "on_cpu", 0), (7, 1, 40, 50, "runq_wait", 1), (7, 1, 50, 100, "on_cpu", 1), (7, 2, 10, 50, "on_cpu", 1), (7, 2, 50, 100, "blocked", 1)],
    columns=["pid", "tid", "start_ns", "end_ns", "state", "cpu"],
)  # fmt: skip
# main(0..100) calls step(20..30) on core 0, step(35..60) across the move; thread 2: other(10..50).
CALLS = pd.DataFrame(
    [
        (1, -1, 3, 7, 1, 10, 0, 100, 90, 65, 0, 1),
        (2, 1, 2, 7, 1, 11, 20, 30, 10, 10, 0, 0),
        (3, 1, 3, 7, 1, 11, 35, 60, 15, 15, 0, 1),
        (4, -1, 4, 7, 2, 12, 10, 50, 40, 40, 1, 0),
    ],
    columns=["call_id", "parent_id", "last_descendant_id", "pid", "tid", "func_id", "start_ns", "end_ns", "on_cpu_ns", "self_on_cpu_ns", "first_cpu", "migrations"],
).assign(wall_ns=lambda c: c["end_ns"] - c["start_ns"], outermost=True)  # fmt: skip
CALLS = CALLS.astype({"on_cpu_ns": "Int64", "self_on_cpu_ns": "Int64", "first_cpu": "Int16", "migrations": "Int32"})


def test_so_many_cores_for_so_long() -> None:
    spent = cores.parallelism(TIMELINE, 0, 110)
    assert dict(zip(spent["cores"], spent["ns"], strict=True)) == {0: 10 + 0, 1: 10 + 10 + 50, 2: 30}
    assert spent["ns"].sum() == 110


def test_cores_busy_within_a_call() -> None:
    assert cores_reference.busy_ns(CALLS, TIMELINE).tolist() == [130, 20, 5 + 15 + 10, 70]


def test_each_function_has_its_own_time_on_each_core() -> None:
    table = cores_reference.by_function(CALLS, TIMELINE)
    found = {(f, c): ns for f, c, ns in zip(table["func_id"], table["cpu"], table["self_on_cpu_ns"], strict=True) if ns}
    assert found == {(10, 0): 40 - 10 - 5, (10, 1): 50 - 10, (11, 0): 10 + 5, (11, 1): 10, (12, 1): 40}
    assert sum(found.values()) == split.on_cores(TIMELINE).eval("end_ns - start_ns").sum()
    assert table.set_index("func_id")["busy_cores"].drop_duplicates().round(3).to_dict() == {10: 1.3, 12: 1.75, 11: round(50 / 35, 3)}


def test_what_kept_threads_off_the_cores() -> None:
    waits = pd.DataFrame(
        [
            (1, 10, 0, 50, 60, "lock"), (1, 11, 60, 70, 90, "lock"), (2, 11, 0, 80, 90, "stop-the-world"), (2, 11, 95, 95, 120, "preempted"),
            (3, 10, 0, None, 100, "other"), (9, 10, 0, 100, 100, "lock"),
        ],
        columns=["tid", "func_id", "start_ns", "blocked_until_ns", "end_ns", "kind"],
    ).astype({"blocked_until_ns": "Int64"})  # fmt: skip
    off = cores.kept_off([waits[:2], waits[2:]], [9], 10, 110)
    found = {row["kind"]: (row["ns"], row["func_id"], row["func_ns"]) for row in off.to_dict("records")}
    assert found == {"other": (90, 10, 90), "stop-the-world": (70, 11, 70), cores.CORE: (55, 11, 45), "lock": (50, 10, 40)}
    assert not len(cores.kept_off([waits[:0]], [], 0, 1))


def test_who_moved_and_who_was_pushed() -> None:
    waits = pd.DataFrame(
        [(10, 40, 50, "preempted", 99, 0, 1), (11, 70, 75, "preempted", 2, 1, 1), (11, 80, 85, "preempted", 0, 1, 0), (-1, 1, 2, "lock", 2, 1, 0)],
        columns=["func_id", "start_ns", "end_ns", "kind", "waker_tid", "cpu_before", "cpu_after"],
    ).astype({"waker_tid": "Int32", "cpu_before": "Int16", "cpu_after": "Int16"})
    moved = cores.migrations([waits])
    assert sorted(moved.itertuples(index=False, name=None)) == [(-1, 1, 0, 1), (10, 0, 1, 1), (11, 1, 0, 1)]
    threads = pd.DataFrame({"pid": [7, 7], "tid": [1, 2], "name": ["a", "b"]})
    neighbours = pd.DataFrame({"pid": [98], "tid": [99], "name": ["hog"]})
    pushed = cores.preemptions([waits], threads, neighbours).set_index("tid")
    assert pushed["name"].fillna("?").to_dict() == {99: "hog", 2: "b", 0: "?"}
    assert pushed["ns"].to_dict() == {99: 10, 2: 5, 0: 5}
    assert pushed["traced"].to_dict() == {99: False, 2: True, 0: False}


def compared(trace: Trace) -> None:
    """What the pass finds is what the calls have, and on each core what the reference says."""
    timeline, calls = timeline_of(trace), trace.calls()
    sums, expected = sums_of(trace), cores_reference.by_function(calls, timeline)
    found, by_thread = sums.functions, by_core(timeline, trace.threads()).drop(columns="name")
    for one, other in ((sums.threads, by_thread), (sums.at_a_time, cores.parallelism(timeline, trace.start_ns, trace.end_ns).query("ns > 0"))):
        other = other.sort_values(list(other), ignore_index=True).astype("int64")
        pd.testing.assert_frame_equal(one[one.iloc[:, 1:].any(axis=1)].sort_values(list(one), ignore_index=True), other)
    own = calls[calls["first_cpu"].notna()].groupby("func_id")["self_on_cpu_ns"].sum()
    sums = found.groupby("func_id")["self_on_cpu_ns"].sum()
    assert sums[sums != 0].to_dict() == own[own != 0].to_dict()
    # Of a call that was begun later than it began, only the last core that was left is known, where no row of that is missing.
    late = calls["status"].isin(("repaired", "open_at_start", "in_loss")) & (calls["migrations"] > 0)
    if late.any() or expected["self_on_cpu_ns"].sum() != own.sum():  # the other: a snapshot is read by what follows it in its segment
        return
    by = ["func_id", "cpu"]
    expected["busy_cores"] = expected["busy_cores"].where(expected["func_id"].isin(trace.functions()["func_id"]))
    pd.testing.assert_frame_equal(
        found.sort_values(by, ignore_index=True), expected.sort_values(by, ignore_index=True), check_dtype=False, check_exact=True
    )


def test_the_pass_finds_what_the_calls_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = pytrace_ebpf.open(sample(tmp_path))
    table = sums_of(trace).functions
    assert len(table) > 8 and table["self_on_cpu_ns"].sum() == trace.calls()["self_on_cpu_ns"].sum()
    assert table.groupby("func_id")["cpu"].nunique().max() == 2
    for count in (1, 2, 3):
        monkeypatch.setattr(feed, "cores", lambda count=count: count)
        monkeypatch.setattr(feed, "_MANY", 0)
        for own in (trace, trace.window(1010_000_000, 1041_000_000), trace.window(tid=4001), trace.window(1030_500_000)):
            compared(own)


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(seeds, st.sampled_from([name for name in SCENARIOS if name != "perf"]))
@example(17601, "half")  # a call that was begun late takes its time from another core than it was on
def test_whatever_was_recorded(tmp_path_factory: pytest.TempPathFactory, seed: int, scenario: str) -> None:
    trace = pytrace_ebpf.open(write_trace(tmp_path_factory.mktemp("cores") / "trace", **all_reported(story(seed, scenario))))
    compared(trace)
    length = trace.end_ns - trace.start_ns
    compared(trace.window(trace.start_ns + length // 4, trace.start_ns + length // 2))
