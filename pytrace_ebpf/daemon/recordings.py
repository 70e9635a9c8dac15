"""Exact recordings of processes that the policy names: each by an `attach` of its own, which ends when the daemon does."""

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pytrace_ebpf import itself
from pytrace_ebpf.errors import HostError
from pytrace_ebpf.record.libc import libc

DEFAULT_OPTIONS = ("--duration", "60s", "--max-size", "1GiB")
_PR_SET_PDEATHSIG = 1
_END_S = 10.0


class Recordings:
    """Those that go on, at most so many at a time."""

    def __init__(self, directory: Path, most: int) -> None:
        self._directory, self._most = directory, most
        self._running: dict[int, tuple[subprocess.Popen[bytes], Path]] = {}
        self.begun = self.failed = self.refused = 0

    def begin(self, pid: int, options: Sequence[str]) -> None:
        """Record a process. Raises HostError where the directory cannot be had, or nothing more can be started."""
        self._settle()
        if pid in self._running:
            return
        if len(self._running) >= self._most:
            self.refused += 1
            return
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise HostError(f"recordings cannot be written to {self._directory} ({error.strerror})") from error
        output = self._directory / f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{pid}"
        words = itself.command("attach", "--pid", str(pid), "--quiet", *(options or DEFAULT_OPTIONS), "-o", str(output))
        try:
            child = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, preexec_fn=_end_with(os.getpid()))
        except OSError as error:
            self.failed += 1
            raise HostError(f"process {pid} is not recorded: nothing more can be started ({error.strerror})") from error
        self._running[pid] = child, output
        self.begun += 1

    def status(self) -> dict[str, Any]:
        """By process where its recording goes, and how many there were."""
        self._settle()
        going = {str(pid): str(output) for pid, (_, output) in self._running.items()}
        return {"going": going, "begun": self.begun, "failed": self.failed, "refused": self.refused}

    def _settle(self) -> None:
        for pid, (child, _) in list(self._running.items()):
            if child.poll() is not None:
                self.failed += child.returncode != 0
                del self._running[pid]

    def close(self) -> None:
        """End them; each writes its trace."""
        for child, _ in self._running.values():
            child.send_signal(signal.SIGINT)
        deadline = time.monotonic() + _END_S
        for child, _ in self._running.values():
            try:
                child.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        self._settle()


def _end_with(parent: int) -> Any:
    def prepare() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGINT), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return prepare
