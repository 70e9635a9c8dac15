"""A fault's scene: programs that check their own work, what traces them, and what must hold whatever happens to that."""

import os
import random
import re
import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd

import pytrace_ebpf
from tests.bpf.conftest import COMMAND, of_thread, wait_until
from tests.bpf.killed_tracers import raised
from tests.bpf.test_samples_killed import family, is_loaded, mapped_files, programs_of
from tests.conftest import HOST_PYTHON, PATIENCE_S
from tests.daemons import Daemon

PYTHON = f"/usr/bin/python{HOST_PYTHON}"
WINDOW_NS = 10**9
# Checks what it computes, and ends with 0 at the end of its input.
PROGRAM = """
import select, sys
def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)
print("ready", flush=True)
while not select.select([0], [], [], 0.005)[0]:
    assert fib(14) == 377
"""
POLICY = 'window = "1s"\notherwise = "ignore"\n[[rule]]\ncommand = "*{tag}*"\naction = "{action}"\n'
RECORDED = 'options = ["--source", "usdt"]\n'


class Scene:
    """One try of one fault."""

    def __init__(self, folder: Path, name: str, attempt: int) -> None:
        self.folder, self.attempt = folder, attempt
        self.tag = f"fault-{os.getpid()}-{name}-{attempt}"
        self.moments = random.Random(f"{name}{attempt}")
        self.lost: dict[str, float] = {}
        self.said = ""
        self.daemons: list[Daemon] = []
        self.programs: list[subprocess.Popen[bytes]] = []
        self._before: dict[int, object] = {}
        self._leaves: set[int] = set()  # BPF programs that are to go
        self._children: set[tuple[int, str]] = set()  # processes that are to go, with their start
        self.undo: list[Callable[[], object]] = []

    # -- who plays ---------------------------------------------------------------------

    def program(self, text: str = PROGRAM, python: str = PYTHON, *words: str, within: Sequence[str] = ()) -> "subprocess.Popen[bytes]":
        """Start a program that must not be harmed, and wait until it is ready. `within`: words before its own."""
        process = subprocess.Popen([*within, python, "-c", text, *words, self.tag], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/")
        self.programs.append(process)
        assert process.stdout and process.stdout.readline() == b"ready\n"
        self._before[process.pid] = _looks(process.pid)
        return process

    def daemon(self, action: str = "sample", more: str = "", within: Sequence[str] = ()) -> Daemon:
        """One that samples the programs of this scene alone."""
        self.daemons.append(Daemon(self.folder, more + POLICY.format(tag=self.tag, action=action) + (RECORDED if action == "record" else ""), within))
        return self.daemons[-1]

    def sampled(self, daemon: Daemon, windows: int = 2) -> None:
        """Wait until so many windows more are written."""
        before = daemon.status().get("windows", 0)
        wait_until(lambda: daemon.status().get("windows", 0) >= before + windows)
        self.remember(daemon.process.pid)

    def remember(self, tracer: int) -> None:
        """What the tracer has by now is to be gone at the end."""
        self._leaves |= programs_of(tracer)
        self._children |= {(child, _start(child)) for child in family(tracer)}

    def kill(self, daemon: Daemon) -> None:
        """SIGKILL."""
        self.remember(daemon.process.pid)
        daemon.process.kill()
        daemon.process.wait()

    # -- what was seen -----------------------------------------------------------------

    def lose(self, **what: float) -> None:
        """What is lost, by what it is: numbers."""
        self.lost |= what

    def says(self, sentence: str) -> None:
        """What a person reads of it; numbers of processes and places of this try are taken out."""
        sentence = sentence.strip().replace(str(self.folder), "DIR").replace(self.tag, "TAG").removeprefix("pytrace-ebpf: ")
        assert sentence and len(sentence.splitlines()) == 1, f"not one sentence: {sentence!r}"
        self.said = re.sub(r"\bprocess \d+", "process N", sentence)

    def windows(self, process: "subprocess.Popen[bytes]", daemon: Daemon) -> "pd.DataFrame":
        """The windows in which a program was sampled, as the directory reads."""
        rows = pytrace_ebpf.open(daemon.profile).profile()
        return rows[rows["pid"] == process.pid].groupby(["start_ns", "end_ns"], as_index=False)["samples"].sum().sort_values("start_ns")

    def gap_s(self, process: "subprocess.Popen[bytes]", daemon: Daemon) -> float:
        """For how long no window says anything of a program, between the first that does and the last."""
        rows = self.windows(process, daemon)
        gaps = rows["start_ns"].to_numpy()[1:] - rows["end_ns"].to_numpy()[:-1]
        return float(gaps[gaps > WINDOW_NS // 10].sum()) / 1e9

    # -- the end -----------------------------------------------------------------------

    def settle(self) -> None:
        """Nothing of what traced is left, and no program noticed."""
        for daemon in self.daemons:
            if daemon.process.poll() is None:
                self.remember(daemon.process.pid)
                assert daemon.ask("stop").returncode == 0
                assert daemon.process.wait(PATIENCE_S) == 0, (daemon.folder / "log").read_text()
        wait_until(lambda: not any(map(is_loaded, self._leaves)))
        wait_until(lambda: not any(_start(pid) == start for pid, start in self._children))
        for process in self.programs:
            if process.pid in self._before and process.poll() is None:
                wait_until(lambda pid=process.pid: _looks(pid) == self._before[pid])  # type: ignore[misc]
        for process in self.programs:
            if process.pid in self._before:
                assert process.poll() is None, f"a program ended with {process.returncode}"
                process.communicate(timeout=PATIENCE_S)
                assert process.returncode == 0

    def close(self) -> None:
        """Leave nothing of the test behind."""
        for daemon in self.daemons:
            daemon.process.send_signal(signal.SIGCONT) if daemon.process.poll() is None else None
            daemon.close()
        for process in self.programs:
            process.kill()
            process.communicate()
        for step in reversed(self.undo):
            step()

    def may_end(self, process: "subprocess.Popen[bytes]") -> None:
        """The fault is that it ends."""
        self._before.pop(process.pid, None)

    def expect(self, process: "subprocess.Popen[bytes]") -> None:
        """From now on it is to look as it does now: the fault is what changed it."""
        self._before[process.pid] = _looks(process.pid)

    def attach(self, pid: int, *options: str, name: str = "trace") -> "subprocess.Popen[str]":
        """`attach`, begun."""
        words = [*COMMAND, "attach", "--pid", str(pid), "-o", str(self.folder / name), *options]
        tracer = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
        self.undo += [tracer.wait, tracer.kill]
        return tracer


def has_calls(trace: Path) -> bool:
    """Whether calls can be read from what is being written."""
    try:
        return len(pytrace_ebpf.open(trace).events()) > 0
    except pytrace_ebpf.errors.TraceError:
        return False


def _start(pid: int) -> str:
    return of_thread(Path(f"/proc/{pid}"), "stat").rpartition(")")[2].split(" ")[20:21].__str__()


def _looks(pid: int) -> object:
    """What tracing may not change in a process; the agent's library stays in it, without a file and a thread."""
    status = Path(f"/proc/{pid}/status").read_text()
    return (
        sorted(descriptor.name for descriptor in Path(f"/proc/{pid}/fd").iterdir()),
        {name for name in mapped_files(pid) if not name.endswith("/agent.so (deleted)")},
        re.findall(r"^(?:TracerPid|Threads):.*$", status, re.MULTILINE),
        re.findall(r"^State:\tT", status, re.MULTILINE),
        raised(pid),
    )
