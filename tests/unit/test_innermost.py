"""The innermost open call agrees with a slow walk, on whole tables and part by part."""

import random
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from synthetic import Row, Script, sample, write_trace

import pytrace_ebpf
from pytrace_ebpf.analyze.innermost import COLUMNS, innermost, innermost_in
from tests.unit.callrows import frame, random_calls


def walked(calls: pd.DataFrame, tid: int, ts: int) -> int:
    """The deepest call of the thread with start <= ts < end."""
    open_ = calls[(calls["tid"] == tid) & (calls["start_ns"] <= ts) & (ts < calls["end_ns"])]
    return int(open_.sort_values("depth")["call_id"].iloc[-1]) if len(open_) else -1


@pytest.mark.parametrize("seed", range(12))
def test_as_a_walk_says(seed: int) -> None:
    calls = frame({tid: random_calls(seed * 10 + tid) for tid in (3, 1, 2)}, stride=1 + seed % 2)
    calls = calls.sample(frac=1, random_state=seed, ignore_index=True)
    dice = random.Random(seed)
    edges = [*calls["start_ns"], *calls["end_ns"]]
    moments = [(dice.choice((1, 2, 3, 4)), dice.choice(edges) + dice.randrange(-1, 2)) for _ in range(300)]
    tid, ts = (np.array(column) for column in zip(*moments, strict=True))
    expected = [walked(calls, *moment) for moment in moments]
    assert innermost(calls, np.full(300, 10), tid, ts).tolist() == expected
    assert set(innermost(calls, np.full(300, 11), tid, ts)) == {-1}


def test_at_its_start_a_call_and_at_its_end_its_caller(tmp_path: Path) -> None:
    script = Script(7, 7, now=10).snapshot().enter(0).run(5).enter(1).run(5).leave().run(5).leave()
    calls = pytrace_ebpf.open(write_trace(tmp_path, events=script.events, sched=script.sched)).calls()
    outer, inner = calls["call_id"]
    found = innermost(calls, np.full(6, 7), np.full(6, 7), np.array([9, 10, 14, 15, 20, 25]))
    assert found.tolist() == [-1, outer, outer, inner, outer, -1]


def test_nothing_of_nothing(tmp_path: Path) -> None:
    trace = pytrace_ebpf.open(write_trace(tmp_path))
    none = np.zeros(0, np.int64)
    assert innermost_in(trace, none, none, none).tolist() == []
    assert innermost_in(trace, none + 7, np.zeros(0), none).dtype == np.int64
    assert innermost_in(trace, *np.ones((3, 2), np.int64)).tolist() == [-1, -1]


def deep_events() -> list[Row]:
    """Calls that stay open over many segments, with short ones below."""
    dice, script = random.Random(5), Script(7, 7, now=10)
    for _ in range(400):
        script.run(dice.randrange(4))
        if script.stack and dice.random() < 0.45:
            script.leave()
        else:
            script.enter(dice.randrange(3))
    return script.events


@pytest.mark.parametrize("cuts", [(), tuple(range(50, 600, 50)), tuple(range(30, 600, 7))])
def test_part_by_part(tmp_path: Path, cuts: tuple[int, ...]) -> None:
    events = deep_events()
    trace = pytrace_ebpf.open(write_trace(tmp_path, events=events, cuts=[c for c in cuts if c < events[-1][0]]))
    calls = trace.calls()
    ts = np.random.default_rng(1).permutation(np.arange(0, events[-1][0] + 20))
    seven = np.full(len(ts), 7)
    assert innermost_in(trace, seven, seven, ts).tolist() == [walked(calls, 7, t) for t in ts.tolist()]


def test_threads_of_a_real_looking_trace(tmp_path: Path) -> None:
    trace = pytrace_ebpf.open(sample(tmp_path))
    calls = trace.calls(columns=list(COLUMNS))
    middle = ((calls["start_ns"] + calls["end_ns"]) // 2).to_numpy()
    found = innermost_in(trace, calls["pid"], calls["tid"], middle)
    assert found.tolist() == [walked(calls, tid, ts) for tid, ts in zip(calls["tid"], middle, strict=True)]
