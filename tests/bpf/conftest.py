"""The tracer as its users start it: the command, on a real kernel."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import pytrace_ebpf
from pytrace_ebpf.trace.losses import NOT_REPORTED
from pytrace_ebpf.trace.reader import Trace
from tests.conftest import PATIENCE_S, Target

COMMAND = [sys.executable, "-m", "pytrace_ebpf"]


class Recorder:
    """A running `pytrace-ebpf attach`."""

    def __init__(self, pid: int, directory: Path, *options: str) -> None:
        """Start it and wait until it records."""
        self.directory = directory
        self.process = subprocess.Popen([*COMMAND, "attach", "--pid", str(pid), "-o", str(directory), *options], stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        said = []  # on a busy machine also what it waits for
        for line in self.process.stderr:
            said.append(line)
            if line.startswith("tracing process"):
                break
        self.first = said[-1] if said else ""
        assert self.first.startswith("tracing process"), "".join(said)

    def finish(self) -> Path:
        """Wait for its own end, the target being gone, and return the trace directory."""
        assert self.process.wait(PATIENCE_S) == 0, self.process.communicate()[1]
        return self.directory

    def stop(self) -> Path:
        """Ctrl-C."""
        self.process.send_signal(signal.SIGINT)
        return self.finish()

    def close(self) -> None:
        """Leave nothing behind."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


@pytest.fixture
def attach(tmp_path: Path) -> Iterator[Callable[..., Recorder]]:
    """`attach(pid, *options)` starts the tracer on a process and returns the Recorder, recording."""
    started: list[Recorder] = []

    def start(pid: int, *options: str) -> Recorder:
        started.append(Recorder(pid, tmp_path / f"trace{len(started)}", *options))
        return started[-1]

    yield start
    for each in started:
        each.close()


@pytest.fixture
def traced(attach: Callable[..., Recorder]) -> Callable[..., tuple[Trace, dict[str, Any]]]:
    """`traced(process, *options)` lets a target that was started with `--wait` do its work under the tracer: (its trace, its report)."""

    def trace(process: Target, *options: str) -> tuple[Trace, dict[str, Any]]:
        recorder = attach(process.pid, *options)
        process.go()
        said = process.done()
        return pytrace_ebpf.open(recorder.finish()), said

    return trace


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., tuple[Path, "subprocess.CompletedProcess[str]"]]:
    """`run(command, *options)` runs a program under the tracer; returns the trace directory and how it ended."""

    def start(command: list[str], *options: str) -> tuple[Path, "subprocess.CompletedProcess[str]"]:
        words = [*COMMAND, "run", "-o", str(tmp_path / "trace"), *options, "--", *command]
        return tmp_path / "trace", subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S)

    return start


@pytest.fixture
def gil_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pythons built without a GIL run with it; for the others this says nothing new."""
    monkeypatch.setenv("PYTHON_GIL", "1")


def wait_until(condition: Callable[[], bool]) -> None:
    """Return when the condition holds; fail when it never does."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {PATIENCE_S} s"
        time.sleep(0.02)


def lost(trace: Trace) -> dict[str, int]:
    """What was lost, by class, but for switches and wake-ups that this kernel reports to nobody."""
    return {name: count for name, count in trace.manifest["lost"].items() if count and name not in NOT_REPORTED.values()}


def reported(trace: Trace, calls: pd.DataFrame) -> pd.DataFrame:
    """Those of `calls` (tid, start_ns, end_ns) for which this kernel reported every switch and wake-up."""
    losses = trace.losses()
    missing = losses[losses["class"].isin(list(NOT_REPORTED.values()))]
    whole = np.ones(len(calls), bool)
    for loss in missing.itertuples():
        whole &= ~((calls["tid"] == loss.tid) & (calls["start_ns"] <= loss.end_ns) & (calls["end_ns"] >= loss.start_ns)).to_numpy(bool)
    return calls[whole]


def traced_by(directory: Path, source: str) -> set[int]:
    """The processes whose calls are recorded by a source by now, in a trace that is being written."""
    processes = pytrace_ebpf.open(directory).processes()
    return set(processes.loc[processes["source"] == source, "pid"])


def has_agent(pid: int) -> bool:
    """Whether an agent is at work in a process: has its arena."""
    return ".arena" in of_thread(Path(f"/proc/{pid}"), "maps")


def of_thread(thread: Path, file: str) -> str:
    """A file of a thread, /proc/PID/task/TID; empty where it has just ended."""
    try:
        return (thread / file).read_text()
    except OSError:
        return ""
