"""Process and thread ids inside a pid namespace, and the same ones as this process sees them."""

import os
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Self

from pytrace_ebpf.errors import HostError
from pytrace_ebpf.record.kernel import memory_map
from pytrace_ebpf.record.kernel.bpf import Programs
from pytrace_ebpf.record.process import stat
from pytrace_ebpf.record.process.pinned import Identity
from pytrace_ebpf.record.process.target import living_threads
from pytrace_ebpf.record.rights.folders import is_in_memory

UNKNOWN_THREAD = -1

Namespace = tuple[int, int]  # device and inode

# What the kernel keeps of the threads that end, by namespace; None where it may not be asked.
_watched: dict[Namespace, Programs | None] = {}


def watch(pid: int) -> Namespace | None:
    """The pid namespace of `pid` if that is another than this process's own; from now on it is known who ends in it."""
    namespace = _namespace(pid)
    if namespace in (None, _namespace("self")):
        return None
    if namespace not in _watched:
        _watched[namespace] = None
        with suppress(HostError):  # then only threads that still live can be identified
            _watched[namespace] = Programs("namespace.c", {"device": namespace[0], "inode": namespace[1]})
    return namespace


@dataclass(frozen=True)
class Shared:
    """A file through which a process reports on itself."""

    path: str  # the end of it, from the folder that it is in
    uid: int  # whose it is
    file: Identity
    in_memory: bool = True  # so that the table of mappings has the same device; an overlay file system or Btrfs shows another one there

    @classmethod
    def of(cls, path: str, descriptor: int) -> Self:
        """An open one."""
        status = os.fstat(descriptor)
        return cls(path, status.st_uid, (status.st_dev, status.st_ino), is_in_memory(descriptor))

    def is_mapped_by(self, pid: int) -> bool:
        """Whether that process has this very file in its memory. What it has there is looked at in the kernel's table alone: to ask a file may take for ever."""
        for line in _maps(pid).splitlines():
            _, _, _, device, inode, *path = line.split(maxsplit=5)
            if path and path[0].removesuffix(" (deleted)").endswith(self.path) and int(inode) == self.file[1]:
                major, minor = (int(part, 16) for part in device.split(":"))
                if not self.in_memory or os.makedev(major, minor) == self.file[0]:
                    return True
        return False


@dataclass
class Ids:
    """The ids of one process: `pid` as this process sees it; threads are looked up when they are first met."""

    pid: int
    namespace: Namespace | None = None  # where it has ids of its own
    born: Mapping[int, int] = field(default_factory=dict)  # where it has, of those whose beginning was reported: of the inside -> of here
    _tids: dict[int, int] = field(default_factory=dict)  # the same, of those that were met

    @classmethod
    def of(
        cls,
        inside: int,
        shared: Shared,
        known: Mapping[int, int | None],
        final: bool = True,
        born: Mapping[int, Mapping[int, int]] = MappingProxyType({}),
        reported: Set[int] = frozenset(),
    ) -> Self | None:
        """The process that calls itself `inside` and has the file `shared` mapped. That it says so is not believed.

        known  processes that are followed, or were since the file began: each with its user, None where that is not known
        final  no more will be known later
        born   of those of them in another pid namespace that had been forked when the file began, the ids in there to those here
        reported  the processes of which such ids are known: what is not in `born` of them had not been forked then, so that nothing else can be concluded

        None where there is none, so far. One that ended before it was heard of, or became another program, is believed where nothing
        speaks against it: neither it nor who has its number now is another user's.
        """
        for pid in dict.fromkeys((inside, *_processes_of(shared.uid))):
            if (numbers := _numbers(pid, pid))[-1:] == [inside] and shared.is_mapped_by(pid):
                return cls(pid, watch(pid), born.get(pid, {inside: pid} if len(numbers) > 1 else {}))  # it may have ended by now
        fit = [pid for pid, numbers in born.items() if numbers.get(inside) == pid and _is_of(pid, shared.uid, known)]
        if len(fit) == 1:
            return cls(fit[0], watch(fit[0]), born[fit[0]])
        if not final and (inside not in known or _watched):  # its own beginning may not be reported yet, and then it would be taken for another one
            return None
        for namespace in _watched:
            pid = _ended(namespace, inside)
            if pid and pid not in reported and known.get(pid, shared.uid) in (shared.uid, None):
                return cls(pid, namespace)
        others = known.keys() - reported
        became = [pid for pid in others if _numbers(pid, pid)[-1:] == [inside] and _is_of(pid, shared.uid, known)]
        if len(became) == 1:
            return cls(became[0], watch(became[0]))
        if {known.get(inside), _user_of(inside)} - {shared.uid, None}:
            return None
        return cls(inside) if inside in known or (final and not (_watched or _runs(inside))) else None

    def here(self, tids: set[int], elsewhere: Callable[[int], bool] = lambda tid: False) -> dict[int, int]:
        """Threads, as the process says, to what they are here; UNKNOWN_THREAD where that cannot be found out, or is not its own.

        elsewhere  whether a thread is known as one of another process
        """
        alive = set(living_threads(self.pid))
        if self.namespace is None and not self.born:
            return {tid: tid if tid in alive or not (elsewhere(tid) or _is_alive(tid)) else UNKNOWN_THREAD for tid in tids}
        # A number that is known may be given to another thread when its own has ended.
        if any(self._tids.get(tid) not in alive for tid in tids):
            self._tids |= {numbers[-1]: tid for tid in alive if (numbers := _numbers(self.pid, tid))}
            ended = {tid for tid in tids if self._tids.get(tid) not in alive}
            self._tids |= {tid: here for tid in ended if (here := _ended(self.namespace, tid) or self.born.get(tid, 0)) and not elsewhere(here)}
        return {tid: self._tids.get(tid, UNKNOWN_THREAD) for tid in tids}


def _namespace(pid: int | str) -> Namespace | None:
    with suppress(OSError):
        status = Path(f"/proc/{pid}/ns/pid").stat()
        return status.st_dev, status.st_ino
    return None


def _numbers(pid: int, tid: int) -> list[int]:
    """The ids of a thread from the outermost namespace that this process sees to its own; [] where it is gone."""
    try:
        lines = Path(f"/proc/{pid}/task/{tid}/status").read_text(errors="replace").splitlines()
    except OSError:
        return []
    return next(([int(word) for word in line.split()[1:]] for line in lines if line.startswith("NSpid:")), [])


def _processes_of(uid: int) -> Iterator[int]:
    """Processes that may be of that user; those that nobody may look into are root's in /proc."""
    for entry in os.scandir("/proc"):
        with suppress(OSError):
            if entry.name.isdigit() and entry.stat().st_uid in (uid, 0):
                yield int(entry.name)


def _user_of(pid: int) -> int | None:
    """Its real user, None where it is gone."""
    with suppress(OSError):
        lines = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("Uid:"))
    return None


def _is_of(pid: int, uid: int, known: Mapping[int, int | None]) -> bool:
    """Whether a followed process may be that user's: neither it nor who has its number now is another's."""
    return pid in known and {known[pid], _user_of(pid)} <= {uid, None}


def _runs(pid: int) -> bool:
    with suppress(OSError):
        return stat.fields(Path(f"/proc/{pid}/stat").read_bytes())[stat.STATE] not in "ZX"
    return False


def _is_alive(tid: int) -> bool:
    return Path(f"/proc/{tid}").exists()


def _maps(pid: int) -> str:
    with suppress(OSError):
        return memory_map.read(pid, "maps").decode(errors="replace")
    return ""


def _ended(namespace: Namespace | None, tid: int) -> int:
    """What a thread that ended was here, 0 where that is not known."""
    if namespace is not None and (programs := _watched[namespace]):
        return int(programs.map("ended").get(tid) or 0)
    return 0
