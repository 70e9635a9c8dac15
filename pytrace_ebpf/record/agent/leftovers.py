"""How what the agent needs lies in directories that are in use, and what is left of tracers that were killed together with their keepers.

A directory is in use while its file `lock` is write-locked. Only a process that may write to that file can lock it so, and
testing a lock does not take it: no other user can keep a directory alive, or make one look abandoned.
"""

import fcntl
import os
import re
import stat
import struct
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice

from pytrace_ebpf.record.rights.folders import directory

PROGRAM_PLACES = ("/tmp", "/var/tmp", "/dev/shm", "/run")
ARENA_PLACES = ("/dev/shm", "/tmp", "/var/tmp", "/run")  # in memory where there is such a place
PREFIX, ARENAS, LOCK, FAILURE = "pytrace-ebpf-", ".arenas", "lock", "failure"
MOST_AT_A_LOOK = 64  # arenas that wait to be taken or refused, and files that are no arena
LONGEST = 1 << 17  # bytes of a message to or from a keeper

_NAME = re.compile(rf"{PREFIX}[0-9a-f]{{8}}")
_FLOCK = struct.Struct("@hhqqi4x")  # struct flock
_MOST_ENTRIES = 100_000  # of a place for everybody's files, or of a directory whose user filled it


def take(descriptor: int) -> bool:
    """Lock a file as in use, for as long as this descriptor is open; False where somebody has it locked in any way."""
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
    except (BlockingIOError, PermissionError):
        return False
    return True


def is_taken(descriptor: int) -> bool:
    """Whether somebody who may write to it has it locked as in use."""
    asked = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, _FLOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0))
    return bool(_FLOCK.unpack(asked)[0] != fcntl.F_UNLCK)


def sweep(root: int | None = None) -> None:
    """Remove what this user's tracers left that were killed with their keepers, below `root` (a descriptor, "/" where it is None)."""
    # In this order: a session's directory is made first, so that of the arenas found the living ones' are found, too.
    arenas, sessions = list(_ours(root, ARENAS)), list(_ours(root, ""))
    living = {name for folder, name in sessions if not _sweep(folder, name)}
    for folder, name in arenas:
        if name.removesuffix(ARENAS) in living:
            continue
        with suppress(OSError):
            descriptor = open_directory(folder, name)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # else its session lives in another file system, which shares this place
                remove(folder, name, descriptor)
            finally:
                os.close(descriptor)
    for folder in {folder for folder, _ in arenas + sessions}:
        os.close(folder)


def remove(folder: int, name: str, descriptor: int) -> None:
    """Remove the directory `descriptor`, which has that name in `folder`, and what is in it but for what somebody nested there."""
    with os.scandir(descriptor) as entries:
        names = [entry.name for entry in islice(entries, _MOST_ENTRIES)]
    for entry in sorted(names, key=LOCK.__eq__):  # the lock last
        with suppress(OSError):  # an agent removes its own
            try:
                os.unlink(entry, dir_fd=descriptor)
            except IsADirectoryError:
                os.rmdir(entry, dir_fd=descriptor)
    with suppress(OSError):
        os.rmdir(name, dir_fd=folder)


def _ours(root: int | None, suffix: str) -> Iterator[tuple[int, str]]:
    """(descriptor of the folder it is in, name) of each directory of this user's with a name of ours and that suffix."""
    top = os.open("/", os.O_PATH | os.O_DIRECTORY) if root is None else os.dup(root)
    for place in dict.fromkeys(PROGRAM_PLACES + ARENA_PLACES):
        try:
            folder = directory(top, place)
        except OSError:
            continue
        names = []
        with suppress(OSError), os.scandir(folder) as entries:
            for entry in islice(entries, _MOST_ENTRIES):
                if (
                    entry.name.endswith(suffix)
                    and _NAME.fullmatch(entry.name.removesuffix(suffix))
                    and entry.stat(follow_symlinks=False).st_uid == os.geteuid()
                ):
                    names.append(entry.name)
        if not names:
            os.close(folder)
        for name in names:
            yield folder, name
    os.close(top)


def _sweep(folder: int, name: str) -> bool:
    """Remove a session's directory where it is not in use; False where it is."""
    opened = []
    try:
        opened.append(descriptor := open_directory(folder, name))
        status = os.fstat(descriptor)
        if status.st_uid != os.geteuid():
            return True
        try:
            lock = os.open(LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=descriptor)
        except FileNotFoundError:
            # Who is just making it finds it gone, and makes another. Or the lock is there by now: then it is not empty, and stays.
            os.rmdir(name, dir_fd=folder)
            return True
        opened.append(lock)
        # Before others could look into it its maker had locked it. Until then who locks it first has it, its maker
        # or who removes it: nobody else can so much as open it.
        published = status.st_mode & stat.S_IXOTH
        if is_taken(lock) if published else not take(lock):
            return False
        remove(folder, name, descriptor)
    except OSError:
        pass
    finally:
        for each in opened:
            os.close(each)
    return True


def open_directory(folder: int, name: str) -> int:
    """A descriptor of a directory in `folder`, no link. Raises OSError."""
    return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
