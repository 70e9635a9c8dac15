"""Process and thread ids inside a pid namespace, and the same ones as this process sees them."""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from pytrace_ebpf.errors import HostError
from pytrace_ebpf.record.bpf import Programs
from pytrace_ebpf.record.target import living_threads

UNKNOWN_THREAD = -1
_ENDED = 16384  # so many ended threads of a namespace are remembered

Namespace = tuple[int, int]  # device and inode

# What the kernel keeps of the threads that end, by namespace; None where it may not be asked.
_watched: dict[Namespace, Programs | None] = {}


def watch(pid: int) -> Namespace | None:
    """The pid namespace of `pid` if that is another than this process's own; from now on it is known who ends in it.

    Takes half a second the first time.
    """
    namespace = _namespace(pid)
    if namespace in (None, _namespace("self")):
        return None
    if namespace not in _watched:
        _watched[namespace] = None
        with suppress(HostError):  # then only threads that still live can be told
            _watched[namespace] = Programs("namespace.c", {"DEVICE": namespace[0], "INODE": namespace[1], "ENDED": _ENDED})
    return namespace


@dataclass
class Ids:
    """The ids of one process: `pid` as this process sees it; threads are looked up when they are first met."""

    pid: int
    namespace: Namespace | None = None  # where it has ids of its own
    _tids: dict[int, int] = field(default_factory=dict)  # of the inside -> of here

    @classmethod
    def of(cls, inside: int, arena: str, candidates: Iterable[int]) -> Self | None:
        """The process that calls itself `inside` and has the file `arena` mapped: the end of its path, from the folder on.

        `candidates` are known processes.

        None where it ended before its namespace was known.
        """
        everybody = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
        for pid in (inside, *everybody):
            if _numbers(pid, pid)[-1:] == [inside] and arena in _maps(pid):
                return cls(pid, watch(pid))
        for namespace in _watched:
            if pid := _ended(namespace, inside):
                return cls(pid, namespace)
        return cls(inside) if inside in candidates or not (_watched or _maps(inside)) else None

    def here(self, tids: set[int]) -> dict[int, int]:
        """Threads, as the process sees them, to what they are here; UNKNOWN_THREAD where that cannot be told any more."""
        if self.namespace is None:
            return {tid: tid for tid in tids}
        alive = set(living_threads(self.pid))
        # A number that is known may be given to another thread when its own has ended.
        if any(self._tids.get(tid) not in alive for tid in tids):
            self._tids |= {numbers[-1]: tid for tid in alive if (numbers := _numbers(self.pid, tid))}
            ended = {tid for tid in tids if self._tids.get(tid) not in alive}
            self._tids |= {tid: here for tid in ended if (here := _ended(self.namespace, tid))}
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


def _maps(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/maps").read_text(errors="replace")
    return ""


def _ended(namespace: Namespace, tid: int) -> int:
    """What a thread that ended was here, 0 where that is not known."""
    if programs := _watched[namespace]:
        table = programs.table("ended")
        with suppress(KeyError):
            return int(table[table.Key(tid)].value)
    return 0
