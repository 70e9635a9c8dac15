"""The threads of a process as they are at one moment: in which state, in which system call, since when, with which Python stack.

Stacks are read from outside (cpython/frames.py), while the process runs on: that of a thread that stands still is exact, of
one in motion it is one that it had about then.
"""

import os
import struct
import time
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from pytrace_ebpf import processors
from pytrace_ebpf.record.cpython import qualnames
from pytrace_ebpf.record.cpython.frames import Walk, host_tids, open_frames
from pytrace_ebpf.record.cpython.lines import CodeLines, place_of, read_lines
from pytrace_ebpf.record.cpython.locks import Stack, Waited
from pytrace_ebpf.record.cpython.task_locks import TaskWait
from pytrace_ebpf.record.cpython.thread_names import read_names
from pytrace_ebpf.record.dump.objects import MOST_FRAMES, Objects, read_objects
from pytrace_ebpf.record.dump.variables import Variable
from pytrace_ebpf.record.process import stat
from pytrace_ebpf.record.process.memory import MemoryFault
from pytrace_ebpf.record.process.pinned import Pinned
from pytrace_ebpf.record.process.target import Target, living_threads

State = Literal["on_cpu", "runq_wait", "gil_wait", "blocked"]

_Place = tuple[int, int, int]  # code object, its identity, position: see place_of()
_TIMEOUT = 3  # argument of futex()
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
    waited     the lock or thread that it waits for, None where that is not known
    is_still   whether it was on no core while that was found out
    variables  by frame; none where they were not asked for
    """

    tid: int
    name: str
    state: State
    syscall: int
    arguments: tuple[int, ...]
    for_s: float | None
    frames: tuple[Frame, ...] = ()
    waited: Waited | None = None
    is_still: bool = False
    variables: tuple[list[Variable], ...] = ()

    @property
    def futex(self) -> int:
        """The address that it waits at, 0 none."""
        return self.arguments[0] if self.state == "blocked" and self.syscall == _FUTEX else 0

    @property
    def is_timed(self) -> bool:
        """Whether it waits there for some time only."""
        return bool(self.futex) and self.arguments[_TIMEOUT] != 0


@dataclass(frozen=True)
class Task:
    """One task of asyncio, of the loop of `thread` (0: not known), which runs it now or does not; frames innermost first.

    address    of the object, as id() gives it
    awaits     names of tasks that it awaits, and `awaits_more` others
    awaited    addresses of these tasks
    waits_on   the lock or semaphore that it waits for, with the addresses of the tasks that have it
    """

    address: int
    name: str
    thread: int
    is_running: bool
    awaits: tuple[str, ...]
    awaits_more: int
    frames: tuple[Frame, ...]
    variables: tuple[list[Variable], ...] = ()
    awaited: tuple[int, ...] = ()
    waits_on: TaskWait | None = None


@dataclass(frozen=True)
class Threads:
    """All of a process, its tasks, and which of the threads holds the GIL: 0 where none waits for it, or that is not known."""

    threads: tuple[Thread, ...]
    gil_holder: int
    tasks: tuple[Task, ...] = ()
    task_deadlocks: tuple[tuple[int, ...], ...] = ()  # addresses of tasks that wait for each other, each for the next one
    left_out: tuple[str, ...] = ()  # sentences that say what was not looked for


def look(target: Target, variables: Literal["args", "locals"] | None = None) -> Threads:
    """Look at all threads of `target` once. Raises TargetError where it has ended, or becomes another program meanwhile."""
    process, began_s = target.process, time.monotonic()
    tids = sorted(living_threads(target.pid))
    before = {tid: _scheduled(process, tid) for tid in tids}
    opened = open_frames(target, everywhere=True)
    stacks = {tid: [(each.frame_address, each.code_address) for each in frames[::-1][:MOST_FRAMES]] for tid, frames in opened.items()}
    places = _places(target, stacks)
    names = read_names(target)[0]
    time.sleep(max(0.0, began_s + _LOOK_S - time.monotonic()))
    gil, clocks, asleep = range(*target.gil_range()), _Clocks(), {}
    found = []
    for tid in tids:
        with suppress(OSError, ValueError, IndexError):  # it has ended
            asleep[tid] = _scheduled(process, tid)
            kept = names.get(tid) or process.read(f"task/{tid}/comm").decode(errors="replace").rstrip("\n")
            found.append(Thread(tid, kept, *_state(process, tid, before[tid], gil, clocks)))
    waiting = {each.tid: (each.futex, places[each.tid][0][2]) for each in found if each.futex and places.get(each.tid)}
    objects = read_objects(target, stacks, waiting, variables)
    still = {each.tid for each in found if each.futex and asleep[each.tid] == _scheduled(process, each.tid) != (0, 0)}
    frame_of = _named(target, [place for rows in places.values() for place in rows] + [each.place for task in objects.tasks for each in task.frames])
    threads = []
    for each in found:
        frames, bound = _shown(places.get(each.tid, ()), objects.variables.get(each.tid, ()), frame_of)
        waited, is_still = objects.waits.get(each.tid), each.tid in still
        if waited and waited.holder == each.tid and not is_still:
            waited = None  # by now it has it
        threads.append(replace(each, frames=frames, variables=bound, waited=waited, is_still=is_still))
    process.check()
    holder = _holder(target) if any(each.state == "gil_wait" for each in found) else 0
    tasks = tuple(_tasks(objects, stacks, places, frame_of))
    return Threads(tuple(threads), holder, tasks, tuple(map(tuple, objects.task_deadlocks)), tuple(objects.left_out))


def _shown(
    places: Sequence[_Place], variables: Sequence[list[Variable]], frame_of: Mapping[_Place, Frame]
) -> tuple[tuple[Frame, ...], tuple[list[Variable], ...]]:
    """The frames that are known, and the variables of each where there are any."""
    known = [at for at, place in enumerate(places) if place in frame_of]
    bound = tuple(variables[at] if at < len(variables) else [] for at in known) if variables else ()
    return tuple(frame_of[places[at]] for at in known), bound


def _tasks(objects: Objects, stacks: Mapping[int, Stack], places: Mapping[int, list[_Place]], frame_of: Mapping[_Place, Frame]) -> Iterator[Task]:
    """A task that runs is on the stack of a thread: its outermost frame, and all that are further in."""
    at = {frame: (tid, number) for tid, stack in stacks.items() for number, (frame, _) in enumerate(stack)}
    for task in objects.tasks:
        tid, number = at.get(task.frames[-1].frame, (0, -1))
        if tid:
            rows, variables = places.get(tid, [])[: number + 1], objects.variables.get(tid, [])[: number + 1]
        else:
            rows, variables = [each.place for each in task.frames], task.variables
        about = (task.address, task.name, task.thread or tid, tid > 0, tuple(task.awaits), task.awaits_more)
        yield Task(*about, *_shown(rows, variables, frame_of), tuple(task.awaited), task.waits_on)


def _places(target: Target, stacks: Mapping[int, Stack]) -> dict[int, list[_Place]]:
    """Where the frames of each thread stand; those of threads whose stacks have changed meanwhile are left out."""
    found, known = dict[int, list[_Place]](), dict[int, int]()
    if target.layout is not None:
        for tid, stack in stacks.items():
            with suppress(MemoryFault, struct.error):
                found[tid] = [place_of(target.memory, target.layout, frame, code, known) for frame, code in stack]
    return found


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


def _named(target: Target, places: Iterable[_Place]) -> dict[_Place, Frame]:
    """The frames that stand at these places, without those of the interpreter's own and of code that is gone."""
    wanted = set(places)
    codes = read_lines(target, sorted({(code, identity) for code, identity, _ in wanted}))
    qualify = qualnames.for_process(target.process, target.library)
    unit = target.layout.position_unit if target.layout is not None else 1
    named: dict[tuple[int, int], str] = {}
    for key, code in codes.items():
        info = code.info
        named[key] = info.qualname or qualify(info.file, info.first_line, info.name) or info.name
    return {
        place: Frame(named[key], found.info.file, found.info.first_line, _line(found, place[2] * unit))
        for place in wanted
        if (found := codes.get(key := place[:2])) is not None and not found.info.is_shim
    }


def _line(code: CodeLines, position: int) -> int:
    """Of a frame that has not begun, which up to 3.10 stands before its first instruction, that of the function; 0 where it has none."""
    return code.info.first_line if position < 0 else max(code.line(position), 0)


def _holder(target: Target) -> int:
    """The thread that holds the GIL, 0 where that cannot be said."""
    layout, (start, _) = target.layout, target.gil_range()
    if layout is None or not start:
        return 0
    with suppress(MemoryFault):
        return Walk(target.memory, layout).thread_id(target.memory.u64(start + layout.gil_holder), host_tids(target.pid)) or 0
    return 0
