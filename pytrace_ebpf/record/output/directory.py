"""The trace directory while it is written: made by us, held by its descriptor, and no link in it or to it is ever followed."""

import os
import stat
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from pytrace_ebpf.errors import UsageError
from pytrace_ebpf.record.rights.user import caller, caller_id

_LINKS = 40  # on the way to a directory; the kernel's own limit
_NAMES = 1000  # that are tried where none was asked for
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_MAKE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW


@dataclass(frozen=True)
class Handed:
    """A directory that somebody else made and opened, to be written in: another process's, by the descriptor that it handed over."""

    descriptor: int
    path: Path  # its name there, which means nothing here: for messages alone


class Output:
    """An empty directory, mode 0700, that belongs to the user whose rights this thread has; `path` is its name as given.

    Files are made in it and in folders of it with mode 0600. To be used with the rights of user.as_caller().
    """

    def __init__(self, path: Path | Handed | None, called: str = "pytrace", another: bool = False) -> None:
        """Make `path`, or take it where it is there, empty and the caller's own; None: a new one `called` so and by the time.

        `another`: where `path` is there, make PATH-2 or what comes next in its place. Raises UsageError.
        """
        self._handed = isinstance(path, Handed)
        self._made, self._room = not self._handed, -1
        if isinstance(path, Handed):
            self.path = path.path
            self._take(path.descriptor)
            return
        self.path = path or Path(time.strftime(f"{called}-%Y%m%d-%H%M%S"))
        try:
            self._parent = _open_directory(self.path.parent)
            try:
                self._name = self._make(another or path is None)
                self._descriptor = self._open(self._name)
            except BaseException:
                os.close(self._parent)
                raise
        except OSError as error:
            whom = f" as {user.described}" if (user := caller()) else ""
            raise UsageError(f"cannot write to {self.path}{whom} ({error.strerror}); give another folder with --output") from error

    def _make(self, another_will_do: bool) -> str:
        """Make the directory; returns its name in its parent."""
        name = self.path.name or "."
        for number in range(2, _NAMES):
            try:
                os.mkdir(name, 0o700, dir_fd=self._parent)
                return name
            except FileExistsError:
                if not another_will_do:
                    self._made = False
                    return name
                name = f"{self.path.name}-{number}"
        raise FileExistsError(17, os.strerror(17))

    def _open(self, name: str) -> int:
        """Its descriptor. What the name refers to now may be something else: the owner of the parent can replace it."""
        if name not in (self.path.name, "."):
            self.path = self.path.with_name(name)
        try:
            descriptor = os.open(name, _OPEN, dir_fd=self._parent)
        except NotADirectoryError:  # a link, too
            raise UsageError(f"{self.path} is a link or no folder; give another folder with --output") from None
        return self._judged(descriptor)

    def _take(self, handed: int) -> None:
        try:
            self._parent = os.open(".", os.O_PATH | os.O_DIRECTORY, dir_fd=handed)
            try:
                self._descriptor = self._judged(os.open(".", _OPEN, dir_fd=handed))  # anew: with the rights of this thread
            except BaseException:
                os.close(self._parent)
                raise
        except OSError as error:
            raise UsageError(f"cannot write to {self.path} ({error.strerror}); give another folder with --output") from error

    def _judged(self, descriptor: int) -> int:
        """The descriptor of the directory, or it is closed, and UsageError raised."""
        try:
            if os.fstat(descriptor).st_uid != caller_id():
                raise UsageError(f"{self.path} belongs to somebody else; give another folder with --output")
            if os.listdir(descriptor):
                raise UsageError(f"{self.path} is not empty; give another folder with --output")
            os.fchmod(descriptor, 0o700)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def fileno(self) -> int:
        """Its descriptor, to be handed over to who writes in it."""
        return self._descriptor

    def make_folder(self, name: str) -> None:
        """Make a folder in it."""
        os.mkdir(name, 0o700, dir_fd=self._descriptor)

    def create(self, folder: str, name: str) -> BinaryIO:
        """A new file to write in one of its folders; "" is the directory itself. Raises OSError, also where there is one."""
        if not folder:
            return os.fdopen(os.open(name, _MAKE, 0o600, dir_fd=self._descriptor), "wb")
        with self._folder(folder) as descriptor:
            return os.fdopen(os.open(name, _MAKE, 0o600, dir_fd=descriptor), "wb")

    def append(self, name: str) -> BinaryIO:
        """A file that create() or replace() made, to write on at its end, without a buffer. Raises OSError."""
        return os.fdopen(os.open(name, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=self._descriptor), "ab", 0)

    def remove(self, folder: str, name: str) -> int:
        """Remove a file that create() made; returns how many bytes it had."""
        with suppress(FileNotFoundError), self._folder(folder) as descriptor:
            size = os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_size
            os.unlink(name, dir_fd=descriptor)
            return size
        return 0

    def replace(self, name: str, content: bytes) -> None:
        """Put a file in the place of what is called so, whole or not at all, and on the disk when this returns."""
        fresh = f"{name}.new"
        self.remove("", fresh)
        with self.create("", fresh) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.rename(fresh, name, src_dir_fd=self._descriptor, dst_dir_fd=self._descriptor)

    def free(self) -> tuple[int, int]:
        """Bytes that the caller may still write to its disk, and the size of that."""
        status = os.fstatvfs(self._descriptor)
        return status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize

    def where(self) -> Path:
        """Its current path: it, or a folder above it, may have been renamed."""
        if self._handed:
            return self.path
        try:
            with suppress(FileNotFoundError):
                if os.path.samestat(self.path.stat(), os.fstat(self._descriptor)):
                    return self.path
            return Path(f"/proc/self/fd/{self._descriptor}").readlink()
        except OSError:
            return self.path

    def abandon(self, folders: tuple[str, ...], files: tuple[str, ...]) -> None:
        """Remove these folders, empty ones, and files of it, and itself where it was made by us and nothing else is in it."""
        for name in files:
            self.remove("", name)
        for name in folders:
            with suppress(OSError):
                os.rmdir(name, dir_fd=self._descriptor)
        if self._made:
            with suppress(OSError):
                found = os.stat(self._name, dir_fd=self._parent, follow_symlinks=False)
                if os.path.samestat(found, os.fstat(self._descriptor)):
                    os.rmdir(self._name, dir_fd=self._parent)

    def reserve_space(self, size: int) -> None:
        """Reserve so many bytes of the disk until release_space(), where the file system can do that for a file without a name."""
        with suppress(OSError):
            if self._room < 0:
                self._room = os.open(".", os.O_WRONLY | os.O_TMPFILE, 0o600, dir_fd=self._descriptor)
            os.posix_fallocate(self._room, 0, size)

    def release_space(self) -> None:
        """Give back what reserve_space() reserved."""
        if self._room >= 0:
            os.close(self._room)
            self._room = -1

    def close(self) -> None:
        """Let go of it."""
        self.release_space()
        os.close(self._descriptor)
        os.close(self._parent)

    def _folder(self, name: str) -> "_Descriptor":
        return _Descriptor(os.open(name or ".", _OPEN, dir_fd=self._descriptor))


class _Descriptor:
    """A descriptor that a `with` closes."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __enter__(self) -> int:
        return self._descriptor

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)


def _open_directory(path: Path) -> int:
    """Descriptor of a directory, made with what is above it where it is not there; each name on the way is opened by itself.

    A link on the way is followed where it is root's or the caller's own: another's could lead anywhere, and elsewhere next time.
    Raises OSError.
    """
    names, links = deque(path.absolute().parts[1:]), 0
    here = os.open("/", os.O_PATH | os.O_DIRECTORY)
    try:
        while names:
            name = names.popleft()
            try:
                child = os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=here)
            except FileNotFoundError:
                with suppress(FileExistsError):
                    os.mkdir(name, 0o700, dir_fd=here)
                child = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_DIRECTORY, dir_fd=here)
            found = os.fstat(child)
            if not stat.S_ISLNK(found.st_mode):
                os.close(here)
                here = child
                continue
            target, links = os.readlink("", dir_fd=child), links + 1
            os.close(child)
            if found.st_uid not in (0, caller_id()) or links > _LINKS:
                raise PermissionError(13, f"{name} is somebody else's link" if links <= _LINKS else "too many links")
            names.extendleft(reversed(target.strip("/").split("/")))
            if target.startswith("/"):
                os.close(here)
                here = os.open("/", os.O_PATH | os.O_DIRECTORY)
    except BaseException:
        os.close(here)
        raise
    return here
