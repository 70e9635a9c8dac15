"""File systems that a user's program serves (FUSE), and what they hold up when that program does not answer.

Who touches a page of such a file in memory waits for the user, in some ways without being killable and with the lock of that memory map held
(reading it by /proc/PID/mem, for one). Placing a uprobe takes that lock of every process that has the file mapped, while the kernel lets nobody fork. Root can end
that: a connection that is aborted answers every request with an error. That is done to none of root's, to none where nothing waits, and
only where something of ours stands still for it.
"""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from pwd import getpwuid

from pytrace_ebpf.record.kernel.system_calls import open_file_system

_FILE_SYSTEMS, _KIND = Path("/proc/filesystems"), "fusectl"
_MINOR_BITS = 20
# Until connections are aborted of which less says that they are the ones; and until any that does not answer is.
_DOUBT_S, _LAST_RESORT_S = 1.5, 3.0
_WAITS_FOR_A_PAGE = re.compile(rb"request_wait_answer|folio_|__folio|__lock_page|wait_on_page|fuse_")
# In a stack of the kernel's: it reads or brings in memory; it only waits its turn for what such a one holds.
_TOUCHES = re.compile(rb"access_remote_vm|get_user_page|faultin_page|fixup_user_fault|handle_mm_fault|populate|mmap_region|fuse_|request_wait_answer")
_HOLDS = re.compile(rb"access_remote_vm|get_user_page|ptrace_access_vm|mmap_region|fixup_user_fault")
_SERVED, _OF_A_FILE = re.compile(rb"fuse_|request_wait_answer"), re.compile(rb"filemap_fault|folio_lock|folio_wait|lock_page|wait_on_page")
_WAITS_ITS_TURN = re.compile(rb"rwsem_down|percpu_down|percpu_rwsem|register_for_each_vma|dup_mmap")


@dataclass(frozen=True)
class Stuck:
    """A thread that waits within the kernel for a page, over memory."""

    pid: int
    tid: int
    holds: bool  # in a way that holds the lock of a memory map


def waiting() -> dict[int, int]:
    """The connections of users' file systems (not root's) in which requests wait for an answer, with the user of each."""
    root, found = _root(), dict[int, int]()
    for name in os.listdir(root) if root is not None else ():  # noqa: PTH208 - of a descriptor
        with suppress(OSError, ValueError):
            owner = os.stat(name, dir_fd=root, follow_symlinks=False).st_uid
            if owner and int(_read(f"{name}/waiting")):
                found[int(name)] = owner
    return found


def of_users() -> set[int]:
    """The connections of all users' file systems, root's left out: device numbers as the kernel has them."""
    root, found = _root(), set[int]()
    for name in os.listdir(root) if root is not None else ():  # noqa: PTH208 - of a descriptor
        with suppress(OSError, ValueError):
            if os.stat(name, dir_fd=root, follow_symlinks=False).st_uid:
                found.add(int(name))
    return found


def serves(device: int, connections: set[int]) -> bool:
    """Whether a device (st_dev) is one of these connections."""
    return os.major(device) << _MINOR_BITS | os.minor(device) in connections


def who_holds() -> Stuck | None:
    """A thread that holds the lock of a memory map while some user's file system does not answer; None where there is none."""
    return next((each for each in stuck() if each.holds), None) if waiting() else None


class Freeing:
    """Ends a wait of this process's by aborting what holds it up, one connection after the other: for waiting.On.

    What stands still in one look alone goes on by itself. The kernel's stack of the thread that waits says for what: a server's answer, the lock of a
    memory map, or a page of some file.
    """

    def __init__(self, pid: int, ours: Callable[[], int | None] | None = None) -> None:
        """`pid`: whose memory or file it is about. `ours`: tells which process of this one's own waits, where it is not the thread itself."""
        self._pid, self._ours = pid, ours
        self._before: tuple[int, set[int]] = (0, set())

    def __call__(self, tid: int, seconds: float) -> list[str]:
        """What was done, a sentence each."""
        pid = self._ours() if self._ours is not None else os.getpid()
        tid = pid or tid if self._ours is not None else tid
        stack = _stack(pid, tid) if pid else b""
        now = waiting() if stack else {}
        (before_of, before), self._before = self._before, (tid, set(now))
        still = now.keys() & before if tid == before_of else set()
        if not still:
            return []
        for who, place, connection in self._suspects(stack, still, seconds):
            if connection in still and _abort(connection):
                return [_words(who, place, now[connection])]
        return []

    def _suspects(self, stack: bytes, still: set[int], seconds: float) -> Iterator[tuple[str, str, int]]:
        """(whose memory it is in, where it is mounted, the connection), the likeliest first."""
        if _WAITS_ITS_TURN.search(stack):
            others = sorted(stuck(), key=lambda each: not each.holds)
            pids = [each.pid for each in others if each.holds or seconds > _DOUBT_S]
        elif _SERVED.search(stack) or (_OF_A_FILE.search(stack) and seconds > _DOUBT_S):
            pids = [self._pid]
        else:
            return
        for pid in pids:
            for connection, place in _mounted(pid).items():
                yield words(pid), place, connection
        if seconds > _DOUBT_S:
            for connection in _hidden(still):
                yield words(self._pid), "", connection
        if seconds > _LAST_RESORT_S:
            for connection in still:
                yield words(self._pid), "", connection


def stuck() -> Iterator[Stuck]:
    """The threads of the host that wait so, those of this process left out."""
    own = os.getpid()
    for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):  # noqa: PTH208 - thousands
        if pid == own:
            continue
        with suppress(OSError):
            for name in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208
                tid = int(name)
                if not _WAITS_FOR_A_PAGE.match(_where(pid, tid)):
                    continue
                stack = _stack(pid, tid)
                if _TOUCHES.search(stack) and not _WAITS_ITS_TURN.search(stack):
                    yield Stuck(pid, tid, bool(_HOLDS.search(stack)))


def _where(pid: int, tid: int) -> bytes:
    """The function of the kernel's in which it waits."""
    with suppress(OSError), open(f"/proc/{pid}/task/{tid}/wchan", "rb") as file:  # noqa: PTH123 - thousands of them
        return file.read()
    return b""


def _stack(pid: int, tid: int) -> bytes:
    """Its stack in the kernel; empty without the right to see it."""
    try:
        return Path(f"/proc/{pid}/task/{tid}/stack").read_bytes()
    except OSError:
        return b""


def _mounted(pid: int | str) -> dict[int, str]:
    """The FUSE connections of the file systems that a process sees, and where."""
    found = {}
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/mountinfo").read_text(errors="replace").splitlines():
            words, _, kind = line.partition(" - ")
            if kind.startswith("fuse"):
                major, minor = words.split()[2].split(":")
                found[int(major) << _MINOR_BITS | int(minor)] = words.split()[4]
    return found


def _hidden(connections: set[int]) -> set[int]:
    """Those of them that no process sees: unmounted, but for the files that are still open."""
    seen, namespaces = set[int](), set[str]()
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdigit():
            with suppress(OSError):
                namespace = str(Path(f"/proc/{name}/ns/mnt").readlink())
                if namespace not in namespaces:
                    namespaces.add(namespace)
                    seen |= _mounted(name).keys()
    return connections - seen


def _abort(connection: int) -> bool:
    with suppress(OSError), open(f"{connection}/abort", "wb", buffering=0, opener=lambda name, flags: os.open(name, flags, dir_fd=_root())) as file:
        file.write(b"1")
        return True
    return False


def _words(who: str, place: str, owner: int) -> str:
    where = f" at {place}" if place else ""
    return (
        f"the file system{where} of {_name(owner)}, whose pages {who} has in memory, does not answer and held up the whole host; "
        "it was disconnected, so that this goes on"
    )


def words(pid: int) -> str:
    """A process, to a person."""
    try:
        return f"process {pid} of {_name(Path(f'/proc/{pid}').stat().st_uid)}"
    except OSError:
        return f"process {pid}"


def _name(uid: int) -> str:
    try:
        return f"user {getpwuid(uid).pw_name}"
    except KeyError:
        return f"user {uid}"


def _read(name: str) -> bytes:
    with open(name, "rb", opener=lambda path, flags: os.open(path, flags, dir_fd=_root())) as file:
        return file.read()


def _root() -> int | None:
    """The kernel's directory of connections, as a mount of this process's own; None where the kernel has no FUSE by now, or for who may not see it."""
    try:
        if _KIND not in _FILE_SYSTEMS.read_text():  # to ask for one would load the module
            return None
        return _mount()
    except OSError:
        return None


@cache
def _mount() -> int:
    mount = open_file_system(_KIND)
    try:
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=mount)  # which can be listed, too
    finally:
        os.close(mount)
