"""Greenlets: each has a stack of its own, with the calls that the program itself counts there, and is a task."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import pytrace_ebpf
from pytrace_ebpf.trace.reader import Trace
from tests.bpf.conftest import Recorder
from tests.conftest import PATIENCE_S, Python, Target

STATES = ["on_cpu_ns", "runq_wait_ns", "gil_wait_ns", "blocked_ns"]


@pytest.fixture
def python_with(python: Python) -> Callable[[str], Python]:
    """`python_with(module)`: the Python of the test that has it; skips where that is another one."""

    def find(module: str) -> Python:
        if python.root is None and python.path is None:
            return Python(python.version, path=Path(sys.executable))
        if python.root or subprocess.run([*python.words, "-c", f"import {module}"], capture_output=True).returncode:
            pytest.skip(f"{python} has no {module}")
        return python

    return find


@pytest.mark.parametrize("options", [(), ("--c-calls",)], ids=["calls", "c-calls"])
def test_each_call_belongs_to_the_greenlet_that_made_it(
    options: tuple[str, ...], python: Python, python_with: Callable[[str], Python], target: Callable[..., Target], attach: Callable[..., Recorder]
) -> None:
    having = python_with("greenlet")
    said = subprocess.run(having.command("greenlets", "--count"), capture_output=True, text=True, timeout=PATIENCE_S, check=True).stdout
    expected = Counter(json.loads(said.removeprefix("done "))["calls"])
    process = target("greenlets", "--wait", python=having)
    recorder = attach(process.pid, "--source", "agent", *options)
    process.go()
    process.wait()
    trace = pytrace_ebpf.open(recorder.finish())
    calls = own_calls(trace)
    assert not trace.calls()["status"].isin(["repaired", "in_loss"]).any()
    if not options:
        assert by_greenlet(calls) == expected
    else:
        switches = calls[(calls["name"] == "greenlet.greenlet.switch") & (calls["caller"] == "away")]
        assert (~switches["resumed"]).sum() == switches["resumed"].sum() + 1 == summed(expected)["away"]  # the last one never comes back
        assert by_function(calls[calls["layer"] == "python"]) == summed(expected)
    tasks = trace.tasks()
    tasks["name"] = tasks["func_id"].map(trace.functions().set_index("func_id")["name"])
    assert (tasks["run_ns"] + tasks["awaited_ns"] == tasks["end_ns"] - tasks["start_ns"]).all()
    assert (tasks[STATES].sum(axis=1) == tasks["run_ns"]).all()
    whole = tasks[tasks["task_id"] == tasks["coroutine_id"]]
    resumes = whole.groupby("name")["resumes"].agg(sorted).to_dict()
    assert resumes["worker"] == [3, 3, 5, 5, 5, 5, 5]
    assert (
        resumes["generating"] == [4] and resumes["killed"] == resumes["forgotten"] == [2] and resumes["failing"] == [2] and resumes["early"] == [2, 2]
    )
    status = whole.groupby("name")["status"].agg(set).to_dict()
    assert status["worker"] == status["generating"] == {"complete"}
    assert status["killed"] == status["forgotten"] == status["failing"] == {"unwound"} and status["early"] == {"open_at_start"}
    assert "away" not in resumes and (tasks["name"] == "away").any()


def test_greenlet_imported_while_it_is_recorded(python: Python, python_with: Callable[[str], Python], run: Callable[..., tuple]) -> None:
    having = python_with("greenlet")
    directory, ended = run(having.command("greenlets"), "--source", "agent")
    assert ended.returncode == 0, ended.stderr
    said = subprocess.run(having.command("greenlets", "--count"), capture_output=True, text=True, timeout=PATIENCE_S, check=True).stdout
    expected = summed(Counter(json.loads(said.removeprefix("done "))["calls"]))
    trace = pytrace_ebpf.open(directory)
    found = by_function(own_calls(trace))
    assert not trace.calls()["status"].isin(["repaired", "in_loss"]).any()
    before = {"early": 2, "deep": 8, "away": 2, "<listcomp>": int(python.minor < 12)}  # what is called before `ready`
    assert {name: found[name] - before.get(name, 0) for name in expected} == dict(expected)


@pytest.mark.measured
@pytest.mark.parametrize("library", ["gevent", "eventlet"])
def test_the_hub_waits_and_no_greenlet(
    library: str, python: Python, python_with: Callable[[str], Python], target: Callable[..., Target], attach: Callable[..., Recorder]
) -> None:
    having = python_with(library)
    process = target("hubs", library, "--wait", python=having)
    recorder = attach(process.pid, "--source", "agent")
    process.go()
    said = process.done()
    process.wait()
    trace = pytrace_ebpf.open(recorder.finish())
    calls = own_calls(trace)
    assert not trace.calls()["status"].isin(["repaired", "in_loss"]).any()
    counts = calls[~calls["resumed"]]["name"].value_counts()
    assert (counts["leaf"], counts["worker"], counts["hog"]) == (18, 6, 1)
    tasks = trace.tasks()
    tasks["name"] = tasks["func_id"].map(trace.functions().set_index("func_id")["name"])
    workers = tasks[tasks["name"] == "worker"]
    assert len(workers) == 6 and set(workers["resumes"]) == {4} and set(workers["status"]) == {"complete"}
    assert workers["awaited_ns"].sum() / 1e9 == pytest.approx(said["away"], rel=0.1)
    assert workers["blocked_ns"].sum() < 0.1 * workers["awaited_ns"].sum()
    (hog,) = tasks[tasks["name"] == "hog"].itertuples()
    assert hog.longest_ns > 45_000_000


def own_calls(trace: Trace) -> pd.DataFrame:
    """The calls of the target's own functions, and of what these call of C: with `name`, `caller`, and `greenlet`, `depth` within it."""
    functions, calls = trace.functions().set_index("func_id"), trace.calls().sort_values("call_id", ignore_index=True)
    calls["name"], file = calls["func_id"].map(functions["name"]), calls["func_id"].map(functions["file"])
    calls["caller"] = calls["parent_id"].map(calls.set_index("call_id")["name"])
    is_root = calls["depth"] == 0
    roots = calls[is_root].sort_values(["tid", "frame", "start_ns", "call_id"])
    same = (roots[["tid", "frame"]] == roots[["tid", "frame"]].shift()).all(axis=1) & roots["resumed"] & (roots["frame"] != 0)
    whole = (~same).cumsum()
    calls["greenlet"] = whole.reindex(calls.index)
    calls["greenlet"] = calls.groupby("tid")["greenlet"].ffill()
    offset = calls[calls["name"].isin(["work", "in_thread"])].groupby("greenlet")["depth"].first()
    calls["depth"] -= calls["greenlet"].map(offset).fillna(0).astype(int)
    of_target = file.str.endswith(("/greenlets.py", "/hubs.py"))
    in_c = (calls["layer"] == "c") & calls["caller"].isin(functions[functions["file"].str.endswith("/greenlets.py")]["name"])
    return calls[of_target | in_c]


def by_greenlet(calls: pd.DataFrame) -> Counter[str]:
    """Begun calls as tests/targets/greenlets.py counts them."""
    begun = calls[~calls["resumed"] & (calls["status"] != "open_at_start")]
    order = begun.groupby("greenlet")["start_ns"].min().rank(method="first").astype(np.int64) - 1
    return Counter(f"{order[c.greenlet]}:{c.depth}:{c.name}" for c in begun.itertuples())


def by_function(calls: pd.DataFrame) -> Counter[str]:
    begun = calls[~calls["resumed"] & (calls["status"] != "open_at_start")]
    return Counter(begun["name"])


def summed(counts: Counter[str]) -> Counter[str]:
    """By function alone."""
    functions: Counter[str] = Counter()
    for key, count in counts.items():
        functions[key.split(":", 2)[2]] += count
    return functions
