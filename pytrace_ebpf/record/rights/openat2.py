"""Opens files in directories that another user may write to: what was made there is a file of that user's, or nothing."""

import ctypes
import errno
import os
import stat

from pytrace_ebpf.record.libc import libc
from pytrace_ebpf.record.process.pinned import Descriptor

_OPENAT2 = 437
# In this directory and nowhere else: no other file system that somebody mounted over the name, no link.
_RESOLVE = 0x01 | 0x04 | 0x08  # RESOLVE_NO_XDEV | RESOLVE_NO_SYMLINKS | RESOLVE_BENEATH


class Unfit(Exception):  # noqa: N818 - the usual term
    """What has the name is not what may be opened; the text says what it is, without the name."""


def regular_file(folder: int, name: str, owner: int, most_bytes: int, access: int = os.O_RDONLY) -> Descriptor:
    """Open a regular file of `owner` with one name and at most so many bytes.

    Raises Unfit for anything else, FileNotFoundError where there is nothing, OSError where this process can open no more.
    """
    try:
        file = Descriptor(_open(folder, name, access | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.EMFILE, errno.ENFILE, errno.ENOMEM):
            raise
        raise Unfit(f"cannot be opened ({error.strerror})") from None
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode):
        raise Unfit("is not a regular file")
    if status.st_uid != owner:
        raise Unfit("belongs to another user")
    if status.st_nlink != 1:
        raise Unfit("has another name elsewhere")
    if status.st_size > most_bytes:
        raise Unfit("is too large")
    return file


def _open(folder: int, name: str, flags: int) -> int:
    how = (ctypes.c_uint64 * 3)(flags, 0, _RESOLVE)
    descriptor = int(libc.syscall(_OPENAT2, folder, os.fsencode(name), how, ctypes.c_size_t(ctypes.sizeof(how))))
    if descriptor >= 0:
        return descriptor
    number = ctypes.get_errno()
    if number in (errno.ENOSYS, errno.EPERM):  # Linux before 5.6, and containers that forbid what they do not know
        return os.open(name, flags, dir_fd=folder)
    raise OSError(number, os.strerror(number))
