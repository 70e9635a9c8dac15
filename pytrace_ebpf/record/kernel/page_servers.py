"""File systems that a user's program serves (FUSE), and what they hold up when that program does not answer.

Who touches a page of such a file in memory waits for the user, in some ways without being killable and with the lock of that memory map held
(reading it by /proc/PID/mem, for one). Placing a uprobe takes that lock of every process that has the file mapped, while the kernel lets nobody fork. Root can end
that: a connection that is aborted answers every request with an error. That is done to none of root's, to none where nothing waits, and
only where something of ours stands still for it.
"""

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from pwd import getpwuid

from pytrace_ebpf.record import waiting as waiting_for
from pytrace_ebpf.record.kernel.system_calls import open_file_system

_FILE_SYSTEMS, _KIND = Path("/proc/filesystems"), "fusectl"
_MINOR_BITS = 20
# Until connections are aborted of which less says that they are the ones; and until any that does not answer is.
_DOUBT_S, _LAST_RESORT_S = 1.5, 3.0
_WAITS_FOR_A_PAGE = re.compile(rb"request_wait_answer|folio_|__folio|__lock_page|wait_on_page|fuse_")
_REMEMBERED_S = 60.0  # who was disconnected, and may stand in the way again
# In a stack of the kernel's: it reads or brings in memory; it only waits its turn for what such a one holds.
_TOUCHES = re.compile(rb"access_remote_vm|get_user_page|faultin_page|fixup_user_fault|handle_mm_fault|populate|mmap_region|fuse_|request_wait_answer")
_HOLDS = re.compile(rb"access_remote_vm|get_user_page|ptrace_access_vm|mmap_region|fixup_user_fault")
_SERVED, _OF_A_FILE = re.compile(rb"fuse_|request_wait_answer"), re.compile(rb"filemap_fault|folio_lock|folio_wait|lock_page|wait_on_page")
# The kernel may leave out what waits for a lock itself: then who takes it is the innermost.
_WAITS_ITS_TURN = re.compile(rb"rwsem_down|percpu_down|percpu_rwsem|register_for_each_vma|dup_mmap|\A\S+ (?:__access_remote_vm|m_start|m_next)\+")


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


class _Disconnected:
    """The users of whom a connection was aborted, each for a while, and when that was last not enough."""

    def __init__(self) -> None:
        self._since: dict[int, float] = {}
        self._lasting = -_REMEMBERED_S
        self.count = 0  # of connections, ever

    def add(self, user: int) -> bool:
        """One of this user's was aborted. Says whether that was the first for a while."""
        first = user not in self.users()
        self._since[user] = time.monotonic()
        self.count += 1
        waiting_for.hurry(_REMEMBERED_S)
        return first

    def users(self) -> set[int]:
        """Those who are remembered."""
        now = time.monotonic()
        self._since = {user: since for user, since in self._since.items() if now - since < _REMEMBERED_S}
        return set(self._since)

    def lasts(self, seconds: float) -> bool:
        """Whether a wait of so many seconds, or one before it, went on although somebody was disconnected: it is not a single user any more."""
        if self._since and seconds > _DOUBT_S:
            self._lasting = time.monotonic()
        return time.monotonic() - self._lasting < _REMEMBERED_S


disconnected = _Disconnected()


class Freeing:
    """Ends a wait of this process's by aborting what holds it up, one connection after the other: for waiting.On.

    What stands still in one look alone goes on by itself. The kernel's stack of the thread that waits says for what: a server's answer, the lock of a
    memory map, or a page of some file. Who was disconnected so and stands in the way again loses, at once, all of his that do not answer; where many users
    take turns, everybody who holds a lock does.
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
        if again := self._again(stack, now, seconds):
            return [said for connection in again if (said := self._abort(words(self._pid), "", connection, now))]
        still = now.keys() & before if tid == before_of else set()
        for who, place, connection in self._suspects(stack, still, seconds) if still else ():
            if connection in still and (said := self._abort(who, place, connection, now)) is not None:
                return [said] if said else []
        return []

    def _again(self, stack: bytes, now: dict[int, int], seconds: float) -> set[int]:
        """The connections that need no second look."""
        turn = _WAITS_ITS_TURN.search(stack)
        if not turn and not _SERVED.search(stack):
            return set()
        known = disconnected.users()
        found = {connection for connection, owner in now.items() if owner in known}
        if turn and disconnected.lasts(seconds):
            found |= now.keys() & {connection for each in stuck() if each.holds for connection in _mounted(each.pid)}
        return found

    def _abort(self, who: str, place: str, connection: int, now: dict[int, int]) -> str | None:
        """What is to be said of it: nothing of a user of whom it was said a while ago. None where it cannot be aborted."""
        if not _abort(connection):
            return None
        return _words(who, place, now[connection]) if disconnected.add(now[connection]) else ""

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
