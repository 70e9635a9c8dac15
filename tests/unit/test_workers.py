"""For whom a thread without Python works, against schedules made up to be read by eye."""

import numpy as np
import pandas as pd
from hypothesis import given
from hypothesis import strategies as st

from pytrace_ebpf.analyze.rebuilt.workers import worked_for
from pytrace_ebpf.analyze.time.curve import Curve
from pytrace_ebpf.trace.schema import SchedKind

PID, PYTHON, OTHER = 10, 10, 11  # two threads that make calls
KEYS = np.array([PID << 32 | PYTHON, PID << 32 | OTHER])


def masters(events: list[tuple[int, int, SchedKind, int]], slices: list[tuple[int, int, int]]) -> list[int]:
    """For each slice (tid, start, end) its master's tid, 0 for none; `events` are (ts, tid, kind, other_tid)."""
    sched = pd.DataFrame(events, columns=["ts", "tid", "kind", "other_tid"]).assign(pid=PID)
    timeline = pd.DataFrame(slices, columns=["tid", "start_ns", "end_ns"]).assign(pid=PID, state="on_cpu")
    found = worked_for(sched, timeline, KEYS)["master"].reindex(timeline.index, fill_value=0)
    return [int(key) & 0xFFFFFFFF for key in found]


def test_a_worker_works_for_whoever_woke_it_last() -> None:
    events = [(5, 20, SchedKind.FORK, PYTHON), (50, 20, SchedKind.WAKING, OTHER), (90, 20, SchedKind.WAKING, 0)]
    assert masters(events, [(20, 6, 20), (20, 30, 40), (20, 52, 60), (20, 91, 95)]) == [PYTHON, PYTHON, OTHER, 0]


def test_through_other_workers() -> None:
    events = [
        (5, 20, SchedKind.WAKING, PYTHON),
        (10, 21, SchedKind.WAKING, 20),
        (15, 22, SchedKind.WAKING, 21),
        (20, 20, SchedKind.WAKING, 22),
    ]
    assert masters(events, [(22, 16, 18), (20, 21, 30)]) == [PYTHON, PYTHON]


def test_before_it_was_woken_it_worked_for_nobody() -> None:
    assert masters([(50, 20, SchedKind.WAKING, PYTHON)], [(20, 10, 40), (30, 10, 40)]) == [0, 0]


def test_two_that_wake_each_other_at_one_moment_end_the_search() -> None:
    events = [(5, 20, SchedKind.WAKING, 21), (5, 21, SchedKind.WAKING, 20), (5, 22, SchedKind.WAKING, 20)]
    assert masters(events, [(20, 6, 7)]) == [0]


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 50)), min_size=1), st.lists(st.integers(-10, 200)))
def test_the_curve_is_the_sum_of_the_slices(slices: list[tuple[int, int]], moments: list[int]) -> None:
    start = np.array([start for start, _ in slices])
    end = start + np.array([length for _, length in slices])
    at = np.array(moments, np.int64)
    expected = np.clip(at[:, None] - start, 0, end - start).sum(axis=1)
    assert (Curve.of(start, end).at(at) == expected).all()
