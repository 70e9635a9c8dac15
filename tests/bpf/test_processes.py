"""Children, exec, replaced interpreters, two tracers at once."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

import pytrace_ebpf
from pytrace_ebpf.trace.losses import NOT_REPORTED
from pytrace_ebpf.trace.reader import Trace
from tests.bpf.conftest import Recorder, has_agent, lost, reported, traced_by, wait_until
from tests.conftest import HOST_PYTHON, SOURCES, TARGETS, Python, Target


def steps(trace: Trace) -> dict[int, int]:
    """Calls of `step` per process."""
    calls = trace.calls(columns=["pid", "func_id"]).merge(trace.functions(), on="func_id")
    return calls[calls["name"] == "step"].groupby("pid").size().to_dict()


def test_forked_and_executed_children_are_followed(
    python: Python, source: str, target: Callable[..., Target], attach: Callable[..., Recorder]
) -> None:
    process = target("forks", "--wait", python=python)
    recorder = attach(process.pid, "--source", source)
    process.go()
    process.ready()
    wait_until(lambda: len(traced_by(recorder.directory, source)) == 6)
    process.go()
    facts = process.done()
    trace = pytrace_ebpf.open(recorder.finish())
    expected = {int(pid): count for pid, count in facts["steps"].items()}
    if python.root is None:  # else the target counts by the process ids of its own namespace
        assert steps(trace) == expected
    else:
        assert sorted(steps(trace).values()) == sorted(expected.values())
    processes = trace.processes().set_index("pid")
    assert set(steps(trace)) <= set(processes.index)
    assert (processes.loc[list(steps(trace)), "source"] == source).all()
    calls = trace.calls().merge(trace.functions(), on="func_id")
    assert not (calls["status"] == "repaired").any()
    # A forked child is born with the frames of its creator.
    for pid in facts["forked"] if python.root is None else []:
        born = calls[(calls["pid"] == pid) & (calls["status"] == "open_at_start")]
        names = [name for name in born.sort_values("depth")["name"] if name != "<listcomp>"]
        assert names[:3] == ["<module>", "main", "forked"]


def test_the_first_process_of_a_namespace_is_not_taken_for_the_host_s(run: Callable[..., tuple]) -> None:
    directory, ended = run(Python("3.11").command("apart"), "--source", "agent")
    assert ended.returncode == 0, ended.stderr
    trace = pytrace_ebpf.open(directory)
    calls = trace.calls(columns=["pid", "func_id"]).merge(trace.functions(), on="func_id")
    counted = calls[calls["name"] == "counted"].groupby("pid").size()
    assert 1 not in counted.index and counted.max() == 200
    assert counted.sum() == 300 or sum(lost(trace).values()) >= 100  # it had ended before it was looked for


LEAVES = "leaves_at_once"
OF_CHILDREN = ("before_exec", "before_end", "in_grandchild")


def assert_nothing_of_the_children_is_missing(trace: Trace) -> None:
    """Of those of LEAVES."""
    calls = trace.calls().merge(trace.functions(), on="func_id")
    assert {name: int((calls["name"] == name).sum()) for name in OF_CHILDREN} == dict.fromkeys(OF_CHILDREN, 100)
    assert (calls.loc[calls["name"].isin(OF_CHILDREN), "status"] == "complete").all()
    losses = trace.losses()
    assert set(losses["class"]) <= set(NOT_REPORTED.values())
    assert calls["on_cpu_ns"].notna().all() or len(losses)


@pytest.mark.parametrize("follow", [[], ["unshare", "--pid", "--fork", "--mount-proc"]], ids=["", "in a pid namespace"])
def test_children_that_live_a_millisecond_miss_nothing(follow: list[str], python: Python, run: Callable[..., tuple]) -> None:
    if python.root is not None:
        pytest.skip("a container is started by attaching")
    directory, ended = run([*follow, *python.command(LEAVES)], "--source", "agent")
    assert ended.returncode == 0, ended.stderr
    assert_nothing_of_the_children_is_missing(pytrace_ebpf.open(directory))


def test_first_processes_of_pid_namespaces_that_live_a_millisecond_miss_nothing(python: Python, run: Callable[..., tuple]) -> None:
    if python.root is not None:
        pytest.skip("a container is started by attaching")
    directory, ended = run(python.command(LEAVES, "apart"), "--source", "agent")
    assert ended.returncode == 0, ended.stderr
    trace = pytrace_ebpf.open(directory)
    assert_nothing_of_the_children_is_missing(trace)
    calls = trace.calls(columns=["pid", "func_id"]).merge(trace.functions(), on="func_id")
    assert set(calls[calls["name"].isin(OF_CHILDREN)].groupby("pid").size()) == {10}  # no two are taken for one


@pytest.mark.parametrize("how", [[], ["apart"]], ids=["", "in pid namespaces of their own"])
def test_children_of_an_attached_program_that_live_a_millisecond_miss_nothing(
    how: list[str], python: Python, target: Callable[..., Target], traced: Callable[..., tuple]
) -> None:
    trace, _ = traced(target(LEAVES, *how, "--wait", python=python), "--source", "agent")
    assert_nothing_of_the_children_is_missing(trace)


def test_no_follow_records_the_one_process(target: Callable[..., Target], attach: Callable[..., Recorder]) -> None:
    process = target("forks", "--wait")
    recorder = attach(process.pid, "--no-follow")
    for _ in range(2):
        process.go()
    process.done()
    trace = pytrace_ebpf.open(recorder.finish())
    assert steps(trace) == {process.pid: 31}
    assert set(trace.sched()["pid"]) == {process.pid}


@pytest.mark.parametrize("then", [[], ["sleep"]])
def test_exec_ends_the_open_calls_and_the_next_program_is_traced(
    then: list[str], python: Python, source: str, target: Callable[..., Target], attach: Callable[..., Recorder]
) -> None:
    process = target("execs", *then, "--wait", python=python)
    recorder = attach(process.pid, "--source", source)
    process.go()
    process.ready()
    if source == "agent":  # the agent is injected once the program runs its own code; probes are attached before
        wait_until(lambda: has_agent(process.pid))
    process.go()
    facts = process.done()
    trace = pytrace_ebpf.open(recorder.finish())
    calls = trace.calls().merge(trace.functions(), on="func_id")
    counts = calls.groupby("name").size()
    assert {name: counts[name] for name in ("step", "first_life", "second_life")} == {
        "step": facts["first"]["step"] + facts["second"]["step"], "first_life": 1, "second_life": 1,
    }  # fmt: skip
    assert calls.set_index("name").loc["first_life", "status"] == "unwound"
    assert (calls["pid"] == process.pid).all()
    assert not (calls["status"] == "repaired").any()


def test_a_replaced_interpreter_is_traced_by_the_file_that_is_mapped(
    tmp_path: Path, attach: Callable[..., Recorder], target: Callable[..., Target]
) -> None:
    python = tmp_path / "bin" / "python3.11"
    python.parent.mkdir()
    shutil.copy("/usr/bin/python3.11", python)

    class Copy(Python):
        def command(self, program: str, *args: str) -> list[str]:
            return [str(python), str(TARGETS / f"{program}.py"), *args]

    process = target("fib", "12", "--wait", python=Copy("3.11"))
    python.unlink()
    shutil.copy("/bin/true", python)
    recorder = attach(process.pid)
    process.go()
    trace = pytrace_ebpf.open(recorder.finish())
    calls = trace.calls(columns=["func_id"]).merge(trace.functions(), on="func_id")
    assert (calls["name"] == "fib").sum() == process_calls(12)


def process_calls(n: int) -> int:
    a, b = 0, 1
    for _ in range(n + 1):
        a, b = b, a + b
    return 2 * a - 1


def test_two_tracers_on_one_target_see_the_same(target: Callable[..., Target], attach: Callable[..., Recorder]) -> None:
    process = target("threads", "--wait")
    recorders = [attach(process.pid, "--source", "usdt") for _ in range(2)]
    process.go()
    traces = [pytrace_ebpf.open(recorder.finish()) for recorder in recorders]
    ours = []
    for trace in traces:
        calls = trace.calls(columns=["func_id", "status"]).merge(trace.functions(), on="func_id")
        calls = calls[calls["file"].str.startswith(str(TARGETS)) & (calls["status"] == "complete")]
        ours.append(calls.groupby("qualname").size())
    pd.testing.assert_series_equal(ours[0], ours[1])
    assert len(ours[0])


@pytest.mark.parametrize("source", SOURCES)
def test_a_program_that_embeds_python_several_times(source: str, tmp_path: Path, attach: Callable[..., Recorder]) -> None:
    library = next(Path("/usr/lib").glob(f"*-linux-gnu/libpython{HOST_PYTHON}.so.1.0"), None)
    if library is None:
        pytest.skip(f"there is no libpython{HOST_PYTHON}")
    subprocess.run(["cc", "-pthread", TARGETS / "embeds.c", library, "-o", tmp_path / "embeds"], check=True)
    with subprocess.Popen([tmp_path / "embeds", "3", "waits"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        recorder = attach(process.pid, "--source", source)
        process.communicate(b"\n")
    assert process.returncode == 0
    trace = pytrace_ebpf.open(recorder.finish())
    calls = trace.calls(columns=["func_id", "status"]).merge(trace.functions(), on="func_id")
    assert calls[calls["name"] == "counted"].groupby("status").size().to_dict() == {"complete": 300}


@pytest.mark.parametrize("source", SOURCES)
def test_run_traces_from_the_first_call_and_passes_on_the_exit_code(source: str, run: Callable[..., tuple]) -> None:
    program = "import sys\ndef f(): return 7\nfor _ in range(101): f()\nsys.exit(f())\n"
    directory, ended = run(["/usr/bin/python3.11", "-c", program], "--source", source)
    assert ended.returncode == 7, ended.stderr
    trace = pytrace_ebpf.open(directory)
    calls = trace.calls().merge(trace.functions(), on="func_id")
    assert (calls["name"] == "f").sum() == 102
    assert set(calls["status"]) <= {"complete", "open_at_end", "unwound"}  # by the exception of `sys.exit`
    assert reported(trace, calls)["on_cpu_ns"].notna().all()


@pytest.mark.parametrize("wrapper", [["/usr/bin/env"], ["/usr/bin/taskset", "-c", "0"], ["/bin/sh", "-c", 'exec "$@"', "sh"]])
@pytest.mark.parametrize("source", SOURCES)
def test_run_sees_through_a_wrapper(source: str, wrapper: list[str], run: Callable[..., tuple]) -> None:
    program = "def f(): pass\nfor _ in range(53): f()"
    directory, ended = run([*wrapper, "/usr/bin/python3.11", "-c", program], "--source", source)
    assert ended.returncode == 0, ended.stderr
    trace = pytrace_ebpf.open(directory)
    calls = trace.calls().merge(trace.functions(), on="func_id")
    assert (calls["name"] == "f").sum() == 53
    assert trace.manifest["target"]["python_version"].startswith("3.11")


def test_run_reports_that_a_signal_killed_the_program(run: Callable[..., tuple]) -> None:
    _, ended = run(["/usr/bin/python3.11", "-c", "import os; os.kill(os.getpid(), 9)"])
    assert ended.returncode == 128 + 9
