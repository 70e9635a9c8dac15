"""Threads are called what their program calls them: of a running program and of one that was launched, by either source."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytrace_ebpf
from tests.bpf.conftest import COMMAND, Recorder, wait_until
from tests.conftest import PATIENCE_S, Python, Target

NAMES = {"MainThread", "first", "renamed", "grüße"}


def names(directory: Path) -> set[str]:
    return set(pytrace_ebpf.open(directory).threads()["name"])


def test_threads_have_the_names_that_python_gave_them(
    python: Python, source: str, target: Callable[..., Target], attach: Callable[..., Recorder]
) -> None:
    process = target("named", "--wait", "--hold", python=python)
    recorder = attach(process.pid, "--source", source)
    process.go()
    process.done()
    wait_until(lambda: names(recorder.directory) >= NAMES - {"renamed"})  # of one that is renamed later the name is read at the end
    threads = pytrace_ebpf.open(recorder.stop()).threads()
    assert set(threads["name"]) >= NAMES
    assert (threads["comm"] != "").all() and not {"first", "MainThread"} & set(threads["comm"]) - {"first", "second"}
    process.go()
    process.wait()


def test_of_a_launched_program_too(python: Python, source: str, tmp_path: Path) -> None:
    directory = tmp_path / "trace"
    words = [*COMMAND, "run", "-q", "-o", str(directory), "--source", source, "--", *python.command("named", "--hold")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as tracer:
        try:
            assert tracer.stdin and tracer.stdout and tracer.stdout.readline() == b"ready\n" and tracer.stdout.readline().startswith(b"done ")
            wait_until(lambda: names(directory) >= NAMES - {"renamed"})
            tracer.communicate(b"\n", timeout=PATIENCE_S)
        finally:
            tracer.kill()
    assert names(directory) >= NAMES - {"renamed"}
