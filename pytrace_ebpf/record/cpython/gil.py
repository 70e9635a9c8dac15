"""Where a process keeps the id of the thread that holds its GIL, for the kernel half, which reads it at every switch."""

import time
from dataclasses import astuple, dataclass, replace

import numpy as np

from pytrace_ebpf.errors import HostError, TargetError
from pytrace_ebpf.record.cpython.frames import PTHREAD_TID, host_tids
from pytrace_ebpf.record.kernel.map import Map
from pytrace_ebpf.record.output.tables import Columns
from pytrace_ebpf.record.process.memory import MemoryFault
from pytrace_ebpf.record.process.namespaces import Ids, watch
from pytrace_ebpf.record.process.target import Target, inspect, links_libpython
from pytrace_ebpf.trace.schema import SchedKind

_PATIENCE_S = 5.0  # for a program that was just started to make its GIL


@dataclass(frozen=True)
class HolderPath:
    """How to read the id of the thread that holds the GIL, and what threads wait for where there is none: the fields of struct gil in probes/sched.c."""

    holder: int
    enabled: int
    runtime_world: int
    interpreter_world: int
    thread_id: int
    pthread_tid: int
    thread_attached: int
    object_type: int
    inside: int  # it is in a pid namespace of its own
    interpreter_gil: int
    interpreters: int


def locate(target: Target) -> HolderPath | None:
    """Where `target` keeps the holder of its GIL; None where that cannot be said, or cannot yet."""
    start, _ = target.gil_range()
    layout = target.layout
    if not start or layout is None:
        return None
    worlds = _worlds(target)
    native = layout.thread_native_id
    tid_in_pthread = _tid_in_pthread(target) if native is None else 0
    if worlds is None or tid_in_pthread is None:
        return None
    thread = (layout.thread_pthread, tid_in_pthread) if native is None else (native, 0)
    enabled = start if target.free_threaded else 0  # its first field there
    made = (target.runtime or 0) + layout.runtime_main_interpreter + 8  # next_id follows `main`
    of_each = 0 if target.free_threaded else layout.interpreter_gil or 0
    return HolderPath(start + layout.gil_holder, enabled, *worlds, *thread, layout.thread_attached or 0, layout.object_type, 0, of_each, made)


def _worlds(target: Target) -> tuple[int, int] | None:
    """Where a Python without a GIL has the states of its pauses, the runtime's and the main interpreter's; (0, 0) of others, None while there are none."""
    layout, runtime = target.layout, target.runtime
    if layout is None or runtime is None or layout.runtime_world is None or layout.interpreter_world is None:
        return 0, 0
    try:
        interpreter = target.memory.u64(runtime + layout.runtime_main_interpreter)
    except MemoryFault:
        return None
    return runtime + layout.runtime_world, interpreter + layout.interpreter_world


def _tid_in_pthread(target: Target) -> int | None:
    """Where this process's libc keeps a thread's id behind its pthread_t: seen in a thread that there is."""
    if target.layout is None or target.runtime is None:
        return None
    memory, tids = target.memory, host_tids(target.pid)
    try:
        interpreter = memory.u64(target.runtime + target.layout.runtime_main_interpreter)
        state = memory.u64(interpreter + target.layout.interpreter_threads)
        pthread = memory.u64(state + target.layout.thread_pthread)
        return next((offset for offset in PTHREAD_TID if memory.u32(pthread + offset) in tids), None)
    except MemoryFault:
        return None


class Holders:
    """Keeps the kernel half's map of GILs up to date, and puts the ids that it read into the host's numbers."""

    def __init__(self, gils: Map) -> None:
        """`gils`: the map of sched.c."""
        self._gils = gils
        self._awaited: dict[int, tuple[Target | None, float]] = {}  # and until when
        self._inside: dict[int, Ids] = {}  # processes in other pid namespaces than this one's

    def expect(self, pid: int) -> None:
        """`pid` is, or has just become, a program that may be a Python: look for its GIL until it has one."""
        self._awaited[pid] = None, time.monotonic() + _PATIENCE_S
        self._look(pid)

    @property
    def awaits_any(self) -> bool:
        """Whether some program's GIL is still looked for."""
        return bool(self._awaited)

    def take_in(self, events: Columns) -> None:
        """Follow what columns of `sched` say of processes, and translate their `holder_tid`."""
        ended = []
        for at in np.flatnonzero((events["kind"] >= SchedKind.FORK) & (events["kind"] <= SchedKind.EXIT)).tolist():
            kind, pid = int(events["kind"][at]), int(events["pid"][at])
            if kind == SchedKind.EXEC:
                self.expect(pid)
            elif pid == int(events["tid"][at]):
                if kind == SchedKind.FORK and (creator := self._inside.get(int(events["other_pid"][at]))):
                    self._inside[pid] = Ids(pid, creator.namespace)
                elif kind == SchedKind.EXIT:
                    self._awaited.pop(pid, None)
                    ended.append(pid)
        for pid in list(self._awaited):
            self._look(pid)
        for ids in self._inside.values():
            self._translate(ids, events)
        for pid in ended:
            self._inside.pop(pid, None)

    def _look(self, pid: int) -> None:
        target, until = self._awaited.pop(pid)
        try:
            target = target or inspect(pid)
            path = locate(target)
        except HostError:
            return
        except TargetError:  # no Python, or its loader has not mapped the Python yet
            if links_libpython(pid) and time.monotonic() < until:
                self._awaited[pid] = None, until
            return
        if path is None:
            if time.monotonic() < until:
                self._awaited[pid] = target, until
            return
        namespace = watch(pid)
        if namespace:
            self._inside[pid] = Ids(pid, namespace)
        self._gils.set(pid, astuple(replace(path, inside=int(namespace is not None))))

    def _translate(self, ids: Ids, events: Columns) -> None:
        rows = np.flatnonzero((events["pid"] == ids.pid) & (events["holder_tid"] > 0))
        if len(rows):
            tids, which = np.unique(events["holder_tid"][rows], return_inverse=True)
            here = ids.here(set(tids.tolist()))
            events["holder_tid"][rows] = np.array([here[tid] for tid in tids.tolist()], np.int32)[which]
