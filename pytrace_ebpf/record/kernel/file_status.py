"""What a file is, as the kernel has it in memory: a file system that a user's program serves is not asked, which might not answer (statx(2))."""

import ctypes
import errno
import os
import struct
from typing import NamedTuple

from pytrace_ebpf import processors
from pytrace_ebpf.record.libc import libc

_STATX = processors.here().call("statx")
_EMPTY_PATH, _DO_NOT_SYNC, _BASIC = 0x1000, 0x4000, 0x7FF
_BYTES = 256
_HERE = -100  # AT_FDCWD


class Status(NamedTuple):
    """As os.stat() has them."""

    st_mode: int
    st_ino: int
    st_dev: int
    st_size: int
    st_mtime_ns: int
    st_ctime_ns: int


def status(path: str, dir_fd: int = _HERE) -> Status:
    """Of what a path leads to; of what a descriptor is, where that is empty. Raises OSError.

    A file system that a user's program serves may hide its files from root, too: then the device is all that is known, and the rest is 0.
    """
    buffer = ctypes.create_string_buffer(_BYTES)
    number = _statx(path, dir_fd, _BASIC, buffer)
    if number == errno.EACCES:
        number = _statx(path, dir_fd, 0, buffer)
    if number in (errno.ENOSYS, errno.EPERM):  # a container that forbids what it does not know
        return _plain(os.stat(path, dir_fd=dir_fd if dir_fd >= 0 else None) if path else os.fstat(dir_fd))
    if number:
        raise OSError(number, os.strerror(number), path)
    mode, inode, size = struct.unpack_from("<H2xQQ", buffer, 0x1C)
    changed, changed_ns, modified, modified_ns = struct.unpack_from("<qIxxxxqI", buffer, 0x60)
    major, minor = struct.unpack_from("<II", buffer, 0x88)
    return Status(mode, inode, os.makedev(major, minor), size, modified * 1_000_000_000 + modified_ns, changed * 1_000_000_000 + changed_ns)


def _statx(path: str, dir_fd: int, wanted: int, buffer: "ctypes.Array[ctypes.c_char]") -> int:
    """0, or the number of the error."""
    failed = libc.syscall(_STATX, dir_fd, os.fsencode(path), _DO_NOT_SYNC | (0 if path else _EMPTY_PATH), wanted, buffer) < 0
    return ctypes.get_errno() if failed else 0


def _plain(found: os.stat_result) -> Status:
    return Status(found.st_mode, found.st_ino, found.st_dev, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def status_of(descriptor: int) -> Status:
    """Of an open file. Raises OSError."""
    return status("", descriptor)
