"""Blocks of malloc's, sampled by their bytes: probes on the C library of every traced process, programs of blocks.c."""

import errno
import re
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from pytrace_ebpf import processors
from pytrace_ebpf.errors import HostError, TargetError
from pytrace_ebpf.record.kernel import registering, uprobe_multi
from pytrace_ebpf.record.kernel.bpf import Programs
from pytrace_ebpf.record.kernel.library_probes import LibraryProbes
from pytrace_ebpf.record.kernel.uprobe_multi import Uprobe
from pytrace_ebpf.record.options import Options
from pytrace_ebpf.record.output.tables import Columns, when_and_who
from pytrace_ebpf.record.parsing import sandbox
from pytrace_ebpf.record.process.pinned import Descriptor, Pinned
from pytrace_ebpf.record.process.shares import user_of
from pytrace_ebpf.record.process.target import Mapping, identity, mapped_file, parse_mappings
from pytrace_ebpf.record.recorder import Recorder, Rows
from pytrace_ebpf.record.source import Recording
from pytrace_ebpf.units import plural

_RING_BYTES = 32 << 20  # 500,000 changes
_MOST_BLOCKS = 1 << 19  # that are known at a time; with the usual sampling they are 256 GiB
# The C library's functions, by what blocks.c is to make of them; of several names for one place the first.
MALLOC, CALLOC, REALLOC, MEMALIGN, POSIX_MEMALIGN = range(5)
_ALLOCATING = {
    "malloc": MALLOC, "valloc": MALLOC, "pvalloc": MALLOC, "calloc": CALLOC, "realloc": REALLOC,
    "memalign": MEMALIGN, "aligned_alloc": MEMALIGN, "posix_memalign": POSIX_MEMALIGN,
}  # fmt: skip
_FREEING = ("free", "cfree", "free_sized", "free_aligned_sized")
_NEEDED = {"malloc", "calloc", "realloc", "free"}
_LIBC, _LOADER = re.compile(r".*/libc(\.so\.6|-2\.\d+\.so)"), re.compile(rf".*/(?:{re.escape(processors.here().loader)}|ld-2\.\d+\.so)")  # glibc's
_LOOK_S, _LOOK_LATER_S, _YOUNG_S = 0.005, 0.5, 2.0  # between two looks at a process whose C library is not mapped yet
_CALM_S = 0.1
_PATIENCE_S, _MOST_LIBRARIES = 10.0, 64
_EVERYBODY = 0xFFFFFFFF  # common.h: the sum of all users
_GONE = (errno.ESRCH, errno.ENOENT)


@dataclass
class _Process:
    since: float
    next_look: float = 0.0
    settled: bool = False  # it has its probes, or cannot have them
    kept: int = 0  # of its blocks so many are in the kernel's map, or were lost
    links: list[int] = field(default_factory=list)
    user: int | None = None  # who pays for it, where that matters


class Blocks(Recorder):
    """The probes on malloc and the like, and their samples."""

    interval_s = _LOOK_S

    def __init__(self, recording: Recording, sample_bytes: int) -> None:
        """`sample_bytes`: a smaller block is sampled with the probability size / sample_bytes, others always. Raises HostError where the kernel cannot."""
        self._recording, self._sample_bytes = recording, sample_bytes
        settings = {"every": sample_bytes, "changes_room": _RING_BYTES if recording.shares else 0, "most_blocks": _MOST_BLOCKS}
        self._programs = Programs("blocks.c", settings, {"changes": _RING_BYTES, "blocks": _MOST_BLOCKS})
        self._both = uprobe_multi.load_session(self._programs, "both")
        self._probes = LibraryProbes(self._programs, ("freed",) if self._both is not None else ("freed", "begun", "ended"))
        self._ring = self._programs.ring("changes", self._programs.dtype("block_event"))
        self._places: dict[tuple[int, ...], tuple[list[Uprobe], list[Uprobe]]] = {}  # by the C library's file
        self._processes: dict[int, _Process] = {}
        self._dead: dict[int, int] = {}  # processes that left blocks in the map, and whose they were
        self._deleted = Counter[int]()  # blocks of such, by user
        self._without: dict[str, int] = {}  # why -> processes

    @classmethod
    def of(cls, options: Options, recording: Recording, _scheduling: Recorder) -> Self:
        """That of --native-memory."""
        return cls(recording, options.value_of("native_memory"))

    def add(self, pid: int) -> None:
        """Attach at once; other processes are found among those that are known. Raises TargetError for a Python without a malloc to probe."""
        self._look([*self._processes, pid])
        if self._without and pid in self._recording.processes.targets and not self._processes[pid].links and self._processes[pid].settled:
            raise TargetError(f"process {pid} {next(iter(self._without))}; leave --native-memory out")

    def reset(self, pid: int, tid: int, ts: int) -> None:
        """It has another C library, and no block of before."""
        if pid in self._processes:
            self._let_go(pid)

    def drain(self) -> Rows:
        """Rows of `native_blocks` since the last call."""
        self._look(self._recording.processes.living)
        awaited = any(not process.settled and process.next_look - process.since < _YOUNG_S for process in self._processes.values())
        self.interval_s = _LOOK_S if awaited else _CALM_S
        taken = self._programs.map("taken")
        for user in [user for user, _ in taken.items()]:
            taken.delete(user)
        columns = self._ring.drain(_columns)
        pids, counts = np.unique(columns["pid"][columns["level_bytes"] > 0], return_counts=True)
        for pid, count in zip(pids.tolist(), counts.tolist(), strict=True):
            if pid in self._processes:
                self._processes[pid].kept += count
        return {"native_blocks": [columns]} if len(columns["ts"]) else {}

    def cut(self) -> Rows:
        """Nothing; blocks of processes that have ended make room for others."""
        if self._dead:
            dead, self._dead, table = self._dead, {}, self._programs.map("blocks")
            for place in [place for place, _ in table.items() if int(place["pid"]) in dead]:
                table.delete(place)
                self._deleted.update((dead[int(place["pid"])], _EVERYBODY))
            for pid in dead.keys() - self._processes.keys():
                self._programs.map("owners").delete(pid)
            for user in {*dead.values(), _EVERYBODY} if self._recording.shares else ():
                with suppress(OSError):  # of very many users
                    self._programs.map("deleted").set(user, self._deleted[user])
        return {}

    def losses(self) -> np.ndarray:
        """Cumulative counts per loss class, int64."""
        return self._programs.losses()

    def metadata(self) -> dict[str, Any]:
        """The manifest's `native_memory`."""
        return {"native_memory": {"sample_bytes": self._sample_bytes}}

    def missing(self) -> tuple[str, ...]:
        """Whose native memory is not recorded, and why, a sentence each."""
        return tuple(
            f"no native memory is recorded of {plural(count, 'process')}: each {why}"
            if count > 1
            else f"no native memory is recorded: a process {why}"
            for why, count in self._without.items()
        )

    def stop(self) -> None:
        """Remove the probes."""
        for pid in list(self._processes):
            self._let_go(pid)

    def close(self) -> None:
        """Remove the probes and unload the programs."""
        self.stop()
        self._programs.close()

    def _look(self, pids: Iterable[int]) -> None:
        now, living = time.monotonic(), set(pids)
        for pid in self._processes.keys() - living:
            self._let_go(pid)
        for pid in living:
            process = self._processes.setdefault(pid, _Process(now))
            if self._recording.shares and process.user is None:
                process.user = user_of(pid)
                with suppress(OSError):  # the map is full: root pays
                    self._programs.map("owners").set(pid, process.user)
            if not process.settled and now >= process.next_look:
                process.next_look = now + (_LOOK_S if now - process.since < _YOUNG_S else _LOOK_LATER_S)
                self._attach(pid, process)

    def _attach(self, pid: int, process: _Process) -> None:
        try:
            pinned = Pinned(pid)
            mappings = parse_mappings(pinned.read("maps"))
            called_so = {each.path: each for each in mappings if each.executable and _LIBC.fullmatch(each.path)}
            for mapping in called_so.values():
                process.settled = process.settled or self._probe(pinned, mapping, process)
            if not process.settled and mappings and (called_so or not any(_LOADER.fullmatch(each.path) for each in mappings)):
                process.settled = True
                self._give_up("maps no GNU C library, whose malloc is the one that can be probed: it is statically linked, or has another")
        except TargetError:  # it is becoming another program
            pass
        except HostError as error:
            process.settled = True
            self._give_up(f"cannot be given probes: {error}")
        except OSError as error:
            if error.errno not in _GONE:
                process.settled = True
                self._give_up(f"cannot be given probes ({error.strerror})")

    def _probe(self, pinned: Pinned, mapping: Mapping, process: _Process) -> bool:
        """Whether the file is what it is called, and has its probes now. Raises OSError."""
        file = mapped_file(pinned, mapping)
        try:
            allocating, freeing = self._found(file)
        except ValueError:
            return False
        # What is freed first: a block that is freed unseen would seem to be there for ever.
        process.links += self._probes.attach("freed", file.path, freeing, pinned.pid)
        if self._both is not None:
            process.links.append(uprobe_multi.attach_session(self._both, file.path, allocating, pinned.pid))
        else:
            process.links += self._probes.attach("ended", file.path, allocating, pinned.pid, at_return=True)
            process.links += self._probes.attach("begun", file.path, allocating, pinned.pid)
        return True

    def _found(self, file: Descriptor) -> tuple[list[Uprobe], list[Uprobe]]:
        key = identity(file)
        if key not in self._places:
            if len(self._places) >= _MOST_LIBRARIES:
                self._places.clear()
            self._places[key] = _places(file)
        return self._places[key]

    def _give_up(self, why: str) -> None:
        self._without[why] = self._without.get(why, 0) + 1

    def _let_go(self, pid: int) -> None:
        process = self._processes.pop(pid)
        for link in process.links:
            registering.close(link)
        if process.kept:
            self._dead[pid] = process.user or 0
        elif process.user is not None:
            self._programs.map("owners").delete(pid)


def _places(file: Descriptor) -> tuple[list[Uprobe], list[Uprobe]]:
    """Where a C library allocates, and where it frees. Raises ValueError where it is none."""
    given = {"names": [*_ALLOCATING, *_FREEING]}
    found = sandbox.parsers.ask("beginnings", given, [file], dict[str, int], _PATIENCE_S, ("beginnings", *identity(file)))
    if not found.keys() >= _NEEDED or not all(0 < offset < 1 << 62 for offset in found.values()):
        raise ValueError("it has not all of malloc's functions")
    allocating: dict[int, Uprobe] = {}
    for name, function in _ALLOCATING.items():
        if name in found:
            allocating.setdefault(found[name], Uprobe(found[name], function))
    return list(allocating.values()), [Uprobe(offset) for offset in sorted({found[name] for name in _FREEING if name in found})]


def _columns(records: np.ndarray) -> Columns:
    return {
        **when_and_who(records),
        "level_bytes": records["level"].copy(),
        "block_bytes": records["size"].astype(np.int64),
        "allocated_ns": records["allocated_ts"].astype(np.int64),
        "allocated_tid": records["allocated_tid"].astype(np.int32),
    }
