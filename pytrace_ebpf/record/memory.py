"""Reads another process's memory without stopping it: integers and CPython strings."""

import ctypes
import os
import struct
from pathlib import Path

from pytrace_ebpf.record.layout import Layout

_CHUNK = 1 << 20
_MAX_STRING = 1 << 16  # longer text is cut: no name of a function needs more


class MemoryFault(Exception):  # noqa: N818 - the field's word
    """An address that is not mapped, or a process that is gone. The caller decides what that means."""


class _Span(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


_libc = ctypes.CDLL(None, use_errno=True)
_libc.process_vm_readv.argtypes = (
    ctypes.c_int,
    *(ctypes.c_void_p, ctypes.c_ulong),
    *(ctypes.c_void_p, ctypes.c_ulong),
    ctypes.c_ulong,
)
_libc.process_vm_readv.restype = ctypes.c_ssize_t


class Memory:
    """The memory of process `pid`. Every method raises MemoryFault for what cannot be read."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._forbidden = False

    def read(self, address: int, size: int) -> bytes:
        """Exactly `size` bytes at `address`."""
        if not 0 < address < 1 << 63 or not 0 <= size <= _CHUNK:
            raise MemoryFault(f"no {size} bytes can be read at {address:#x} of process {self.pid}")
        if not self._forbidden:
            buffer = ctypes.create_string_buffer(size)
            local, remote = _Span(ctypes.addressof(buffer), size), _Span(address, size)
            got = _libc.process_vm_readv(self.pid, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0)
            if got == size:
                return buffer.raw
            # Containers' seccomp profiles and old kernels forbid the call, not the file.
            self._forbidden = ctypes.get_errno() in (1, 38)  # EPERM, ENOSYS
        if self._forbidden:
            return self._read_file(address, size)
        raise MemoryFault(f"address {address:#x} of process {self.pid} cannot be read")

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
        length, state = self.u64(address + layout.string_length), self.u32(address + layout.string_state)
        kind, compact, ascii_only = state >> 2 & 7, state >> 5 & 1, state >> 6 & 1
        if not compact or kind not in (1, 2, 4):
            raise MemoryFault(f"address {address:#x} of process {self.pid} holds no str")
        data = address + (layout.string_data if ascii_only else layout.string_data_wide)
        raw = self.read(data, min(length, _MAX_STRING) * kind)
        codec = {1: "latin-1", 2: "utf-16-le", 4: "utf-32-le"}[kind]
        try:
            return raw.decode(codec, "surrogatepass").encode("utf-8", "backslashreplace").decode()
        except UnicodeDecodeError:
            raise MemoryFault(f"address {address:#x} of process {self.pid} holds no str any more") from None

    def _read_file(self, address: int, size: int) -> bytes:
        try:
            with Path(f"/proc/{self.pid}/mem").open("rb", buffering=0) as file:
                got = os.pread(file.fileno(), size, address)
        except (OSError, OverflowError) as error:
            raise MemoryFault(f"address {address:#x} of process {self.pid} cannot be read ({error})") from None
        if len(got) != size:
            raise MemoryFault(f"address {address:#x} of process {self.pid} cannot be read")
        return got
