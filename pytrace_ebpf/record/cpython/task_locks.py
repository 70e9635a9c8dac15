"""Which of asyncio's locks a task waits for, what its code calls that, and which tasks have it: read from outside.

A Lock or semaphore of asyncio does not say who has it: whoever stands within an `async with` of it does.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from pytrace_ebpf.record.cpython.locks import Locks, Stack
from pytrace_ebpf.record.cpython.variables import Frames
from pytrace_ebpf.record.process.memory import MemoryFault

LOCK, SEMAPHORE = "lock", "semaphore"
_FILE, _ACQUIRE = "asyncio/locks.py", "acquire"
_ENDING = ("Timeout", "CancelScope")  # types of asyncio, async_timeout and anyio whose `with` ends by itself


@dataclass(frozen=True)
class TaskWait:
    """What a task waits for.

    kind     LOCK or SEMAPHORE
    address  of it
    names    (frame, innermost 0, the expression that its code has for it), innermost first
    holders  addresses of the tasks that have it; none where that is not known
    """

    kind: str
    address: int
    names: list[tuple[int, str]]
    holders: list[int] = field(default_factory=list)


class TaskLocks:
    """Of one process."""

    def __init__(self, frames: Frames) -> None:
        self._frames, self._locks = frames, Locks(frames)

    def waited_for(self, stack: Stack) -> TaskWait | None:
        """What the task with this stack waits for, None where that is neither a lock nor a semaphore."""
        with suppress(MemoryFault, IndexError):
            file, name = self._locks.place(stack[0][1])
            own = self._locks.own(*stack[0]) if name == _ACQUIRE and file.endswith(_FILE) else 0
            if own:
                attributes = {self._frames.name(name) for name, _ in self._frames.objects.attributes(own)}
                kind = LOCK if "_locked" in attributes else SEMAPHORE if "_value" in attributes else None
                return TaskWait(kind, own, self._locks.names(stack, own)) if kind else None
        return None

    def holders(self, kinds: Mapping[int, str], stacks: Mapping[int, Stack]) -> dict[int, list[int]]:
        """Of locks and semaphores, `kinds` by address, which tasks are within an `async with` of them. `stacks`: by the address of the task.

        A Lock with several such tasks, which is on its way from one to the other, is left out.
        """
        found: dict[int, list[int]] = {}
        for task, stack in stacks.items():
            held = set[int]()
            for frame, code in stack:
                with suppress(MemoryFault):
                    held |= self._locks.entered(frame, code) & kinds.keys()
            for lock in held:
                with suppress(MemoryFault):
                    if not self._locks.lets_go(lock, stack):
                        found.setdefault(lock, []).append(task)
        return {lock: tasks for lock, tasks in found.items() if kinds[lock] == SEMAPHORE or (len(tasks) == 1 and self._is_locked(lock))}

    def is_timed(self, stack: Stack) -> bool:
        """Whether a task with this stack waits for some time only."""
        for frame, code in stack:
            with suppress(MemoryFault):
                if any(self._frames.kind(each) in _ENDING for each in self._locks.entered(frame, code)):
                    return True
        return False

    def _is_locked(self, lock: int) -> bool:
        with suppress(MemoryFault):
            return self._frames.objects.integer(self._frames.objects.attribute(lock, "_locked")) == 1
        return False
