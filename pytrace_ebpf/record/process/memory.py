"""Reads another process's memory without stopping it: integers and CPython strings."""

import os
import struct
from typing import Protocol

from pytrace_ebpf.record.cpython.layout import Layout

_CHUNK = 1 << 20
_MAX_STRING = 1 << 16  # longer text is cut: no name of a function needs more


class MemoryFault(Exception):  # noqa: N818 - the usual term
    """An address that is not mapped, or a process that is gone. The caller decides what that means."""


class HasFileno(Protocol):
    """An open file."""

    def fileno(self) -> int:
        """Its descriptor."""


class Numbered:
    """A descriptor that is known by its number, and closed by somebody else."""

    def __init__(self, number: int) -> None:
        self._number = number

    def fileno(self) -> int:
        """Its number."""
        return self._number


class Memory:
    """The memory of process `pid`, of the program that it was when its memory was opened. Every method raises MemoryFault for what cannot be read."""

    def __init__(self, pid: int, file: HasFileno) -> None:
        """`file`: its file mem, open; after exec nothing can be read through it any more."""
        self.pid, self._file = pid, file

    def read(self, address: int, size: int) -> bytes:
        """Exactly `size` bytes at `address`."""
        if not 0 < address < 1 << 63 or not 0 <= size <= _CHUNK:
            raise MemoryFault(f"no {size} bytes can be read at {address:#x} of process {self.pid}")
        try:
            got = os.pread(self._file.fileno(), size, address)
        except OSError as error:
            raise MemoryFault(f"address {address:#x} of process {self.pid} cannot be read ({error.strerror})") from None
        if len(got) != size:
            raise MemoryFault(f"address {address:#x} of process {self.pid} cannot be read")
        return got

    def write(self, address: int, content: bytes) -> None:
        """Write all of `content` at `address`, whatever its protection."""
        try:
            if os.pwrite(self._file.fileno(), content, address) == len(content):
                return
        except (OSError, OverflowError):
            pass
        raise MemoryFault(f"address {address:#x} of process {self.pid} cannot be written")

    def u64(self, address: int) -> int:
        """An unsigned 64-bit integer, or a pointer."""
        return int(struct.unpack("<Q", self.read(address, 8))[0])

    def i32(self, address: int) -> int:
        """A signed 32-bit integer."""
        return int(struct.unpack("<i", self.read(address, 4))[0])

    def u32(self, address: int) -> int:
        """An unsigned 32-bit integer."""
        return self.i32(address) & 0xFFFFFFFF

    def u8(self, address: int) -> int:
        """An unsigned byte."""
        return self.read(address, 1)[0]

    def text(self, layout: Layout, address: int) -> str:
        """The str object at `address`, at most 65536 characters of it. A lone surrogate is kept as `\\udc..` text."""
        length, state = self.u64(address + layout.string_length), self.u32(address + layout.string_state) >> layout.string_kind
        kind, compact, ascii_only = state & 7, state >> 3 & 1, state >> 4 & 1
        if not compact or kind not in (1, 2, 4):
            raise MemoryFault(f"address {address:#x} of process {self.pid} holds no str")
        data = address + (layout.string_data if ascii_only else layout.string_data_wide)
        raw = self.read(data, min(length, _MAX_STRING) * kind)
        codec = {1: "latin-1", 2: "utf-16-le", 4: "utf-32-le"}[kind]
        try:
            return raw.decode(codec, "surrogatepass").encode("utf-8", "backslashreplace").decode()
        except UnicodeDecodeError:
            raise MemoryFault(f"address {address:#x} of process {self.pid} holds no str any more") from None
