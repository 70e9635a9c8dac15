"""Files that a program names, opened as that program could open them: by its root and working directory, with its rights.

A name in a program's memory is whatever the program wrote there: a link into root's files, a device, a pipe that
nobody writes to, a file system that never answers. So it is looked up below the program's own root by a thread that
has the program's rights over files and no others; what is no regular file is never opened; and where that takes
long the thread is left alone.
"""

import ctypes
import os
import stat
import struct
import threading
from collections.abc import Callable
from contextlib import suppress

from pytrace_ebpf import processors
from pytrace_ebpf.record.libc import libc
from pytrace_ebpf.record.process.pinned import Descriptor, Pinned, own_surroundings
from pytrace_ebpf.record.rights import thread_rights

_PATIENCE_S, _MOST_LEFT_ALONE = 2.0, 3
_MOST_LINKS = 40  # as the kernel follows
_LONGEST, _OPENAT2 = 4096, processors.here().call("openat2")  # of a name
_IN_ROOT, _NO_MAGIC_LINKS = 0x10, 0x02  # RESOLVE_*


class ProgramFiles:
    """The files of one process. What it needs is taken when it is made, so that the process may end."""

    def __init__(self, process: Pinned) -> None:
        self._root = self._directory = None
        with suppress(OSError):
            self._root = Descriptor(process.open("root", os.O_PATH | os.O_DIRECTORY))
            self._directory = Descriptor(process.open("cwd", os.O_PATH | os.O_DIRECTORY))
        self._credentials = process.credentials
        ours = own_surroundings()
        self._keeps_capabilities = "user" not in process.foreign_namespaces  # elsewhere they are over that namespace alone
        # A relative name may lead upwards. Below a root of the program's own it must not lead out of that.
        self._everywhere = process.surroundings.root == ours.root and "mnt" not in process.foreign_namespaces
        self._left_alone = 0

    def open(self, name: str, largest: int, unchanged_since_ns: int | None = None) -> Descriptor | None:
        """The regular file that the process would reach by `name`, to read.

        None where there is none that it could read, it is larger than `largest` bytes, that cannot be said in time, or something
        on the way there is younger than `unchanged_since_ns` on the wall clock: the file, a link, a folder that was moved there.
        """
        absolute = name.startswith("/")
        folder = self._root if absolute else self._directory
        if folder is None or not name or "\0" in name or len(name) > _LONGEST or self._left_alone >= _MOST_LEFT_ALONE:
            return None
        resolve = _NO_MAGIC_LINKS | (0 if self._everywhere and not absolute else _IN_ROOT)
        try:
            return in_time(lambda: self._open(folder, name, resolve, largest, unchanged_since_ns))
        except TimeoutError:
            self._left_alone += 1
        except (OSError, ValueError):
            pass
        return None

    def _open(self, folder: Descriptor, name: str, resolve: int, largest: int, since_ns: int | None) -> Descriptor:
        if os.geteuid() == 0:
            capabilities = self._credentials.permitted if self._keeps_capabilities else 0
            wanted = capabilities & 0xFFFFFFFF, capabilities >> 32
            thread_rights.take(*self._credentials.makes_files_as, self._credentials.groups, wanted)
        file = regular(Descriptor(_open_at(folder.fileno(), name, resolve)), largest)
        if since_ns is not None:
            if os.fstat(file.fileno()).st_ctime_ns > since_ns:
                raise ValueError("it changed")
            _refuse_moved(folder.fileno(), name, resolve, since_ns)
        return file


def _refuse_moved(folder: int, name: str, resolve: int, since_ns: int) -> None:
    """Raise ValueError where a link or a folder on the way to a file was put there since: then another file may have had its name."""
    waiting, before, links = name.strip("/").split("/"), "/" if name.startswith("/") else "", 0
    while waiting:
        part = f"{before}{waiting.pop(0)}"
        place = Descriptor(_open_at(folder, part, resolve, os.O_NOFOLLOW))
        status = os.fstat(place.fileno())
        # What is made or removed in a folder changes both of its times; what moves it, the one.
        if status.st_ctime_ns > since_ns and (not stat.S_ISDIR(status.st_mode) or status.st_mtime_ns < status.st_ctime_ns):
            raise ValueError("it was moved there")
        if stat.S_ISLNK(status.st_mode):
            links += 1
            target = os.readlink("", dir_fd=place.fileno())
            if links > _MOST_LINKS:
                raise ValueError("too many links")
            before = "/" if target.startswith("/") else before
            waiting = [*target.strip("/").split("/"), *waiting]
        else:
            before = f"{part}/"


def regular(place: Descriptor, largest: int = 1 << 62) -> Descriptor:
    """To read, the file that was opened as a mere place (O_PATH). Raises OSError, and ValueError for what is no regular file or too large."""
    status = os.fstat(place.fileno())
    if not stat.S_ISREG(status.st_mode) or status.st_size > largest:
        raise ValueError("it is no regular file, or too large")
    return Descriptor(os.open(place.path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY))


def in_time(do: Callable[[], Descriptor]) -> Descriptor:
    """What `do` opens, in a thread of its own. Raises TimeoutError where that takes long, and what it raises."""
    opened: list[Descriptor] = []
    raised: list[Exception] = []

    def work() -> None:
        try:
            opened.append(do())
        except Exception as error:
            raised.append(error)

    thread = threading.Thread(target=work, name="open", daemon=True)
    thread.start()
    thread.join(_PATIENCE_S)
    if raised:
        raise raised[0]
    if not opened:
        raise TimeoutError
    return opened[0]


def _open_at(folder: int, name: str, resolve: int, more: int = 0) -> int:
    """A descriptor of the place that a name leads to. Raises OSError: ENOSYS before Linux 5.6."""
    how = ctypes.create_string_buffer(struct.pack("<QQQ", os.O_PATH | os.O_CLOEXEC | more, 0, resolve), 24)
    descriptor = int(libc.syscall(_OPENAT2, folder, os.fsencode(name), how, 24))
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return descriptor
