"""asyncio's tasks, read from outside: what each is called, where it stands, and what it waits for.

asyncio keeps every task in a weak set of its own, those that began eagerly in a set; from 3.14 on those of its own type in a list of the thread
that made them. A task has its coroutine, that its frame, and on top of the
frame's stack lies what it awaits: the next coroutine, or a future. The program runs on meanwhile: a task that does may be torn, of others all is as it is.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from pytrace_ebpf.record.cpython.frames import SpentError, Walk
from pytrace_ebpf.record.cpython.variables import Frames
from pytrace_ebpf.record.process.memory import MemoryFault

MOST_TASKS, MOST_FRAMES = 20_000, 64
_MOST_PLACES, _MOST_GATHERED, _MOST_NAMED, _MOST_AWAITED, _LONGEST_NAME = 1 << 20, 100_000, 3, 1000, 200
_MODULE, _WEAK, _EAGER = "asyncio.tasks", ("_all_tasks", "_scheduled_tasks"), "_eager_tasks"
_USED, _MASK, _TABLE, _ENTRY = 24, 32, 40, 16  # PySetObject
_REFERENT = 16  # PyWeakReference
_LOOP = 16  # FutureObj
_WRAPPED = 16  # of what awaits for something: async_generator_asend, coroutine_wrapper, FutureIter
_BASE, _MOST_DERIVED = 256, 8
_TASK = "_asyncio.Task"
_NATIVE, _GATHERING = (_TASK, "_asyncio.Future"), "_GatheringFuture"
_FRAMES = ("coroutine", "generator", "async_generator")
_WRAPPERS = ("async_generator_asend", "async_generator_athrow", "anext_awaitable", "coroutine_wrapper")
_FUTURE = "_asyncio.FutureIter"
_STATE_BEFORE_FRAME, _ENDED, _ENDED_FROM_3_15 = 5, (1, 4), (5,)  # gi_frame_state, FRAME_COMPLETED and FRAME_CLEARED, from 3.11 on


@dataclass(frozen=True)
class Task:
    """One task.

    address  of the object
    loop     the identifier of the thread that runs its loop, 0 where that is not known
    frames   (frame, code) addresses, innermost first
    awaits   names of the tasks that it waits for, and how many more there are
    awaited  addresses of these tasks, of a gather() among the first _MOST_AWAITED
    """

    address: int
    name: str
    loop: int
    frames: list[tuple[int, int]]
    awaits: list[str]
    awaits_more: int
    awaited: list[int]


class Tasks:
    """Of one process."""

    def __init__(self, frames: Frames) -> None:
        self._frames, self._memory, self._objects = frames, frames.memory, frames.objects
        self._more = frames.layout.object_type - 8  # of an object's head, in a build without a GIL
        self._loops = dict[int, int]()
        self._natives = dict[int, str]()  # by type

    def all(self, runtime: int) -> Iterator[Task]:
        """Every task that has not ended, as far as they can be read. Raises MemoryFault where the process has no asyncio, SpentError where they are too many."""
        for count, address in enumerate(self._listed(runtime)):
            if count >= MOST_TASKS:
                raise SpentError
            with suppress(MemoryFault):
                if (task := self.one(address)) is not None:
                    yield task

    def _listed(self, runtime: int) -> Iterator[int]:
        layout = self._frames.layout
        interpreter = self._memory.u64(runtime + layout.runtime_main_interpreter)
        if layout.thread_tasks is not None and layout.interpreter_tasks is not None:
            for state in Walk(self._memory, layout).thread_states(runtime):
                yield from self._linked(state + layout.thread_tasks)
            yield from self._linked(interpreter + layout.interpreter_tasks)
        modules = self._objects.items(self._memory.u64(interpreter + layout.interpreter_modules))
        module = self._objects.module_dict(self._objects.value(modules, _MODULE))
        for name in _WEAK:
            with suppress(MemoryFault):
                for reference in self._set(self._objects.attribute(self._objects.value(self._objects.items(module), name), "data")):
                    with suppress(MemoryFault):
                        if self._frames.kind(task := self._memory.u64(reference + _REFERENT + self._more)) != "NoneType":
                            yield task
        with suppress(MemoryFault):
            yield from self._set(self._objects.value(self._objects.items(module), _EAGER))

    def _linked(self, head: int) -> Iterator[int]:
        """The tasks in a list."""
        seen = {0, head}
        with suppress(MemoryFault):
            node = self._memory.u64(head)
            while node not in seen:
                seen.add(node)
                task = node - (self._frames.layout.task_node or 0)
                if self._native(task) == _TASK:
                    yield task
                node = self._memory.u64(node)

    def _set(self, address: int) -> list[int]:
        """The objects in a set."""
        if self._frames.kind(address) != "set":
            raise MemoryFault(f"address {address:#x} of process {self._memory.pid} holds no set")
        slots = self._memory.u64(address + _MASK + self._more) + 1
        if slots > _MOST_PLACES:
            raise MemoryFault(f"address {address:#x} of process {self._memory.pid} holds no set that is known")
        table, found = self._memory.u64(address + _TABLE + self._more), list[int]()
        step = 1 << 15  # of what is read at once
        for at in range(0, slots, step):
            raw = self._memory.read(table + _ENTRY * at, _ENTRY * min(step, slots - at))
            words = memoryview(raw).cast("Q")
            # Of what was removed the hash is -1.
            found += [words[place] for place in range(0, len(words), 2) if words[place] and words[place + 1] != (1 << 64) - 1]
        return found

    def one(self, address: int) -> Task | None:
        """The task at this address, None of one that has ended. Raises MemoryFault."""
        coroutine, name, loop = self._fields(address)
        frames, last = self._awaited(coroutine)
        return Task(address, self._name(name), self._thread(loop), frames, *self._waits_for(address, last)) if frames else None

    def _fields(self, address: int) -> tuple[int, int, int]:
        """Its coroutine, name and loop."""
        layout = self._frames.layout
        if self._native(address) == _TASK:
            return tuple(self._memory.u64(address + place) for place in (layout.task_coro, layout.task_name, _LOOP + self._more))  # type: ignore[return-value]
        attributes = self._objects.attribute
        return attributes(address, "_coro"), attributes(address, "_name"), attributes(address, "_loop")

    def _native(self, address: int) -> str:
        """Which of asyncio's types in C an object is of, or derived from; "" none."""
        of = self._memory.u64(address + self._frames.layout.object_type)
        if of not in self._natives:
            base, found = of, ""
            for _ in range(_MOST_DERIVED):
                if not base or found:
                    break
                name = self._objects.static_name(base, 40).decode("ascii", "replace")
                found = name if name in _NATIVE else ""
                base = self._memory.u64(base + _BASE + self._more)
            self._natives[of] = found
        return self._natives[of]

    def _name(self, address: int) -> str:
        """From 3.12 on a name is the number of the task until somebody asks for it."""
        if self._frames.kind(address) == "int":
            return f"Task-{self._objects.integer(address)}"
        return self._memory.text(self._frames.layout, address, _LONGEST_NAME)

    def _thread(self, loop: int) -> int:
        if loop not in self._loops:
            self._loops[loop] = 0
            with suppress(MemoryFault):
                self._loops[loop] = self._objects.integer(self._objects.attribute(loop, "_thread_id"))
        return self._loops[loop]

    def _awaited(self, coroutine: int) -> tuple[list[tuple[int, int]], int]:
        """(the frames of a coroutine and of what it awaits, innermost first; what the innermost one awaits, 0 where that is not known)."""
        frames, last, seen = list[tuple[int, int]](), coroutine, set[int]()
        while last and last not in seen and len(frames) < MOST_FRAMES:
            seen.add(last)
            kind = self._frames.kind(last)
            if kind in _WRAPPERS:
                last = self._memory.u64(last + _WRAPPED + self._more)
            elif kind == _FUTURE:
                return frames[::-1], self._memory.u64(last + _WRAPPED + self._more)
            elif kind in _FRAMES and (frame := self._frame(last)):
                code = self._memory.u64(frame + self._frames.layout.frame_code) & ~3
                frames.append((frame, code))
                last = self._frames.suspended_top(frame, code)
            else:
                break
        return frames[::-1], last

    def _frame(self, generator: int) -> int:
        """The frame of a generator, 0 of one that has ended."""
        layout = self._frames.layout
        if layout.code_start is None:
            return self._memory.u64(generator + layout.generator_frame)
        frame = generator + layout.generator_frame
        state = self._memory.read(frame - _STATE_BEFORE_FRAME, 1)[0]
        return 0 if state in (_ENDED if layout.version < (3, 15) else _ENDED_FROM_3_15) else frame

    def _waits_for(self, task: int, last: int) -> tuple[list[str], int, list[int]]:
        """Of what it waits for, one task or those of gather(): names of some, how many others there are, and addresses of tasks."""
        names, more, awaited = list[str](), 0, list[int]()
        with suppress(MemoryFault):
            waits = last
            if self._native(task) == _TASK:
                waits = self._memory.u64(task + self._frames.layout.task_coro - 8)  # task_fut_waiter
            if not waits or self._frames.kind(waits) == "NoneType":
                return names, more, awaited
            children: Sequence[int] = [waits]
            if self._frames.kind(waits) == _GATHERING:
                children = self._frames.sequence(self._objects.attribute(waits, "_children"), _MOST_GATHERED)
            for number, child in enumerate(children[:_MOST_AWAITED]):
                with suppress(MemoryFault):
                    if self._native(child) == _TASK or self._frames.kind(child) == "Task":
                        awaited.append(child)
                        if number < _MOST_NAMED:
                            names.append(self._name(self._fields(child)[1]))
            more = len(children) - len(names) if names else 0
        return names, more, awaited
