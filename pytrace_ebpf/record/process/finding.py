"""Finds by looking at /proc what nobody may report without privileges: children of the traced processes, and programs that take another one's place."""

import time
from pathlib import Path

from pytrace_ebpf.record.kernel.file_status import status
from pytrace_ebpf.record.process.memory import MemoryFault
from pytrace_ebpf.record.process.process_tree import children
from pytrace_ebpf.record.process.processes import Processes
from pytrace_ebpf.record.process.target import Target, is_zombie, living_threads, maps_libpython
from pytrace_ebpf.trace.schema import SchedKind

_INTERVAL_S = 0.02  # between two looks, or longer where they take long
_COST = 100  # the pause after a look is so many times as long: it takes a percent of a core at most
_YOUNG_S = 5.0  # so long a program may take to map its libpython

_Program = tuple[int, int, bool]  # device and inode of its file; whether it has mapped a libpython


class Finding:
    """Looks now and then; what is found goes to those who follow processes, as the kernel's own reports do."""

    def __init__(self, processes: Processes, follow: bool) -> None:
        """`follow`: children, too."""
        self._processes, self._follow = processes, follow
        self._programs: dict[int, tuple[_Program, float]] = {}  # of processes that are no Python: what they are, and since when
        self._next_s = 0.0

    def look(self) -> None:
        """Report to `processes` what began since the last look, if it is time for one."""
        began_s, spent_s = time.monotonic(), time.thread_time()
        if began_s < self._next_s:
            return
        living = self._processes.living
        for pid in living:
            target = self._processes.targets.get(pid)
            if self._became_another(pid, target):
                self._processes.found(SchedKind.EXEC, pid, 0)
            for child in _children(pid) if self._follow else ():
                if child not in living and not _has_ended(child):
                    copied = target is not None and _file(child) == _file(pid)
                    self._processes.found(SchedKind.FORK if copied else SchedKind.EXEC, child, pid)
        self._programs = {pid: known for pid, known in self._programs.items() if pid in living}
        self._next_s = began_s + max(_INTERVAL_S, _COST * (time.thread_time() - spent_s))

    def _became_another(self, pid: int, target: Target | None) -> bool:
        if target is not None:
            self._programs.pop(pid, None)
            return _is_left(target)
        known, since_s = self._programs.get(pid, (None, time.monotonic()))
        file = _file(pid)
        if file is None or (known and known[:2] == file and (known[2] or time.monotonic() - since_s > _YOUNG_S)):
            return False
        now = *file, maps_libpython(pid)
        if now == known:
            return False
        self._programs[pid] = now, since_s if known and known[:2] == file else time.monotonic()
        return True


def _is_left(target: Target) -> bool:
    """Whether a process that lives is no longer the program that was inspected: its memory can no longer be read."""
    if target.runtime is None:
        return False
    try:
        target.memory.u64(target.runtime)
    except MemoryFault:
        return not target.process.has_ended()
    return False


def _has_ended(pid: int) -> bool:
    """Whether its creator has only not noticed yet."""
    try:
        return is_zombie(pid)
    except OSError:
        return True


def _file(pid: int) -> tuple[int, int] | None:
    try:
        found = status(f"/proc/{pid}/exe")
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _children(pid: int) -> list[int]:
    """As children() has them, from a file that most kernels have."""
    try:
        return [int(child) for tid in living_threads(pid) for child in Path(f"/proc/{pid}/task/{tid}/children").read_text().split()]
    except FileNotFoundError:
        return children(pid) if living_threads(pid) else []
    except OSError:
        return []
