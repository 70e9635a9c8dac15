"""The states of threads, some segments at a time: what they are at once, cut where the segments end."""

from pathlib import Path

import pandas as pd
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import pytrace_ebpf
from pytrace_ebpf.derive.scheduling import trace_timeline
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.trace.schema import SchedKind
from tests.unit.derive.test_calls_properties import SCENARIOS, all_reported, seeds, story
from tests.unit.synthetic import SAMPLE_FUNCTIONS, sample, write_trace

_LAST = ["end_ns", "goes_on", "other_tid"]


def joined(pieces: list[pd.DataFrame]) -> pd.DataFrame:
    """Whole intervals again; each part of one begins where the last ended."""
    rows = pd.concat(pieces).sort_values(["pid", "tid", "start_ns"], kind="stable", ignore_index=True)
    new = rows["start_ns"] == rows["began_ns"]
    assert (rows["start_ns"][~new].to_numpy() == rows["end_ns"].shift()[~new].to_numpy()).all() and rows["goes_on"].shift()[~new].all()
    grouped = rows.groupby(new.cumsum())
    whole = rows[new].reset_index(drop=True).assign(**{name: grouped[name].last().to_numpy() for name in _LAST})
    assert not whole["goes_on"].any()
    return whole.drop(columns=["began_ns", "goes_on"])


def same(trace: Trace, at_once: int) -> int:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(trace_timeline, "_AT_ONCE", at_once)
        pieces = list(trace_timeline.timelines(trace))
        ended = pd.concat(trace_timeline.intervals(trace)).sort_values(["pid", "tid", "start_ns"], kind="stable", ignore_index=True)
    expected = trace_timeline.timeline_of(trace)
    pd.testing.assert_frame_equal(ended, expected, check_dtype=False)
    pd.testing.assert_frame_equal(joined(pieces), expected, check_dtype=False)
    return len(pieces)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(seeds, st.sampled_from(SCENARIOS), st.integers(90, 400), st.integers(0, 300))
@example(0, "mixed", 100, 281)  # a wait that ends, and whose waker is known, a segment after the window
@example(374, "everything", 90, 146)  # and one whose end is the window's
def test_they_are_those_at_once(tmp_path_factory: pytest.TempPathFactory, seed: int, scenario: str, start: int, length: int) -> None:
    rows = story(seed, scenario)
    rows["sched"] = [r for r in rows["sched"] if r[3] != SchedKind.SNAPSHOT]  # which the row after it explains, of the same segment
    rows = all_reported(rows)  # so does the row after what was not reported
    trace = pytrace_ebpf.open(write_trace(tmp_path_factory.mktemp("timelines") / "trace", **rows))
    for each in (trace, trace.window(start, start + length), trace.window(start, None, pid=50, tid=51)):
        same(each, 1)


def test_no_more_rows_at_a_time_than_some_segments_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = pytrace_ebpf.open(sample(tmp_path / "whole"))
    events, sched = (list(getattr(whole, name)().itertuples(index=False, name=None)) for name in ("events", "sched"))
    step = (whole.end_ns - whole.start_ns) // 40
    cuts = [whole.start_ns + step * number for number in range(1, 40)]
    cut = write_trace(
        tmp_path / "cut", events=events, sched=sched, start_ns=whole.start_ns, end_ns=whole.end_ns, cuts=cuts, functions=SAMPLE_FUNCTIONS
    )
    states = len(trace_timeline.timeline_of(whole))
    monkeypatch.setattr(Trace, "sched", lambda *_, **__: pytest.fail("all switches were read"))
    monkeypatch.setattr(trace_timeline, "_AT_ONCE", 1)
    pieces = [*trace_timeline.timelines(pytrace_ebpf.open(cut))]
    assert len(pieces) > 10 and max(map(len, pieces)) <= states / 4
