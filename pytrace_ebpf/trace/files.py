"""The files of a trace, opened: regular ones only, by no link within the trace, in the directory that was opened first."""

import os
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import BinaryIO

# Elsewhere than on Unix there is neither.
_BY_DESCRIPTOR = os.open in os.supports_dir_fd
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_NOT_WAITING = _NO_LINK | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_DIRECTORY = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0)
_CHUNK = 1 << 20


class Files:
    """A directory, held by its descriptor where the system has such: it stays the same when anything is renamed."""

    def __init__(self, directory: Path) -> None:
        """Raises OSError."""
        self.directory = directory
        self._descriptor = os.open(directory, _DIRECTORY) if _BY_DESCRIPTOR else -1

    @property
    def ours(self) -> bool:
        """Whether the user who runs this owns it."""
        return self._descriptor < 0 or os.fstat(self._descriptor).st_uid == os.geteuid()

    @property
    def through(self) -> Path:
        """A path of this very directory that renaming cannot redirect, where the system has such; for this process alone."""
        pinned = Path(f"/proc/self/fd/{self._descriptor}")
        return pinned if _BY_DESCRIPTOR and pinned.exists() else self.directory

    @property
    def descriptor(self) -> int | None:
        """What goes as `dir_fd` to functions of os and shutil, with names as name() gives them."""
        return self._descriptor if _BY_DESCRIPTOR else None

    def name(self, *names: str) -> str:
        """A file of it as these functions want it."""
        return os.path.join(*names) if _BY_DESCRIPTOR else str(self.directory.joinpath(*names))  # noqa: PTH118

    def folder(self, name: str) -> "Files":
        """A directory in it. Raises OSError for anything else, a link included."""
        found = Files.__new__(Files)
        found.directory = self.directory / name
        found._descriptor = os.open(name, _DIRECTORY | _NOT_WAITING, dir_fd=self._descriptor) if _BY_DESCRIPTOR else -1
        return found

    def open(self, name: str) -> int:
        """Descriptor of a regular file in it, to read; this never waits. Raises OSError for anything else."""
        flags = os.O_RDONLY | _NOT_WAITING
        descriptor = os.open(name, flags, dir_fd=self._descriptor) if _BY_DESCRIPTOR else os.open(self.directory / name, flags)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise OSError(22, "not a regular file")
        return descriptor

    def size(self, name: str) -> int:
        """Bytes of a regular file in it. Raises OSError for anything else."""
        status = os.stat(self.name(name), dir_fd=self.descriptor, follow_symlinks=False)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(22, "not a regular file")
        return status.st_size

    def read(self, name: str, limit: int) -> tuple[bytes, float]:
        """A whole file of at most `limit` bytes, and when it was written (s since 1970). Raises OSError."""
        descriptor = self.open(name)
        try:
            status = os.fstat(descriptor)
            if status.st_size > limit:
                raise OSError(27, "too large")
            content = b""
            while len(content) <= limit and (more := os.read(descriptor, _CHUNK)):
                content += more
            return content, status.st_mtime
        finally:
            os.close(descriptor)

    def names(self) -> list[str]:
        """What is in it, in the order of names. Raises OSError."""
        return sorted(os.listdir(self._descriptor if _BY_DESCRIPTOR else self.directory))  # noqa: PTH208 - a descriptor

    def __del__(self) -> None:
        if getattr(self, "_descriptor", -1) >= 0:
            os.close(self._descriptor)


@contextmanager
def whole(path: Path, rights: Callable[[], AbstractContextManager[None]] = nullcontext) -> Iterator[BinaryIO]:
    """A file to write, mode 0600, that is moved to `path` when it is whole; until then, and where that fails, what was there stays.

    A link is replaced, not followed; a device or a pipe is written to. `rights()` is entered for whatever is made. Raises OSError.
    """
    with rights():
        files, fresh = Files(path.parent), f".{path.name}-{secrets.token_hex(4)}"
        name, at = files.name(path.name), files.descriptor
        beside = files.name(fresh) if _replaceable(name, at) else None
        flags = os.O_CREAT | os.O_EXCL if beside else 0
        descriptor = os.open(beside or name, os.O_WRONLY | _NO_LINK | getattr(os, "O_BINARY", 0) | flags, 0o600, dir_fd=at)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
        if beside:
            with rights():
                os.replace(beside, name, src_dir_fd=at, dst_dir_fd=at)
    except BaseException:
        with rights(), suppress(OSError):
            os.unlink(beside or "", dir_fd=at)
        raise


def _replaceable(name: str, at: int | None) -> bool:
    """False for a device, a pipe, a directory."""
    try:
        mode = os.stat(name, dir_fd=at, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return True
    return stat.S_ISREG(mode) or stat.S_ISLNK(mode)
