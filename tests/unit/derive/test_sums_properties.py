"""Sums hold whatever a program did and whatever of it was lost: thousands of threads, recursion, generators, ids at the top of their range."""

import random
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import pytrace_ebpf
from pytrace_ebpf.trace.schema import CallKind
from tests.sums_hold import assert_reports_agree, assert_sums_hold
from tests.unit.synthetic import GIL, Row, Script, sample, write_trace

SECOND = 10**9
FUNCTIONS = 60
LOST = ("nothing", "single", "bursts", "windows", "reported")
TOP_TID = 2**31 - 1


def functions() -> list[Row]:
    """FUNCTIONS functions in ten modules, one in six of them native."""
    layers = {4: "operator", 5: "blas"}
    rows: list[Row] = []
    for i in range(FUNCTIONS):
        layer = layers.get(i % 6, "python") if i > 20 else "python"
        rows.append((i, f"/app/m{i % 10}.py", f"f{i}", f"f{i}", i + 1, f"m{i % 10}", 0, layer))
    return rows


class Thread:
    """One thread's life at random: calls that recur, generators that yield and go on, and scheduling that fits them."""

    def __init__(self, rng: random.Random, pid: int, tid: int, start_ns: int) -> None:
        self.rng, self.tid = rng, tid
        self.script = Script(pid, tid, cpu=rng.randrange(8), now=start_ns)
        self.sleeping: list[tuple[int, int]] = []
        if rng.random() < 0.95:
            self.script.snapshot()

    def live(self, steps: int) -> "Thread":
        rng, script = self.rng, self.script
        for _ in range(steps):
            script.run(rng.choice((0, 1, 40, 1000)))
            choice = rng.random()
            if choice < 0.45:
                recurs = script.stack and rng.random() < 0.5
                script.enter(script.stack[-1][0] if recurs else rng.randrange(-1, FUNCTIONS), self.frame())
            elif choice < 0.55:
                self.resume()
            elif choice < 0.9 and script.stack:
                self.leave()
            elif choice < 0.95:
                script.wait(rng.choice((1, 500)), queued=rng.choice((0, 30)), cpu=rng.randrange(8))
            else:
                rng.choice((script.gil, lambda ns: script.preempted(ns, by=1)))(rng.choice((1, 700)))
        if rng.random() < 0.7:
            while script.stack:
                self.leave()
        return self

    def frame(self) -> int:
        """As on a stack: decided by depth alone."""
        return 100_000 * (self.tid % 1000) + 1 + len(self.script.stack)

    def resume(self) -> None:
        script = self.script
        if self.sleeping and self.rng.random() < 0.7:
            func, frame = self.sleeping.pop()
            script.stack.append((func, frame))
            script.events.append((script.now, script.pid, script.tid, int(CallKind.RESUME), func, frame, 1))
        else:
            script.enter(self.rng.randrange(20), 2**31 + 1000 * (self.tid % 1000) + len(script.events))

    def leave(self) -> None:
        script = self.script
        func, frame = script.stack[-1]
        if frame > 2**31 and self.rng.random() < 0.6:
            self.sleeping.append(script.stack.pop())
            script.events.append((script.now, script.pid, script.tid, int(CallKind.YIELD), func, frame, 1))
        else:
            script.leave()


def half_lost(rng: random.Random, rows: list[Row], how: str) -> tuple[list[Row], list[Row]]:
    """About half of the rows, and the `losses` that were reported: single rows are lost, or bursts, or windows of time of all threads."""
    if how in ("windows", "reported"):
        start, end = min(r[0] for r in rows), max(r[0] for r in rows)
        width = max(1, (end - start) // 12)
        gone = {k for k in range(13) if rng.random() < 0.5}
        kept = [r for r in rows if (r[0] - start) // width not in gone]
        windows = [("call_ring", start + k * width, start + (k + 1) * width - 1, 3) for k in sorted(gone)]
        return kept, windows if how == "reported" else []
    kept, lost = [], False
    for row in rows:
        lost = lost != (rng.random() < (0.05 if how == "bursts" else 0.5))
        if not lost or how == "nothing":
            kept.append(row)
    return kept, []


def program(seed: int, how: str, threads: int, steps: int) -> dict[str, Any]:
    """Arguments of write_trace: so many threads of two processes, their numbers up to the highest there are."""
    rng = random.Random(seed)
    lives = [Thread(rng, 4000 + k % 2, TOP_TID - threads + k + 1, SECOND + rng.randrange(5_000)).live(rng.randrange(steps)) for k in range(threads)]
    events = [row for life in lives for row in life.script.events] or [(SECOND, 4000, TOP_TID, 0, 0, 1, 1)]
    events, losses = half_lost(rng, events, how)
    end = max(life.script.now for life in lives) + 100
    return {
        "events": events,
        "sched": sorted((row for life in lives for row in life.script.sched), key=lambda r: r[0]),
        "functions": functions(),
        "threads": [(life.script.pid, life.tid, f"t{life.tid}", SECOND, None) for life in lives],
        "processes": [(pid, 1, "python3", "python3", "3.11.2", "usdt", *GIL, SECOND, None) for pid in (4000, 4001)],
        "losses": losses,
        "start_ns": SECOND,
        "end_ns": end,
        "cuts": sorted(rng.sample(range(SECOND + 1, end), rng.randrange(3))),
    }


def at_the_top(calls: pd.DataFrame) -> pd.DataFrame:
    """The same calls with the highest ids there can be: the last thread's end just below 2**63."""
    shift = 2**63 - 1 - int(calls["call_id"].max())
    ids = ("call_id", "parent_id", "last_descendant_id", "next_sibling_id")
    return calls.assign(**{name: np.where(calls[name] == -1, -1, calls[name] + shift) for name in ids})


def apart(calls: pd.DataFrame) -> pd.DataFrame:
    """The same with the threads' ids spread over the whole range."""
    thread = calls.groupby(["pid", "tid"], sort=True)
    number, first = thread.ngroup().to_numpy(), thread["call_id"].transform("min").to_numpy()
    shift = number * (2**62 // (int(number.max()) + 1)) * 2 - first
    ids = ("call_id", "parent_id", "last_descendant_id", "next_sibling_id")
    return calls.assign(**{name: np.where(calls[name] == -1, -1, calls[name] + shift) for name in ids})


def traced(rows: dict[str, Any], folder: str) -> Any:
    return pytrace_ebpf.open(write_trace(Path(folder) / "trace", **rows))


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2**40), st.sampled_from(LOST))
def test_sums_hold_of_a_few_long_threads(seed: int, how: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        trace = traced(program(seed, how, threads=4, steps=300), folder)
        if len(trace.calls()):
            assert_sums_hold(trace)
            assert_sums_hold(trace, at_the_top(trace.calls()))


@pytest.mark.parametrize("how", LOST)
def test_sums_hold_of_thousands_of_threads(tmp_path: Path, how: str) -> None:
    trace = traced(program(7, how, threads=2_000, steps=30), str(tmp_path))
    calls = assert_sums_hold(trace)
    assert calls[["pid", "tid"]].drop_duplicates().shape[0] > 1_000
    assert_sums_hold(trace, at_the_top(calls))
    assert_sums_hold(trace, apart(calls))
    assert_reports_agree(trace)


def test_sums_hold_of_the_sample(tmp_path: Path) -> None:
    trace = pytrace_ebpf.open(sample(tmp_path / "trace"))
    assert_sums_hold(trace)
    assert_reports_agree(trace)


def test_a_stack_deeper_than_any_limit(tmp_path: Path) -> None:
    script = Script(4000, 4000, now=SECOND).snapshot()
    for depth in range(20_000):
        script.enter(depth % 7, depth + 1).run(3)
    while script.stack:
        script.run(2).leave()
    rows = {"events": script.events, "sched": script.sched, "functions": functions(), "start_ns": SECOND}
    calls = assert_sums_hold(traced(rows, str(tmp_path)))
    assert len(calls) == 20_000 and calls["depth"].max() == 19_999


def test_the_programs_need_no_repair_until_events_are_lost() -> None:
    """Or the tests above would show nothing of losses."""
    repaired = {}
    for how in ("nothing", "single"):
        with tempfile.TemporaryDirectory() as folder:
            repaired[how] = int((traced(program(3, how, threads=20, steps=200), folder).calls()["status"] == "repaired").sum())
    assert repaired["nothing"] == 0 and repaired["single"] > 100
