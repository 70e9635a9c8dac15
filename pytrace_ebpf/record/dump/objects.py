"""What the objects of a process say of its threads: the locks that they wait for and who has them, variables of their frames, tasks of asyncio.

Read in a process without rights (sandbox.py): every pointer is the target's to choose. What cannot be read, or not within the time for it, is left out.
"""

import struct
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from pytrace_ebpf.record.cpython.frames import BudgetedMemory, SpentError, Walk, host_tids
from pytrace_ebpf.record.cpython.layout import Layout
from pytrace_ebpf.record.cpython.lines import place_of
from pytrace_ebpf.record.cpython.locks import LOCK, Locks, Stack, Waited
from pytrace_ebpf.record.cpython.running_tasks import find_running_tasks
from pytrace_ebpf.record.cpython.variables import Frames
from pytrace_ebpf.record.dump.tasks import FoundTask, FoundTasks
from pytrace_ebpf.record.dump.variables import Bound, Variable
from pytrace_ebpf.record.parsing import sandbox
from pytrace_ebpf.record.parsing.shape import decode, encode
from pytrace_ebpf.record.process import asking
from pytrace_ebpf.record.process.memory import MemoryFault
from pytrace_ebpf.record.process.target import Target

_BUDGET_S, _PATIENCE_S = 0.7, 10.0  # of processor time for each part; until the process that reads is given up
_LOCKS, _TASKS, _VARIABLES = _PARTS = "locks", "tasks", "variables"
_FRAME = struct.Struct("<QQ")
MOST_FRAMES = 1024  # of a stack, as in samples


@dataclass(frozen=True)
class Objects:
    """What was found; holders are thread ids, 0 where there is none that is known. `variables` by thread, then by frame, innermost first.

    `task_deadlocks`: tasks that wait for each other for ever, by their addresses, each for the next one, the last for the first.
    `left_out`: sentences that say what was not looked for, or not all of it.
    """

    waits: dict[int, Waited] = field(default_factory=dict)
    variables: dict[int, list[list[Variable]]] = field(default_factory=dict)
    tasks: list[FoundTask] = field(default_factory=list)
    task_deadlocks: list[list[int]] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Answer:
    """The same, with texts for thread ids."""

    waits: dict[str, Waited]
    variables: dict[str, list[list[Variable]]]
    tasks: list[FoundTask]
    task_deadlocks: list[list[int]]
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
    seen = [task for task in found.tasks if all(-(1 << 31) <= place.position < 1 << 31 for place in task.frames)]
    addresses = {task.address for task in seen}
    return Objects(
        {known[tid]: waited for tid, waited in found.waits.items() if tid in known},
        {known[tid]: each for tid, each in found.variables.items() if tid in known},
        seen,
        [cycle for cycle in found.task_deadlocks if cycle and addresses.issuperset(cycle)],
        [f"There was no time for all {what}." for what in _PARTS if what in found.spent],
    )


def walk_objects(given: dict[str, Any], files: list[int]) -> Any:
    """What read_objects() asks for."""
    look = _Look(given, files)
    waits, tasks, deadlocks, variables = dict[str, Waited](), list[FoundTask](), list[list[int]](), dict[str, list[list[Variable]]]()
    look.take(_LOCKS, lambda frames: look.find_waits(frames, waits))
    look.take(_TASKS, lambda frames: look.find_tasks(frames, tasks, deadlocks))
    if given["variables"]:
        look.take(_VARIABLES, lambda frames: look.find_variables(frames, variables))
    return encode(_Answer(waits, variables, tasks, deadlocks, look.spent))


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

    def find_tasks(self, frames: Frames, into: list[FoundTask], deadlocks: list[list[int]]) -> None:
        """Tasks of asyncio, with what is bound to variables of their frames, who has what they wait for, and cycles of who waits for whom."""
        found = FoundTasks(frames, self._layout, self._stacks, into)
        found.add_all(self._given["runtime"], self._tids(), Bound(frames, self._given["variables"]))
        found.find_holders()
        deadlocks += found.deadlocks()

    def find_variables(self, frames: Frames, into: dict[str, list[list[Variable]]]) -> None:
        """What is bound to variables of threads' frames."""
        bound = Bound(frames, self._given["variables"])
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
