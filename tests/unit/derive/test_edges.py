"""Begins and ends as they happen are those of the rows of calls, nested, in whole traces and in windows."""

from collections import defaultdict
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import pytrace_ebpf
from pytrace_ebpf.derive.edges import ENDS, edges
from tests.unit.derive.test_calls_properties import SCENARIOS, seeds, story
from tests.unit.synthetic import write_trace


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(seeds, st.sampled_from(SCENARIOS), st.integers(0, 100), st.integers(0, 100))
def test_they_are_the_calls(tmp_path_factory: pytest.TempPathFactory, seed: int, scenario: str, one: int, other: int) -> None:
    whole = pytrace_ebpf.open(write_trace(tmp_path_factory.mktemp("edges") / "trace", **story(seed, scenario)))
    length = whole.end_ns - whole.start_ns
    start, end = (whole.start_ns + length * percent // 100 for percent in sorted((one, other)))
    for trace in (whole, whole.window(start, end)):
        calls = trace.calls()
        found: list[Any] = []
        open_: dict[int, list[tuple[int, int]]] = defaultdict(list)
        last: dict[int, int] = defaultdict(int)
        for piece in edges(trace):
            for key, ts, func in zip(*(column.tolist() for column in piece.columns()), strict=True):
                assert ts >= last[key]
                last[key] = ts
                if func == ENDS:
                    began = open_[key].pop()
                    found.append((key & 0xFFFFFFFF, began[1], ts, len(open_[key])))
                else:
                    open_[key].append((func, ts))
        assert not any(open_.values())
        assert sorted(found) == sorted(calls[["tid", "start_ns", "end_ns", "depth"]].itertuples(index=False, name=None))
