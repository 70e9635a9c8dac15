"""Function events from the agent, a library in the traced processes that writes to memory shared with this one."""

import os
import statistics
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from pytrace_ebpf.errors import HostError, TargetError
from pytrace_ebpf.record import arena, qualnames
from pytrace_ebpf.record.agent_directory import AgentDirectory, agent_library, sweep
from pytrace_ebpf.record.arena import Arena, Piece
from pytrace_ebpf.record.calibrate import FibChild
from pytrace_ebpf.record.filters import Filters
from pytrace_ebpf.record.functions import Qualify, grown, no_func_ids
from pytrace_ebpf.record.namespaces import UNKNOWN_THREAD, Ids
from pytrace_ebpf.record.source import Recording
from pytrace_ebpf.record.tables import where
from pytrace_ebpf.record.target import Target, inspect
from pytrace_ebpf.trace.schema import LOSS_CLASSES

_PATIENCE_S = 10.0  # for the target to come to a point where the agent can begin
_LEAVE_S = 5.0  # for it to come to one where the agent can leave
_ROUNDS = 5
# How long at a time a program whose arena is full waits for this process to read it, before events are lost.
_WAIT_MS, _WAIT_LAUNCHED_MS = 1000, 10_000
_CHUNK_RECORDS = 8192  # 128 KiB: what a thread takes at least
_BATCH = 500_000  # events after which the agent gets its memory back


@dataclass(eq=False)
class _Traced:
    """One program with an arena."""

    arena: Arena
    ids: Ids
    start_ns: int
    qualify: Qualify
    replaced: bool = False  # by the program that exec put in its place
    func_ids: np.ndarray = field(default_factory=no_func_ids)  # by the agent's id


class AgentCalls:
    """Every process in which an agent of this recording began, by itself at the start or called in by attaching."""

    name = "agent"

    def __init__(self, recording: Recording, arena_bytes: int, filters: Filters, follow: bool, launches: bool) -> None:
        """`launches`: the agent comes with a program that is to be started, which is never ahead of the tracer then."""
        self._recording, self._launches = recording, launches
        self._library = arena.Library(agent_library())
        self._clock = arena.Clock(self._library, arena.best_clock())
        self._basics: list[tuple[str, object]] = [
            ("clock", "tsc" if self._clock.number == arena.TSC else "monotonic"),
            ("chunk_records", _CHUNK_RECORDS),
            ("arena_bytes", arena_bytes),
        ]
        self._options = [
            *self._basics,
            ("follow", int(follow)),
            ("wait_ms", _WAIT_LAUNCHED_MS if launches else _WAIT_MS),
            ("max_depth", filters.max_depth),
            *(("include", pattern) for pattern in filters.include),
            *(("exclude", pattern) for pattern in filters.exclude),
        ]
        self._directories: dict[str, AgentDirectory] = {}  # by the file system that they are in
        self._traced: list[_Traced] = []
        self._first: tuple[Target, os.stat_result] | None = None
        self._lost = np.zeros(len(LOSS_CLASSES), np.int64)  # of arenas that are closed, and of unknown threads
        self._waited_ns = 0
        sweep()
        if launches:
            self._directories[_file_system("self")] = AgentDirectory(self._options)

    @property
    def environment(self) -> Mapping[str, str]:
        """What a program is to be started with, that the agent comes with it and its children."""
        return self._directories[_file_system("self")].environment

    def prepare(self, target: Target) -> None:
        """Put the agent where the target finds it."""
        if self._first is None:
            self._first = target, Path(f"/proc/{target.pid}").stat()
        seen = _file_system(target.pid)
        if seen not in self._directories:
            owner = Path(f"/proc/{target.pid}").stat()
            # A program that a wrapper started in another root looks there for what it is to load, and has not looked yet.
            path = self._directories[_file_system("self")].path if self._launches else None
            self._directories[seen] = AgentDirectory(self._options, f"/proc/{target.pid}/root", owner, path)

    def begin(self, target: Target) -> None:
        """The agent came with the program, and begins when the program's own code does."""
        self._recording.processes.add_python(target, None, time.monotonic_ns())

    def attach(self, target: Target) -> None:
        """Bring the agent in and wait until it records."""
        from pytrace_ebpf.record import inject

        self.prepare(target)
        directory = self._directories[_file_system(target.pid)]
        self.drain()
        if not self._has_begun(target.pid):
            inject.begin(target, directory.path, lambda: self._has_begun(target.pid), _PATIENCE_S)

    def _has_begun(self, pid: int) -> bool:
        self._discover()
        for traced in self._traced:
            if traced.ids.pid == pid:
                if traced.arena.state == arena.REFUSED:
                    raise TargetError(traced.arena.message)
                if traced.arena.state == arena.ACTIVE:
                    return True
        return False

    def reset(self, pid: int, tid: int, ts: int) -> None:
        """Close the arena of the program that was there before; that of the new one may be known already."""
        for traced in self._traced:
            traced.replaced |= traced.ids.pid == pid and traced.start_ns < ts

    def drain(self) -> None:
        """Emit what is in the arenas, new ones included, and close those of processes that ended."""
        self._discover()
        ended = [traced for traced in self._traced if traced.replaced or _has_ended(traced)]
        drained = [(traced, traced.arena.news()) for traced in self._traced]
        self._clock.tick()
        for traced, news in drained:
            if news:
                self._emit(traced, news)
        for traced in ended:
            self._traced.remove(traced)
            self._lost += _losses(traced.arena)
            self._waited_ns += int(traced.arena["waited_ns"])
            if traced.arena.state == arena.REFUSED:
                self._recording.declare(traced.ids.pid, None, traced.arena.message)

    @property
    def waited_ns(self) -> int:
        """For a place in their arenas; all programs together."""
        return self._waited_ns + sum(int(traced.arena["waited_ns"]) for traced in self._traced)

    def losses(self) -> np.ndarray:
        """Events for which there was no room, and functions that have no name for want of it."""
        return self._lost + sum((_losses(traced.arena) for traced in self._traced), np.zeros_like(self._lost))

    def detach(self, pids: set[int]) -> None:
        """Their agents ended with them."""

    def stop(self) -> None:
        """Ask every agent to leave; it writes nothing from then on."""
        for traced in self._traced:
            traced.arena.stop()

    def leave(self) -> None:
        """Wait until every agent has left, or has had its time to."""
        deadline = time.monotonic() + _LEAVE_S
        while time.monotonic() < deadline:
            self.drain()
            if not self._traced:
                return
            time.sleep(0.002)

    def cost_per_call(self) -> float | None:
        """What fib takes in a process with the agent less what it takes without, in the first target's interpreter."""
        if self._first is None:
            return None
        with suppress(HostError, TargetError):
            target, owner = self._first
            directory = AgentDirectory(self._basics, "/", owner)
            try:
                with FibChild(target, owner) as plain, FibChild(target, owner, directory.environment) as traced:
                    added = [traced.ns_per_call() - plain.ns_per_call() for _ in range(_ROUNDS)]
                    return max(0.0, round(statistics.median(added), 1))
            finally:
                directory.remove()
        return None

    def close(self) -> None:
        """Leave nothing behind in any file system; an agent that is still there leaves by itself."""
        self.stop()
        for directory in self._directories.values():
            directory.remove()

    def _discover(self) -> None:
        for directory in self._directories.values():
            for name, descriptor in directory.arenas():
                try:
                    found = Arena(descriptor, self._library.dtypes)
                except ValueError:  # it is just being made
                    continue
                directory.forget(name)
                ids = Ids.of(found.pid, f"/{directory.arenas_name}/{name}", self._recording.processes.living)
                if ids is None:  # it ended inside a container before it was heard of
                    continue
                for earlier in self._traced:  # a process has one arena at a time
                    earlier.replaced |= earlier.ids.pid == ids.pid
                start_ns = self._start_ns(found)
                self._traced.append(_Traced(found, ids, start_ns, self._know(ids.pid, found, start_ns)))

    def _start_ns(self, found: Arena) -> int:
        start = np.empty(1, np.int64)
        self._clock.ns(found.started, start)
        return int(start[0])

    def _know(self, pid: int, found: Arena, start_ns: int) -> Qualify:
        """Add the process to the table of processes; returns what names its functions where the agent cannot."""
        processes = self._recording.processes
        try:
            target = processes.targets.get(pid) or inspect(pid)
            if self._first is None:
                self._first = target, Path(f"/proc/{pid}").stat()
            processes.add_python(target, self.name, start_ns)
            return qualnames.for_process(pid, target.library)
        except (TargetError, HostError, OSError):  # it has ended already
            version = int(found["python"])
            processes.tell_source(pid, self.name, f"{version >> 24}.{version >> 16 & 0xFF}.{version >> 8 & 0xFF}", start_ns)
            return lambda file, first_line, name: None
        finally:
            if not any(each["pid"] == pid and each["source"] for each in self._recording.chosen):
                came = "run starts programs with the agent in them" if self._launches else "it came with the agent of its creator"
                self._recording.declare(pid, self.name, came)

    def _emit(self, traced: _Traced, news: list[Piece]) -> None:
        self._introduce(traced)
        tids = traced.ids.here({piece.tid for piece in news})
        for pieces in arena.batches(news, _BATCH):
            columns = arena.columns(pieces, self._clock, traced.ids.pid, tids, traced.func_ids)
            traced.arena.give_back(pieces)
            if UNKNOWN_THREAD in tids.values():
                known = columns["tid"] != UNKNOWN_THREAD
                columns = where(columns, known)
                self._lost[LOSS_CLASSES.index("thread_map")] += len(known) - int(known.sum())
            self._recording.emit(columns)

    def _introduce(self, traced: _Traced) -> None:
        for function in traced.arena.new_functions():  # one step per function, not per call
            traced.func_ids = grown(traced.func_ids, function.id)
            functions = self._recording.functions
            if function.first_line < 0:
                traced.func_ids[function.id] = functions.intern_layer(-function.first_line, function.name)
                continue
            traced.func_ids[function.id] = functions.intern(
                function.file, function.name, function.qualname, function.first_line, function.flags, traced.qualify
            )


def _has_ended(traced: _Traced) -> bool:
    if traced.arena.state in (arena.QUIET, arena.REFUSED):
        return True
    try:
        state = Path(f"/proc/{traced.ids.pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state in "ZX"


def _losses(of: Arena) -> np.ndarray:
    lost = np.zeros(len(LOSS_CLASSES), np.int64)
    lost[LOSS_CLASSES.index("call_ring")] = of["dropped"]
    lost[LOSS_CLASSES.index("function_map")] = of["unnamed"]
    return lost


def _file_system(pid: int | str) -> str:
    """The file system that a process sees: its mount namespace and its root in there."""
    root = Path(f"/proc/{pid}/root").stat()
    return f"{Path(f'/proc/{pid}/ns/mnt').readlink()} {root.st_dev} {root.st_ino}"
