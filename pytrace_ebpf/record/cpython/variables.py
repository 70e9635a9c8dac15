"""What frames hold, read from outside: their variables, and what lies on their stacks. CPython 3.8 to 3.15.

A frame has one array of objects: its variables, those in cells and those of outer functions, then its stack. How far the stack of a
running frame reaches is not written down; what `with` keeps there is known by the block, or the entry of the table of exceptions, around the instruction.
"""

import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice

from pytrace_ebpf.record.cpython.layout import Layout
from pytrace_ebpf.record.cpython.lines import position_in
from pytrace_ebpf.record.cpython.objects import Objects
from pytrace_ebpf.record.process.memory import Memory, MemoryFault

_SIZE, _BYTES = 16, 32  # of a tuple or bytes object; of the latter's bytes
_IN_CELL = 0x40 | 0x80  # CO_FAST_CELL, CO_FAST_FREE of co_localspluskinds
_CELL_CONTENT, _LIST_ITEMS, _TYPE_DICT = 16, 24, 264
_TAKES_MORE, _TAKES_MORE_KEYWORDS = 0x4, 0x8
_MOST_OBJECTS, _MOST_BYTES, _MOST_BLOCKS = 1 << 14, 1 << 16, 20
_ABOVE_AWAITED = 2  # the topmost of so many is what is awaited: 3.15 has an empty place above it
_BLOCK, _BLOCK_LEVEL = 12, 8  # PyTryBlock: three ints


@dataclass(frozen=True)
class Code:
    """Where a code object says what its frames hold. Names are addresses of texts.

    variables  in the order of the frame's objects
    arguments  those that are given by the caller
    in_cell    by variable: whether a frame may have a cell in its place
    stack      objects that its stack has room for
    names      of globals and attributes that the code uses
    exceptions co_exceptiontable, b"" where it has none
    """

    variables: tuple[int, ...]
    arguments: frozenset[int]
    in_cell: tuple[bool, ...]
    stack: int
    names: frozenset[int]
    exceptions: bytes


class Frames:
    """Reads frames of one interpreter. Every method raises MemoryFault for what is not there."""

    def __init__(self, memory: Memory, layout: Layout) -> None:
        self.memory, self.layout, self.objects = memory, layout, Objects(memory, layout)
        self._more = layout.object_type - 8
        self._codes, self._kinds, self._names = dict[int, Code](), dict[int, str](), dict[int, str]()

    def kind(self, address: int) -> str:
        """The name of an object's type as tp_name has it, "" of no object."""
        if not address:
            return ""
        of = self.memory.u64(address + self.layout.object_type)
        if of not in self._kinds:
            self._kinds[of] = self.objects.type_name(address, 40).decode("ascii", "replace")
        return self._kinds[of]

    def name(self, address: int) -> str:
        """The text of a name."""
        if address not in self._names:
            self._names[address] = self.memory.text(self.layout, address)[:200]
        return self._names[address]

    def code(self, address: int) -> Code:
        """Of a code object."""
        if address not in self._codes:
            self._codes[address] = self._code(address)
        return self._codes[address]

    def variables(self, frame: int, code: int) -> list[tuple[int, int]]:
        """(name, object) of the variables that are bound."""
        of = self.code(code)
        found = zip(of.variables, of.in_cell, self._objects(frame, len(of.variables)), strict=True)
        bound = ((name, self._content(value) if in_cell else value) for name, in_cell, value in found)
        return [(name, value) for name, value in bound if value]

    def held(self, frame: int, code: int) -> list[int]:
        """All objects in a frame, with what its stack had before: not all of these live."""
        of = self.code(code)
        return [value for value in self._objects(frame, len(of.variables) + of.stack) if value]

    def below_handler(self, frame: int, code: int) -> list[int]:
        """The objects on its stack that the innermost block around its instruction leaves there: among them what each `with` around it will call at its end."""
        of = self.code(code)
        first = len(of.variables)
        if self.layout.frame_blocks is not None:
            depth = self._block_level(frame)
        else:
            depth = _depth(of.exceptions, position_in(self.memory, self.layout, frame, code) // 2)
        return self._objects(frame, first + depth)[first:] if 0 < depth <= of.stack else []

    def global_variables(self, frame: int, names: frozenset[int]) -> list[tuple[int, int]]:
        """(name, object) of the globals of these names."""
        return [pair for pair in self.objects.items(self.memory.u64(frame + self.layout.frame_globals)) if pair[0] in names]

    def class_attributes(self, address: int) -> Iterator[tuple[int, int]]:
        """(name, value) of what an object's own class defines, and of a class itself; nothing of what CPython itself defines."""
        types = (
            (self.memory.u64(address + self.layout.object_type), address)
            if self.kind(address) == "type"
            else (self.memory.u64(address + self.layout.object_type),)
        )
        for of in types:
            with suppress(MemoryFault):
                yield from self.objects.items(self.memory.u64(of + _TYPE_DICT + self._more))

    def sequence(self, address: int, most: int) -> tuple[int, ...]:
        """The first `most` items of a list or tuple."""
        start = address + self.layout.tuple_items if self.kind(address) == "tuple" else self.memory.u64(address + _LIST_ITEMS + self._more)
        count = min(self.memory.u64(address + _SIZE + self._more), most)
        return struct.unpack(f"<{count}Q", self.memory.read(start, 8 * count)) if count else ()

    def suspended_top(self, frame: int, code: int) -> int:
        """What lies on top of the stack of a suspended generator: of one that awaits what it awaits; 0 where there is nothing."""
        end, version, of = frame + self.layout.frame_suspended, self.layout.version, self.code(code)
        if version < (3, 10) or version >= (3, 14):
            depth = (self.memory.u64(end) - frame - self.layout.frame_locals) // 8
        else:
            depth = self.memory.i32(end) + (len(of.variables) if version == (3, 10) else 0)
        if not len(of.variables) < depth <= len(of.variables) + of.stack:
            return 0
        on_stack = self._objects(frame, depth)[len(of.variables) :]
        return next((value for value in on_stack[: -_ABOVE_AWAITED - 1 : -1] if value), 0)

    def _block_level(self, frame: int) -> int:
        """Of the innermost block of a frame up to 3.10, how many objects were on its stack when that began; 0 where it is in none."""
        where = frame + (self.layout.frame_blocks or 0)
        count = self.memory.i32(where)
        return self.memory.i32(where + 8 + _BLOCK * (count - 1) + _BLOCK_LEVEL) if 0 < count <= _MOST_BLOCKS else 0

    def _objects(self, frame: int, count: int) -> list[int]:
        if not 0 <= count <= _MOST_OBJECTS:
            raise MemoryFault(f"the frame at {frame:#x} of process {self.memory.pid} has no such variables")
        found = struct.unpack(f"<{count}Q", self.memory.read(frame + self.layout.frame_locals, 8 * count)) if count else ()
        if self.layout.version < (3, 14):  # from then on the low bits are a tag, and with both of them it is no object
            return list(found)
        return [0 if value & 3 == 3 else value & ~3 for value in found]

    def _content(self, cell: int) -> int:
        return self.memory.u64(cell + _CELL_CONTENT + self._more) if self.kind(cell) == "cell" else cell

    def _tuple(self, address: int) -> tuple[int, ...]:
        count = self.memory.u64(address + _SIZE + self._more)
        if count > _MOST_OBJECTS:
            raise MemoryFault(f"address {address:#x} of process {self.memory.pid} holds no such tuple")
        return struct.unpack(f"<{count}Q", self.memory.read(address + self.layout.tuple_items, 8 * count)) if count else ()

    def _bytes(self, address: int) -> bytes:
        size = self.memory.u64(address + _SIZE + self._more)
        if size > _MOST_BYTES:
            raise MemoryFault(f"address {address:#x} of process {self.memory.pid} holds no such bytes")
        return self.memory.read(address + _BYTES + self._more, size) if size else b""

    def _code(self, address: int) -> Code:
        layout, memory = self.layout, self.memory
        if self.kind(address) != "code":
            raise MemoryFault(f"address {address:#x} of process {memory.pid} holds no code object")
        variables = self._tuple(memory.u64(address + layout.code_variables))
        flags = memory.u32(address + layout.code_flags)
        given = memory.u32(address + layout.code_arguments) + memory.u32(address + layout.code_keyword_only)
        given += bool(flags & _TAKES_MORE) + bool(flags & _TAKES_MORE_KEYWORDS)
        arguments = frozenset(islice(variables, given))
        if layout.code_kinds is not None:
            kinds = self._bytes(memory.u64(address + layout.code_kinds))
            in_cell = tuple(bool(kind & _IN_CELL) for kind in kinds)
        else:
            cells = [name for place in (layout.code_cells, layout.code_free) if place for name in self._tuple(memory.u64(address + place))]
            in_cell = (False,) * len(variables) + (True,) * len(cells)
            variables += tuple(cells)
        stack, names = memory.u32(address + layout.code_stack), self._tuple(memory.u64(address + layout.code_names))
        exceptions = self._bytes(memory.u64(address + layout.code_exceptions)) if layout.code_exceptions else b""
        if len(in_cell) != len(variables) or len(variables) + stack > _MOST_OBJECTS:
            raise MemoryFault(f"the code object at {address:#x} of process {memory.pid} is damaged")
        return Code(variables, arguments, in_cell, stack, frozenset(names), exceptions)


def _depth(table: bytes, unit: int) -> int:
    """By co_exceptiontable (Objects/exception_handling_notes.txt), how many objects the handler of this code unit leaves on the stack; 0 where it has none.

    The unit at which `await` suspends may have a handler for itself alone: around it is what is around the next one.
    """
    numbers = _numbers(table)
    for start in numbers:
        size, _, depth = next(numbers, 0), next(numbers, 0), next(numbers, 0)
        if start == unit and size == 1:
            unit += 1
        elif start <= unit < start + size:
            return depth >> 1
    return 0


def _numbers(table: bytes) -> Iterator[int]:
    number = 0
    for byte in table:
        number = (number << 6 | byte & 63) & 0xFFFFFFFF
        if not byte & 64:
            yield number
            number = 0
