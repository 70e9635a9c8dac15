"""The functions that a process has loaded, by its modules, read from outside: what patterns can fit, whether or not it was called yet.

As all that a target has in its memory, they are read in a process without rights (sandbox.py).
"""

import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pytrace_ebpf.record.cpython.frames import BudgetedMemory, SpentError, read_code
from pytrace_ebpf.record.cpython.layout import Layout
from pytrace_ebpf.record.cpython.objects import Objects
from pytrace_ebpf.record.parsing import sandbox
from pytrace_ebpf.record.parsing.shape import decode, encode
from pytrace_ebpf.record.process import asking
from pytrace_ebpf.record.process.memory import MemoryFault
from pytrace_ebpf.record.process.target import Target

_BUDGET_S, _PATIENCE_S = 0.5, 5.0  # of processor time; until the process that reads is given up
_MOST, _MOST_TEXT, _DEEPEST = 50_000, 8 << 20, 8
_MAIN = "__main__"
# In objects of builds with a GIL: of a function its code, from 3.10 on and before; what a staticmethod or classmethod, and a property, is made of.
_CODE, _CODE_BEFORE_3_10, _WRAPPED, _GETTER = 48, 16, 16, 16
_FLAGS, _DICT, _IS_HEAP_TYPE, _IS_TYPE = 168, 264, 1 << 9, 1 << 31  # of a type


@dataclass(frozen=True)
class Loaded:
    """(file, qualified name, first line) of each function, those of the main program first; `complete`: these are all."""

    functions: list[tuple[str, str, int]]
    complete: bool


def loaded_functions(target: Target) -> Loaded:
    """Of the modules of a process's main interpreter. What cannot be read, or not in time, is left out; nothing is raised."""
    if target.layout is None or target.runtime is None:
        return Loaded([], False)
    given = {"pid": target.pid, "layout": target.layout, "runtime": target.runtime}
    process = target.process
    try:
        return asking.ask(sandbox.parsers, "loaded_functions", given, process, Loaded, _PATIENCE_S, "loaded")
    except ValueError:
        return Loaded([], False)


def walk_loaded(given: dict[str, Any], files: list[int]) -> Any:
    """What loaded_functions() asks for."""
    layout = decode(Layout, given["layout"])
    walk = _Walk(Objects(BudgetedMemory(given, files, _BUDGET_S), layout), layout)
    complete = False
    with suppress(MemoryFault, SpentError, struct.error):
        walk.modules(given["runtime"])
        complete = True
    return encode(Loaded(walk.found, complete))


class _Walk:
    def __init__(self, objects: Objects, layout: Layout) -> None:
        self._objects, self._memory, self._layout = objects, objects.memory, layout
        self._more = layout.object_type - 8  # of an object's head, in a build without a GIL
        self._code_at = (_CODE if layout.version >= (3, 10) else _CODE_BEFORE_3_10) + self._more
        self._kinds: dict[int, str] = {}  # by address of a type
        self._seen: set[int] = set()
        self._text = 0
        self.found: list[tuple[str, str, int]] = []

    def modules(self, runtime: int) -> None:
        """Look through all modules, the main program first and then those imported last. Raises SpentError where there is more than it may read."""
        interpreter = self._memory.u64(runtime + self._layout.runtime_main_interpreter)
        modules = list(self._objects.items(self._memory.u64(interpreter + self._layout.interpreter_modules)))[::-1]
        with suppress(MemoryFault):
            modules.insert(0, (0, self._objects.value(iter(modules), _MAIN)))
        for _, module in modules:
            with suppress(MemoryFault, struct.error):  # it changes while it is read
                self._values(self._objects.items(self._objects.module_dict(module)), "", 0)

    def _values(self, items: Iterator[tuple[int, int]], prefix: str, depth: int) -> None:
        for key, value in items:
            if value not in self._seen:
                self._seen.add(value)
                with suppress(MemoryFault, struct.error):
                    self._look(key, value, prefix, depth)

    def _look(self, key: int, value: int, prefix: str, depth: int) -> None:
        kind_at = self._memory.u64(value + self._layout.object_type)
        kind = self._kinds.get(kind_at)
        if kind is None:
            kind = self._kinds[kind_at] = self._kind(kind_at)
        if kind == "function":
            self._function(value, prefix)
        elif kind in ("staticmethod", "classmethod", "property") and depth:
            inner = self._memory.u64(value + self._more + (_GETTER if kind == "property" else _WRAPPED))
            if inner and depth < _DEEPEST:
                self._values(iter([(key, inner)]), prefix, depth + 1)
        elif kind == "class" and depth < _DEEPEST and self._memory.u64(value + _FLAGS + self._more) & _IS_HEAP_TYPE:
            name = self._memory.text(self._layout, key)
            self._values(self._objects.items(self._memory.u64(value + _DICT + self._more)), f"{prefix}{name}.", depth + 1)

    def _kind(self, kind_at: int) -> str:
        if self._memory.u64(kind_at + _FLAGS + self._more) & _IS_TYPE:
            return "class"
        raw = self._memory.read(self._memory.u64(kind_at + 24 + self._more), 16)
        return raw.partition(b"\0")[0].decode("latin-1")

    def _function(self, value: int, prefix: str) -> None:
        code = self._memory.u64(value + self._code_at)
        if code in self._seen:
            return
        self._seen.add(code)
        info = read_code(self._memory, self._layout, code)
        name = info.qualname or f"{prefix}{info.name}"
        self.found.append((info.file, name, info.first_line))
        self._text += len(info.file) + len(name)
        if len(self.found) >= _MOST or self._text > _MOST_TEXT:
            raise SpentError
