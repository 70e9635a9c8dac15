"""Exact recordings of processes that the policy names: each by an `attach` of its own, which ends when the daemon does."""

import ctypes
import os
import re
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytrace_ebpf import self_command
from pytrace_ebpf.daemon.api.at_work import AtWork, wait
from pytrace_ebpf.daemon.api.recordings import ENDING_S
from pytrace_ebpf.daemon.configuration import Configuration
from pytrace_ebpf.daemon.retention import Clock, Retention
from pytrace_ebpf.errors import HostError
from pytrace_ebpf.record.libc import libc

DEFAULT_OPTIONS = ("--duration", "60s", "--max-size", "1GiB")
_NAMES = re.compile(r"\d{8}-\d{6}-\d{1,7}(-\d{1,7})?", re.ASCII)  # when it began, the process, and of several traces which
_PR_SET_PDEATHSIG = 1
_TIDY_S = 60.0


@dataclass
class _Recording:
    child: "subprocess.Popen[bytes]"
    output: Path
    traces: list[Path] = field(default_factory=list)  # those that there are by now: none at first where it has --trigger
    is_ending: bool = False  # it was told to: a second signal would end it at once

    def news(self) -> list[Path]:
        """The traces that were begun since the last call."""
        known = len(self.traces)
        while ((path := self._next()) / "manifest.json").exists():
            self.traces.append(path)
        return self.traces[known:]

    def _next(self) -> Path:
        return self.output.with_name(f"{self.output.name}-{len(self.traces) + 1}") if self.traces else self.output


class Recordings:
    """Those that go on, at most so many at a time; the oldest traces go when they are too many or too old."""

    def __init__(self, configuration: Configuration, clock: Clock) -> None:
        self._configuration, self._clock = configuration, clock
        self._kept: Retention | None = None
        self._running: dict[int, _Recording] = {}
        self._said: list[str] = []
        self._tidy_at = 0.0
        self.begun = self.failed = self.refused = 0

    def begin(self, pid: int, options: Sequence[str]) -> None:
        """Record a process. Raises HostError where the directory cannot be had or is full, or nothing more can be started."""
        self._settle()
        if pid in self._running:
            return
        if len(self._running) >= self._configuration.max_recordings:
            self.refused += 1
            return
        kept = self._directory()
        self._tidy(kept)
        if not kept.has_room(0):
            raise HostError(f"process {pid} is not recorded: less than a twentieth of the disk of {kept.path} is free")
        output = kept.path / f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{pid}"
        words = self_command.command("attach", "--pid", str(pid), "--quiet", *(options or DEFAULT_OPTIONS), "-o", str(output))
        try:
            child = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, preexec_fn=_end_with(os.getpid()))
        except OSError as error:
            self.failed += 1
            raise HostError(f"process {pid} is not recorded: nothing more can be started ({error.strerror})") from error
        self._running[pid] = _Recording(child, output)
        self.begun += 1

    def take_said(self) -> list[str]:
        """What happened since the last call, a sentence each. To be called now and then."""
        self._settle()
        for pid, recording in list(self._running.items()):
            self._said += [f"a trace of process {pid} is being written: {path}" for path in recording.news()]
        if self._kept is not None and time.monotonic() >= self._tidy_at:
            self._tidy(self._kept)
        said, self._said = self._said, []
        return said

    def status(self) -> dict[str, Any]:
        """By process where its recording goes and which traces there are by now; how many recordings there were, and what is on the disk."""
        self._settle()
        going = {str(pid): str(recording.output) for pid, recording in list(self._running.items())}
        traces = {str(pid): [str(path) for path in recording.traces] for pid, recording in list(self._running.items())}
        of_disk = {"bytes": self._kept.bytes, "removed": self._kept.removed} if self._kept is not None else {"bytes": 0, "removed": 0}
        return {"going": going, "traces": traces, "begun": self.begun, "failed": self.failed, "refused": self.refused} | of_disk

    def _directory(self) -> Retention:
        if self._kept is None or not self._kept.is_there():
            configuration = self._configuration
            fresh = Retention(configuration.recordings, _NAMES, configuration.max_bytes, configuration.max_age_s, self._clock)
            if self._kept is not None:
                self._kept.close()
            self._kept = fresh
        return self._kept

    def _tidy(self, kept: Retention) -> None:
        kept.forget_sizes()  # who read a trace may have left derived tables in it
        outputs = [recording.output.name for recording in self._running.values()]
        going = [name for name in kept.names() if any(f"{name}-".startswith(f"{output}-") for output in outputs)]
        kept.tidy(going, sum(map(kept.size, going)))
        self._tidy_at = time.monotonic() + _TIDY_S

    def _settle(self) -> None:
        for pid, recording in list(self._running.items()):
            if recording.child.poll() is not None and self._running.pop(pid, None) is recording:  # others may ask for the status, too
                recording.news()
                how = "is over" if recording.child.returncode == 0 else "ended early"
                self._said.append(f"the recording of process {pid} {how}: {_where(recording.traces)}")
                self.failed += recording.child.returncode != 0

    def end(self) -> None:
        """Have them end; each writes its trace."""
        for recording in self._running.values():
            if not recording.is_ending:
                recording.is_ending = True
                recording.child.send_signal(signal.SIGINT)

    def close(self) -> None:
        """End them, and wait for that."""
        self.end()
        watched = [(recording.child, AtWork(recording.child.pid, ENDING_S)) for recording in self._running.values()]
        for child, at_work in watched:
            wait(child, at_work)
        self._settle()
        if self._kept is not None:
            self._kept.close()
            self._kept = None


def _where(traces: Sequence[Path]) -> str:
    if not traces:
        return "no trace was written"
    return f"its trace is in {traces[0]}" if len(traces) == 1 else f"{len(traces)} traces, the last in {traces[-1]}"


def _end_with(parent: int) -> Any:
    def prepare() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGINT), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return prepare
