"""Which source is chosen for a running program, how the choice is reported, and that no probe raises an error in a program."""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import pytrace_ebpf
from pytrace_ebpf.record.process.target import inspect
from tests.bpf.conftest import COMMAND, Recorder, has_agent, wait_until
from tests.bpf.test_detach import semaphores
from tests.conftest import PATIENCE_S, REPOSITORY, Python, Target

WORKS = """
import sys
def work(n): return n and work(n - 1)
print("ready", flush=True)
input()
for _ in range(100): work(20)
print("done", flush=True)
"""
BECOMES = "import os, sys\nprint('ready', flush=True)\ninput()\nos.execv(sys.executable, [sys.executable, sys.argv[1]])\n"


def chosen(recorder: Recorder) -> dict[str, Any]:
    """The manifest's entry for the source of the first process, after the end of the recording."""
    recorder.stop()
    return dict(pytrace_ebpf.open(recorder.directory).manifest["sources"][0])


def test_an_idle_program_is_traced_by_its_probes(python: Python, target: Callable[..., Target], attach: Callable[..., Recorder]) -> None:
    recorder = attach(target("sleeper", "--wait", python=python).pid)
    assert " by usdt: " in recorder.first
    assert " µs a call, expected to take " in recorder.first
    assert "--source agent: " in recorder.first
    source = chosen(recorder)
    assert source["source"] == "usdt"
    assert source["foreseen"]["share"] < 0.1 and source["foreseen"]["calls_per_s"] is None


@pytest.mark.parametrize("option", ["--c-calls", "--max-depth=3", "--lines=exact"])
def test_an_idle_program_is_traced_by_the_agent_where_it_alone_can(
    option: str, target: Callable[..., Target], attach: Callable[..., Recorder]
) -> None:
    recorder = attach(target("sleeper", "--wait").pid, option)
    assert f" by agent: only the agent records what {option.partition('=')[0]} asks for" in recorder.first
    assert chosen(recorder)["source"] == "agent"


def test_a_busy_program_is_traced_by_the_agent(python: Python, target: Callable[..., Target], attach: Callable[..., Recorder]) -> None:
    process = target("busy", python=python)
    recorder = attach(process.pid)
    assert " by agent: the probes, which trace from outside, would cost about " in recorder.first
    assert has_agent(process.pid)
    source = chosen(recorder)
    assert source["source"] == "agent"
    assert source["foreseen"]["share"] > 0.1
    assert (source["foreseen"]["calls_per_s"] is None) == (python.minor == 11)


def test_under_a_filter_the_probes_go_on_with_a_warning(python: Python, target: Callable[..., Target], attach: Callable[..., Recorder]) -> None:
    process = target("filtered", python=python)
    recorder = attach(process.pid)
    assert " by usdt: " in recorder.first
    assert recorder.process.stderr is not None
    warning = recorder.process.stderr.readline()
    assert warning.startswith("tracing will cost about ") and "seccomp filter" in warning
    assert not has_agent(process.pid)
    assert chosen(recorder)["source"] == "usdt"


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    """A program in a folder whose name is not UTF-8."""
    program = tmp_path / "x-\udcff" / "works.py"
    program.parent.mkdir()
    program.write_text(WORKS)
    return program


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[..., "subprocess.Popen[str]"]]:
    """`started(python, program, *args)`: a running program, ready."""
    running = []

    def start(python: Python, program: Path, *args: str) -> "subprocess.Popen[str]":
        process = subprocess.Popen(words(python, tmp_path, str(program), *args), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        running.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    yield start
    for process in running:
        process.kill()
        process.communicate()


def words(python: Python, shown: Path, *args: str) -> list[str]:
    """Words that run a Python in its root, `shown` being a folder that is to be seen there."""
    entered = [] if python.root is None else [str(REPOSITORY / "scripts" / "in-root.sh"), "--at", str(shown), str(python.root)]
    return [*entered, f"/usr/bin/python{python.version}", *args]


def ends_well(process: "subprocess.Popen[str]") -> None:
    said, _ = process.communicate("\n", timeout=PATIENCE_S)
    assert (said, process.returncode) == ("done\n", 0)


def test_a_folder_that_is_not_utf_8_is_traced_without_harm(
    python: Python, odd: Path, started: Callable[..., Any], attach: Callable[..., Recorder]
) -> None:
    process = started(python, odd)
    recorder = attach(process.pid)
    ends_well(process)
    trace = pytrace_ebpf.open(recorder.finish())
    assert trace.manifest["sources"][0]["source"] == ("usdt" if python.minor >= 15 else "agent")
    calls = trace.calls(columns=["func_id"]).merge(trace.functions(), on="func_id")
    assert (calls["name"] == "work").sum() == 2100


@pytest.mark.parametrize("command", ["attach", "run"])
def test_in_a_folder_that_is_not_utf_8_the_probes_are_refused_up_to_3_11(
    python: Python, command: str, odd: Path, tmp_path: Path, started: Callable[..., Any]
) -> None:
    if python.minor >= 15:
        return
    process = started(python, odd)
    of = ["--pid", str(process.pid)] if command == "attach" else ["--", *words(python, tmp_path, str(odd))]
    ended = subprocess.run(
        [*COMMAND, command, "--source", "usdt", "-o", str(tmp_path / "t"), *of], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert ended.returncode == 3
    assert "works.py', which is no valid UTF-8" in ended.stderr and "use --source agent" in ended.stderr
    assert ended.stdout == "" and not (tmp_path / "t").exists()
    ends_well(process)


@pytest.mark.parametrize("source", ["auto", "usdt"])
def test_exec_of_a_program_that_probes_would_harm(
    source: str, odd: Path, tmp_path: Path, started: Callable[..., Any], attach: Callable[..., Recorder]
) -> None:
    (tmp_path / "becomes.py").write_text(BECOMES)
    odd.unlink()
    os.mkfifo(odd)  # a pipe: the program stops here until the test writes to it
    process = started(Python("3.11"), tmp_path / "becomes.py", str(odd))
    recorder = attach(process.pid, "--source", source)
    process.stdin.write("\n")
    process.stdin.flush()
    with odd.open("w") as file:  # returns when the program has opened it for reading
        wait_until(lambda: not any(semaphores(inspect(process.pid))))
        file.write(WORKS)
    assert process.stdout.readline() == "ready\n"
    if source == "auto":
        wait_until(lambda: has_agent(process.pid))
    ends_well(process)
    last = pytrace_ebpf.open(recorder.finish()).manifest["sources"][-1]
    if source == "auto":
        assert last["source"] == "agent", last["why"]
    else:
        assert last["source"] is None and "no valid UTF-8" in last["why"]
