"""The directory through which the tracer and the agents in the traced processes find each other."""

import fcntl
import os
import re
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from pytrace_ebpf.errors import HostError
from pytrace_ebpf.record.bpf import probes_directory
from pytrace_ebpf.record.user import invoking_user

_PROGRAM_PLACES = ("/tmp", "/var/tmp", "/dev/shm", "/run")
_ARENA_PLACES = ("/dev/shm", "/tmp", "/var/tmp", "/run")  # in memory where there is such a place
_ENOUGH = 32 << 20  # bytes that must be free for arenas
# An arena may grow to a fourth of what is free: a container's /dev/shm is small, and the program's own.
_SHARE = 4
_NAME = re.compile(r"pytrace-ebpf-[0-9a-f]{8}")
_YOUNG_S = 60  # one that was just made is not locked yet


def agent_library() -> Path:
    """Where the built agent lies."""
    return probes_directory() / "agent" / "agent.so"


class AgentDirectory:
    """A directory with the agent, its options, and a lock that is held as long as this process lives.

    `root` is the root of the target's file system as this process sees it, "/" or
    /proc/PID/root; `owner` may write arenas into it. Raises HostError where there is no place for it.
    """

    def __init__(
        self,
        options: Sequence[tuple[str, object]],
        root: str = "/",
        owner: os.stat_result | None = None,
        path: str | None = None,
    ) -> None:
        """`path`: where the target looks for it, if that is settled."""
        self._root, self._owner, self._lock = root, owner, -1
        self._made: list[tuple[int, str, int]] = []  # descriptor of the folder it is in, name, descriptor
        try:
            places = _PROGRAM_PLACES if path is None else (str(Path(path).parent),)
            self.path, descriptor = self._make(places, os.ST_NOEXEC, 1 << 20, path)
            arenas, self._arenas, arena_bytes = self._make_for_arenas(int(str(dict(options)["arena_bytes"])))
            self.arenas_name = Path(arenas).name
            self._write(descriptor, "agent.so", agent_library().read_bytes(), 0o755)
            lines = [*options, ("arenas", arenas), ("arena_bytes", arena_bytes)]  # of two the last one counts
            self._write(descriptor, "options", "".join(f"{key}={value}\n" for key, value in lines).encode(), 0o644)
            self._write(descriptor, "lock", b"", 0o644)
            self._lock = os.open("lock", os.O_RDONLY, dir_fd=descriptor)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        except OSError as error:
            self.remove()
            raise HostError(f"the agent cannot be put where the target would find it ({error.strerror or error})") from error
        except HostError:
            self.remove()
            raise

    @property
    def environment(self) -> Mapping[str, str]:
        """What makes a program load the agent, and its children."""
        before = os.environ.get("LD_PRELOAD")
        library = f"{self.path}/agent.so"
        return {"LD_PRELOAD": f"{library}:{before}" if before else library}

    def arenas(self) -> Iterator[tuple[str, int]]:
        """(name, open descriptor) of each arena file that is there."""
        for name in os.listdir(self._arenas):  # noqa: PTH208 - a descriptor
            if name.endswith(".arena"):
                yield name, os.open(name, os.O_RDWR, dir_fd=self._arenas)

    def forget(self, name: str) -> None:
        """Remove an arena's name: whoever has it mapped keeps it."""
        os.unlink(name, dir_fd=self._arenas)

    def remove(self) -> None:
        """Remove everything; agents that are still there notice that the lock is free, and leave."""
        for folder, name, descriptor in self._made:
            _remove(folder, name, descriptor)
            os.close(descriptor)
            os.close(folder)
        self._made.clear()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _make_for_arenas(self, wanted: int) -> tuple[str, int, int]:
        """What _make() returns, and how much of the `wanted` bytes an arena there may take."""
        try:
            path, descriptor = self._make(_ARENA_PLACES, 0, _SHARE * wanted)
        except HostError:
            path, descriptor = self._make(_ARENA_PLACES, 0, _ENOUGH)
        return path, descriptor, min(wanted, _free(descriptor) // _SHARE)

    def _make(self, places: Sequence[str], forbidden: int, room: int, path: str | None = None) -> tuple[str, int]:
        """A new directory in the first place that serves: (its path as the target sees it, descriptor)."""
        for place in places:
            try:
                folder = _open_without_links(self._root, place)
            except OSError:
                continue
            name = Path(path).name if path else f"pytrace-ebpf-{secrets.token_hex(4)}"
            try:
                if os.fstatvfs(folder).f_flag & (os.ST_RDONLY | forbidden) or _free(folder) < room:
                    raise OSError
                os.mkdir(name, 0o700, dir_fd=folder)
            except OSError:
                os.close(folder)
                continue
            descriptor = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
            self._made.append((folder, name, descriptor))
            with suppress(OSError):  # not every file system has it
                fcntl.flock(descriptor, fcntl.LOCK_EX)  # for sweep(); no agent asks for this one
            os.fchmod(descriptor, 0o755)
            self._give(descriptor)
            return f"{place}/{name}", descriptor
        raise HostError(
            f"none of {', '.join(places)} can take the agent, each is missing, full, read-only or noexec; "
            "start the container with --tmpfs /tmp:exec, or the program where one of them can be written"
        )

    def _write(self, folder: int, name: str, content: bytes, mode: int) -> None:
        descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode, dir_fd=folder)
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, mode)
            self._give(descriptor)
            file.write(content)

    def _give(self, descriptor: int) -> None:
        if self._owner is not None:
            os.fchown(descriptor, self._owner.st_uid, self._owner.st_gid)
        elif user := invoking_user():
            os.fchown(descriptor, user.pw_uid, user.pw_gid)


def sweep() -> None:
    """Remove what tracers left that were killed together with their programs: where one lives on, its agent does that."""
    for place in {*_PROGRAM_PLACES, *_ARENA_PLACES}:
        with suppress(OSError):
            folder = _open_without_links("/", place)
            try:
                for name in filter(_NAME.fullmatch, os.listdir(folder)):  # noqa: PTH208 - a descriptor
                    with suppress(OSError):
                        _sweep(folder, name)
            finally:
                os.close(folder)


def _sweep(folder: int, name: str) -> None:
    descriptor = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
    try:
        if time.time() - os.fstat(descriptor).st_mtime > _YOUNG_S:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # BlockingIOError: its tracer is there
            _remove(folder, name, descriptor)
    finally:
        os.close(descriptor)


def _remove(folder: int, name: str, descriptor: int) -> None:
    for entry in os.listdir(descriptor):
        with suppress(OSError):  # an agent removes its own
            os.unlink(entry, dir_fd=descriptor)
    with suppress(OSError):
        os.rmdir(name, dir_fd=folder)


def _free(descriptor: int) -> int:
    status = os.fstatvfs(descriptor)
    return status.f_bavail * status.f_frsize


def _open_without_links(root: str, path: str) -> int:
    """Open a directory below `root`: in somebody else's file system a link could lead anywhere in ours."""
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    for part in path.strip("/").split("/"):
        try:
            below = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=descriptor)
        finally:
            os.close(descriptor)
        descriptor = below
    return descriptor
