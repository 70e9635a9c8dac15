"""A directory of the daemon's with traces whose names say when they began, of which the oldest are removed.

No link in it is followed, and nothing that is not ours is touched.
"""

import os
import re
import shutil
import stat
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

from pytrace_ebpf.errors import HostError

_FREE = 20  # what is kept free of a disk is one part in so many


def name_of(at_s: float) -> str:
    """The name of the hour in which `at_s` (s since 1970) lies."""
    return time.strftime("%Y%m%d-%H", time.gmtime(at_s))


class Clock:
    """How late it is for what gets too old: the host's clock, and no later than it was at the start and the time since then.

    A clock that is stepped forward makes nothing old, then. One that is stepped back makes things young, which removes too little for a while.
    """

    def __init__(self) -> None:
        self._began_s, self._booted_s = time.time(), time.clock_gettime(time.CLOCK_BOOTTIME)

    def now_s(self) -> float:
        """In s since 1970."""
        return min(time.time(), self._steady_s)

    @property
    def ahead_s(self) -> float:
        """By how much the host's clock was stepped since the start; negative: back."""
        return time.time() - self._steady_s

    @property
    def _steady_s(self) -> float:
        return self._began_s + time.clock_gettime(time.CLOCK_BOOTTIME) - self._booted_s


class Retention:
    """The directory, made where it is not there, mode 0700, held by its descriptor."""

    def __init__(self, path: Path, names: re.Pattern[str], max_bytes: int, max_age_s: float, clock: Clock | None = None) -> None:
        """Raises HostError where it cannot be had, or is somebody else's. `clock`: one that has been running, where there is one.

        `names`: of its traces. They are numbers joined by "-" and begin as name_of() has it.
        """
        self.path, self._pattern = path.absolute(), names
        self._max_bytes, self._max_age_s, self._clock = max_bytes, max_age_s, clock or Clock()
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError as error:
            raise HostError(f"the daemon cannot write to {path} ({error.strerror}); name another directory in its configuration") from error
        found = os.fstat(self._descriptor)
        if found.st_uid != os.geteuid() or found.st_mode & 0o022:
            self.close()
            raise HostError(f"{path} belongs to somebody else, or others may write to it: the daemon needs a directory of its own")
        self._sizes: dict[str, int] = {}
        self.removed = 0
        self.bytes = 0  # of all traces, after tidy()

    def names(self) -> list[str]:
        """The traces, oldest first."""
        return sorted(filter(self._is_ours, os.listdir(self._descriptor)), key=lambda name: [int(part) for part in name.split("-")])  # noqa: PTH208 - a descriptor

    def _is_ours(self, name: str) -> bool:
        if not self._pattern.fullmatch(name):
            return False
        with suppress(OSError):
            found = os.stat(name, dir_fd=self._descriptor, follow_symlinks=False)
            return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
        return False

    def has_room(self, size: int) -> bool:
        """Whether so many bytes more leave the last twentieth of the disk free."""
        try:
            disk = os.fstatvfs(self._descriptor)
        except OSError:
            return False
        return disk.f_bavail * disk.f_frsize - size >= disk.f_blocks * disk.f_frsize // _FREE

    def is_there(self) -> bool:
        """Whether the directory is still where it was."""
        with suppress(OSError):
            return os.path.samestat(self.path.stat(follow_symlinks=False), os.fstat(self._descriptor))
        return False

    def tidy(self, open_names: Collection[str], open_bytes: int) -> None:
        """Remove the oldest traces that are too old, or too many; those that are being written stay, and count."""
        try:
            names = [name for name in self.names() if name not in open_names]
        except OSError:  # nothing can be opened just now: the next time
            return
        sizes = {name: self._sizes.get(name) or self.size(name) for name in names}
        oldest = name_of(self._clock.now_s() - self._max_age_s)
        total = sum(sizes.values()) + open_bytes
        for name in names:
            if total <= self._max_bytes and name[:11] >= oldest:
                break
            total -= sizes.pop(name)
            shutil.rmtree(name, ignore_errors=True, dir_fd=self._descriptor)
            self.removed += 1
        self._sizes = sizes
        self.bytes = total

    def forget_sizes(self) -> None:
        """Look again: who read a trace may have left derived tables in it."""
        self._sizes = {}

    def size(self, name: str) -> int:
        """Bytes on the disk of one of the traces."""
        return sum(self._files(name))

    def _files(self, name: str) -> Iterator[int]:
        with suppress(OSError):
            for _, _, files, descriptor in os.fwalk(name, dir_fd=self._descriptor):
                for file in files:
                    with suppress(OSError):
                        yield os.stat(file, dir_fd=descriptor, follow_symlinks=False).st_blocks * 512

    def close(self) -> None:
        """Let go of it."""
        os.close(self._descriptor)
