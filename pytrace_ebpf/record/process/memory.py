"""Reads another process's memory without stopping it: integers and CPython strings.

A page that is not there comes from where it is kept, and that can be a file system which a user's program serves, and which never answers: who reads it
then waits in the kernel, cannot be killed, and holds the lock of that memory map. So a page is read that is there, or that the kernel alone
brings in. A program can change that between the look and the reading: what then stands still is freed (watched.py).
"""

import os
import struct
from collections.abc import Sequence
from typing import Any, Protocol

from pytrace_ebpf.record.cpython.layout import Layout

_CHUNK = 1 << 20
_MAX_STRING = 1 << 16  # longer text is cut: no name of a function needs more
_PAGE = os.sysconf("SC_PAGE_SIZE")
_THERE = 3 << 62  # of an entry of /proc/PID/pagemap: in memory, or swapped out (or being moved)
Span = tuple[int, int]


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


def asked(given: dict[str, Any], files: Sequence[int]) -> tuple[int, HasFileno, HasFileno | None, Sequence[Span]]:
    """What Memory takes, in a process that asking.ask() asked."""
    return given["pid"], Numbered(files[0]), Numbered(files[1]) if len(files) > 1 else None, given["kept"]


class Memory:
    """The memory of process `pid`, of the program that it was when its memory was opened. Every method raises MemoryFault for what cannot be read."""

    def __init__(self, pid: int, file: HasFileno, pagemap: HasFileno | None = None, kept: Sequence[Span] = ()) -> None:
        """`file`: its file mem, open; after exec nothing can be read through it any more. `pagemap`: the one of that name; None where it may not be seen.

        `kept`: from one address to another, what the kernel itself brings in where it is not there.
        """
        self.pid, self._file, self._pagemap, self._kept = pid, file, pagemap, kept

    def read(self, address: int, size: int) -> bytes:
        """Exactly `size` bytes at `address`."""
        if not 0 < address < 1 << 63 or not 0 <= size <= _CHUNK:
            raise MemoryFault(f"no {size} bytes can be read at {address:#x} of process {self.pid}")
        try:
            self._refuse_what_is_served(address, size)
            got = os.pread(self._file.fileno(), size, address)
        except OSError as error:
            raise MemoryFault(f"address {address:#x} of process {self.pid} cannot be read ({error.strerror})") from None
        if len(got) != size:
            raise MemoryFault(f"address {address:#x} of process {self.pid} cannot be read")
        return got

    def _refuse_what_is_served(self, address: int, size: int) -> None:
        if self._pagemap is None or not size:
            return
        first, last = address // _PAGE, (address + size - 1) // _PAGE
        entries = os.pread(self._pagemap.fileno(), 8 * (last - first + 1), 8 * first)
        for at in range(0, len(entries), 8):
            page = (first + at // 8) * _PAGE
            if not int.from_bytes(entries[at : at + 8], "little") & _THERE and not self._is_kept(page):
                raise MemoryFault(
                    f"address {max(address, page):#x} of process {self.pid} is not in memory, and nobody knows where it would come from"
                )

    def _is_kept(self, page: int) -> bool:
        return any(start <= page < end for start, end in self._kept)

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

    def text(self, layout: Layout, address: int, most: int = _MAX_STRING) -> str:
        """The str object at `address`, at most `most` characters of it. A lone surrogate is kept as `\\udc..` text."""
        length, state = self.u64(address + layout.string_length), self.u32(address + layout.string_state) >> layout.string_kind
        kind, compact, ascii_only = state & 7, state >> 3 & 1, state >> 4 & 1
        if not compact or kind not in (1, 2, 4):
            raise MemoryFault(f"address {address:#x} of process {self.pid} holds no str")
        data = address + (layout.string_data if ascii_only else layout.string_data_wide)
        raw = self.read(data, min(length, most) * kind)
        codec = {1: "latin-1", 2: "utf-16-le", 4: "utf-32-le"}[kind]
        try:
            return raw.decode(codec, "surrogatepass").encode("utf-8", "backslashreplace").decode()
        except UnicodeDecodeError:
            raise MemoryFault(f"address {address:#x} of process {self.pid} holds no str any more") from None
