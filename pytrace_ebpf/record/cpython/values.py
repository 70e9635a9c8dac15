"""What an object is, read from outside by the rules of `--args`: its type, and its value or size where that can be seen without running anything.

Numbers, texts, bytes, None, what is derived from these, sizes of containers, arrays and tensors; of all else the type alone. An object that changes
while it is read may be read wrongly, and is bounded all the same. The layouts are those of probes/agent/objects.c.
"""

import struct
from dataclasses import dataclass
from math import prod

from pytrace_ebpf.record.cpython.variables import Frames
from pytrace_ebpf.record.process.memory import MemoryFault

COMPLETE, CUT, UNREAD = "complete", "cut", "unread"
MOST = 160  # bytes of a value
_TYPE_NAME, _BASE, _FLAGS = 24, 256, 168
_HEAP, _INT, _LIST, _TUPLE, _BYTES, _TEXT, _DICT, _EXCEPTION = 1 << 9, *(1 << bit for bit in range(24, 31))
_QUALNAME_BEFORE_KEYS = 8
_SIZE, _CONTENT, _DIGITS, _BYTES_START = 16, 16, 24, 32
_SET_SIZE, _EXCEPTION_ARGUMENTS = 24, 24
_DIMENSIONS, _SIZES, _DESCRIPTION, _NUMBER, _MOST_DIMENSIONS = 24, 32, 56, 28, 64
_TENSOR_POINTERS, _TENSOR_SIZES, _TENSOR_INLINE = (24, 16), 56, 5
_TENSOR = struct.Struct("<Q5q5qqqH")  # struct tensor_impl of probes/agent/objects.c
_SIZED = {"set": _SET_SIZE, "frozenset": _SET_SIZE, "bytearray": _SIZE}
_ARRAYS = {"numpy.ndarray": "array", "torch._C.TensorBase": "tensor", "torch._C._TensorBase": "tensor"}
_MOST_DERIVED, _LONGEST_NAME = 8, 200


@dataclass(frozen=True)
class Value:
    """What is seen of an object, as table `observed` has it (trace/observed.py).

    type    qualified name without its module; "" where that was not read
    value   None where it has none that is shown
    shape   of an array or tensor its sizes, of what has a length that; else None
    array   "array" or "tensor" where it is one, else ""
    dtype   the number that NumPy or PyTorch has for the type of its elements
    status  of COMPLETE, CUT, UNREAD
    """

    type: str
    value: str | None = None
    shape: list[int] | None = None
    array: str = ""
    dtype: int = 0
    status: str = COMPLETE


class Values:
    """Describes objects of one interpreter."""

    def __init__(self, frames: Frames) -> None:
        self._frames, self._memory, self._layout = frames, frames.memory, frames.layout
        self._more = frames.layout.object_type - 8
        self._types: dict[int, tuple[str, int]] = {}

    def describe(self, address: int) -> Value:
        """What an object is. Nothing is raised."""
        name = ""
        try:
            of = self._memory.u64(address + self._layout.object_type)
            if of not in self._types:
                self._types[of] = self._type(of)
            name, flags = self._types[of]
            return self._value(address, of, name, flags)
        except (MemoryFault, struct.error):
            return Value(name, status=UNREAD)

    def _type(self, of: int) -> tuple[str, int]:
        flags = self._memory.u64(of + _FLAGS + self._more)
        if flags & _HEAP:
            return self._memory.text(self._layout, self._memory.u64(of + self._layout.type_cached_keys - _QUALNAME_BEFORE_KEYS))[
                :_LONGEST_NAME
            ], flags
        return self._static_name(of).rpartition(".")[2], flags

    def _static_name(self, of: int) -> str:
        raw = self._memory.read(self._memory.u64(of + _TYPE_NAME + self._more), 64)
        return raw.partition(b"\0")[0].decode("ascii", "replace")

    def _value(self, address: int, of: int, name: str, flags: int) -> Value:
        at = address + self._more
        if name in ("NoneType", "bool") and not flags & _HEAP:
            return Value(name, "None" if name == "NoneType" else str(self._integer(at) != 0))
        if flags & _INT:
            return self._int(at, name)
        if flags & _TEXT:
            return self._text(address, name)
        if flags & _BYTES:
            size = self._memory.u64(at + _SIZE)
            raw = self._memory.read(at + _BYTES_START, min(size, MOST)) if size else b""
            return self._fitting(name, "".join(chr(byte) if 32 <= byte < 127 else f"\\x{byte:02x}" for byte in raw), size)
        if flags & (_LIST | _TUPLE | _DICT):
            return Value(name, shape=[self._size(at + _SIZE)])
        if flags & _EXCEPTION:
            return self._exception(at, name)
        return self._by_bases(at, of, name)

    def _size(self, where: int) -> int:
        return min(self._memory.u64(where), (1 << 63) - 1)

    def _fitting(self, name: str, text: str, length: int) -> Value:
        """A text, cut to MOST bytes, of so many elements."""
        short = text.encode()[:MOST].decode(errors="ignore")
        whole = len(short) == len(text) and length <= MOST
        return Value(name, short, [min(length, (1 << 63) - 1)], status=COMPLETE if whole else CUT)

    def _text(self, address: int, name: str) -> Value:
        length = self._memory.u64(address + self._layout.string_length)
        return self._fitting(name, self._memory.text(self._layout, address, MOST), length)

    def _int(self, at: int, name: str) -> Value:
        size = struct.unpack("<q", self._memory.read(at + _SIZE, 8))[0]
        tagged = self._layout.version >= (3, 12)
        negative = size & 3 == 2 if tagged else size < 0
        count = (0 if size & 3 == 1 else (size >> 3) & (1 << 60) - 1) if tagged else abs(size)
        if 4 * count > MOST:
            return Value(name, shape=[30 * min(count, 1 << 50)], status=CUT)
        number = self._integer(at, count)
        return Value(name, str(-number if negative else number))

    def _integer(self, at: int, count: int = 1) -> int:
        digits = struct.unpack(f"<{count}I", self._memory.read(at + _DIGITS, 4 * count)) if count else ()
        return sum(digit << 30 * place for place, digit in enumerate(digits))

    def _exception(self, at: int, name: str) -> Value:
        arguments = self._memory.u64(at + _EXCEPTION_ARGUMENTS)
        first = self._frames.sequence(arguments, 1) if arguments else ()
        if first and self._frames.kind(first[0]) == "str":
            found = self._text(first[0], name)
            return Value(name, found.value, status=found.status)
        return Value(name)

    def _by_bases(self, at: int, of: int, name: str) -> Value:
        """By the types that its type is derived from: their layout is its own."""
        for _ in range(_MOST_DERIVED):
            if not of:
                break
            base = self._static_name(of) if not self._memory.u64(of + _FLAGS + self._more) & _HEAP else ""
            if base in ("float", "numpy.float64"):
                return Value(name, str(struct.unpack("<d", self._memory.read(at + _CONTENT, 8))[0]))
            if base in _SIZED:
                return Value(name, shape=[self._size(at + _SIZED[base])])
            if base in _ARRAYS:
                return self._array(at, name) if _ARRAYS[base] == "array" else self._tensor(at, name)
            of = self._memory.u64(of + _BASE + self._more)
        return Value(name)

    def _array(self, at: int, name: str) -> Value:
        dimensions = self._memory.u32(at + _DIMENSIONS)
        if dimensions > _MOST_DIMENSIONS:
            return Value(name, status=UNREAD)
        shape = self._numbers(self._memory.u64(at + _SIZES), dimensions)
        return Value(name, None, shape, "array", self._memory.u32(self._memory.u64(at + _DESCRIPTION) + _NUMBER))

    def _tensor(self, at: int, name: str) -> Value:
        """PyTorch keeps the pointer at one of two places: it is where the sizes give the number of elements."""
        for place in _TENSOR_POINTERS:
            try:
                dimensions, *numbers, dtype = _TENSOR.unpack(self._memory.read(self._memory.u64(at + place) + _TENSOR_SIZES, _TENSOR.size))
                if dimensions <= _MOST_DIMENSIONS:
                    shape = numbers[:dimensions] if dimensions <= _TENSOR_INLINE else self._numbers(numbers[0], dimensions)
                    if prod(shape) == numbers[-1]:
                        return Value(name, None, shape, "tensor", dtype)
            except MemoryFault:
                continue
        return Value(name)

    def _numbers(self, where: int, count: int) -> list[int]:
        return list(struct.unpack(f"<{count}q", self._memory.read(where, 8 * count))) if count else []
