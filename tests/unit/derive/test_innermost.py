"""The innermost open call agrees with a slow walk over the rows of calls, whatever was lost and wherever segments end."""

import random
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import pytrace_ebpf
from tests.unit.derive.test_calls_properties import PID, SCENARIOS, seeds, story
from tests.unit.innermost import innermost
from tests.unit.synthetic import Row, Script, sample, write_trace


def walked(calls: pd.DataFrame, moments: Iterable[tuple[int, int]]) -> list[int]:
    """For each (tid, ts) the deepest call of the thread with start <= ts < end."""
    rows = calls[["depth", "call_id", "tid", "start_ns", "end_ns"]].to_numpy().tolist()
    return [
        max(((depth, call) for depth, call, of, start, end in rows if of == tid and start <= ts < end), default=(0, -1))[1] for tid, ts in moments
    ]


def climbed(calls: dict[int, tuple[int, int]], call: int, library: list[bool]) -> tuple[int, int]:
    """The outermost function of the library that a call is in, with none of another's between, and the function above it. `calls`: (func_id, parent_id) each."""
    entry = -1
    while call != -1 and (func := calls[call][0]) < len(library) and library[func]:
        entry, call = func, calls[call][1]
    return entry, -1 if call == -1 else calls[call][0]


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(seeds, st.sampled_from(SCENARIOS))
def test_it_is_what_a_walk_finds(tmp_path_factory: pytest.TempPathFactory, seed: int, scenario: str) -> None:
    trace = pytrace_ebpf.open(write_trace(tmp_path_factory.mktemp("innermost") / "trace", **story(seed, scenario)))
    calls = trace.calls()
    dice = random.Random(seed)
    edges = [*calls["start_ns"], *calls["end_ns"], 100]
    tids = [*calls["tid"].unique().tolist(), 5]
    moments = [(dice.choice(tids), dice.choice(edges) + dice.randrange(-1, 2)) for _ in range(300)]
    tid, ts = (np.array(column) for column in zip(*moments, strict=True))
    functions = calls.set_index("call_id")["func_id"].to_dict() | {-1: -1}
    expected = walked(calls, moments)
    call_id, func_id = innermost(trace, np.full(300, PID), tid, ts)[:2]
    assert call_id.tolist() == expected
    assert func_id.tolist() == [functions[call] for call in expected]
    assert set(innermost(trace, np.full(300, PID + 999), tid, ts)[0]) == {-1}


def test_at_its_start_a_call_and_at_its_end_its_caller(tmp_path: Path) -> None:
    script = Script(7, 7, now=10).snapshot().enter(0).run(5).enter(1).run(5).leave().run(5).leave()
    trace = pytrace_ebpf.open(write_trace(tmp_path, events=script.events, sched=script.sched))
    outer, inner = trace.calls()["call_id"]
    call_id, func_id = innermost(trace, np.full(6, 7), np.full(6, 7), np.array([9, 10, 14, 15, 20, 25]))[:2]
    assert call_id.tolist() == [-1, outer, outer, inner, outer, -1] and func_id.tolist() == [-1, 0, 0, 1, 0, -1]


def test_no_rows(tmp_path: Path) -> None:
    trace = pytrace_ebpf.open(write_trace(tmp_path))
    none = np.zeros(0, np.int64)
    assert innermost(trace, none, none, none)[0].tolist() == []
    assert innermost(trace, none + 7, np.zeros(0), none)[0].dtype == np.int64
    assert innermost(trace, *np.ones((3, 2), np.int64))[0].tolist() == [-1, -1]


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
    innermost_calls = walked(calls, ((7, t) for t in ts.tolist()))
    by_id = dict(zip(calls["call_id"], zip(calls["func_id"], calls["parent_id"], strict=True), strict=True))
    for library in ([], [False, True, False], [True, True, True]):
        found = innermost(trace, seven, seven, ts, np.array(library, bool))
        assert found.call_id.tolist() == innermost_calls
        assert list(zip(found.entry.tolist(), found.caller.tolist(), strict=True)) == [climbed(by_id, call, library) for call in innermost_calls]


def test_threads_of_a_real_looking_trace(tmp_path: Path) -> None:
    trace = pytrace_ebpf.open(sample(tmp_path))
    calls = trace.calls()
    middle = ((calls["start_ns"] + calls["end_ns"]) // 2).to_numpy()
    found = innermost(trace, calls["pid"], calls["tid"], middle)
    assert found.call_id.tolist() == walked(calls, zip(calls["tid"], middle, strict=True))
