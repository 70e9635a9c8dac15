"""For whom a thread without Python works, against schedules made up to be read by eye."""

import random
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pytrace_ebpf
from pytrace_ebpf.derive.calls import workers
from pytrace_ebpf.derive.calls.workers import Woken
from pytrace_ebpf.derive.scheduling.curve import Curve
from pytrace_ebpf.trace.schema import CallKind, SchedKind
from tests.unit.synthetic import SAMPLE_FUNCTIONS, Row, write_trace

PID, PYTHON, OTHER = 10, 10, 11  # two threads that make calls
KEYS = np.array([PID << 32 | PYTHON, PID << 32 | OTHER])


def masters(events: list[tuple[int, int, SchedKind, int]], slices: list[tuple[int, int]]) -> list[int]:
    """For each slice (worker's tid, start) its master's tid, 0 for none; `events` are (ts, tid, kind, other_tid)."""
    sched = pd.DataFrame(events, columns=["ts", "tid", "kind", "other_tid"]).assign(pid=PID)
    tid, start = np.array(slices).T
    found = Woken(*np.zeros((3, 0), np.int64)).and_those_of(sched, KEYS).master_at(PID << 32 | tid, start)
    return [max(int(key), 0) & 0xFFFFFFFF for key in found]


def test_a_worker_works_for_whoever_woke_it_last() -> None:
    events = [(5, 20, SchedKind.FORK, PYTHON), (50, 20, SchedKind.WAKING, OTHER), (90, 20, SchedKind.WAKING, 0)]
    assert masters(events, [(20, 6), (20, 30), (20, 52), (20, 91)]) == [PYTHON, PYTHON, OTHER, 0]


def test_through_other_workers() -> None:
    events = [
        (5, 20, SchedKind.WAKING, PYTHON),
        (10, 21, SchedKind.WAKING, 20),
        (15, 22, SchedKind.WAKING, 21),
        (20, 20, SchedKind.WAKING, 22),
    ]
    assert masters(events, [(22, 16), (20, 21)]) == [PYTHON, PYTHON]


def test_before_it_was_woken_it_worked_for_nobody() -> None:
    assert masters([(50, 20, SchedKind.WAKING, PYTHON)], [(20, 10), (30, 10)]) == [0, 0]


def test_two_that_wake_each_other_at_one_moment_end_the_search() -> None:
    events = [(5, 20, SchedKind.WAKING, 21), (5, 21, SchedKind.WAKING, 20), (5, 22, SchedKind.WAKING, 20)]
    assert masters(events, [(20, 6)]) == [0]


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 50)), min_size=1), st.lists(st.integers(-10, 200)))
def test_the_curve_is_the_sum_of_the_slices(slices: list[tuple[int, int]], moments: list[int]) -> None:
    start = np.array([start for start, _ in slices])
    end = start + np.array([length for _, length in slices])
    at = np.array(moments, np.int64)
    expected = np.clip(at[:, None] - start, 0, end - start).sum(axis=1)
    assert (Curve.of(start, end).at(at) == expected).all()


def lives(dice: random.Random) -> list[Row]:
    """Switches of four workers, which wake each other and are woken by the two that make calls, or by nobody."""
    rows: list[Row] = []
    for worker in range(20, 24):
        now = 0
        while now < 900:
            waker = dice.choice([PYTHON, OTHER, 20, 21, 22, 23, 0])
            now += dice.randrange(1, 40)
            rows.append((now, PID, worker, SchedKind.WAKING, 0, 0, -1, 0, PID if waker else 0, waker))
            now += dice.randrange(1, 5)
            rows.append((now, PID, worker, SchedKind.IN, 0, 0, -1, 0, 0, 0))
            if dice.random() < 0.3:  # woken while it has its core
                rows.append((now + 1, PID, worker, SchedKind.WAKING, 0, 0, -1, 0, PID, dice.choice([PYTHON, OTHER])))
            now += dice.randrange(2, 150)
            rows.append((now, PID, worker, SchedKind.OUT, 0, 1, -1, 0, 0, 0))
    return sorted(rows)


def walked(rows: list[Row]) -> list[tuple[int, int, int]]:
    """(start, end, master) of each time that a worker had a core, one row after the other."""
    last: dict[int, list[tuple[int, int]]] = {worker: [(-1, 0)] for worker in range(20, 24)}
    on: dict[int, tuple[int, int]] = {}
    found = []
    for ts, _, worker, kind, *_, other in rows:
        if kind == SchedKind.WAKING:
            behind = other if other in (PYTHON, OTHER) else next((m for at, m in reversed(last.get(other, [])) if at < ts), 0)
            last[worker].append((ts, behind))
        elif kind == SchedKind.IN:
            on[worker] = (ts, last[worker][-1][1])
        else:
            start, master = on.pop(worker)
            found.append((start, ts, master))
    return found


@pytest.mark.parametrize("seed", range(6))
def test_what_workers_had_is_what_a_walk_finds_wherever_segments_are_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    dice, events = random.Random(seed), list[Row]()
    for tid in (PYTHON, OTHER):
        for at in range(0, 1000, 100):
            start = at + dice.randrange(50)
            events += [(start, PID, tid, CallKind.ENTRY, 0, 1, 1), (start + dice.randrange(1, 50), PID, tid, CallKind.RETURN, 0, 1, 1)]
    rows = lives(dice)
    had = walked(rows)
    rows = sorted([(0, PID, tid, SchedKind.SNAPSHOT, 0, 0, -1, 0, 0, 0) for tid in (PYTHON, OTHER)] + rows)
    monkeypatch.setattr(workers, "_AT_ONCE", 1)
    path = write_trace(
        tmp_path / "t", events=sorted(events), sched=rows, functions=SAMPLE_FUNCTIONS, cuts=sorted(dice.sample(range(1, 1000), 7)), end_ns=1100
    )
    calls = pytrace_ebpf.open(path).calls(["tid", "start_ns", "end_ns", workers.COLUMN])
    assert calls[workers.COLUMN].sum() > 0 and len(calls) == 20
    for tid, start, end, spent in calls.itertuples(index=False):
        assert spent == sum(max(0, min(end, went) - max(start, came)) for came, went, master in had if master == tid)
