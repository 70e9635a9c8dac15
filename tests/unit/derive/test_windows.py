"""Windows of a trace: what of calls lies within, from a state that is kept or from the beginning, and all of it together the whole."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import pytrace_ebpf
from pytrace_ebpf.derive import sums
from pytrace_ebpf.derive.scheduling import split
from pytrace_ebpf.derive.scheduling.trace_timeline import timeline_of
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.trace.states import SPLIT
from tests.unit.derive.test_calls_properties import SCENARIOS, seeds, story
from tests.unit.synthetic import sample, write_trace

MS = 1_000_000
IDS = ("call_id", "parent_id", "last_descendant_id", "depth", "pid", "tid", "func_id")


def clipped(calls: pd.DataFrame, start: int, end: int) -> pd.DataFrame:
    """The calls that overlap [start, end), with start_ns and end_ns within it."""
    inside = calls[((calls["end_ns"] > start) | (calls["start_ns"] >= start)) & (calls["start_ns"] < end)]
    return inside.assign(start_ns=inside["start_ns"].clip(lower=start), end_ns=inside["end_ns"].clip(upper=end)).reset_index(drop=True)


def spent(states: pd.DataFrame, call: Any) -> list[int]:
    """The four parts of a call, by its thread's states."""
    own = states[(states["pid"] == call.pid) & (states["tid"] == call.tid)]
    ns = (own["end_ns"].clip(upper=call.end_ns) - own["start_ns"].clip(lower=call.start_ns)).clip(lower=0)
    return [int(ns[own["state"] == name.removesuffix("_ns")].sum()) for name in SPLIT]


def from_the_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sums, "_reach", lambda _trace, _upto: (0, None))


@pytest.mark.parametrize(("start", "end"), [(1000, 1005), (1012, 1013), (1019, 1021), (1020, 1040), (1031, 2000), (1005, 1047)])
def test_calls_are_cut_at_the_edges_with_their_own_share_of_the_time(tmp_path: Path, start: int, end: int) -> None:
    trace = pytrace_ebpf.open(sample(tmp_path))
    window = trace.window(start * MS, end * MS)
    found, wanted = window.calls(), clipped(trace.calls(), window.start_ns, window.end_ns)
    columns = [*IDS[:2], *IDS[3:], "start_ns", "end_ns"]
    pd.testing.assert_frame_equal(found[columns], wanted[columns])
    states = split.timeline(trace.sched(), trace.processes(), trace.end_ns)
    assert [[*row] for row in found[list(SPLIT)].itertuples(index=False)] == [spent(states, call) for call in found.itertuples()]
    assert (found[list(SPLIT)].sum(axis=1) == found["wall_ns"]).all() and (found["wall_ns"] == found["end_ns"] - found["start_ns"]).all()
    assert set(trace.calls(start_ns=start * MS, end_ns=end * MS)["call_id"]) >= set(found["call_id"])


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(seeds, st.sampled_from(SCENARIOS), st.integers(0, 100), st.integers(0, 100))
def test_a_window_does_not_show_where_it_was_begun(tmp_path_factory: pytest.TempPathFactory, seed: int, scenario: str, one: int, other: int) -> None:
    rows: dict[str, Any] = story(seed, scenario)
    rows["threads"] = [(*row[:-1], row[-1] and min(row[-1], rows["end_ns"])) for row in rows["threads"]]  # none ends after the recording
    path = write_trace(tmp_path_factory.mktemp("window") / "trace", **rows)
    whole = pytrace_ebpf.open(path)
    length = whole.end_ns - whole.start_ns
    start, end = (whole.start_ns + length * percent // 100 for percent in sorted((one, other)))
    tree, calls = trace_tree(whole.window(start, end)), whole.window(start, end).calls()
    with pytest.MonkeyPatch.context() as patched:
        from_the_beginning(patched)
        again = pytrace_ebpf.open(path)
        pd.testing.assert_frame_equal(trace_tree(again.window(start, end)), tree)
        pd.testing.assert_frame_equal(again.window(start, end).calls(), calls)
    assert tree["calls"].sum() == len(calls) and tree["self_ns"].sum() == calls["self_wall_ns"].sum()
    assert (calls["start_ns"] >= start).all() and (calls["end_ns"] <= end).all()


def trace_tree(trace: Trace) -> pd.DataFrame:
    """Its tree by thread, path and function, whatever the order of its nodes."""
    tree = trace.tree()
    path: dict[int, str] = {-1: ""}
    for node, parent, func, first in tree[["node_id", "parent_id", "func_id", "outermost"]].itertuples(index=False):
        path[node] = f"{path[parent]};{func}{'' if first else 'r'}"
    columns = ["calls", "total_ns", "self_ns", "unknown_ns", "self_unknown_ns", *SPLIT, *(f"self_{name}" for name in SPLIT)]
    tree["path"] = [path[node] for node in tree["node_id"]]
    return tree[tree["calls"] > 0].set_index(["pid", "tid", "path"])[columns].sort_index()


@pytest.mark.parametrize("cuts", [(1020,), (1007, 1033), (1001, 1020, 1040, 1041)])
def test_windows_one_after_the_other_are_the_whole(tmp_path: Path, cuts: tuple[int, ...]) -> None:
    trace = pytrace_ebpf.open(sample(tmp_path))
    edges = [trace.start_ns, *(cut * MS for cut in cuts), trace.end_ns]
    parts = [trace_tree(trace.window(*window)) for window in zip(edges, edges[1:], strict=False)]
    whole = trace_tree(trace)
    summed = pd.concat(parts).groupby(level=[0, 1, 2]).sum()
    times = [name for name in whole if name != "calls"]
    pd.testing.assert_frame_equal(summed[times], whole[times], check_dtype=False)


def test_threads_and_processes_can_be_asked_for(tmp_path: Path) -> None:
    trace = pytrace_ebpf.open(sample(tmp_path))
    for tid in (4000, 4001):
        window = trace.window(1010 * MS, 1030 * MS, tid=tid)
        assert window.calls()["tid"].unique().tolist() == [tid] == window.threads()["tid"].tolist()
        assert window.tree()["tid"].unique().tolist() == [tid]
        assert window.waits()["tid"].isin([tid]).all() and window.sched()["tid"].isin([tid]).all()
    assert len(trace.window(pid=4000).calls()) == len(trace.calls()) and not len(trace.window(pid=1).calls())


@pytest.mark.parametrize(("own", "other"), [({"pid": 1}, {"pid": 4000}), ({"tid": 4000}, {"tid": 4001}), ({"pid": 1, "tid": 4001}, {"tid": 4001})])
def test_a_window_of_some_threads_has_nothing_of_others(tmp_path: Path, own: dict[str, int], other: dict[str, int]) -> None:
    trace = pytrace_ebpf.open(sample(tmp_path))
    assert len(trace.waits(**other)) and len(trace.tree(**other))  # type: ignore[arg-type]
    for window in (trace.window(**own), trace.window(1001 * MS, 1060 * MS, **own)):
        for of in (window.waits, window.tree, window.calls, window.events, window.sched):
            assert not len(of(**other))  # type: ignore[operator]
        assert not len(timeline_of(window, **other)) and not len(window.window(**other).waits()) and not len(window.window(**other).calls())


def test_an_empty_window_has_no_calls(tmp_path: Path) -> None:
    trace = pytrace_ebpf.open(sample(tmp_path))
    for window in (trace.window(1030 * MS, 1030 * MS), trace.window(0, 1), trace.window(5000 * MS, 6000 * MS)):
        assert not window.calls()["wall_ns"].sum() and not window.tree()["total_ns"].sum()


def test_waits_are_cut_at_the_edges(tmp_path: Path) -> None:
    trace = pytrace_ebpf.open(sample(tmp_path))
    window = trace.window(1020 * MS, 1022 * MS)
    waits = window.waits()
    assert len(waits) and (waits["start_ns"] >= window.start_ns).all() and (waits["end_ns"] <= window.end_ns).all()
    assert np.isin(waits["call_id"], [-1, *window.calls()["call_id"]]).all()


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(seeds, st.sampled_from(("whole", "ends", "loss", "perf")), st.integers(0, 100), st.integers(0, 100))
def test_the_time_of_threads_is_that_of_their_states(
    tmp_path_factory: pytest.TempPathFactory, seed: int, scenario: str, one: int, other: int
) -> None:
    rows = story(seed, scenario)
    # A snapshot is read by what follows it in its segment.
    told = [sorted(ts for ts, _, tid, *_ in rows["sched"] if tid == own)[1:2] for own in {row[2] for row in rows["sched"]}]
    rows["cuts"] = [cut for cut in rows["cuts"] if all(second and second[0] < cut for second in told)]
    trace = pytrace_ebpf.open(write_trace(tmp_path_factory.mktemp("times") / "trace", **rows))
    states = split.timeline(trace.sched(), trace.processes(), trace.end_ns, trace.losses())
    length = trace.end_ns - trace.start_ns
    start, end = (trace.start_ns + length * percent // 100 for percent in sorted((one, other)))
    for of in (trace, trace.window(start, end)):
        own = timeline_of(of)
        cut = states.assign(start_ns=states["start_ns"].clip(lower=of.start_ns), end_ns=states["end_ns"].clip(upper=of.end_ns))
        columns = ["pid", "tid", "start_ns", "end_ns", "state", "cpu"]
        of_running = own["state"].astype("object") == "on_cpu"
        cut = cut[cut["end_ns"] > cut["start_ns"]].reset_index(drop=True)
        pd.testing.assert_frame_equal(own[columns[:5]], cut[columns[:5]])
        assert of is not trace or own.loc[of_running, "cpu"].equals(cut.loc[of_running, "cpu"])
        inside = states.assign(ns=(states["end_ns"].clip(upper=of.end_ns) - states["start_ns"].clip(lower=of.start_ns)).clip(lower=0))
        known = inside.groupby("tid")["ns"].sum()
        for row in of.thread_times().to_dict("records"):
            assert row["known_ns"] == known.get(row["tid"], 0)
            own = inside[inside["tid"] == row["tid"]]
            told = row["known_ns"] > 0 and not own["ns"][own["state"] == "off_cpu"].sum()
            for name in SPLIT:
                expected = own["ns"][own["state"] == name.removesuffix("_ns")].sum()
                assert (row[name] == expected) if told or (name == "on_cpu_ns" and row["known_ns"]) else pd.isna(row[name])
        calls = of.calls()
        assert of.thread_times().set_index("tid")["calls"].sum() == len(calls)


def by_cputime(path: Path, seed: int) -> Path:
    """A thread of whose scheduling only the CPU time is known."""
    rng = np.random.default_rng(seed)
    now, events, stack = 0, [], []
    while now < 300 * MS or stack:
        now += int(rng.integers(1, 9 * MS))
        if stack and (rng.random() < 0.5 or now >= 300 * MS):
            events.append((now, 7, 7, 1, *stack.pop(), 2))
        else:
            stack.append((int(rng.integers(4)), len(events) + 1))
            events.append((now, 7, 7, 0, *stack[-1], 1))
    moments = range(0, now + 20 * MS, 10 * MS)
    spent = np.cumsum(rng.integers(0, 10 * MS, len(moments)))
    samples = [(ts, 7, 7, int(used), int(used) // 3) for ts, used in zip(moments, spent, strict=True)]
    cuts = sorted(rng.integers(1, now, 3).tolist())
    return write_trace(path, events=events, cputime=samples, cuts=cuts, manifest={"scheduling": {"source": "cputime", "why": "perf was refused"}})


@pytest.mark.parametrize("seed", range(12))
def test_windows_of_cpu_time(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    path = by_cputime(tmp_path, seed)
    trace = pytrace_ebpf.open(path)
    start, end = sorted(np.random.default_rng(seed).integers(0, trace.end_ns, 2).tolist())
    window = trace.window(start, end)
    calls, tree, times = window.calls(), trace_tree(window), window.thread_times()
    assert (calls["on_cpu_ns"] + calls["runq_wait_ns"] <= calls["wall_ns"]).all() and calls["on_cpu_ns"].notna().all()
    assert tree["self_ns"].sum() == calls["self_wall_ns"].sum() and tree["calls"].sum() == len(calls)
    inside = calls["depth"] == 0
    assert calls["on_cpu_ns"][inside].sum() <= times["on_cpu_ns"].sum() + 4 * len(calls)  # rounding
    assert (times["known_ns"] == end - start).all()
    from_the_beginning(monkeypatch)
    again = pytrace_ebpf.open(path).window(start, end)
    pd.testing.assert_frame_equal(again.calls(), calls)
    pd.testing.assert_frame_equal(again.thread_times(), times)
