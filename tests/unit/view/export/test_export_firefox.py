"""An export for the Firefox Profiler has every thread's stacks and states, one by one and summed: read as its format's description says."""

import io
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

import pytrace_ebpf
from pytrace_ebpf.analyze.functions.by_function import with_self
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.trace.states import STATES
from pytrace_ebpf.view.export import firefox
from tests.unit.analyze.test_samples import PERIOD, sampled
from tests.unit.synthetic import SAMPLE_FUNCTIONS, Script, sample, write_trace

NAMES = {row[0]: row[3] for row in SAMPLE_FUNCTIONS}
LABELS = {state.name: state.label for state in STATES}


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    return pytrace_ebpf.open(sample(tmp_path_factory.mktemp("sample")))


def document(trace: Trace, singly: bool) -> dict[str, Any]:
    out = io.BytesIO()
    assert firefox.write(trace, out) == singly
    return dict(json.loads(out.getvalue()))


def rows(profile: dict[str, Any], thread: dict[str, Any]) -> list[tuple[tuple[str, ...], str, int, int]]:
    """(path, category, when, how long) of every sample, ns, after a look at the tables."""
    frames, functions, stacks, samples = (thread[name] for name in ("frameTable", "funcTable", "stackTable", "samples"))
    for name, table in thread.items():
        if isinstance(table, dict):
            assert {len(column) for column in table.values() if isinstance(column, list)} == {table["length"]}, name
    assert all(prefix is None or prefix < at for at, prefix in enumerate(stacks["prefix"]))  # a caller comes first
    names = [thread["stringArray"][functions["name"][func]] for func in frames["func"]]
    found = []
    for stack, at, weight in zip(samples["stack"], samples["time"], samples["weight"], strict=True):
        category = stacks["category"][stack]
        assert frames["category"][stacks["frame"][stack]] == category  # where later versions of the format have it
        path = []
        while stack is not None:
            path.append(names[stacks["frame"][stack]])
            stack = stacks["prefix"][stack]
        found.append((tuple(reversed(path)), profile["meta"]["categories"][category]["name"], round(at * 1e6), round(weight * 1e6)))
    return found


def by_context(trace: Trace) -> dict[Any, int]:
    """Own time by (tid, path, state)."""
    calls = with_self(trace.calls()).set_index("call_id")
    found: dict[Any, int] = defaultdict(int)
    for row in calls.itertuples():
        path, above = [NAMES[row.func_id]], row
        while above.parent_id >= 0:
            above = calls.loc[above.parent_id]
            path.append(NAMES[above.func_id])
        for name, label in LABELS.items():
            found[row.tid, tuple(reversed(path)), label] += getattr(row, f"self_{name}_ns")
    return {key: time for key, time in found.items() if time}


@pytest.mark.parametrize("most", [firefox.MOST, 10])
def test_firefox_has_the_time_of_every_context_in_every_state(trace: Trace, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(firefox, "MOST", most)
    profile = document(trace, most > 10)
    found: dict[Any, int] = defaultdict(int)
    for thread in profile["threads"]:
        assert thread["pid"] == "4000" and thread["isMainThread"] == (thread["tid"] == 4000) and thread["processName"] == "python3 app.py"
        at = rows(profile, thread)
        assert all(when + weight <= later for (_, _, when, weight), (_, _, later, _) in zip(at, at[1:], strict=False))
        for path, category, _, weight in at:
            found[thread["tid"], path, category] += weight
    assert dict(found) == by_context(trace)
    assert profile["meta"]["startTime"] == trace.manifest["clock"][0]["realtime_ns"] / 1e6


def test_what_happened_stands_at_its_time(trace: Trace) -> None:
    profile = document(trace, True)
    (worker,) = [thread for thread in profile["threads"] if thread["name"] == "worker-2"]
    fetches = trace.calls(tid=4002)[lambda calls: calls["func_id"] == 5]
    ((start, end),) = fetches[["start_ns", "end_ns"]].to_numpy().tolist()
    own = [(category, when, when + weight) for path, category, when, weight in rows(profile, worker) if path[-1] == NAMES[5]]
    assert own[0][1] == start - trace.start_ns and own[-1][2] == end - trace.start_ns
    assert [category for category, *_ in own] == ["on CPU", "blocked", "run queue", "on CPU"]
    cpu = worker["samples"]["threadCPUDelta"]
    assert sum(cpu) <= trace.calls(tid=4002, depth=0)["on_cpu_ns"].sum() / 1e3 and cpu[0] == 0 < sum(cpu)


def test_firefox_of_a_window_has_what_lies_within(trace: Trace) -> None:
    middle = (trace.start_ns + trace.end_ns) // 2
    window = trace.window(middle, None, tid=4002)
    profile = document(window, True)
    (thread,) = profile["threads"]
    at = rows(profile, thread)
    assert sum(weight for *_, weight in at) == window.calls(depth=0)["wall_ns"].sum()
    assert at[0][2] >= 0 and at[-1][2] + at[-1][3] <= trace.end_ns - middle


def test_firefox_has_samples_with_their_lines(tmp_path: Path) -> None:
    profile = document(sampled(tmp_path), False)
    assert sum(weight for thread in profile["threads"] for *_, weight in rows(profile, thread)) == 99 * PERIOD
    assert profile["meta"]["interval"] == PERIOD / 1e6
    assert any(len({*filter(None, thread["frameTable"]["line"])}) > 1 for thread in profile["threads"])


def test_firefox_without_scheduling_says_so(tmp_path: Path) -> None:
    script = Script(1, 1).enter(0).run(10).enter(7).run(5).leave().leave()
    trace = pytrace_ebpf.open(write_trace(tmp_path / "t", events=script.events, functions=SAMPLE_FUNCTIONS))
    profile = document(trace, True)
    (thread,) = profile["threads"]
    assert [row[1:] for row in rows(profile, thread)] == [("not recorded", 0, 10), ("not recorded", 10, 5)]


def test_firefox_opens_a_trace_without_calls(tmp_path: Path) -> None:
    assert document(pytrace_ebpf.open(write_trace(tmp_path / "empty", start_ns=5)), True)["threads"] == []
