"""Whether a process is at work: a slow or busy machine is only slow, and a process that hangs does nothing.

Counted is the processor time of the process and of what it has started, and for how long it waits for a core.
"""

import subprocess
import time
from collections.abc import Callable
from contextlib import suppress

import psutil

from pytrace_ebpf.record.process.shares import process_s, queued_s

LOOK_S = 1.0
IDLE_S, WORK_S = 60.0, 600.0  # that a process may do nothing for, and that it may work, until it counts as one that hangs


class AtWork:
    """Watches a process from now on."""

    def __init__(self, pid: int, idle_s: float = IDLE_S, work_s: float = WORK_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._pid, self._idle_s, self._work_s, self._clock = pid, idle_s, work_s, clock
        self._spent: dict[int, float] = {}  # by process, of those that have ended as well
        self._idle = self._work = 0.0
        self._looked = clock()
        self._look()

    def hangs(self) -> bool:
        """Whether it has done nothing for too long by now, or has worked for too long without an end. To be asked now and then."""
        before = self._looked
        self._looked = self._clock()
        work = self._look()
        self._work += work
        self._idle += max(self._looked - before - work, 0.0)
        return self._idle > self._idle_s or self._work > self._work_s

    def _look(self) -> float:
        """What was spent since the last look."""
        pids = [self._pid]
        with suppress(psutil.Error):
            pids += [child.pid for child in psutil.Process(self._pid).children(recursive=True)]
        before = sum(self._spent.values())
        for pid in pids:
            self._spent[pid] = max(process_s(pid) + queued_s(pid), self._spent.get(pid, 0.0))
        return sum(self._spent.values()) - before


def wait(child: "subprocess.Popen[bytes]", at_work: AtWork) -> None:
    """Until a child has ended; it is killed where it hangs."""
    while True:
        with suppress(subprocess.TimeoutExpired):
            child.wait(LOOK_S)
            return
        if at_work.hangs():
            child.kill()
