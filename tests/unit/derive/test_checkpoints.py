"""The state between two segments, saved and gone on from: the calls are the same."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import pytrace_ebpf
from pytrace_ebpf.derive.feed import engine_of, segments
from pytrace_ebpf.errors import TraceError
from pytrace_ebpf.trace.reader import Trace
from tests.unit.derive.test_calls_properties import SCENARIOS, seeds, story
from tests.unit.synthetic import sample, write_trace

Rows = dict[str, np.ndarray]


class Current:
    """Whichever engine is at work."""

    def __init__(self, trace: Trace) -> None:
        self.engine = engine_of(trace, rows=True)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)


def calls_of(trace: Trace, checkpoints: bool) -> Rows:
    """Rows as the library makes them, in the order of call_id; with `checkpoints` each segment has an engine of its own."""
    engine = Current(trace)
    parts: list[Rows] = []

    def copy() -> None:
        parts.append({name: column.copy() for name, column in engine.rows().items()})

    for events, end_ns in segments(trace, engine):  # type: ignore[arg-type]
        for _ in engine.take(events, end_ns, 7):
            copy()
        if checkpoints:
            state = engine.save()
            engine.engine = engine_of(trace, rows=True)
            engine.load(state)
            assert len(engine.save()) == len(state)
    engine.finish(trace.end_ns)
    copy()
    rows = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    order = np.argsort(rows["call_id"])
    return {name: column[order] for name, column in rows.items()}


def assert_same(trace: Trace) -> None:
    straight, broken = (calls_of(trace, checkpoints) for checkpoints in (False, True))
    assert {name: column.tolist() for name, column in broken.items()} == {name: column.tolist() for name, column in straight.items()}


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(seeds, st.sampled_from(SCENARIOS))
def test_calls_do_not_show_where_they_were_interrupted(tmp_path_factory: pytest.TempPathFactory, seed: int, scenario: str) -> None:
    rows: dict[str, Any] = story(seed, scenario)
    assert_same(pytrace_ebpf.open(write_trace(tmp_path_factory.mktemp("checkpoint") / "trace", **rows)))


def test_the_state_of_a_small_trace_is_small(tmp_path: Path) -> None:
    trace = pytrace_ebpf.open(sample(tmp_path))
    assert_same(trace)
    engine = engine_of(trace, rows=False)
    events, end_ns = next(iter(segments(trace, engine)))
    list(engine.take(events, end_ns, 1000))
    assert len(engine.save()) < 10_000


def test_what_is_no_state_is_refused(tmp_path: Path) -> None:
    trace = pytrace_ebpf.open(sample(tmp_path))
    for state in (b"", b"nothing", bytes(1000), engine_of(trace, rows=False).save() + b"x"):
        with pytest.raises(TraceError):
            engine_of(trace, rows=False).load(state)
