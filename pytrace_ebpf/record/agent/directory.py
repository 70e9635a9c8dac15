"""The directories through which the tracer and the agents in the traced processes find each other.

What a process executes or obeys (the library, the options, the script, the lock that shows that the tracer is alive) lies in
a directory of the tracer's user, which nobody else can change. What a process writes (its arena, and why it could not
load the library) lies in one of that process's user, which nobody else can look into. Both serve the processes of one
user in one user namespace that see one file system, and no others.
"""

import fcntl
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from pytrace_ebpf.errors import HostError, TargetError
from pytrace_ebpf.record.agent import leftovers
from pytrace_ebpf.record.agent.arena import CHUNKS_START, sentence
from pytrace_ebpf.record.agent.leftovers import ARENA_PLACES, ARENAS, LOCK, PREFIX, PROGRAM_PLACES
from pytrace_ebpf.record.agent.library import agent_library
from pytrace_ebpf.record.agent.script import FAILURE, SCRIPT, script
from pytrace_ebpf.record.process.pinned import Descriptor, Identity, Pinned, own_surroundings
from pytrace_ebpf.record.rights import beneath
from pytrace_ebpf.record.rights.beneath import Unfit
from pytrace_ebpf.record.rights.user import callers_environment, invoking_user

_ENOUGH = 32 << 20  # bytes that must be free for arenas
# An arena may grow to a fourth of what is free: a container's /dev/shm is small, and the program's own.
_SHARE = 4
_MOST_FAILURE = 4096  # bytes of it that are read
_MOST_AT_A_LOOK = 64  # files of others that are looked at
_MOST_REFUSED = 1000  # whose names are remembered


@dataclass(frozen=True)
class FileSystemUser:
    """A user in one file system: one directory serves all processes that run as that user and see those files."""

    mount_namespace: Identity
    root: Identity
    user_namespace: Identity
    uid: int  # as this process sees it

    @classmethod
    def of(cls, process: Pinned) -> "FileSystemUser":
        """Of a process. Raises TargetError for one that acts for several users, so that its files have no one owner."""
        owner = process.credentials.owner
        if owner is None:
            raise TargetError(
                f"process {process.pid} acts for several users (its real, effective and saved ids differ), "
                "so no agent is let into it; use --source usdt where its Python has probes"
            )
        namespaces = process.surroundings.namespaces
        return cls(namespaces["mnt"], process.surroundings.root, namespaces["user"], owner)

    @classmethod
    def of_a_launch(cls) -> "FileSystemUser":
        """Of the programs that this process starts, which are the user's who called sudo."""
        user, ours = invoking_user(), own_surroundings()
        return cls(ours.namespaces["mnt"], ours.root, ours.namespaces["user"], user.pw_uid if user else os.geteuid())

    def sees_the_files_of(self, other: "FileSystemUser") -> bool:
        """Whether both see one file system."""
        return (self.mount_namespace, self.root) == (other.mount_namespace, other.root)


class AgentDirectory:
    """The agent with its options, in use as long as this process lives. Raises HostError where there is no place for it."""

    def __init__(
        self,
        options: Sequence[tuple[str, object]],
        process: Pinned | None = None,
        path: str | None = None,
        library: Path | None = None,
    ) -> None:
        """`process`: one that it is for, the programs that this process starts where it is None.

        path     where the target looks for it, if that is settled
        library  the agent, where it is another than the built one
        """
        self.user = FileSystemUser.of(process) if process else FileSystemUser.of_a_launch()
        self._made: list[tuple[int, str, int]] = []  # descriptor of the folder it is in, name, descriptor
        self._trusted = {0, os.geteuid(), self.user.uid, *_outside(), *(_root_of_namespace(process) if process else ())}
        self._refused: set[str] = set()
        self._lock: Descriptor | None = None
        try:
            self._root = Descriptor(self._open_root(process))
            leftovers.sweep(self._root.fileno())
            folder = self._make_for_programs((str(Path(path).parent),) if path else PROGRAM_PLACES, path and Path(path).name)
            arenas, self._arenas, self.arena_bytes = self._make_for_arenas(int(str(dict(options)["arena_bytes"])))
            self.arenas_name = Path(arenas).name
            self.library = self._write(folder, "agent.so", (library or agent_library()).read_bytes(), 0o555)
            lines = [*options, ("arenas", arenas), ("arena_bytes", self.arena_bytes)]  # of two the last one counts
            self._write(folder, "options", "".join(f"{key}={value}\n" for key, value in lines).encode(), 0o444)
            self._write(folder, SCRIPT, script(self.path, arenas).encode(), 0o444)
            os.fchmod(folder, 0o755)  # last: from here on it can be found
        except OSError as error:
            self.remove()
            raise HostError(f"the agent cannot be put where the target would find it ({error.strerror or error})") from error
        except HostError:
            self.remove()
            raise

    @property
    def environment(self) -> Mapping[str, str]:
        """What makes a program load the agent, and its children."""
        before = (callers_environment() or os.environ).get("LD_PRELOAD")
        library = f"{self.path}/agent.so"
        return {"LD_PRELOAD": f"{library}:{before}" if before else library}

    def serves(self, process: Pinned) -> bool:
        """Whether that is one of the processes it is for."""
        return process.credentials.owner is not None and FileSystemUser.of(process) == self.user

    def can_be_used_by(self, process: Pinned) -> bool:
        """Whether a program that was started with the library finds it, and may write its arena."""
        owner = process.credentials.owner
        return owner == self.user.uid and FileSystemUser.of(process).sees_the_files_of(self.user)

    def arenas(self) -> Iterator[tuple[str, Descriptor | Unfit]]:
        """(name, open file) of each arena that is there, or why it is none; of so many that it takes no time."""
        with suppress(OSError), os.scandir(self._arenas) as entries:
            for entry in islice(entries, len(self._refused) + _MOST_AT_A_LOOK):
                if not entry.name.endswith(".arena") or entry.name in self._refused:
                    continue
                try:
                    yield entry.name, beneath.regular_file(self._arenas, entry.name, self.user.uid, CHUNKS_START + (1 << 40), os.O_RDWR)
                except Unfit as unfit:
                    yield entry.name, unfit
                except OSError:  # it is gone, or for a later look
                    continue

    def refuse(self, name: str) -> bool:
        """Ignore the file of that name from now on; False where so many are ignored already that no more need be reported."""
        if len(self._refused) == _MOST_REFUSED:
            return False
        self._refused.add(name)
        return True

    def forget(self, name: str) -> None:
        """Remove an arena's name: processes that have it mapped keep it."""
        with suppress(OSError):
            os.unlink(name, dir_fd=self._arenas)

    def failure(self) -> str | None:
        """Why the script could not load the library: it says so in a file, which is gone then; None where there is none."""
        try:
            file = beneath.regular_file(self._arenas, FAILURE, self.user.uid, _MOST_FAILURE)
            said = sentence(os.pread(file.fileno(), _MOST_FAILURE, 0))
        except FileNotFoundError:
            return None
        except (Unfit, OSError) as error:
            said = f"the file that says why {error}"
        self.forget(FAILURE)
        return said

    def remove(self) -> None:
        """Remove everything; agents that are still there notice that the lock is free, and leave."""
        for folder, name, descriptor in self._made:
            with suppress(OSError):
                leftovers.remove(folder, name, descriptor)
            os.close(descriptor)
            os.close(folder)
        self._made.clear()
        self._lock = None

    def _open_root(self, process: Pinned | None) -> int:
        if process is None or self.user.sees_the_files_of(FileSystemUser.of_a_launch()):  # it may have ended
            return os.open("/", os.O_PATH | os.O_DIRECTORY)
        return process.open("root", os.O_PATH | os.O_DIRECTORY)

    def _make_for_programs(self, places: Sequence[str], name: str | None) -> int:
        """A new directory that is locked as in use: its descriptor."""
        while True:
            self.path, folder = self._make(places, os.ST_NOEXEC, 1 << 20, name or PREFIX + secrets.token_hex(4))
            with suppress(FileNotFoundError):  # one that another tracer, starting just now, took for left behind
                self._lock = self._write(folder, LOCK, b"", 0o444)
                if leftovers.take(self._lock.fileno()) and os.fstat(self._lock.fileno()).st_nlink:
                    return folder
            self.remove()

    def _make_for_arenas(self, wanted: int) -> tuple[str, int, int]:
        """(path, descriptor, how much of the `wanted` bytes an arena there may take) of a new directory of the target's user."""
        name = Path(self.path).name + ARENAS
        try:
            path, descriptor = self._make(ARENA_PLACES, 0, _SHARE * wanted, name)
        except HostError:
            path, descriptor = self._make(ARENA_PLACES, 0, _ENOUGH, name)
        with suppress(OSError):  # for a sweep from another file system, which may share this place and not the session's
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if self.user.uid != os.geteuid():
            os.fchown(descriptor, self.user.uid, -1)
        return path, descriptor, min(wanted, _free(descriptor) // _SHARE)

    def _make(self, places: Sequence[str], forbidden: int, room: int, name: str) -> tuple[str, int]:
        """A new directory in the first place that serves: (its path as the target sees it, descriptor)."""
        for place in places:
            try:
                folder = beneath.directory(self._root.fileno(), place, self._trusted)
            except OSError:
                continue
            try:
                if os.fstatvfs(folder).f_flag & (os.ST_RDONLY | forbidden) or _free(folder) < room:
                    raise OSError
                os.mkdir(name, 0o700, dir_fd=folder)
                descriptor = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
            except OSError:
                os.close(folder)
                continue
            self._made.append((folder, name, descriptor))
            if os.fstat(descriptor).st_uid == os.geteuid():
                return f"{place}/{name}", descriptor
        raise HostError(
            f"none of {', '.join(places)} can take the agent, each is missing, full, read-only, noexec, or its files can be "
            "exchanged by others; start the container with --tmpfs /tmp:exec, or the program where one of them can be written"
        )

    def _write(self, folder: int, name: str, content: bytes, mode: int) -> Descriptor:
        """A new file, open for reading and writing."""
        descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode, dir_fd=folder)
        file = Descriptor(descriptor)
        os.fchmod(descriptor, mode)
        while content:
            content = content[os.write(descriptor, content) :]
        return file


def _root_of_namespace(process: Pinned) -> set[int]:
    """The user id, as this process sees it, of root in the target's user namespace."""
    with suppress(OSError, ValueError):
        for line in process.read("uid_map").decode().splitlines():
            inside, outside, _ = map(int, line.split())
            if inside == 0:
                return {outside}
    return set()


def _outside() -> set[int]:
    """The overflow uid: shown for all users that this user namespace does not map."""
    with suppress(OSError, ValueError):
        if Path("/proc/self/uid_map").read_text().split() != ["0", "0", "4294967295"]:
            return {int(Path("/proc/sys/kernel/overflowuid").read_text())}
    return set()


def _free(descriptor: int) -> int:
    status = os.fstatvfs(descriptor)
    return status.f_bavail * status.f_frsize
