"""A guest's manners: what a program can tell of being traced; the list stands in docs/how-it-works.md."""

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytrace_ebpf import priority
from tests.bpf.conftest import COMMAND, Recorder
from tests.conftest import HOST_PYTHON, MATRIX, PATIENCE_S, ROOTS, Python, Target, built_pythons, free_threaded_pythons

LIBRARY, ARENA = "agent.so", "0.arena (deleted)"
IGNORED = 1 << signal.SIGINT - 1 | 1 << signal.SIGHUP - 1
HOST, NEWEST = Python(HOST_PYTHON), built_pythons()[-1:]
ENDINGS = (
    "returns", "raises", "exits_at_once", "terminated", "terminated_and_says_so", "killed", "interrupted", "reads_nothing",
    "reads_nothing_and_says_nothing", "aborts", "tells_its_stacks", "ends_last",
)  # fmt: skip


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`interpreter, way`: Pythons that `run` starts, and its option; with --matrix all, each in every way that there is."""
    if "way" not in metafunc.fixturenames:
        return
    matrix = metafunc.config.getoption("--matrix")
    others = [*(Python(version, ROOTS / root) for version, root in MATRIX.items()), *built_pythons(), *free_threaded_pythons()] if matrix else []
    runs = [(python, f"--source={source}") for python in [HOST, *others] for source in python.sources]
    runs += [(python, "--rootless") for python in [HOST, *others] if not python.root]
    metafunc.parametrize("interpreter, way", runs + [(python, "--source=agent") for python in NEWEST if not matrix], ids=str)


def test_it_runs_as_any_other_while_it_records(python: Python, source: str, target: Callable[..., Target], attach: Callable[..., Recorder]) -> None:
    """Until then it comes before what keeps all cores busy."""
    recorder = attach(target("notices", "in_poll", "--wait", "--hold", python=python).pid, "--source", source)
    threads = [*priority._threads(recorder.process.pid)]
    assert len(threads) > 1 and {os.sched_getscheduler(tid) for tid in threads} == {os.SCHED_OTHER}
    recorder.stop()


@pytest.mark.parametrize("call", ["in_epoll", "in_poll"])
def test_a_program_that_notices_everything_notices_what_the_docs_say(
    call: str, python: Python, source: str, target: Callable[..., Target], attach: Callable[..., Recorder]
) -> None:
    process = target("notices", call, "--wait", "--hold", python=python)
    recorder = attach(process.pid, "--source", source)
    process.go()
    process.done()
    recorder.stop()
    process.go()
    said = process.done()
    process.go()
    assert process.wait() == 0
    assert said["errors"] == []
    assert said["before"]["threads"] == 6 and said["before"]["maps"]
    during, after = (differences(said["before"], said[when]) for when in ("during", "after"))
    if source == "usdt":
        assert during == after == {}
        return
    hook = {} if python.minor >= 12 else {"hooks": ["<pytrace.thread object"]}
    module = {} if "atexit" in said["before"]["modules"] else {"modules": ["atexit"]}
    assert during == {"maps": [ARENA, LIBRARY], **module, **hook}
    assert after == {"maps": [f"{LIBRARY} (deleted)"], **module}  # until the program ends


def test_a_program_that_run_starts_notices_no_more(interpreter: Python, way: str, tmp_path: Path) -> None:
    words = interpreter.command("notices", "in_poll")
    plain, traced = (last_words(command) for command in (words, [*COMMAND, "run", "-q", "-o", str(tmp_path / "trace"), way, "--", *words]))
    assert traced["errors"] == plain["errors"] == []
    assert traced["given"] == plain["given"] and int(plain["given"]["SigIgn"], 16) & IGNORED == IGNORED
    found = differences(plain["during"], traced["during"])
    if way == "--source=usdt":
        assert found == {}
        return
    modules = found.pop("modules", ["atexit"])
    hook = {} if interpreter.minor >= 12 else {"hooks": ["<pytrace.thread object"]}
    assert found == {"maps": [ARENA, LIBRARY], "environment": [f"LD_PRELOAD={LIBRARY}"], **hook}
    assert modules == ["atexit"]


def last_words(command: list[str]) -> dict[str, Any]:
    """What a program finds, without numbers that are others each time."""
    command = ["sh", "-c", 'trap "" INT HUP; exec "$@"', "sh", *command]  # as nohup does, and a script with what it starts in the background
    ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE_S)
    assert ended.returncode == 0, ended.stderr
    return dict(json.loads(re.sub(r"0x[0-9a-f]{6,}|(?<=\[)\d{5,}(?=\])", "N", ended.stdout.rpartition("done ")[2])))


@pytest.mark.usefixtures("none_ignored")
def test_how_it_ends_and_what_it_says_is_the_same_attached_to(python: Python, source: str, attach: Callable[..., Recorder]) -> None:
    plain, recorder = [started(python, ending) for ending in ENDINGS], None
    expected = [ended(process) for process in plain]
    traced = [started(python, ending) for ending in ENDINGS]
    try:
        recorder = attach(",".join(str(process.pid) for process in traced), "--source", source)
        found = [ended(process) for process in traced]
    finally:
        for process in traced:
            process.kill()
    assert found == expected
    recorder.finish()


@pytest.mark.usefixtures("none_ignored")
@pytest.mark.parametrize("interpreter", [HOST, *NEWEST], ids=str)
def test_how_it_ends_and_what_it_says_is_the_same_under_run(
    interpreter: Python, run: Callable[..., tuple[Path, "subprocess.CompletedProcess[str]"]]
) -> None:
    words = interpreter.command("endings")
    expected = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S).stdout
    _, traced = run(words, "-q", "--source", "agent")
    assert set(json.loads(expected)) == set(ENDINGS)
    assert without_addresses(traced.stdout) == without_addresses(expected) and not traced.stderr


def started(python: Python, ending: str) -> "subprocess.Popen[str]":
    """A program that waits to end in this way."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(python.command("endings", ending, "--wait"), text=True, **pipes)  # type: ignore[call-overload]
    assert process.stdout.readline() == "ready\n"
    return process


def ended(process: "subprocess.Popen[str]") -> tuple[int, str, str]:
    """Its status, and all that it wrote."""
    out, err = process.communicate("\n", PATIENCE_S)
    return process.returncode, without_addresses(out), without_addresses(err)


def without_addresses(text: str) -> str:
    """Which are others each time."""
    return re.sub("0x[0-9a-f]+", "0x", text)


def differences(before: dict[str, Any], then: dict[str, Any]) -> dict[str, Any]:
    """What is not as before: of lists what is new, which is to replace nothing but a None; else what it is then."""
    found = {}
    for what in before.keys() | then.keys():
        old, new = before[what], then[what]
        if old != new and isinstance(old, list):
            assert {each for each in old if each not in new} <= {"None", None}, what
            found[what] = [re.sub(r"/(dev/shm|tmp)/pytrace-ebpf-.*/(\d+\.)?", "", each) for each in new if each not in old]
        elif old != new:
            found[what] = new
    return found
