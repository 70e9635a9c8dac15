"""The uprobes of a program's interpreter: by BPF links where the kernel has them, else by perf events.

A perf event is closed under a mutex that every tracer on the machine needs to attach, for some 100 ms each: with many
processes that come and go, attaching takes seconds. A link is not, but stays on a forked child until it is closed.
"""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from pytrace_ebpf.errors import HostError, PytraceError
from pytrace_ebpf.record.kernel import registering, uprobe_multi
from pytrace_ebpf.record.kernel.bpf import Programs
from pytrace_ebpf.record.kernel.system_calls import UPROBE_MULTI, open_uprobe
from pytrace_ebpf.record.kernel.uprobe_multi import Uprobe


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
        self._programs = programs
        self._links: dict[str, int] = {}  # programs for links, by name; empty where perf events are to be used
        self._uprobes: dict[str, list[Uprobe]] = {}
        for point in points:
            self._uprobes.setdefault(point.program, []).append(Uprobe(point.offset, semaphore=point.semaphore))
        if not follow:  # the kernel takes a perf event off a child at its first hit; a link would trap there on and on
            return
        try:
            if not uprobe_multi.serves():  # nothing is loaded as both types: what shares a map of programs has to be of one
                return
            load = partial(programs.program, attach_type=UPROBE_MULTI)
            with ThreadPoolExecutor() as beside:  # the kernel verifies two of them for some 20 ms each
                loaded = dict(zip(self._uprobes, beside.map(load, self._uprobes), strict=True))
        except HostError:
            return
        self._links = loaded

    def load(self, program: str) -> int:
        """A program's descriptor, of the same type as those of the points, so that these can go on with it."""
        return self._programs.program(program, attach_type=UPROBE_MULTI if self._links else 0)

    def attach(self, pid: int, path: str) -> list[Callable[[], None]]:
        """Attach to the file at `path` in one process. Returns what detaches, to be called in any order and thread.

        The kernel raises a point's semaphore in that process, and lowers it at detaching, also where this process just ends.
        Raises OSError, and as registering.placing() does; nothing stays attached then.
        """
        detaching: list[Callable[[], None]] = []
        try:
            for name, uprobes in self._uprobes.items():
                if self._links:
                    detaching.append(partial(registering.close, uprobe_multi.attach(self._links[name], path, uprobes, pid)))
                    continue
                for uprobe in uprobes:
                    with registering.placing(path, pid, [uprobe.offset]):
                        probe = open_uprobe(self._programs.program(name), path, uprobe.offset, pid, uprobe.semaphore)
                    detaching.append(partial(registering.close, probe))
        except (OSError, PytraceError):
            for detach in detaching:
                detach()
            raise
        return detaching
