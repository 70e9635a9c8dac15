"""What calls and threads get of CPU time, where no switches were recorded."""

import random
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import pytrace_ebpf
from pytrace_ebpf.trace.schema import CallKind
from tests.unit.synthetic import Row, write_trace

MS = 1_000_000
EDGE_NS = 1_000_000_000  # of rebuild/curve.c
CPUTIME = {"scheduling": {"source": "cputime", "why": "perf was refused"}}
NEVER = ["gil_wait_ns", "blocked_ns", "first_cpu", "last_cpu", "migrations", "preemptions", "waits"]


def call(start: int, end: int, func: int = 0, tid: int = 7) -> list[Row]:
    frame = 1000 + func
    return [(start, 7, tid, int(CallKind.ENTRY), func, frame, 1), (end, 7, tid, int(CallKind.RETURN), func, frame, 2)]


def calls(path: Path, events: list[Row], samples: list[tuple[int, int, int | None]], **more: Any) -> pd.DataFrame:
    """Calls of thread 7; samples: (ts, on_cpu_ns, runq_wait_ns)."""
    events = sorted(events, key=lambda r: r[0])
    rows = [(ts, 7, 7, *values) for ts, *values in samples]
    trace = pytrace_ebpf.open(write_trace(path, events=events, cputime=rows, manifest=CPUTIME, **more))
    return trace.calls()


CURVE = [(0, 0, 0), (10 * MS, 10 * MS, 0), (20 * MS, 10 * MS, 5 * MS), (30 * MS, 15 * MS, 10 * MS)]


@pytest.mark.parametrize(
    ("start", "end", "on_cpu", "queued"),
    [(0, 30, 15, 10), (2, 8, 6, 0), (5, 15, 5, 2.5), (12, 18, 0, 3), (20, 24, 2, 2), (25, 60, 17.5, 17.5)],
)
def test_a_call_gets_its_share_of_the_curve(tmp_path: Path, start: int, end: int, on_cpu: float, queued: float) -> None:
    row = calls(tmp_path, call(start * MS, end * MS), CURVE).iloc[0]
    assert (row["on_cpu_ns"], row["runq_wait_ns"], row["self_on_cpu_ns"]) == (on_cpu * MS, queued * MS, on_cpu * MS)
    assert row[NEVER].isna().all()


def test_nothing_is_known_far_from_any_sample(tmp_path: Path) -> None:
    far = 30 * MS + EDGE_NS + MS
    frame = calls(tmp_path, call(MS, far) + call(2 * MS, 3 * MS, 1) + call(far - 10, far - 5, 2), CURVE)
    assert frame["on_cpu_ns"].isna().tolist() == [True, False, True]
    assert frame["self_on_cpu_ns"].isna().tolist() == [True, False, True]


@pytest.mark.parametrize("samples", [[], [(5 * MS, 3 * MS, 0)]])
def test_fewer_than_two_samples_say_nothing(tmp_path: Path, samples: list[tuple[int, int, int | None]]) -> None:
    frame = calls(tmp_path, call(MS, 9 * MS), samples)
    assert frame[["on_cpu_ns", "runq_wait_ns", "self_on_cpu_ns", *NEVER]].isna().all(axis=None)


def test_a_thread_that_goes_unsampled_for_many_segments(tmp_path: Path) -> None:
    """Between its samples it is known for EDGE_NS, then unknown, and known again from its next samples on."""
    second = 1000 * MS
    samples = [(0, 0, 0), (100 * MS, 50 * MS, 0), (8 * second, 60 * MS, 0), (8 * second + 100 * MS, 160 * MS, 0)]
    begins = [20 * MS, second, 3 * second, 6 * second, 8 * second + 20 * MS]
    events = [row for ts in begins for row in call(ts, ts + 40 * MS)]
    frame = calls(tmp_path, events, samples, cuts=[k * second for k in range(1, 9)], end_ns=9 * second)
    assert frame["on_cpu_ns"].astype(object).where(frame["on_cpu_ns"].notna(), None).tolist() == [20 * MS, 20 * MS, None, None, 40 * MS]


def test_queue_time_that_the_kernel_does_not_count_is_null(tmp_path: Path) -> None:
    frame = calls(tmp_path, call(MS, 9 * MS), [(0, 0, None), (10 * MS, 5 * MS, None)])
    assert frame["on_cpu_ns"].tolist() == [4 * MS]
    assert frame["runq_wait_ns"].isna().all()


def test_never_more_than_the_wall_time(tmp_path: Path) -> None:
    frame = calls(tmp_path, call(MS, 3 * MS), [(0, 0, 0), (4 * MS, 8 * MS, 8 * MS)])
    assert frame[["on_cpu_ns", "runq_wait_ns"]].values.tolist() == [[2 * MS, 0]]


@pytest.mark.parametrize("seed", range(20))
def test_where_segments_are_cut_does_not_matter_and_children_fit_their_parents(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    now, events, stack = 0, [], []
    while now < 300 * MS or stack:
        now += rng.randrange(1, 9 * MS)
        if stack and (rng.random() < 0.5 or now >= 300 * MS):
            events.append((now, 7, 7, int(CallKind.RETURN), *stack.pop(), 2))
        else:
            stack.append((rng.randrange(4), len(events) + 1))
            events.append((now, 7, 7, int(CallKind.ENTRY), *stack[-1], 1))
    samples, on_cpu, queued = [], 0, 0
    for ts in range(0, now + 40 * MS, 20 * MS):
        samples.append((ts + rng.randrange(MS), on_cpu, queued))
        on_cpu, queued = on_cpu + rng.randrange(15 * MS), queued + rng.randrange(4 * MS)
    end = now + 50 * MS
    whole = calls(tmp_path / "whole", events, samples, end_ns=end)
    cuts = list(range(60 * MS, end, 60 * MS))
    pd.testing.assert_frame_equal(calls(tmp_path / "cut", events, samples, end_ns=end, cuts=cuts), whole)
    assert whole["on_cpu_ns"].between(0, whole["wall_ns"]).all()
    assert (whole["on_cpu_ns"] + whole["runq_wait_ns"] <= whole["wall_ns"]).all()
    below = whole.groupby("parent_id")["on_cpu_ns"].sum().reindex(whole["call_id"], fill_value=0).to_numpy()
    assert (whole["self_on_cpu_ns"] == whole["on_cpu_ns"] - below).all()
    assert (whole["self_on_cpu_ns"] >= 0).all()
