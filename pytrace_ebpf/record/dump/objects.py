"""What the objects of a process say of its threads: the locks that they wait for and who has them, variables of their frames, tasks of asyncio.

Read in a process without rights (sandbox.py): every pointer is the target's to choose. What cannot be read, or not within the time for it, is left out.
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from pytrace_ebpf.record.cpython.frames import BudgetedMemory, SpentError, Walk, host_tids
from pytrace_ebpf.record.cpython.layout import Layout
from pytrace_ebpf.record.cpython.lines import place_of
from pytrace_ebpf.record.cpython.locks import LOCK, Locks, Stack, Waited
from pytrace_ebpf.record.cpython.running_tasks import find_running_tasks
from pytrace_ebpf.record.cpython.task_locks import TaskLocks, TaskWait
from pytrace_ebpf.record.cpython.tasks import Task, Tasks
from pytrace_ebpf.record.cpython.values import Value, Values
from pytrace_ebpf.record.cpython.variables import Frames
from pytrace_ebpf.record.parsing import sandbox
from pytrace_ebpf.record.parsing.shape import decode, encode
from pytrace_ebpf.record.process import asking
from pytrace_ebpf.record.process.memory import MemoryFault
from pytrace_ebpf.record.process.target import Target

_BUDGET_S, _PATIENCE_S = 0.7, 10.0  # of processor time for each part; until the process that reads is given up
_MOST_VALUES, _MOST_TASK_FRAMES = 50_000, 200_000
_LOCKS, _TASKS, _VARIABLES = _PARTS = "locks", "tasks", "variables"
_FRAME = struct.Struct("<QQ")
MOST_FRAMES = 1024  # of a stack, as in samples


@dataclass(frozen=True)
class Variable:
    """A variable of a frame, and what is bound to it."""

    name: str
    is_argument: bool
    value: Value


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
    is_still  whether it waited for the same before and after it was looked for who has that
    is_timed  whether its wait has a time limit
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
    is_still: bool = False
    is_timed: bool = False
    frames: list[Place] = field(default_factory=list)
    variables: list[list[Variable]] = field(default_factory=list)


@dataclass(frozen=True)
class Objects:
    """What was found; holders are thread ids, 0 where there is none that is known. `variables` by thread, then by frame, innermost first.

    `left_out`: sentences that say what was not looked for, or not all of it.
    """

    waits: dict[int, Waited] = field(default_factory=dict)
    variables: dict[int, list[list[Variable]]] = field(default_factory=dict)
    tasks: list[FoundTask] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Answer:
    """The same, with texts for thread ids."""

    waits: dict[str, Waited]
    variables: dict[str, list[list[Variable]]]
    tasks: list[FoundTask]
    spent: list[str]  # for what there was no more time


def read_objects(target: Target, stacks: Mapping[int, Stack], waiting: Mapping[int, tuple[int, int]], variables: str | None) -> Objects:
    """Look at the objects of threads with these stacks.

    `waiting`: by thread the address that it waits at, and its position in its innermost frame; `variables`: "args" or "locals" where those of frames are wanted. Nothing is raised.
    """
    if target.layout is None or target.runtime is None:
        return Objects()
    layout = target.layout
    if layout.thread_tasks is not None and (tasks := find_running_tasks(target)) is not None:
        layout = tasks.layout
    given = {
        "pid": target.pid,
        "layout": layout,
        "runtime": target.runtime,
        "tids": list(host_tids(target.pid).items()),
        "stacks": [(tid, b"".join(_FRAME.pack(*each) for each in stack)) for tid, stack in stacks.items()],
        "waiting": [(tid, *each) for tid, each in waiting.items()],
        "variables": variables,
    }
    try:
        found = asking.ask(sandbox.parsers, "objects", given, target.process, _Answer, _PATIENCE_S, "objects")
    except ValueError:
        return Objects(left_out=["What its threads and tasks hold could not be read."])
    known = {str(tid): tid for tid in stacks}
    return Objects(
        {known[tid]: waited for tid, waited in found.waits.items() if tid in known},
        {known[tid]: each for tid, each in found.variables.items() if tid in known},
        [task for task in found.tasks if all(-(1 << 31) <= place.position < 1 << 31 for place in task.frames)],
        [f"There was no time for all {what}." for what in _PARTS if what in found.spent],
    )


def walk_objects(given: dict[str, Any], files: list[int]) -> Any:
    """What read_objects() asks for."""
    look = _Look(given, files)
    waits, tasks, variables = dict[str, Waited](), list[FoundTask](), dict[str, list[list[Variable]]]()
    look.take(_LOCKS, lambda frames: look.find_waits(frames, waits))
    look.take(_TASKS, lambda frames: look.find_tasks(frames, tasks))
    if given["variables"]:
        look.take(_VARIABLES, lambda frames: look.find_variables(frames, variables))
    return encode(_Answer(waits, variables, tasks, look.spent))


class _Look:
    """One look at a process's objects, part by part: what has no time, or cannot be read, leaves the others as they are."""

    def __init__(self, given: dict[str, Any], files: list[int]) -> None:
        self._given, self._files, self._layout = given, files, decode(Layout, given["layout"])
        self._stacks: dict[int, Stack] = {tid: list(_FRAME.iter_unpack(decode(bytes, stack))) for tid, stack in given["stacks"]}
        self._known: dict[int, int] | None = None
        self._identities = dict[int, int]()  # of code objects
        self.spent = list[str]()

    def take(self, what: str, find: Callable[[Frames], None]) -> None:
        """Have a part found, in the time that it has."""
        try:
            find(Frames(BudgetedMemory(self._given, self._files, _BUDGET_S), self._layout))
        except SpentError:
            self.spent.append(what)
        except (MemoryFault, struct.error):
            pass

    def find_waits(self, frames: Frames, into: dict[str, Waited]) -> None:
        """What threads wait for, and which thread has it; as far as there is time, the former first."""
        locks = Locks(frames)
        for tid, futex, position in self._given["waiting"]:
            waited = locks.waited_for(self._stacks[tid], futex) if tid in self._stacks else None
            if waited and self._stands(frames, tid, position):
                into[str(tid)] = replace(waited, holder=0 if waited.kind == LOCK else self._tids().get(waited.holder, 0))
        plain = {waited.address for waited in into.values() if waited.kind == LOCK}
        held = locks.holders(plain, self._stacks) if plain else {}
        for number, waited in into.items():
            if waited.kind == LOCK:
                into[number] = replace(waited, holder=held.get(waited.address, 0))

    def _stands(self, frames: Frames, tid: int, position: int) -> bool:
        """Whether a thread is still at the same instruction: else the wait is over."""
        with suppress(MemoryFault):
            return place_of(frames.memory, self._layout, *self._stacks[tid][0], self._identities)[2] == position
        return False

    def find_tasks(self, frames: Frames, into: list[FoundTask]) -> None:
        """Tasks of asyncio, with what is bound to variables of their frames, and who has what they wait for."""
        identities, bound, left = dict[int, int](), _Bound(frames, self._given["variables"]), _MOST_TASK_FRAMES
        tasks, known, locks = Tasks(frames), list[Task](), TaskLocks(frames)
        for task in tasks.all(self._given["runtime"]):
            with suppress(MemoryFault):
                places = [Place(frame, *place_of(frames.memory, self._layout, frame, code, identities)) for frame, code in task.frames]
                found = FoundTask(task.address, task.name, self._tids().get(task.loop, 0), task.awaits, task.awaits_more, task.awaited)
                into.append(replace(found, waits_on=locks.waited_for(task.frames), frames=places, variables=bound.of(task.frames)))
                known.append(task)
                left -= len(places)
            if left < 0:
                raise SpentError
        self._find_holders(frames, locks, known, into)
        for number, task in enumerate(known):
            if into[number].waits_on or task.awaited:
                with suppress(MemoryFault):
                    is_still = tasks.future(task.address) == task.future != 0
                    into[number] = replace(into[number], is_still=is_still, is_timed=locks.is_timed(task.frames))

    def _find_holders(self, frames: Frames, locks: TaskLocks, known: Sequence[Task], into: list[FoundTask]) -> None:
        """Of the locks that tasks wait for."""
        kinds = {found.waits_on.address: found.waits_on.kind for found in into if found.waits_on}
        if not kinds:
            return
        inward = {frame: stack[: at + 1] for stack in self._stacks.values() for at, (frame, _) in enumerate(stack)}  # of a task that runs
        stacks = {task.address: inward.get(task.frames[-1][0], task.frames) for task in known}
        held = locks.holders(kinds, stacks)
        for number, found in enumerate(into):
            if found.waits_on:
                into[number] = replace(found, waits_on=replace(found.waits_on, holders=held.get(found.waits_on.address, [])))

    def find_variables(self, frames: Frames, into: dict[str, list[list[Variable]]]) -> None:
        """What is bound to variables of threads' frames."""
        bound = _Bound(frames, self._given["variables"])
        for tid, stack in self._stacks.items():
            into[str(tid)] = bound.of(stack)

    def _tids(self) -> dict[int, int]:
        """Host thread ids by the identifiers that threading has for threads."""
        if self._known is None:
            memory, self._known = BudgetedMemory(self._given, self._files, _BUDGET_S), {}
            walk, tids = Walk(memory, self._layout), dict(self._given["tids"])
            for state in walk.thread_states(self._given["runtime"]):
                with suppress(MemoryFault):
                    if tid := walk.thread_id(state, tids):
                        self._known[memory.u64(state + self._layout.thread_pthread)] = tid
        return self._known


class _Bound:
    """Reads what is bound to variables, of so many in all."""

    def __init__(self, frames: Frames, asked: str | None) -> None:
        """`asked`: "args" for those of what functions were given alone, "locals" for all, None for none."""
        self._frames, self._values, self._left = frames, Values(frames), _MOST_VALUES
        self._is_asked, self._arguments = asked is not None, asked == "args"

    def of(self, stack: Stack) -> list[list[Variable]]:
        """By frame."""
        return [self._frame(frame, code) for frame, code in stack] if self._is_asked else []

    def _frame(self, frame: int, code: int) -> list[Variable]:
        found = list[Variable]()
        with suppress(MemoryFault):
            given = self._frames.code(code).arguments
            for name, value in self._frames.variables(frame, code):
                if name in given or not self._arguments:
                    if not self._left:
                        raise SpentError
                    self._left -= 1
                    found.append(Variable(self._frames.name(name), name in given, self._values.describe(value)))
        return found
