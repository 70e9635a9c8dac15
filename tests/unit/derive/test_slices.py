"""A wait in slices is one wait: numbered as they come, and one row where waits are counted, which ends by what ended the last."""

from pathlib import Path

import pandas as pd
import pytest

import pytrace_ebpf
from pytrace_ebpf.analyze.waits.by_wait import WAITS, by_wait
from pytrace_ebpf.analyze.waits.whole import whole_waits
from pytrace_ebpf.trace.reader import Trace
from tests.unit.synthetic import SAMPLE_FUNCTIONS, Script, write_trace

MS = 1_000_000
POLL, RECVFROM = 7, 45


def trace_of(path: Path, script: Script, cuts: tuple[int, ...] = ()) -> Trace:
    return pytrace_ebpf.open(write_trace(path, events=script.events, sched=script.sched, functions=SAMPLE_FUNCTIONS, cuts=cuts))


def sliced() -> Script:
    """Waits for 350 ms in slices of 100 ms; each time looks at the clock for 50 us. Thread 9 ends it."""
    script = Script(7, 7, now=10).snapshot().enter(5)
    for _ in range(3):
        script.wait(100 * MS, syscall=POLL, address=4096, resource=3, by_timer=True).run(50_000)
    return script.wait(50 * MS, syscall=POLL, address=4096, resource=3, waker=9).run(MS).leave()


@pytest.mark.parametrize("cuts", [(), (150 * MS,), (99 * MS, 150 * MS, 250 * MS, 305 * MS)])
def test_slices_are_numbered_wherever_segments_are_cut(tmp_path: Path, cuts: tuple[int, ...]) -> None:
    trace = trace_of(tmp_path, sliced(), cuts)
    waits = trace.waits()
    assert waits["slices"].tolist() == [1, 2, 3, 4]
    calls = trace.calls()
    assert (waits["end_ns"] - waits["start_ns"]).sum() == int(calls["runq_wait_ns"].iloc[0]) + int(calls["blocked_ns"].iloc[0])


def test_they_are_one_wait_of_a_report(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, sliced())
    table = by_wait(trace.waits_by_part(WAITS), trace.threads(), trace.neighbours(), trace.resources())
    row = table.iloc[0]
    assert (len(table), row["waits"], row["partner_tid"]) == (1, 1, 9)
    assert row["total_ns"] == row["longest_ns"] == 350 * MS + 4 * 5_000 and row["queued_ns"] == 4 * 5_000


@pytest.mark.parametrize("size", [1, 2, 3, 10])
def test_parts_of_any_size_are_joined_alike(tmp_path: Path, size: int) -> None:
    waits = trace_of(tmp_path, sliced()).waits()
    parts = [waits.iloc[at : at + size].reset_index(drop=True) for at in range(0, len(waits), size)]
    whole = pd.concat(whole_waits(parts), ignore_index=True)
    assert len(whole) == 1 and whole["slices"][0] == 4 and whole["waker_tid"][0] == 9
    assert whole["end_ns"][0] - whole["start_ns"][0] == (waits["end_ns"] - waits["start_ns"]).sum()


@pytest.mark.parametrize(
    "between",
    [
        lambda script: script.run(30 * MS),  # it computed
        lambda script: script.leave().run(1000).enter(2),  # another function
    ],
)
def test_what_comes_after_something_else_is_another_wait(tmp_path: Path, between) -> None:  # type: ignore[no-untyped-def]
    script = Script(7, 7, now=10).snapshot().enter(5).wait(100 * MS, syscall=POLL, address=4096, resource=3, by_timer=True)
    between(script)
    script.wait(100 * MS, syscall=POLL, address=4096, resource=3, by_timer=True).run(MS).leave()
    assert set(trace_of(tmp_path, script).waits()["slices"]) == {1}


def test_who_loses_its_core_between_slices_waits_on(tmp_path: Path) -> None:
    script = Script(7, 7, now=10).snapshot().enter(5).wait(100 * MS, syscall=POLL, address=4096, resource=3, by_timer=True)
    script.run(1000).preempted(20_000, by=8).wait(100 * MS, syscall=POLL, address=4096, resource=3, by_timer=True).run(MS).leave()
    trace = trace_of(tmp_path, script)
    assert trace.waits()["slices"].tolist() == [1, 1, 2]
    table = by_wait(trace.waits_by_part(WAITS), trace.threads(), trace.neighbours(), trace.resources())
    assert sorted(zip(table["kind"], table["waits"], strict=True)) == [("poll", 1), ("preempted", 1)]


@pytest.mark.parametrize("second", [{"syscall": RECVFROM, "resource": 3}, {"syscall": POLL, "address": 4096, "resource": 4}])
def test_what_is_for_something_else_is_another_wait(tmp_path: Path, second: dict[str, int]) -> None:
    script = (
        Script(7, 7, now=10)
        .snapshot()
        .enter(5)
        .wait(100 * MS, syscall=POLL, address=4096, resource=3, by_timer=True)
        .run(1000)
        .wait(100 * MS, **second)
        .leave()
    )
    assert trace_of(tmp_path, script).waits()["slices"].tolist() == [1, 1]


def test_what_a_device_ended_is_over(tmp_path: Path) -> None:
    """As an answer from another host."""
    script = Script(7, 7, now=10).snapshot().enter(5).wait(100 * MS, syscall=POLL, address=4096, resource=3).run(1000)
    script.wait(100 * MS, syscall=POLL, address=4096, resource=3).leave()
    assert trace_of(tmp_path, script).waits()["slices"].tolist() == [1, 1]


def test_what_somebody_ended_is_over(tmp_path: Path) -> None:
    script = Script(7, 7, now=10).snapshot().enter(5).wait(100 * MS, syscall=POLL, address=4096, resource=3, waker=9).run(1000)
    script.wait(100 * MS, syscall=POLL, address=4096, resource=3, by_timer=True).leave()
    assert trace_of(tmp_path, script).waits()["slices"].tolist() == [1, 1]
