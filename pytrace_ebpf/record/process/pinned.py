"""A process, pinned: whatever is done with it later reaches the program that was inspected, or fails.

A process id can be reused, and a process can become another program at any moment (exec), also one with more rights. So a process is
inspected once, and everything later goes through descriptors: its folder
in /proc is that process's for ever, its memory is that program's, its executable is the file that was parsed.
"""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cache, partial
from weakref import finalize

from pytrace_ebpf.errors import TargetError
from pytrace_ebpf.record.kernel import memory_map
from pytrace_ebpf.record.kernel.file_status import Status, status, status_of
from pytrace_ebpf.record.kernel.page_servers import of_users, serves
from pytrace_ebpf.record.process import stat
from pytrace_ebpf.record.process.watched import Watched
from pytrace_ebpf.record.rights import requester

_KERNEL_THREAD = 0x00200000  # PF_KTHREAD in field 9 of /proc/PID/stat
NAMESPACES = ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup")

Identity = tuple[int, int]  # device and inode


class Ended(TargetError):  # noqa: N818 - says what it is
    """There is no such process, or none any more."""


@dataclass(frozen=True)
class Credentials:
    """Whose a process is, as /proc/PID/status has it."""

    uids: tuple[int, ...]  # real, effective, saved, of the file system
    gids: tuple[int, ...]
    groups: tuple[int, ...]
    permitted: int  # capabilities
    bounding: int
    seccomp: int  # 0: no filter
    no_new_privileges: bool  # so it may be confined in ways that nothing shows from outside (Landlock)

    @property
    def owner(self) -> int | None:
        """The user, where all four ids are that user's; None for a program that acts for several."""
        return self.uids[0] if len(set(self.uids)) == 1 else None

    @property
    def makes_files_as(self) -> tuple[int, int]:
        """User and group that its files get."""
        return self.uids[3], self.gids[3]

    @classmethod
    def parse(cls, status: dict[str, str]) -> "Credentials":
        """From the fields of /proc/PID/status."""
        return cls(
            uids=tuple(map(int, status["Uid"].split())),
            gids=tuple(map(int, status["Gid"].split())),
            groups=tuple(map(int, status["Groups"].split())),
            permitted=int(status["CapPrm"], 16),
            bounding=int(status["CapBnd"], 16),
            seccomp=int(status.get("Seccomp", "0")),
            no_new_privileges=status.get("NoNewPrivs", "0") != "0",
        )


class Descriptor:
    """An open file, closed with the last reference to this."""

    def __init__(self, number: int) -> None:
        self._number = number
        finalize(self, _close, number)

    def fileno(self) -> int:
        """Its number."""
        return self._number

    @property
    def path(self) -> str:
        """A path that leads to the file, for calls that take nothing else."""
        return f"/proc/self/fd/{self._number}"


class Pinned:
    """Process `pid` as it is now.

    Raises FileNotFoundError or ProcessLookupError where there is none, PermissionError where this user may not look into
    it, TargetError for what has no program of its own (a thread, a thread of the kernel, a zombie), and for a process
    that becomes another program just now.
    """

    def __init__(self, pid: int) -> None:
        self.pid, self._wait = pid, memory_map.reading(pid)
        self._kept = Descriptor(os.open(f"/proc/{pid}", os.O_RDONLY | os.O_DIRECTORY))
        self._folder = self._kept.fileno()
        status = self.status()
        self._refuse_what_has_no_program(status)
        self.credentials = Credentials.parse(status)
        self.start_time = self.stat_fields()[stat.START]  # in clock ticks since boot; with the number it identifies a process
        self.executable = self.file("exe")
        self.executable_name = self.link("exe").removesuffix(" (deleted)")  # bytes that are no text as os.fsdecode() has them
        self.pagemap = self._pagemap()
        self.memory = Watched(pid, Descriptor(self.open("mem", os.O_RDWR)), self.pagemap, partial(_read, self._kept, self._wait, "maps"))
        self.memory_to_read = Descriptor(self.open("mem"))  # for a process that must not be able to write there
        self.surroundings = Surroundings.of(self._folder)
        self._require_the_same()

    def check(self) -> None:
        """Raise TargetError where the process has ended since, or become another program or another user's, or one that the requester may not trace."""
        try:
            self._require_the_same()
        except (FileNotFoundError, ProcessLookupError):
            raise Ended(f"process {self.pid} ended while it was looked at") from None
        except OSError as error:  # nothing can be opened just now
            raise TargetError(f"process {self.pid} cannot be looked at ({error.strerror})") from None

    def _require_the_same(self) -> None:
        now, same = Credentials.parse(self.status()), self.runs(self.executable)
        if not same:
            raise TargetError(f"process {self.pid} became another program while it was looked at; try again when that one runs")
        if (now.uids, now.gids) != (self.credentials.uids, self.credentials.gids):
            raise TargetError(f"process {self.pid} changed its user while it was looked at; try again when it runs as that user")
        requester.refuse_others(self)

    @property
    def key(self) -> tuple[int, str]:
        """What identifies it among all processes since the machine started."""
        return self.pid, self.start_time

    @property
    def foreign_namespaces(self) -> set[str]:
        """The kinds of namespaces in which it is and this process is not."""
        ours = own_surroundings().namespaces
        return {kind for kind, identity in self.surroundings.namespaces.items() if identity != ours[kind]}

    def runs(self, executable: Descriptor) -> bool:
        """Whether its program is that file. Raises OSError when it has ended."""
        return _identity(status("exe", self._folder)) == _identity(status_of(executable.fileno()))

    def read(self, name: str, most: int = -1) -> bytes:
        """The contents of a file of its folder in /proc, or its first `most` bytes. Raises OSError when it has ended."""
        return _read(self._kept, self._wait, name, most)

    def open(self, name: str, flags: int = os.O_RDONLY) -> int:
        """A descriptor of a file of that folder, or of what a link there leads to; the caller closes it."""
        return _open(self._kept, name, flags)

    def file(self, name: str) -> Descriptor:
        """The file that a link of that folder leads to, open. Raises TargetError for one that a user's program serves, which may answer nothing, not even this."""
        place = Descriptor(self.open(name, os.O_PATH))
        if serves(status_of(place.fileno()).st_dev, of_users()):
            raise TargetError(
                f"process {self.pid} runs {self.link(name)}, which lies in a file system that a user's program serves (FUSE): who opens it waits as long as "
                "that program likes; run it from another place"
            )
        return Descriptor(os.open(place.path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY))

    def link(self, name: str) -> str:
        """Where a link of that folder leads, in words."""
        return os.readlink(name, dir_fd=self._folder)

    def status(self) -> dict[str, str]:
        """The fields of /proc/PID/status."""
        lines = self.read("status").decode(errors="replace").splitlines()
        return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}

    def stat_fields(self) -> list[str]:
        """/proc/PID/stat from the state (field 3) on."""
        return stat.fields(self.read("stat"))

    def has_ended(self) -> bool:
        """Whether there is nothing left of it but what was learned when it was pinned."""
        try:
            return self.stat_fields()[stat.STATE] in "ZX"
        except (FileNotFoundError, ProcessLookupError):
            return True
        except OSError:  # nothing can be opened just now
            return False

    @contextmanager
    def pidfd(self) -> Iterator[int]:
        """A pidfd of it. Raises ProcessLookupError when it has ended."""
        descriptor = os.pidfd_open(self.pid)
        try:
            self.read("stat")  # the number is its own still, and so was the descriptor's
            yield descriptor
        finally:
            os.close(descriptor)

    def _pagemap(self) -> Descriptor | None:
        try:
            return Descriptor(self.open("pagemap"))
        except PermissionError:
            return None

    def _refuse_what_has_no_program(self, status: dict[str, str]) -> None:
        if status["Tgid"] != str(self.pid):
            raise TargetError(f"{self.pid} is a thread of process {status['Tgid']}; give that number instead")
        fields = self.stat_fields()
        if int(fields[stat.FLAGS]) & _KERNEL_THREAD:
            raise TargetError(f"process {self.pid} ({status['Name']}) is a thread of the kernel, not a Python")
        if fields[stat.STATE] in "ZX":
            raise Ended(f"process {self.pid} ({status['Name']}) has already ended and only waits for its parent (a zombie)")


@dataclass(frozen=True)
class Surroundings:
    """What a process sees: its namespaces by kind, its root directory, the label that a security module gave it."""

    namespaces: dict[str, Identity]
    root: Identity
    label: bytes

    @classmethod
    def of(cls, folder: int) -> "Surroundings":
        """Those of a process, by the descriptor of its folder in /proc."""
        return cls(
            namespaces={kind: _identity(os.stat(f"ns/{kind}", dir_fd=folder)) for kind in NAMESPACES},
            root=_identity(status("root", folder)),
            label=_label(folder),
        )


@cache
def own_surroundings() -> Surroundings:
    """This process's, which do not change."""
    folder = os.open("/proc/self", os.O_RDONLY | os.O_DIRECTORY)
    try:
        return Surroundings.of(folder)
    finally:
        os.close(folder)


def _open(folder: Descriptor, name: str, flags: int = os.O_RDONLY) -> int:
    return os.open(name, flags | os.O_NONBLOCK | os.O_NOCTTY, dir_fd=folder.fileno())


def _read(folder: Descriptor, wait: AbstractContextManager[object], name: str, most: int = -1) -> bytes:
    """Of no Pinned: one that its own memory refers to would have its files open until the next collection of cycles."""
    with os.fdopen(_open(folder, name), "rb") as file, wait if name in memory_map.NAMES else nullcontext():
        return file.read(most)


def _label(folder: int) -> bytes:
    try:
        with open("attr/current", "rb", opener=lambda name, flags: os.open(name, flags, dir_fd=folder)) as file:
            return file.read()
    except OSError:  # no security module
        return b""


def _identity(found: Status | os.stat_result) -> Identity:
    return found.st_dev, found.st_ino


def _close(descriptor: int) -> None:
    with suppress(OSError):
        os.close(descriptor)
