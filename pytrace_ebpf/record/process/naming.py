"""When the names of threads are read from their interpreter: some moments after a thread began, however many do, and at the end."""

import time
from collections.abc import Iterator, Mapping

from pytrace_ebpf.record.cpython.thread_names import read_names
from pytrace_ebpf.record.process.target import Target

_MOMENT_S = 0.02  # in which a thread comes to be listed
_LEAST_S = 0.1  # between two looks at a process
_SHARE = 20  # times as long as a look took nothing is looked at: 5 % of a core at most


class Naming:
    """Which processes have threads whose names are not known yet."""

    def __init__(self) -> None:
        self._due: dict[int, float] = {}  # by pid, on time.monotonic()
        self._not_before: dict[int, float] = {}
        self._active: dict[int, int] = {}  # as read_names() wants it

    def begun(self, pid: int) -> None:
        """A thread of this process began."""
        self._due.setdefault(pid, time.monotonic() + _MOMENT_S)

    def forget(self, pid: int) -> None:
        """It ended, or is another program."""
        for of in (self._due, self._not_before, self._active):
            of.pop(pid, None)

    def names(self, targets: Mapping[int, Target], all_: bool = False) -> Iterator[tuple[int, dict[int, str]]]:
        """(pid, names by thread id) of the processes that are due, or of all."""
        now = time.monotonic()
        for pid in list(targets) if all_ else [pid for pid, due in self._due.items() if max(due, self._not_before.get(pid, 0.0)) <= now]:
            self._due.pop(pid, None)
            if target := targets.get(pid):
                began = time.monotonic()
                names, self._active[pid] = read_names(target, self._active.get(pid, 0))
                ended = time.monotonic()
                self._not_before[pid] = ended + max(_LEAST_S, _SHARE * (ended - began))
                yield pid, names
