"""The uprobes of a program's interpreter: by BPF links where the kernel has them, else by perf events.

A perf event is closed under a mutex that every tracer on the machine needs to attach, for some 100 ms each: with many
processes that come and go, attaching takes seconds. A link is not, but stays on a forked child until it is closed.
"""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from pytrace_ebpf.errors import HostError
from pytrace_ebpf.record import uprobe_multi
from pytrace_ebpf.record.bpf import Programs
from pytrace_ebpf.record.uprobe_multi import Place


@dataclass(frozen=True)
class Point:
    """One uprobe: program, file offset, file offset of the semaphore to raise (0 = none)."""

    program: str
    offset: int
    semaphore: int


class Uprobes:
    """Attaches points of one object's programs to any number of processes."""

    def __init__(self, programs: Programs, points: Iterable[Point], follow: bool) -> None:
        """`follow`: forked children of the processes are attached to as well."""
        self._programs, self._links = programs, dict[str, int]()
        self._places: dict[str, list[Place]] = {}
        for point in points:
            self._places.setdefault(point.program, []).append(Place(point.offset, semaphore=point.semaphore))
        if not follow:  # the kernel takes a perf event off a child at its first hit; a link would trap there on and on
            return
        loaded: dict[str, int] = {}
        try:
            for name in self._places:
                loaded[name] = uprobe_multi.load(name, programs.instructions(name))
            uprobe_multi.require(next(iter(loaded.values())))
        except HostError:
            for program in loaded.values():
                os.close(program)
        else:
            self._links = loaded

    def attach(self, pid: int, path: str) -> list[Callable[[], None]]:
        """Attach to the file at `path` in one process. Returns what detaches, to be called in any order and thread.

        The kernel raises a point's semaphore in that process, and lowers it at detaching, also where this process just ends.
        Raises OSError; nothing stays attached then.
        """
        detaching: list[Callable[[], None]] = []
        try:
            for name, places in self._places.items():
                if self._links:
                    detaching.append(partial(os.close, uprobe_multi.attach(self._links[name], path, places, pid)))
                    continue
                for place in places:
                    probe = self._programs.attach_uprobe(name, path, place.offset, pid, place.semaphore)
                    detaching.append(partial(self._programs.detach, probe))
        except OSError:
            for detach in detaching:
                detach()
            raise
        return detaching

    def close(self) -> None:
        """Unload the programs."""
        for program in self._links.values():
            os.close(program)
        self._links.clear()
