"""Makes, opens and removes the agent's files with the rights over files of one user and no others: a process of its own.

It is given a socket, the root directory of that user's programs as a descriptor, and whose rights to take (keeper_client.Rights).
Each message on the socket is a request, answered by one message: JSON, and descriptors with it. When there will be no more requests,
because the tracer said so or has ended in whatever way, it removes what it made and ends. A file system that never answers
holds this process and nobody else.

It imports next to nothing, for it is started while somebody waits.
"""

import ctypes
import errno
import fcntl
import json
import os
import signal
import socket
import stat
import sys
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

from pytrace_ebpf.record.agent.leftovers import (
    ARENA_PLACES,
    ARENAS,
    FAILURE,
    LOCK,
    LONGEST,
    MOST_AT_A_LOOK,
    PROGRAM_PLACES,
    open_directory,
    remove,
    sweep,
    take,
)
from pytrace_ebpf.record.libc import libc
from pytrace_ebpf.record.rights.folders import directory, is_in_memory

_DISKS = (0xEF53, 0x58465342, 0x9123683E)  # f_type of ext4, XFS and Btrfs, of statfs(2)
_MOST_KNOWN = 1064  # names of arenas that are remembered
_NAMED, _DUMPABLE, _NO_NEW_PRIVS = 15, 4, 38  # prctl(2)
_CAPABILITY_VERSION_3 = 0x20080522


def _is_answered_for(descriptor: int) -> bool:
    """Whether no program serves it: it is in memory, or in a file system that only root can mount, of a disk. To ask may take for ever."""
    status = (ctypes.c_long * 64)()
    return is_in_memory(descriptor) or (libc.fstatfs(descriptor, status) == 0 and status[0] in _DISKS)


class Keeper:
    """What was made, and what may be asked of it: each method answers with values for JSON and descriptors."""

    def __init__(self, root: int, trusted: Sequence[int], proven: bool) -> None:
        """`proven`: arenas must be where no program can make the tracer wait."""
        self._root, self._trusted, self._proven = root, trusted, proven
        self._made: list[tuple[int, str, int]] = []  # descriptor of the folder it is in, name, descriptor
        self._session = self._arenas = self._lock = -1
        self._known: dict[str, bool] = {}  # names of arenas that were told of: whether they wait to be taken or refused

    def make(self, name: str, place: str | None, wanted: int, enough: int, share: int) -> dict[str, Any]:
        """The two directories, the first locked as in use: their paths, and how many of the `wanted` bytes arenas may take, a part of 1 / `share` of what is free.

        Raises OSError where there is no place for them.
        """
        sweep(self._root)
        while True:
            path, self._session = self._directory((place,) if place else PROGRAM_PLACES, os.ST_NOEXEC, 1 << 20, name)
            with suppress(FileNotFoundError):  # one that another keeper, starting just now, took for left behind
                self._lock = self._write(LOCK, 0o444)
                if take(self._lock) and os.fstat(self._lock).st_nlink:
                    break
            self.remove()
        try:
            arenas, self._arenas = self._directory(ARENA_PLACES, 0, share * wanted, name + ARENAS, self._proven)
        except OSError:
            arenas, self._arenas = self._directory(ARENA_PLACES, 0, enough, name + ARENAS, self._proven)
        with suppress(OSError):  # for a sweep from another file system, which may share this place and not the session's
            fcntl.flock(self._arenas, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return {"path": path, "arenas": arenas, "arena_bytes": min(wanted, _free(self._arenas) // share)}

    def write(self, name: str, mode: int, text: str, source: int = -1) -> dict[str, Any]:
        """A new file of the session's with this text, or with what is in `source`; its inode."""
        descriptor = self._write(name, mode)
        try:
            content = text.encode()
            while content := content or (os.read(source, 1 << 20) if source >= 0 else b""):
                content = content[os.write(descriptor, content) :]
            return {"inode": os.fstat(descriptor).st_ino}
        finally:
            os.close(descriptor)

    def publish(self) -> dict[str, Any]:
        """From here on the session can be found."""
        os.fchmod(self._session, 0o755)
        return {}

    def look(self, again: Sequence[str]) -> tuple[dict[str, Any], list[int]]:
        """The arenas that are new, open, and what is in the place of one and is none; of so many that it takes no time. `again`: what did not arrive."""
        for name in again:
            self._known.pop(name, None)
        names, unfit = list[str](), dict[str, str]()
        opened = list[int]()
        room = MOST_AT_A_LOOK - sum(self._known.values())
        with suppress(OSError), os.scandir(self._arenas) as entries:
            for entry in islice(entries, len(self._known) + MOST_AT_A_LOOK):
                if not entry.name.endswith(".arena") or entry.name in self._known or len(opened) >= room or len(self._known) >= _MOST_KNOWN:
                    continue
                try:
                    opened.append(_regular(self._arenas, entry.name, os.O_RDWR, self._proven))
                    names.append(entry.name)
                except ValueError as refused:
                    unfit[entry.name] = str(refused)
                except OSError as error:
                    if error.errno in (errno.ENOENT, errno.EMFILE, errno.ENFILE, errno.ENOMEM):
                        continue  # it is gone, or for a later look
                    unfit[entry.name] = f"cannot be opened ({error.strerror})"
                self._known[entry.name] = entry.name not in unfit
        return {"names": names, "unfit": unfit}, opened

    def forget(self, name: str, unlink: bool) -> dict[str, Any]:
        """An arena was taken, or is not to be told of again; processes that have it mapped keep it."""
        self._known[name] = False
        if unlink:
            self._known.pop(name)
            with suppress(OSError):
                os.unlink(name, dir_fd=self._arenas)
        return {}

    def failure(self, most: int) -> dict[str, Any]:
        """The first bytes of the file that says why the library could not be loaded, which is gone then; none where there is no such file."""
        try:
            descriptor = _regular(self._arenas, FAILURE, os.O_RDONLY, False)
            try:
                size = os.fstat(descriptor).st_size
                return {"said": os.pread(descriptor, most, 0).hex()} if size <= most else {"unfit": "is too large"}
            finally:
                os.close(descriptor)
                os.unlink(FAILURE, dir_fd=self._arenas)
        except FileNotFoundError:
            return {}
        except ValueError as refused:
            why = str(refused)
        except OSError as error:
            why = f"cannot be opened ({error.strerror})"
        with suppress(OSError):
            os.unlink(FAILURE, dir_fd=self._arenas)
        return {"unfit": why}

    def remove(self) -> dict[str, Any]:
        """Remove everything; agents that are still there notice that the lock is free, and leave."""
        for folder, name, descriptor in self._made:
            with suppress(OSError):
                remove(folder, name, descriptor)
            os.close(descriptor)
            os.close(folder)
        self._made.clear()
        if self._lock >= 0:
            os.close(self._lock)
        self._lock = -1
        return {}

    def _directory(self, places: Sequence[str], forbidden: int, room: int, name: str, proven: bool = False) -> tuple[str, int]:
        """A new directory in the first place that serves: (its path as programs see it, descriptor)."""
        for place in places:
            try:
                folder = directory(self._root, place, self._trusted)
            except OSError:
                continue
            try:
                if os.fstatvfs(folder).f_flag & (os.ST_RDONLY | forbidden) or _free(folder) < room:
                    raise OSError
                os.mkdir(name, 0o700, dir_fd=folder)
                descriptor = open_directory(folder, name)
            except OSError:
                os.close(folder)
                continue
            self._made.append((folder, name, descriptor))
            if os.fstat(descriptor).st_uid != os.geteuid():
                continue
            if not proven or _is_served_by_nobody(descriptor):
                return f"{place}/{name}", descriptor
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _write(self, name: str, mode: int) -> int:
        descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode, dir_fd=self._session)
        os.fchmod(descriptor, mode)
        return descriptor


def _is_served_by_nobody(folder: int) -> bool:
    with suppress(OSError):
        descriptor = os.open("tried", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=folder)
        try:
            return _is_answered_for(descriptor)
        finally:
            os.close(descriptor)
            os.unlink("tried", dir_fd=folder)
    return False


def _regular(folder: int, name: str, access: int, proven: bool) -> int:
    """A regular file, opened. Raises OSError, and ValueError for what is none."""
    if not stat.S_ISREG(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
        raise ValueError("is not a regular file")
    descriptor = os.open(name, access | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY, dir_fd=folder)
    status, why = os.fstat(descriptor), ""
    if not stat.S_ISREG(status.st_mode):
        why = "is not a regular file"
    elif status.st_nlink > 1:
        why = "has another name elsewhere"
    elif proven and not _is_answered_for(descriptor):
        why = "is in a file system that a program may serve"
    if why:
        os.close(descriptor)
        raise ValueError(why)
    return descriptor


def _free(descriptor: int) -> int:
    status = os.fstatvfs(descriptor)
    return status.f_bavail * status.f_frsize


def _become(rights: dict[str, Any]) -> None:
    """Have these ids and no capability, for good. Raises OSError where that cannot be."""
    if os.geteuid() == 0:
        if sorted(rights["groups"]) != sorted(os.getgroups()):
            os.setgroups(rights["groups"])
        os.setresgid(*[rights["gid"]] * 3)
        os.setresuid(*[rights["uid"]] * 3)
        if libc.capset((ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0), (ctypes.c_uint32 * 6)()):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    elif os.geteuid() != rights["uid"]:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
    libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0)
    libc.prctl(_DUMPABLE, 0, 0, 0, 0)  # so that its user can debug it no more than the tracer
    libc.prctl(_NAMED, b"pytrace-keeper", 0, 0, 0)


def _serve(connection: socket.socket, keeper: Keeper) -> None:
    """Answer requests until there will be no more."""
    while True:
        content, files, _, _ = socket.recv_fds(connection, LONGEST, 1)
        if not content:
            return
        opened: list[int] = []
        try:
            what, given = json.loads(content)
            answer = getattr(keeper, what)(**given, **({"source": files[0]} if files else {}))
            if isinstance(answer, tuple):
                answer, opened = answer
        except OSError as error:
            answer = {"errno": error.errno or errno.EIO}
        socket.send_fds(connection, [json.dumps(answer).encode()], opened)
        for each in (*files, *opened):
            os.close(each)


def main(rights: str, connection: str, root: str) -> None:
    """Never returns."""
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)  # it ends when the tracer has
    os.umask(0)
    taken = json.loads(rights)
    try:
        _become(taken)
    except OSError:
        os._exit(127)
    keeper = Keeper(int(root), taken["trusted"], taken["proven"])
    with suppress(OSError):
        _serve(socket.socket(fileno=int(connection)), keeper)
    keeper.remove()
    sys.stdout.flush()
    os._exit(0)
