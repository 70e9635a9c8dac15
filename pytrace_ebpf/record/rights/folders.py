"""Opens directories on the way to which others may have put something else, and says of what is open whether somebody may have to answer for it."""

import errno
import fcntl
import os
import stat
from collections.abc import Collection

_GET_SEALS = 1034  # F_GET_SEALS


def directory(root: int, path: str, trusted: Collection[int] | None = None) -> int:
    """A descriptor of a directory below `root`, through no link.

    trusted  nobody but these users may put another one in its place, or exchange what others make there; None: never mind

    The caller closes it. Raises OSError.
    """
    descriptor = os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=root)
    try:
        for part in (None, *path.strip("/").split("/")):
            if part is not None:
                below = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=descriptor)
                os.close(descriptor)
                descriptor = below
            status = os.fstat(descriptor)
            shared = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not status.st_mode & stat.S_ISVTX
            if trusted is not None and (shared or status.st_uid not in trusted):
                raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def is_in_memory(descriptor: int) -> bool:
    """Whether it is a file of a tmpfs. The kernel says so by itself, whatever the file is: who asks never waits."""
    try:
        fcntl.fcntl(descriptor, _GET_SEALS)
    except OSError:
        return False
    return True
