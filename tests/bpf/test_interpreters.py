"""Interpreters beside the main one: every call of each, launched and attached, which thread made it, and for whose GIL it waited."""

import json
import signal
from collections.abc import Callable

import pytest

import pytrace_ebpf
from pytrace_ebpf.analyze.waits.gil import analyze
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.trace.schema import OTHER_GIL
from pytrace_ebpf.view import summary
from tests.bpf.conftest import Recorder
from tests.bpf.test_samples import stacks_of
from tests.conftest import MATRIX, ROOTS, Python, Target, built_pythons
from tests.waits_add_up import assert_waits_add_up

GIL = 2  # of samples.state
NEWER = [python for python in built_pythons() if python.minor >= 12]
if not NEWER:
    pytest.skip("no Python from 3.12 on is here that was built with pyenv", allow_module_level=True)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`newer`: Pythons from 3.12 on, and with --matrix those of the root filesystems."""
    if "newer" in metafunc.fixturenames:
        roots = MATRIX if metafunc.config.getoption("--matrix") else {}
        pythons = [*NEWER, *(Python(version, ROOTS / root) for version, root in roots.items())]
        newer = [python for python in pythons if python.minor >= 12]
        if "jit" in metafunc.fixturenames:  # Debian's have one from 3.14 on, which is off unless it is asked for
            jits = [(python, jit) for python in newer for jit in ("plain", "jit") if jit == "plain" or (python.root and python.minor >= 14)]
            metafunc.parametrize("newer, jit", jits, ids=str, indirect=["jit"])
        else:
            metafunc.parametrize("newer", newer, ids=str)


@pytest.fixture
def jit(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the target has its JIT on."""
    if request.param == "jit":
        monkeypatch.setenv("PYTHON_JIT", "1")
    return bool(request.param == "jit")


def assert_all_there(trace: Trace, said: dict[str, dict[str, int]], unseen: int = 0) -> None:
    """Every call that the program says it made in each interpreter, in threads of which it is said that they ran that one; `unseen`: that many more it made."""
    calls = trace.calls().merge(trace.functions(), on="func_id")
    assert not calls["status"].isin(["repaired", "in_loss"]).any()
    own = calls[calls["status"] != "open_at_start"]
    ran = trace.threads().set_index(["pid", "tid"])["interpreters"].str.split()
    for number, expected in said.items():
        of = own[own["name"].isin(expected)]
        assert of.groupby("name").size().to_dict() == expected
        assert all(number in ran[thread] for thread in set(zip(of["pid"], of["tid"], strict=True)))
    (row,) = summary.interpreters(trace.processes(), trace.threads())
    assert row["recorded"] == row["others"] - unseen == len(said)


def test_calls_and_waits_of_each_interpreter(newer: Python, jit: bool, run: Callable[..., tuple]) -> None:
    directory, ended = run(newer.command("interpreters", "2", "200", "1", "fight"), "--source", "agent")
    assert ended.returncode == 0, ended.stderr
    trace = pytrace_ebpf.open(directory)
    assert_all_there(trace, json.loads(ended.stdout.splitlines()[-1].removeprefix("done "))["calls"])
    waits, threads = trace.waits().astype({"kind": object}), trace.threads().set_index("tid")["interpreters"].str.split()
    assert assert_waits_add_up(trace) > 0
    others = waits[(waits["lock_address"].fillna(0).astype(int) & 7) == OTHER_GIL]
    assert len(others) > 0 and set(others["kind"]) == {"gil"} and others["lock_address"].nunique() == 1
    held = others[others["holder_tid"] > 0]
    shared = [set(threads[tid]) & set(threads[holder]) for tid, holder in zip(held["tid"], held["holder_tid"], strict=True)]
    assert shared and all(shared)
    pairs, names = analyze(trace).pairs, trace.functions().set_index("func_id")["name"]
    fought = pairs[pairs["waiting_func_id"].map(names).str.startswith("fight") & pairs["holding_func_id"].map(names).str.startswith("fight")]
    assert (fought["waiting_func_id"] == fought["holding_func_id"]).sum() == 2  # one has a GIL of its own, one the main interpreter's


def test_attached_while_they_run(newer: Python, jit: bool, target: Callable[..., Target], attach: Callable[..., Recorder]) -> None:
    process = target("interpreters", "2", "200", "2", "early", "--wait", python=newer)
    recorder = attach(process.pid, "--source", "agent")
    process.go()
    said = process.done()["calls"]
    if jit:  # those that are there already are met when they next execute code, which these do not
        del said["1"], said["2"]
    assert_all_there(pytrace_ebpf.open(recorder.finish()), said, 2 * jit)


def test_nothing_is_left_in_any_of_them(newer: Python, target: Callable[..., Target], attach: Callable[..., Recorder]) -> None:
    process = target("interpreters", "1", "50", "2", "early", "free", "--wait", python=newer)
    recorder = attach(process.pid, "--source", "agent")
    recorder.process.send_signal(signal.SIGKILL)
    recorder.process.wait()
    attach(process.pid, "--source", "agent").stop()  # where no Python runs the next recording ends the one before
    process.go()
    assert process.done()["calls"]
    assert process.wait() == 0


def test_samples_of_each_interpreter(newer: Python, target: Callable[..., Target], attach: Callable[..., Recorder]) -> None:
    """A thread's stack is that of the interpreter which it runs, on the core, off it, and where it waits when recording ends."""
    process = target("beside", "--wait", "--hold", python=newer)
    recorders = attach(process.pid, "--sample", "499"), (rootless := attach(process.pid, "--sample", "199", "--rootless"))
    process.go()
    said = process.done()
    for recorder in recorders:
        trace = pytrace_ebpf.open(recorder.stop())
        samples, stacks = trace.samples(), stacks_of(trace)
        for name, tid in said["tids"].items():
            mine = samples[samples["tid"] == tid]
            inside = [{function for function, _ in stacks.get(stack, [])} for stack in mine["stack_id"]]
            on_core = [found for found, off_ns in zip(inside, mine["off_ns"], strict=True) if not off_ns]
            computing = [found for found in on_core if f"computes_{name}" in found]
            assert len(computing) > 0.5 * len(on_core) > 0  # the rest makes the interpreter; a look gives it all that the thread ran unmet
            assert not any("run_beside" in found for found in computing)
            assert all(any(f"{function}_{name}" in found for found in inside) for function in ("sleeps", "waits"))
            assert (mine["state"] == GIL).any() or (recorder is rootless and name == "own")
