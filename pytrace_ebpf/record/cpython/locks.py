"""Which lock a thread waits for, what its code calls it, and who has it: read from outside.

The kernel says at which address a thread waits. A lock of `threading` has that address, so of the objects in a frame the one that is
waited for is known for sure; from 3.14 on (a Lock on 3.13 without a GIL, too) the thread's place in CPython's parking lot says which lock it is.
An RLock has the thread that holds it. A Lock has none: whoever stands within `with lock:` has it, where that is one thread alone.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from pytrace_ebpf.record.cpython.parking import parked_for
from pytrace_ebpf.record.cpython.variables import Frames
from pytrace_ebpf.record.process.memory import MemoryFault

LOCK, RLOCK, THREAD, IMPORT = "lock", "rlock", "thread", "import"
_KINDS = {"_thread.lock": LOCK, "_thread.RLock": RLOCK}
_SEMAPHORE, _OWNER, _COUNT, _LOCKED = 16, 24, 32, 32  # lockobject and rlockobject of Modules/_threadmodule.c
_MUTEX = 16  # the same where threads park: a byte, of which the lowest bit says that it is locked
_METHODS, _SELF = 16, 24  # PyCFunctionObject, and PyMethodObject
_EXIT = b"__exit__\0"
_BUILTIN, _METHOD, _CONDITION = "builtin_function_or_method", "method", "Condition"
_CONDITIONS, _IMPORTING = ("threading.py", "asyncio/locks.py"), "<frozen importlib._bootstrap>"
_THREADING = _CONDITIONS[0]
_WAITER = "waiter"  # a variable of Condition.wait: a lock of its own
_LOOKED_AT = 4  # frames, innermost first, in which a name is looked for
_MOST_ATTRIBUTES, _MOST_ITEMS = 300, 100  # objects whose attributes are looked through for a name; items of a container

Stack = Sequence[tuple[int, int]]  # (frame, code) addresses, innermost first


@dataclass(frozen=True)
class Waited:
    """What a thread waits for.

    kind     of LOCK, RLOCK, THREAD (its end), IMPORT (of a module)
    address  of the lock; of what is no lock 0
    names    (frame, innermost 0, the expression that its code has for it), innermost first; of an import the module
    holder   its identifier as threading has it (get_ident); 0 where that is not known
    """

    kind: str
    address: int
    names: list[tuple[int, str]]
    holder: int


class Locks:
    """Of one process."""

    def __init__(self, frames: Frames) -> None:
        self._frames, self._memory = frames, frames.memory
        self._more = frames.layout.object_type - 8  # of an object's head, in a build without a GIL
        self._parks = frames.layout.version >= (3, 14) or (self._more > 0 and frames.layout.version == (3, 13))
        self._named: dict[tuple[int, ...], list[tuple[int, str]]] = {}
        self._places: dict[int, tuple[str, str]] = {}  # file and name by code object

    def waited_for(self, stack: Stack, futex: int) -> Waited | None:
        """What a thread with this stack waits for, that is at this address in the kernel; None where that is nothing that is known here."""
        with suppress(MemoryFault):
            return self._joined(stack) or self._imported(stack) or self._lock(stack, futex)
        return None

    def holders(self, locks: set[int], stacks: Mapping[int, Stack]) -> dict[int, int]:
        """Of Locks, which of the threads stands within a `with` of it; those with none, or several, are left out. `stacks`: by thread id."""
        found: dict[int, set[int]] = {}
        for tid, stack in stacks.items():
            for frame, code in stack:
                with suppress(MemoryFault):
                    for lock in self._entered(frame, code) & locks:
                        if not self.lets_go(lock, stack):
                            found.setdefault(lock, set()).add(tid)
        return {lock: next(iter(tids)) for lock, tids in found.items() if len(tids) == 1 and self._is_locked(lock)}

    def _is_locked(self, lock: int) -> bool:
        with suppress(MemoryFault):
            return bool(self._memory.u8(lock + _MUTEX + self._more) & 1 if self._parks else self._memory.u8(lock + _LOCKED + self._more))
        return False

    def _lock(self, stack: Stack, futex: int) -> Waited | None:
        if self._parks and (parked := parked_for(self._memory, futex, futex)) != futex:
            lock = parked - _MUTEX - self._more
            kind = _KINDS.get(self._frames.kind(lock))
            held = kind == RLOCK and self._is_locked(lock)
            return Waited(kind, lock, self.names(stack, lock), self._memory.u64(lock + _OWNER + self._more) if held else 0) if kind else None
        for frame, code in stack[:_LOOKED_AT]:
            for value in self._frames.held(frame, code):
                with suppress(MemoryFault):  # of what was on the stack before anything may be left
                    lock = self._self_of(value) if self._frames.kind(value) == _BUILTIN else value
                    kind = _KINDS.get(self._frames.kind(lock))
                    if kind and self._memory.u64(lock + _SEMAPHORE + self._more) == futex:
                        held = kind == RLOCK and self._memory.u64(lock + _COUNT + self._more) > 0
                        return Waited(kind, lock, self.names(stack, lock), self._memory.u64(lock + _OWNER + self._more) if held else 0)
        return None

    def _joined(self, stack: Stack) -> Waited | None:
        """Thread.join, and what it calls."""
        for frame, code in stack[:2]:
            file, name = self.place(code)
            if name == "join" and file.endswith(_THREADING) and (own := self.own(frame, code)):
                return Waited(THREAD, 0, [], self._frames.objects.integer(self._frames.objects.attribute(own, "_ident")))
        return None

    def _imported(self, stack: Stack) -> Waited | None:
        """The lock of a module that another thread imports."""
        for frame, code in stack[:1]:
            file, name = self.place(code)
            if name == "acquire" and file == _IMPORTING and (own := self.own(frame, code)):
                objects = self._frames.objects
                owner = objects.attribute(own, "owner")
                holder = objects.integer(owner) if self._frames.kind(owner) == "int" else 0
                return Waited(IMPORT, 0, [(0, self._memory.text(self._frames.layout, objects.attribute(own, "name")))], holder)
        return None

    def own(self, frame: int, code: int) -> int:
        """Its `self`, 0 where it has none."""
        named = self._frames.variables(frame, code)
        return next((value for name, value in named if self._frames.name(name) == "self"), 0)

    def place(self, code: int) -> tuple[str, str]:
        """The file and the name of a code object."""
        if code not in self._places:
            layout = self._frames.layout
            file, name = (self._memory.text(layout, self._memory.u64(code + place)) for place in (layout.code_file, layout.code_name))
            self._places[code] = file, name
        return self._places[code]

    def _self_of(self, method: int) -> int:
        return self._memory.u64(method + _SELF + self._more)

    def _entered(self, frame: int, code: int) -> set[int]:
        """The locks whose `with` it is within."""
        return {lock for lock in self.entered(frame, code) if self._frames.kind(lock) in _KINDS}

    def entered(self, frame: int, code: int) -> set[int]:
        """The objects whose `with` or `async with` it is within; of a Condition its lock, too."""
        found = set[int]()
        for value in self._frames.below_handler(frame, code):
            with suppress(MemoryFault):  # of a frame that is suspended the topmost may be gone
                kind = self._frames.kind(value)
                if self._frames.layout.version >= (3, 14):  # from then on the object lies there beside its __exit__
                    entered = value
                elif kind == _METHOD or (kind == _BUILTIN and self._is_exit(value)):
                    entered = self._self_of(value)
                else:
                    continue
                found.add(entered)
                if self._frames.kind(entered) == _CONDITION:
                    found.add(self._frames.objects.attribute(entered, "_lock"))
        return found

    def _is_exit(self, method: int) -> bool:
        return self._memory.read(self._memory.u64(self._memory.u64(method + _METHODS + self._more)), len(_EXIT)) == _EXIT

    def lets_go(self, lock: int, stack: Stack) -> bool:
        """Whether a thread stands in Condition.wait, which lets go of the lock."""
        for frame, code in stack[:_LOOKED_AT]:
            if self._in_condition(frame, code):
                return self._frames.objects.attribute(self.own(frame, code), "_lock") == lock
        return False

    def names(self, stack: Stack, lock: int) -> list[tuple[int, str]]:
        """What the code of a stack calls a lock: see Waited."""
        key = (lock, *(code for _, code in stack[:_LOOKED_AT]))
        if key not in self._named:
            named = [(0, name)] if (name := self._expression(*stack[0], lock)) else []
            if name != _WAITER or not self._in_condition(*stack[0]):  # that nobody else has a name for, and many threads have one each
                others = enumerate(stack[1:_LOOKED_AT], 1)
                named += [(place, name) for place, (frame, code) in others if (name := self._expression(frame, code, lock))]
            self._named[key] = named
        return self._named[key]

    def _in_condition(self, frame: int, code: int) -> bool:
        """Whether this is Condition.wait."""
        file, name = self.place(code)
        own = name == "wait" and file.endswith(_CONDITIONS) and self.own(frame, code)
        return bool(own) and self._frames.kind(own) == _CONDITION

    def _expression(self, frame: int, code: int, lock: int) -> str:
        """How a frame's code may call a lock: a variable, or up to two attributes of one, of such names as the code has. "" where it cannot be found."""
        names, left = self._frames.code(code).names, _MOST_ATTRIBUTES
        with suppress(MemoryFault):
            known = [(self._frames.name(name), value) for name, value in self._frames.variables(frame, code)]
            known += [(self._frames.name(name), value) for name, value in self._frames.global_variables(frame, names)]
            for _ in range(3):
                for text, value in known:
                    if value == lock or self._is_condition_of(value, lock):
                        return text
                beneath = []
                for text, value in known[:left]:
                    with suppress(MemoryFault):
                        beneath += list(self._within(text, value, names))
                left -= len(known)
                known = beneath[: max(left, 0)]
        return ""

    def _is_condition_of(self, value: int, lock: int) -> bool:
        with suppress(MemoryFault):
            return self._frames.kind(value) == _CONDITION and self._frames.objects.attribute(value, "_lock") == lock
        return False

    def _within(self, text: str, value: int, names: frozenset[int]) -> Iterator[tuple[str, int]]:
        """What lies within an object, as code writes it."""
        objects, kind = self._frames.objects, self._frames.kind(value)
        if kind == "dict":
            for _, each in list(objects.items(value))[:_MOST_ITEMS]:
                yield f"{text}[...]", each  # a key is a value of the program's, which nobody asked for
        elif kind in ("list", "tuple"):
            for place, each in enumerate(self._frames.sequence(value, _MOST_ITEMS)):
                yield f"{text}[{place}]", each
        elif kind == "module":
            yield from self._attributes(text, objects.items(objects.module_dict(value)), names)
        else:
            with suppress(MemoryFault):
                yield from self._attributes(text, objects.attributes(value), names)
            yield from self._attributes(text, self._frames.class_attributes(value), names)

    def _attributes(self, text: str, pairs: Iterator[tuple[int, int]], names: frozenset[int]) -> Iterator[tuple[str, int]]:
        for name, value in pairs:
            if name in names:
                yield f"{text}.{self._frames.name(name)}", value
