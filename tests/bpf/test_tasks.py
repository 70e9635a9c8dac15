"""Tasks of asyncio on every Python: against the program's own counts; the idle time of the loop belongs to no coroutine."""

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

import pytrace_ebpf
from tests.bpf.conftest import Recorder
from tests.conftest import Python, Target

pytestmark = pytest.mark.measured

TOLERANCE_S = 0.005  # a resume, between the program's own two looks at its clock


@pytest.fixture
def recorded(python: Python, source: str, target: Callable[..., Target], attach: Callable[..., Recorder]) -> tuple[Path, dict]:
    """The trace of tests/targets/aio.py, and what that said."""
    process = target("aio", "--wait", python=python)
    recorder = attach(process.pid, "--source", source)
    process.go()
    said = process.done()
    process.wait()
    return recorder.finish(), said


def test_tasks_are_those_that_the_program_counted(recorded: tuple[Path, dict], python: Python, source: str) -> None:
    trace, said = pytrace_ebpf.open(recorded[0]), recorded[1]
    functions = trace.functions()
    mine = functions[functions["file"].str.endswith("/aio.py")].set_index("func_id")["name"]
    tasks = trace.tasks()
    assert (tasks["run_ns"] + tasks["awaited_ns"] == tasks["end_ns"] - tasks["start_ns"]).all()
    assert (tasks["awaited_ns"] >= 0).all()
    parts = tasks[["on_cpu_ns", "runq_wait_ns", "gil_wait_ns", "blocked_ns"]].dropna()
    assert len(parts) and (parts.sum(axis=1) == tasks.loc[parts.index, "run_ns"]).all()
    names = tasks.set_index("coroutine_id")["func_id"].map(mine)
    tasks = tasks.assign(name=names.to_numpy(), parent=tasks["parent_id"].map(names), task=tasks["task_id"].map(names))
    tasks = tasks[tasks["name"].notna()]
    number = tasks.groupby("name").size().to_dict()
    comprehension = number.pop("<listcomp>", 0)
    assert comprehension == (python.minor < 12)
    assert number == {
        "everything": 1, "worker": 14, "nested": 3, "leaf": 7, "hog": 1, "consume": 1, "numbers": 1,
        "at_once": 2, "fails": 1, "forever": 2, "cancelled": 1,
    }  # fmt: skip
    pauses = tasks.groupby("name")["resumes"].sum() - tasks.groupby("name").size()
    for name, count in said["pauses"].items():
        yields = 6 if name == "numbers" else 0  # of values
        assert pauses[name] == count + yields, name
        away = tasks.loc[tasks["name"] == name, "awaited_ns"].sum() / 1e9
        assert away == pytest.approx(said["away"][name], abs=TOLERANCE_S + 0.05 * said["away"][name]), name
    status = tasks.groupby("name")["status"].agg(lambda s: set(s))
    left = {"unwound"} if source == "agent" else {"complete", "unwound"}
    assert status["fails"] <= left and status["forever"] <= left
    assert set().union(*status.drop(["fails", "forever"])) == {"complete"}
    in_nested = tasks[(tasks["name"] == "leaf") & (tasks["parent"] == "nested")]
    assert len(in_nested) == 6 and set(in_nested["task"]) == {"nested"}
    assert set(tasks.loc[tasks["name"] == "numbers", "task"]) == {"consume"}
    assert (tasks["task_id"] == tasks["coroutine_id"])[tasks["name"].isin(("worker", "nested", "hog", "fails", "forever"))].all()
    hog = tasks[tasks["name"] == "hog"].iloc[0]
    assert hog["longest_ns"] >= 60_000_000 > hog["run_ns"] - hog["longest_ns"]


def test_an_idle_loop_waits_in_its_selector_and_in_no_coroutine(recorded: tuple[Path, dict]) -> None:
    trace = pytrace_ebpf.open(recorded[0])
    functions = trace.functions().set_index("func_id")
    calls = trace.calls(columns=["call_id", "func_id", "tid"]).set_index("call_id")
    tasks = trace.tasks()
    first, last = tasks["start_ns"].min(), tasks["end_ns"].max()
    waits = trace.waits(tid=int(tasks["tid"].iloc[0]), start_ns=int(first), end_ns=int(last))
    waits = waits[waits["kind"] == "poll"]
    waited = waits["end_ns"] - waits["start_ns"]
    inside = waits["call_id"].map(calls["func_id"]).map(functions["name"])
    assert waited.sum() > 0.15e9
    assert waited[inside == "select"].sum() >= 0.99 * waited.sum()
    blocked = pd.to_numeric(tasks.loc[tasks["task_id"] == tasks["coroutine_id"], "blocked_ns"]).sum()
    assert blocked < 0.1 * waited.sum()
