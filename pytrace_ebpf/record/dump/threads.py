"""The threads of a process as they are at one moment: in which state, in which system call, since when, with which Python stack.

Stacks are read as those of threads off the core are (sampling/off_cpu.py), while the process runs on: that of a thread that stands still is exact, of
one in motion it is one that it had about then.
"""

import os
import time
from collections.abc import Container, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from pytrace_ebpf import processors
from pytrace_ebpf.record.cpython import qualnames
from pytrace_ebpf.record.cpython.frames import Walk, host_tids
from pytrace_ebpf.record.cpython.lines import read_lines
from pytrace_ebpf.record.cpython.thread_names import read_names
from pytrace_ebpf.record.process import stat
from pytrace_ebpf.record.process.memory import MemoryFault
from pytrace_ebpf.record.process.pinned import Pinned
from pytrace_ebpf.record.process.target import Target, living_threads
from pytrace_ebpf.record.sampling.off_cpu import stacks_of

State = Literal["on_cpu", "runq_wait", "gil_wait", "blocked"]

_FRAME = np.dtype([("code", np.uint64), ("identity", np.uint32), ("position", np.int32)])
_LOOK_S = 0.01  # the least between two looks at what a runnable thread does
_IN_USER_CODE = -1
_FUTEX = processors.here().call("futex")  # of a call with fewer arguments the rest are whatever the registers held
_CLOCKS_S = 0.1  # for reading the clocks of cores


@dataclass(frozen=True)
class Frame:
    """One Python frame; `line` is where it is now, 0 where that is not known."""

    function: str
    file: str
    first_line: int
    line: int


@dataclass(frozen=True)
class Thread:
    """One thread.

    name       by threading, else by the kernel
    syscall    the number of the system call that it is in, -1 none or not known
    arguments  of that call, as the kernel has them
    for_s      since when it has not been on a core, seconds; None where it is, or where the kernel does not tell
    frames     innermost first; none where it runs no Python code
    """

    tid: int
    name: str
    state: State
    syscall: int
    arguments: tuple[int, ...]
    for_s: float | None
    frames: tuple[Frame, ...]


@dataclass(frozen=True)
class Threads:
    """All of a process, and which of them holds the GIL: 0 where none waits for it, or that is not known."""

    threads: tuple[Thread, ...]
    gil_holder: int


def look(target: Target) -> Threads:
    """Look at all threads of `target` once. Raises TargetError where it has ended, or becomes another program meanwhile."""
    process, began_s = target.process, time.monotonic()
    tids = sorted(living_threads(target.pid))
    before = {tid: _scheduled(process, tid) for tid in tids}
    stacks = stacks_of(target, _FRAME)
    frames = _frames(target, stacks)
    names = read_names(target)[0]
    time.sleep(max(0.0, began_s + _LOOK_S - time.monotonic()))
    gil, clocks = range(*target.gil_range()), _Clocks()
    found = []
    for tid in tids:
        with suppress(OSError, ValueError, IndexError):  # it has ended
            kept = names.get(tid) or process.read(f"task/{tid}/comm").decode(errors="replace").rstrip("\n")
            found.append(Thread(tid, kept, *_state(process, tid, before[tid], gil, clocks), frames.get(tid, ())))
    process.check()
    return Threads(tuple(found), _holder(target) if any(each.state == "gil_wait" for each in found) else 0)


def _scheduled(process: Pinned, tid: int) -> tuple[int, int]:
    """Nanoseconds on a core and in the run queue so far; (0, 0) where the kernel does not tell."""
    with suppress(OSError, ValueError):
        on_cpu, queued, _ = process.read(f"task/{tid}/schedstat").split()
        return int(on_cpu), int(queued)
    return 0, 0


def _state(
    process: Pinned, tid: int, before: tuple[int, int], gil: Container[int], clocks: "_Clocks"
) -> tuple[State, int, tuple[int, ...], float | None]:
    fields = stat.fields(process.read(f"task/{tid}/stat"))
    if fields[stat.STATE] == "R":
        on_cpu, queued = (now - then for now, then in zip(_scheduled(process, tid), before, strict=True))
        return ("runq_wait" if queued > on_cpu else "on_cpu"), _IN_USER_CODE, (), None
    call, arguments = _IN_USER_CODE, tuple[int, ...]()
    with suppress(OSError, ValueError):
        words = process.read(f"task/{tid}/syscall").decode().split()
        call, arguments = int(words[0]), tuple(int(word, 16) for word in words[1:7])
    return (
        ("gil_wait" if call == _FUTEX and arguments[0] in gil else "blocked"),
        call,
        arguments,
        _off_cpu_s(process, tid, int(fields[stat.CPU]), clocks),
    )


class _Clocks:
    """The scheduler's clocks, one for each core: they leave out what a hypervisor and interrupts took, so that two may be many seconds apart."""

    def __init__(self) -> None:
        self._ahead_ms: dict[int, float | None] = {}  # of the monotonic clock; None where that cannot be said
        self._until_s = time.monotonic() + _CLOCKS_S

    def since_s(self, cpu: int, then_ms: float) -> float | None:
        """How long ago that moment of a core's clock was."""
        if cpu not in self._ahead_ms:
            self._ahead_ms[cpu] = self._read(cpu) if time.monotonic() < self._until_s else None
        ahead_ms = self._ahead_ms[cpu]
        return None if ahead_ms is None else max(0.0, time.monotonic() * 1e3 + ahead_ms - then_ms) / 1e3

    @staticmethod
    def _read(cpu: int) -> float | None:
        allowed = os.sched_getaffinity(0)
        try:
            os.sched_setaffinity(0, {cpu})  # from here on this thread runs there, and was given that core just now
            return _last_run_ms(Path("/proc/thread-self/sched").read_text()) - time.monotonic() * 1e3
        except (OSError, ValueError, StopIteration):
            return None
        finally:
            os.sched_setaffinity(0, allowed)


def _off_cpu_s(process: Pinned, tid: int, cpu: int, clocks: _Clocks) -> float | None:
    """Since when a thread that last ran on core `cpu` has been off it."""
    with suppress(OSError, ValueError, StopIteration):
        return clocks.since_s(cpu, _last_run_ms(process.read(f"task/{tid}/sched").decode()))
    return None


def _last_run_ms(text: str) -> float:
    return next(float(line.partition(":")[2]) for line in text.splitlines() if line.startswith("se.exec_start"))


def _frames(target: Target, stacks: Mapping[int, np.ndarray]) -> dict[int, tuple[Frame, ...]]:
    by_tid = {tid: rows.tolist() for tid, rows in stacks.items()}
    codes = read_lines(target, sorted({(code, identity) for rows in by_tid.values() for code, identity, _ in rows}))
    qualify = qualnames.for_process(target.process, target.library)
    unit = target.layout.position_unit if target.layout is not None else 1
    named: dict[tuple[int, int], str] = {}
    for key, code in codes.items():
        info = code.info
        named[key] = info.qualname or qualify(info.file, info.first_line, info.name) or info.name
    return {
        tid: tuple(
            Frame(named[key], found.info.file, found.info.first_line, max(found.line(position * unit), 0))
            for address, identity, position in rows
            if (found := codes.get(key := (address, identity))) is not None and not found.info.is_shim
        )
        for tid, rows in by_tid.items()
    }


def _holder(target: Target) -> int:
    """The thread that holds the GIL, 0 where that cannot be said."""
    layout, (start, _) = target.layout, target.gil_range()
    if layout is None or not start:
        return 0
    with suppress(MemoryFault):
        return Walk(target.memory, layout).thread_id(target.memory.u64(start + layout.gil_holder), host_tids(target.pid)) or 0
    return 0
