"""Several engines at work on one trace at the same time find what one finds."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import pytrace_ebpf
from pytrace_ebpf.derive import feed, sums
from pytrace_ebpf.derive.checkpoints import Checkpoints
from pytrace_ebpf.derive.read_ahead import PIECE
from pytrace_ebpf.derive.sinks.cores import core_sums
from pytrace_ebpf.derive.sinks.tasks import ASYNC_GENERATOR, COROUTINE, GENERATOR
from pytrace_ebpf.errors import TraceError
from pytrace_ebpf.rebuild.shards import Shards
from tests.unit.derive.test_calls_properties import SCENARIOS, seeds, story
from tests.unit.derive.test_sums import read_of, recorded_upto, threads_told_early
from tests.unit.derive.test_windows import by_cputime
from tests.unit.innermost import innermost
from tests.unit.synthetic import sample, write_trace


def on_cores(patched: pytest.MonkeyPatch, count: int) -> None:
    patched.setattr(feed, "cores", lambda: count)
    patched.setattr(feed, "_MANY", 0)


def found(path: Path, cores: int) -> dict[str, Any]:
    """What `cores` cores find of a trace, nothing being kept."""
    with pytest.MonkeyPatch.context() as patched:
        on_cores(patched, cores)
        trace = pytrace_ebpf.open(path)
        patched.setattr(type(trace._files), "ours", property(lambda self: path not in (self.directory, *self.directory.parents)))
        threads = trace.threads()
        at = np.linspace(trace.start_ns, trace.end_ns, 50).astype(np.int64)
        asked = (np.repeat(threads[name].to_numpy(), len(at)) for name in ("pid", "tid"))
        ids, functions = innermost(trace, *asked, np.tile(at, len(threads)))[:2]
        return {"tree": trace.tree(), "times": trace.thread_times(), "innermost": pd.DataFrame({"call_id": ids, "func_id": functions})}


def same(one: dict[str, Any], other: dict[str, Any]) -> None:
    for name in one:
        pd.testing.assert_frame_equal(one[name], other[name])


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(seeds, st.sampled_from(SCENARIOS), st.integers(2, 4))
def test_what_several_find_is_what_one_finds(tmp_path_factory: pytest.TempPathFactory, seed: int, scenario: str, cores: int) -> None:
    path = write_trace(tmp_path_factory.mktemp("shards") / "trace", **story(seed, scenario))
    same(found(path, 1), found(path, cores))


@pytest.mark.parametrize("seed", range(4))
def test_of_samples_too(tmp_path: Path, seed: int) -> None:
    same(found(by_cputime(tmp_path / "trace", seed), 1), found(tmp_path / "trace", 3))


def test_others_go_on_from_what_some_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sums, "BYTES_AN_EVENT", 1 << 20)
    path = sample(tmp_path / "trace")
    expected = found(sample(tmp_path / "other"), 1)["tree"]
    threads_told_early(path)
    for count, cores in ((1, 3), (2, 1), (3, 2)):
        recorded_upto(path, count)
        on_cores(monkeypatch, cores)
        trace = pytrace_ebpf.open(path)
        read = read_of(trace, monkeypatch)
        tree = trace.tree()
        assert read == [count - 1]
    pd.testing.assert_frame_equal(tree, expected)
    assert len(pytrace_ebpf.open(path).window(1041_000_000, 1042_000_000).tree())


@pytest.mark.parametrize("cores", [1, 2])
def test_what_one_cannot_take_ends_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: int) -> None:
    """However much is waiting: nobody waits for ever."""
    on_cores(monkeypatch, cores)
    trace = pytrace_ebpf.open(sample(tmp_path))
    engines: Shards = feed.shards_of(trace)
    events = trace.part("events", trace.segments[0]["index"])
    strange = events.set_column(events.column_names.index("kind"), "kind", [np.full(len(events), 99, np.int8)])
    with pytest.raises(TraceError):
        engines.take([strange] * 50, trace.end_ns, PIECE)
    with pytest.raises(ZeroDivisionError):
        engines.take((events for _ in [1 // 0]), trace.end_ns, PIECE)


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(seeds, st.sampled_from(SCENARIOS), st.integers(1, 3))
def test_the_pass_for_the_waits_keeps_the_sums_too(tmp_path_factory: pytest.TempPathFactory, seed: int, scenario: str, cores: int) -> None:
    """What a report finds after it, and who observes it, is what each finds in a pass of its own."""
    folder = tmp_path_factory.mktemp("beside")
    alone = pytrace_ebpf.open(write_trace(folder / "alone", **story(seed, scenario)))
    first = {"tree": alone.tree(), "sites": alone.call_sites(), "times": alone.thread_times(), "waits": alone.waits()}
    own = core_sums(alone)
    with pytest.MonkeyPatch.context() as patched:
        on_cores(patched, cores)
        trace = pytrace_ebpf.open(write_trace(folder / "together", **story(seed, scenario)))
        together = core_sums(trace)
        if len(first["waits"]):  # else there may be no pass that keeps them
            assert Checkpoints(trace).reach == len(trace.segments)
            patched.setattr(Shards, "take", None)  # nothing is rebuilt again
        found = {"tree": trace.tree(), "sites": trace.call_sites(), "times": trace.thread_times(), "waits": trace.waits()}
    same(first, found)
    for name in ("threads", "at_a_time", "functions"):
        pd.testing.assert_frame_equal(getattr(own, name), getattr(together, name))


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(seeds, st.sampled_from(SCENARIOS), st.integers(1, 3))
def test_the_pass_for_the_coroutines_keeps_the_sums_too(tmp_path_factory: pytest.TempPathFactory, seed: int, scenario: str, cores: int) -> None:
    folder = tmp_path_factory.mktemp("coroutines")
    flags = (COROUTINE, GENERATOR, 0, ASYNC_GENERATOR, COROUTINE)
    rows = story(seed, scenario)
    rows["functions"] = [(*row[:6], flag, *row[7:]) for row, flag in zip(rows["functions"], flags, strict=False)]
    alone = pytrace_ebpf.open(write_trace(folder / "alone", **rows))
    first = {"tree": alone.tree(), "sites": alone.call_sites(), "times": alone.thread_times(), "tasks": alone.tasks()}
    with pytest.MonkeyPatch.context() as patched:
        on_cores(patched, cores)
        trace = pytrace_ebpf.open(write_trace(folder / "together", **rows))
        found = {"tasks": trace.tasks()}
        if rows["functions"]:  # else what is resumed is a greenlet, for which the pass begins anew, by itself
            assert Checkpoints(trace).reach == len(trace.segments)
            patched.setattr(Shards, "take", None)  # nothing is rebuilt again
        found |= {"tree": trace.tree(), "sites": trace.call_sites(), "times": trace.thread_times()}
    same(first, found)


def test_sums_that_were_kept_in_part_are_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sums, "BYTES_AN_EVENT", 1 << 20)
    expected = pytrace_ebpf.open(write_trace(tmp_path / "alone", **story(9, "whole"))).tree()
    trace = pytrace_ebpf.open(write_trace(tmp_path / "trace", **story(9, "whole")))
    assert len(trace.segments) > 2
    trace.window(trace.segments[2]["start_ns"]).tree()  # what lies before it is kept
    assert 0 < Checkpoints(trace).reach < len(trace.segments)
    trace.waits()
    assert Checkpoints(trace).reach == len(trace.segments)
    pd.testing.assert_frame_equal(trace.tree(), expected)
