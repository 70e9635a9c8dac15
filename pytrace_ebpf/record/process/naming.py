"""When the names of threads are read from their interpreter: some moments after a thread began, again where one is not listed yet, and at the end.

Where processes are of several users they are read beside the loop that takes in everything (readings.py), and taken in the next time.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from pytrace_ebpf.record.cpython.thread_names import read_names
from pytrace_ebpf.record.process.readings import Readings
from pytrace_ebpf.record.process.target import Target

_MOMENT_S = 0.02  # in which a thread comes to be listed
_LEAST_S = 0.1  # between two looks at a process
_SHARE = 20  # times the processor time of a look nothing is looked at: 5 % of a core at most
_LATER_S = 1.0  # where too much of its user's waits
_LAST_S = 1.0  # for all that waits, at the end
_LOOKS = 7  # each twice as long after the one before, the last one 6 s: a thread may wait that long for the GIL that it needs to list itself


class Naming:
    """Which processes have threads whose names are not known yet."""

    def __init__(self, readings: Readings, user: Callable[[int], int] = lambda pid: 0) -> None:
        """`user`: of a process."""
        self._readings, self._user = readings, user
        self._read: deque[tuple[int, Target, dict[int, str], int, float]] = deque()  # what was read, and not taken in yet
        self._due: dict[int, float] = {}  # by pid, on time.monotonic()
        self._not_before: dict[int, float] = {}
        self._looks: dict[int, int] = {}  # since the last one of its threads began
        self._active: dict[int, int] = {}  # as read_names() wants it

    def begun(self, pid: int) -> None:
        """A thread of this process began."""
        self._due.setdefault(pid, time.monotonic() + _MOMENT_S)
        self._looks[pid] = 0

    def incomplete(self, pid: int) -> None:
        """The last look did not find the names of all its threads: they are not listed yet, or none of Python's."""
        looks = self._looks.get(pid, 0) + 1
        if looks < _LOOKS:
            self._looks[pid] = looks
            self._due.setdefault(pid, time.monotonic() + _LEAST_S * 2 ** (looks - 1))

    def forget(self, pid: int) -> None:
        """It ended, or is another program."""
        for of in (self._due, self._not_before, self._looks, self._active):
            of.pop(pid, None)

    def names(self, targets: Mapping[int, Target], all_: bool = False) -> Iterator[tuple[int, dict[int, str]]]:
        """(pid, names by thread id) of the processes that are due, or of all."""
        now = time.monotonic()
        yield from self._take(targets)
        for pid in list(targets) if all_ else [pid for pid, due in self._due.items() if max(due, self._not_before.get(pid, 0.0)) <= now]:
            self._due.pop(pid, None)
            target = targets.get(pid)
            if target and not self._readings.do(self._user(pid), partial(self._look, pid, target, self._active.get(pid, 0))):
                self._due[pid] = now + _LATER_S
        if all_:
            self._readings.finish(_LAST_S)
        yield from self._take(targets)

    def _look(self, pid: int, target: Target, active: int) -> None:
        began_s = time.thread_time()
        names, active, spent_s = read_names(target, active)
        self._read.append((pid, target, names, active, spent_s + time.thread_time() - began_s))

    def _take(self, targets: Mapping[int, Target]) -> Iterator[tuple[int, dict[int, str]]]:
        """What was read of those that are still what they were."""
        while self._read:
            pid, target, names, active, spent_s = self._read.popleft()
            if targets.get(pid) is target:
                self._active[pid] = active
                self._not_before[pid] = time.monotonic() + max(_LEAST_S, _SHARE * spent_s)
                yield pid, names


def comm_of(pid: int, tid: int) -> str:
    """The kernel's name of a thread; "" where it has ended."""
    try:
        return Path(f"/proc/{pid}/task/{tid}/comm").read_text(errors="replace").rstrip("\n")
    except OSError:
        return ""
