"""The tasks of asyncio in a process: where they stand, what they wait for, who has that, and which wait for each other for ever."""

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

from pytrace_ebpf.record.cpython.frames import SpentError
from pytrace_ebpf.record.cpython.layout import Layout
from pytrace_ebpf.record.cpython.lines import place_of
from pytrace_ebpf.record.cpython.locks import Stack
from pytrace_ebpf.record.cpython.task_locks import LOCK, TaskLocks, TaskWait
from pytrace_ebpf.record.cpython.tasks import Task, Tasks
from pytrace_ebpf.record.cpython.variables import Frames
from pytrace_ebpf.record.dump.cycles import cycles
from pytrace_ebpf.record.dump.variables import Bound, Variable
from pytrace_ebpf.record.process.memory import MemoryFault

_MOST_FRAMES, _MOST_CYCLES = 200_000, 20
_LOOKS, _BETWEEN_S = 12, 0.001  # at tasks that wait for each other


@dataclass(frozen=True)
class Place:
    """Where a frame stands: its address, and its code as read_lines() wants it."""

    frame: int
    code: int
    identity: int
    position: int

    @property
    def place(self) -> tuple[int, int, int]:
        """As place_of() has it."""
        return self.code, self.identity, self.position


@dataclass(frozen=True)
class FoundTask:
    """A task of asyncio.

    address   of the object, as id() gives it
    thread    that of its loop, 0 where that is not known
    awaits    names of the tasks that it awaits, and how many more there are
    awaited   addresses of those tasks
    waits_on  the lock or semaphore that it waits for; None where it waits for neither. Holders are addresses of tasks.
    frames    innermost first; of one that runs the outermost alone
    variables by frame
    """

    address: int
    name: str
    thread: int
    awaits: list[str]
    awaits_more: int
    awaited: list[int]
    waits_on: TaskWait | None = None
    frames: list[Place] = field(default_factory=list)
    variables: list[list[Variable]] = field(default_factory=list)


class FoundTasks:
    """Finds those of one process."""

    def __init__(self, frames: Frames, layout: Layout, stacks: Mapping[int, Stack], into: list[FoundTask]) -> None:
        """`stacks`: of threads. What is found is put `into` a list as soon as it is."""
        self._frames, self._layout, self._into = frames, layout, into
        self._tasks, self._locks, self._known = Tasks(frames), TaskLocks(frames), dict[int, Task]()
        self._inward = {frame: stack[: at + 1] for stack in stacks.values() for at, (frame, _) in enumerate(stack)}  # of a task that runs

    def add_all(self, runtime: int, tids: Mapping[int, int], bound: Bound) -> None:
        """Find all tasks, and what is bound to variables of their frames; `tids`: by the identifiers of threads. Raises SpentError where there is no time for all."""
        identities, left = dict[int, int](), _MOST_FRAMES
        for task in self._tasks.all(runtime):
            with suppress(MemoryFault):
                places = [Place(frame, *place_of(self._frames.memory, self._layout, frame, code, identities)) for frame, code in task.frames]
                found = FoundTask(task.address, task.name, tids.get(task.loop, 0), task.awaits, task.awaits_more, task.awaited)
                waits_on = self._locks.waited_for(task.frames)
                self._into.append(replace(found, waits_on=waits_on, frames=places, variables=bound.of(task.frames)))
                self._known[task.address] = task
                left -= len(places)
            if left < 0:
                raise SpentError

    def find_holders(self) -> None:
        """Find which tasks have what others wait for."""
        kinds = {found.waits_on.address: found.waits_on.kind for found in self._into if found.waits_on}
        if kinds:
            held = self._locks.holders(kinds, {address: self._inward.get(task.frames[-1][0], task.frames) for address, task in self._known.items()})
            for number, found in enumerate(self._into):
                if found.waits_on:
                    self._into[number] = replace(found, waits_on=replace(found.waits_on, holders=held.get(found.waits_on.address, [])))

    def deadlocks(self) -> list[list[int]]:
        """Tasks that wait for each other for ever, by their addresses, each for the next one, the last for the first.

        Tasks run on while they are looked at, and what is read at two moments may never have been so: a cycle is one that each of several looks has seen,
        which take so much less time than tasks need to go on that not all of them can be wrong. A wait with a time limit ends by itself, and is in none.
        """
        waits = {found.address: list(found.awaited) for found in self._into}
        for found in self._into:
            if found.waits_on and found.waits_on.kind == LOCK:
                waits[found.address] += found.waits_on.holders
        seen = cycles(waits)[:_MOST_CYCLES]
        for _ in range(_LOOKS):
            seen = [cycle for cycle in seen if all(map(self._waits_for, cycle, [*cycle[1:], cycle[0]]))]
            if not seen:
                break
            until_s = time.monotonic() + _BETWEEN_S
            while time.monotonic() < until_s:  # the sandbox allows no sleep
                pass
        return seen

    def _waits_for(self, address: int, other: int) -> bool:
        """Whether a task waits, now and without a time limit, for the other one, or for a lock that this has."""
        with suppress(MemoryFault):
            task = self._tasks.one(address)
            if task is None or self._locks.is_timed(task.frames):
                return False
            if other in task.awaited:
                return True
            on = self._locks.waited_for(task.frames)
            if on is not None and on.kind == LOCK and (holder := self._tasks.one(other)) is not None:
                return self._locks.holders({on.address: LOCK}, {other: holder.frames}) == {on.address: [other]}
        return False
