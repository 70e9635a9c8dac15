"""Dictionaries and attributes of a living interpreter, read from outside: CPython 3.8 to 3.15, x86-64.

The layouts are those of Objects/dictobject.c and pycore_dict.h; what is the same in all these versions is a constant here. Every
function raises MemoryFault for what is not there, and struct.error never: what is read has the size that is asked for.
"""

import struct
from collections.abc import Iterator

from pytrace_ebpf.record.cpython.layout import Layout
from pytrace_ebpf.record.process.memory import Memory, MemoryFault

_TYPE, _TYPE_NAME, _TYPE_BASIC_SIZE, _TYPE_FLAGS, _TYPE_DICT_OFFSET = 8, 24, 32, 168, 288  # without a GIL all of an object's are further behind
_INLINE_VALUES, _MANAGED_DICT = 1 << 2, 1 << 4  # flags of a type: from 3.13, from 3.11 on
_MANAGED_DICT_AT, _WITHOUT_GIL_AT = -24, -8
_VALUES_AT = -32  # 3.11: the pointer to an instance's values
_KEYS, _VALUES = 32, 40  # of a dict
_MODULE_DICT = 16
_INT_SIZE, _INT_DIGITS = 16, 24
_MOST_ENTRIES = 1 << 15


class Objects:
    """Reads the objects of one interpreter."""

    def __init__(self, memory: Memory, layout: Layout) -> None:
        self.memory, self._layout, self._minor = memory, layout, layout.version[1]
        self._more = layout.object_type - _TYPE  # of an object's head, in a build without a GIL

    def type_name(self, address: int, most: int = 16) -> bytes:
        """The name of an object's type, of at most so many bytes."""
        return self.static_name(self._type(address), most)

    def static_name(self, of: int, most: int) -> bytes:
        """What a type has as tp_name, of at most so many bytes."""
        raw = self.memory.read(self.memory.u64(of + _TYPE_NAME + self._more), most)
        return raw.partition(b"\0")[0]

    def items(self, address: int) -> Iterator[tuple[int, int]]:
        """(key, value) of a dict, addresses of objects."""
        if self.type_name(address) != b"dict":
            raise MemoryFault(f"address {address:#x} of process {self.memory.pid} holds no dict")
        keys, values = (self.memory.u64(address + offset + self._more) for offset in (_KEYS, _VALUES))
        return self._pairs(keys, values)

    def module_dict(self, address: int) -> int:
        """The dict of a module."""
        if self.type_name(address) != b"module":
            raise MemoryFault(f"address {address:#x} of process {self.memory.pid} holds no module")
        return self.memory.u64(address + _MODULE_DICT + self._more)

    def value(self, items: Iterator[tuple[int, int]], key: str) -> int:
        """The value of the first of `items` whose key is this text of ASCII."""
        length, wanted = self._layout.string_length, key.encode()
        size = self._layout.string_data + len(wanted)
        for at, value in items:
            raw = self.memory.read(at, size)
            if raw[self._layout.string_data :] == wanted and struct.unpack_from("<Q", raw, length)[0] == len(wanted):
                return value
        raise MemoryFault(f"process {self.memory.pid} has no {key}")

    def attribute(self, address: int, name: str) -> int:
        """The attribute of an instance that stands in its own dict."""
        return self.value(self.attributes(address), name)

    def integer(self, address: int) -> int:
        """An int from 0 to 2 ** 60."""
        address += self._more
        size = self.memory.u64(address + _INT_SIZE)
        digits = size >> 3 if self._minor >= 12 else size
        if digits not in (1, 2) or (self._minor >= 12 and size & 3):
            raise MemoryFault(f"address {address:#x} of process {self.memory.pid} holds no such int")
        return sum(self.memory.u32(address + _INT_DIGITS + 4 * place) << 30 * place for place in range(digits))

    def _type(self, address: int) -> int:
        return self.memory.u64(address + self._layout.object_type)

    def attributes(self, address: int) -> Iterator[tuple[int, int]]:
        """(name, value) of an instance's own attributes, addresses of objects."""
        memory, kind = self.memory, self._type(address)
        flags = memory.u64(kind + _TYPE_FLAGS + self._more)
        if self._minor < 11 or not flags & _MANAGED_DICT:
            return self.items(memory.u64(address + memory.i32(kind + _TYPE_DICT_OFFSET + self._more)))
        values = memory.u64(address + _VALUES_AT) if self._minor == 11 else 0
        own = memory.u64(address + (_WITHOUT_GIL_AT if self._more else _MANAGED_DICT_AT))
        if self._minor == 12 and own & 1:
            values = own + 1
        elif self._minor >= 13 and not own and flags & _INLINE_VALUES:
            values = address + memory.i32(kind + _TYPE_BASIC_SIZE + self._more)
        return self._pairs(memory.u64(kind + self._layout.type_cached_keys), values) if values else self.items(own)

    def _pairs(self, keys: int, values: int) -> Iterator[tuple[int, int]]:
        """Of a table of keys, and of a separate array of values, 0 where the values are in the table itself."""
        head = self.memory.read(keys, 40)
        if self._minor < 11:
            size, count = (struct.unpack_from("<Q", head, offset)[0] for offset in (8, 32))
            start = keys + 40 + size * (1 if size <= 0xFF else 2 if size <= 0xFFFF else 4)
            entry, first = 24, 8
        else:
            count = struct.unpack_from("<Q", head, 24)[0]
            start = keys + 32 + (1 << min(head[9], 40))
            entry, first = (16, 0) if head[10] else (24, 8)
        if count > _MOST_ENTRIES:
            raise MemoryFault(f"address {keys:#x} of process {self.memory.pid} holds no keys that are known")
        raw = self.memory.read(start, count * entry) if count else b""
        places = range(0, len(raw), entry)
        pairs = [struct.unpack_from("<QQ", raw, place + first) for place in places]
        if values:
            beside = struct.unpack(f"<{count}Q", self.memory.read(values + (8 if self._minor >= 13 else 0), 8 * count)) if count else ()
            pairs = [(key, value) for (key, _), value in zip(pairs, beside, strict=True)]
        return iter([(key, value) for key, value in pairs if key and value])
