"""Function events from the agent, a library in the traced processes that writes to memory shared with this one."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np

from pytrace_ebpf.errors import HostError, TargetError
from pytrace_ebpf.record.agent import agent_options, arena, first_variables, statements
from pytrace_ebpf.record.agent.agent_library import TSC, Clock, Library, agent_library, best_clock
from pytrace_ebpf.record.agent.arena import Arena, Damaged, NotYet, Piece
from pytrace_ebpf.record.agent.by_process import ByProcess
from pytrace_ebpf.record.agent.claims import Claims
from pytrace_ebpf.record.agent.directories import Directories
from pytrace_ebpf.record.agent.directory import AgentDirectory
from pytrace_ebpf.record.agent.errands import Errands
from pytrace_ebpf.record.agent.price import line_ns, measured
from pytrace_ebpf.record.agent.skipped_events import passed, passed_per_left_call
from pytrace_ebpf.record.agent.timed import timed
from pytrace_ebpf.record.agent.traced import Traced, lookups
from pytrace_ebpf.record.cost.budget import EVERYTHING
from pytrace_ebpf.record.cost.measured import Measured, Timed
from pytrace_ebpf.record.cpython.qualnames import Qualifiers, Qualify
from pytrace_ebpf.record.filters import NOTHING, Filters, Observed
from pytrace_ebpf.record.process.namespaces import UNKNOWN_THREAD, Shared
from pytrace_ebpf.record.process.target import Target, inspect, own_id
from pytrace_ebpf.record.recorder import Rows
from pytrace_ebpf.record.rights.openat2 import Unfit
from pytrace_ebpf.record.source import CallSource, Recording, Undrained
from pytrace_ebpf.trace.schema import LOSS_CLASSES

_PATIENCE_S, _LEAVE_S = 10.0, 5.0  # for the target to come to a point where the agent can begin, and to one where it can leave
_NAMES_S = 1.0  # at the end, for names of functions; after that plain ones have to do
_WAIT_MS, _WAIT_LAUNCHED_MS = 1000, 10_000  # how long at a time a program whose arena is full waits for it to be read, before events are lost
_CHUNK_RECORDS = 8192  # 128 KiB: what a thread takes at least


class AgentCalls(CallSource):
    """Every process in which an agent of this recording began, by itself at the start or called in by attaching.

    What a process writes is not trusted: where it is not what an agent writes, the recording of that process ends, and no other.
    """

    name = "agent"

    def __init__(
        self,
        recording: Recording,
        arena_bytes: int,
        filters: Filters,
        follow: bool,
        launches: bool,
        observed: Observed = NOTHING,
        memory: bool = False,
        bounded: bool = False,
        clients: str | None = None,
    ) -> None:
        """`launches`: the agent is loaded at launch, so the tracer is always ahead of the program; `bounded`: it may be asked to leave out functions."""
        self._recording, self._undrained, self._launches = recording, Undrained(), launches
        self._library = Library(agent_library())
        self._clock = Clock(self._library, best_clock())
        self._began_ns = time.monotonic_ns()
        clock = "tsc" if self._clock.number == TSC else "monotonic"
        self._basics: list[tuple[str, object]] = [("clock", clock), ("chunk_records", _CHUNK_RECORDS), ("arena_bytes", arena_bytes)]
        self._options = [
            *self._basics,
            ("follow", int(follow)),
            ("wait_ms", _WAIT_LAUNCHED_MS if launches else _WAIT_MS),
            *agent_options.of_recording(filters, observed, memory, bounded, clients),
        ]
        self._lines, self._opcodes = filters.lines is not None, filters.opcodes is not None
        self._traced: list[Traced] = []
        self._claims, self._errands = Claims(recording.processes), Errands(recording.processes.targets)
        self._given_up: dict[int, str] = {}  # why a process's arena is not read any more
        self._seen: dict[int, Target] = {}  # Pythons of which it is known whether the agent can come to them
        self._first: Target | None = None
        self._qualifiers, self._passed = Qualifiers(), ByProcess(passed, 0)
        self._timed = ByProcess(lambda traced: timed(traced.arena, self._clock.ns_per_stamp), Timed())
        self._lost = np.zeros(len(LOSS_CLASSES), np.int64)  # of arenas that are closed, and of unknown threads
        self._waited_ns = self._launched = 0
        self._left_out, self._directories = frozenset[int](), Directories(self._options, launches)

    @property
    def environment(self) -> Mapping[str, str]:
        """What a program is to be started with, that the agent comes with it and its children."""
        return self._directories.environment

    def prepare(self, target: Target) -> None:
        """Put the agent where the target finds it, and nobody else does. Raises TargetError."""
        self._first = self._first or target
        self._directories.prepare(target.process)

    def remark(self, pid: int) -> str:
        """That it has little memory."""
        return self._directories.remark(pid)

    @property
    def arena_bytes(self) -> int:
        """What the smallest arena may take."""
        return self._directories.arena_bytes

    def begin(self, target: Target) -> None:
        """The agent comes with the program, and begins when the program's own code does."""
        first_variables.preload(target, self.environment["LD_PRELOAD"].partition(":")[0])
        self._recording.processes.add_python(target, None, time.monotonic_ns())
        self._qualifiers.of(target)
        self._launched = target.pid

    def attach(self, target: Target) -> None:
        """Inject the agent and wait until it records."""
        from pytrace_ebpf.record.agent import inject  # imported here: a launched program does not need it, and waits for all imports

        directory = self._directories.prepare(target.process)
        assert directory is not None  # a launched program has the agent, and is not attached to
        self._read()
        self._given_up.pop(target.pid, None)  # of the program that it was before
        if not self._has_begun(target.pid):
            try:
                injection = inject.begin(target, directory, lambda: self._has_begun(target.pid), _PATIENCE_S)
            except TargetError:
                if not self._claims.settle(lambda: self._has_begun(target.pid)):  # else it began and ended, before it was seen to
                    raise
                return
            if injection.warning:
                self._warn(target.pid, injection.warning)

    def _warn(self, pid: int, warning: str) -> None:
        for each in self._recording.chosen:
            if each["pid"] == pid and each["source"]:
                each["why"] += f"; {warning}"

    def _has_begun(self, pid: int) -> bool:
        self._discover()
        if pid in self._given_up:
            raise TargetError(self._given_up[pid])
        for traced in self._traced:
            if traced.ids.pid == pid:
                with self._of(traced):
                    traced.arena.look()
                    if traced.arena.state == arena.REFUSED:
                        raise TargetError(traced.arena.message)
                    return traced.arena.state != arena.STARTING
        return False

    @contextmanager
    def _of(self, traced: Traced) -> Iterator[None]:
        """Let go of the process if its arena turns out to be damaged."""
        try:
            yield
        except Damaged as damage:
            if traced in self._traced:
                self._close(traced)
            self._refuse(traced.ids.pid, str(damage))

    def _refuse(self, pid: int, what: str) -> None:
        self._given_up[pid] = f"the memory that process {pid} shares with the tracer {what}, so its calls are not recorded any more"
        self._recording.declare(pid, None, self._given_up[pid])

    def _close(self, traced: Traced) -> None:
        self._traced.remove(traced)
        self._lost, self._waited_ns = self._lost + traced.losses, self._waited_ns + traced.waited_ns
        self._passed.close(traced)
        self._timed.close(traced)

    def reset(self, pid: int, tid: int, ts: int) -> None:
        """Close the arena of the program that was there before; that of the new one may be known already."""
        for traced in self._traced:
            traced.replaced |= traced.ids.pid == pid and traced.start_ns < ts
        self._claims.executed(pid, ts)

    def drain(self) -> Rows:
        """What is in the arenas."""
        self._read()
        return self._undrained.take()

    @property
    def owed_ns(self) -> int | None:
        """Of arenas that wait for news of their processes, or for the names of their functions."""
        return min(filter(None, [self._claims.since_ns, *(traced.names.since_ns for traced in self._traced)]), default=None)

    def cut(self) -> Rows:
        """The instructions that were counted in the segment."""
        for traced in list(self._traced):
            with self._of(traced):
                self._count(traced)
        return self._undrained.take()

    def _count(self, traced: Traced) -> None:
        if self._opcodes:
            self._undrained.add(traced.executed(self._recording.functions, self._clock), "opcodes")

    def _read(self) -> None:
        """Emit what is in the arenas, new ones included, and close those of processes that ended."""
        self._discover()
        self._directories.grow()
        drained: list[tuple[Traced, bool, list[Piece]]] = []
        for traced in list(self._traced):
            with self._of(traced):
                traced.arena.look()
                drained.append((traced, traced.replaced or traced.has_ended, traced.arena.news()))
        self._clock.tick()
        for traced, ended, news in drained:
            with self._of(traced):
                if (news or traced.held) and (ready := traced.ready(news, self._recording.functions)):
                    self._emit(traced, ready)
                self._errands.listen_to(traced, bool(news))
                if ended and not traced.held:
                    self._count(traced)
                    self._recording.learn(traced.ids.pid, *map(traced.arena.counted, ("interpreters", "threads_taken")))
                    self._close(traced)
                    if traced.unwound_ns is not None:
                        self._undrained.reset([(traced.ids.pid, traced.ids.pid)], traced.unwound_ns)
                    if traced.arena.state == arena.REFUSED:
                        self._recording.declare(traced.ids.pid, None, traced.arena.message)
        if self._launches:
            self._report_strangers()

    def _report_strangers(self) -> None:
        """Programs that loaded the agent by their environment, but run as another user."""
        for pid, target in self._recording.processes.targets.items():
            if self._seen.get(pid) is target or any(each["pid"] == pid and each["source"] == "usdt" for each in self._recording.chosen):
                continue
            if not self._directories.can_be_used_by(target.process):
                why = f"process {pid} runs as another user, or in another container, than the program that was started"
                self._recording.declare(pid, None, f"{why}; trace it by itself with `pytrace-ebpf attach`")
        self._seen = dict(self._recording.processes.targets)

    def passed(self) -> dict[int, int]:
        """As the processes count them."""
        return self._passed.now(self._traced)

    def timed(self) -> dict[int, Timed]:
        """As the agents time their callbacks."""
        return self._timed.now(self._traced)

    @property
    def passed_per_left_call(self) -> int:
        """The most of any process."""
        return passed_per_left_call(self._traced)

    def dropped(self) -> dict[int, int]:
        """As the living processes count them."""
        return {traced.ids.pid: traced.arena.counted("dropped") for traced in self._traced}

    @property
    def waited_ns(self) -> int:
        """For a place in their arenas; all programs together."""
        return self._waited_ns + sum(traced.waited_ns for traced in self._traced)

    def losses(self) -> np.ndarray:
        """Counts of events, and of names of functions, for which there was no room."""
        return self._lost + sum((traced.losses for traced in self._traced), self._claims.losses)

    def leave_out(self, func_ids: frozenset[int]) -> bool:
        """Pass the decision to every agent, which polls it."""
        changed, self._left_out, done = func_ids != self._left_out, func_ids, True
        for traced in list(self._traced):
            traced.unasked |= changed
            with self._of(traced):
                done &= self._follows(traced)
        return done

    def _follows(self, traced: Traced) -> bool:
        """Whether a process's agent leaves out what it should; it is asked to where it was not, or has met such a function since."""
        if not traced.unasked:
            return self._errands.have_done(traced, traced.arena.follows)
        wanted = None if EVERYTHING in self._left_out else np.flatnonzero(np.isin(traced.func_ids, list(self._left_out)))
        if wanted is traced.left_out or (wanted is not None and traced.left_out is not None and np.array_equal(wanted, traced.left_out)):
            traced.unasked = False
            return traced.arena.follows
        if traced.arena.leave_out(wanted):
            traced.left_out, traced.unasked = wanted, False
        return False

    def detach(self, pids: set[int]) -> None:
        """Their agents ended with them."""

    def stop(self) -> None:
        """Ask every agent to leave, which it does once it has the GIL."""
        for traced in list(self._traced):
            with self._of(traced):
                traced.arena.stop()

    def leave(self) -> int:
        """Wait until every agent has left, or has had its time to. Returns when they had, 0 where one has not."""
        began_s, self._claims.has_all_news = time.monotonic(), True  # taken since nothing is reported any more
        while time.monotonic() < began_s + _LEAVE_S:
            self._read()
            for traced in self._traced if time.monotonic() > began_s + _NAMES_S else ():
                traced.names.give_up()
            if not self._traced and not self._claims and not self._directories.owe:
                break
            self._errands.have_left(self._traced)
            time.sleep(0.002)
        nothing = (row := self._recording.processes.processes.get(self._launched)) is not None and row["source"] is None and not self._lost.any()
        if nothing and any(each["pid"] == self._launched and each["source"] for each in self._recording.chosen):
            why = f"the agent begins when Python runs code of the program's, and in process {self._launched} none was executed or imported"
            why += " (a program that is linked statically, or with musl, does not load it)"
            self._recording.declare(self._launched, None, why)
        return 0 if self._traced else time.monotonic_ns()

    @property
    def first(self) -> Target | None:
        """The first that came."""
        return self._first

    def cost_per_call(self) -> Measured | None:
        """In a process without the agent and in one with it, of the first target's interpreter."""
        return measured(self._first, self._basics, self._library, self._clock)

    def cost_per_line(self, ns_per_call: float | None) -> float | None:
        """What it takes more where its lines are recorded, of which each call of it has one."""
        return line_ns(self._first, self._basics, self._library, self._clock, ns_per_call) if self._lines and ns_per_call is not None else None

    def close(self) -> None:
        """Leave nothing behind."""
        self.stop()
        self._directories.remove()

    def _discover(self) -> None:
        for directory in self._directories.unkept():
            for pid, target in self._recording.processes.targets.items():
                if directory.serves(target.process):
                    self._warn(pid, directory.why_unkept)
        for directory in self._directories:
            for name, file in directory.arenas():
                if isinstance(file, Unfit):
                    self._refuse_name(directory, name, str(file))
                    continue
                try:
                    found = Arena(file, self._library.dtypes, directory.arena_bytes)
                except NotYet:
                    continue
                except Damaged as damage:
                    self._refuse_name(directory, name, str(damage))
                    directory.forget(name)
                    continue
                directory.forget(name)
                directory.found(found)
                self._claims.add(found, Shared.of(f"/{directory.arenas_name}/{name}", file.fileno()), self._start_ns(found))
        for found, start_ns, ids in self._claims.decide():
            replaced_ns = self._claims.replaced_ns(ids.pid, start_ns)
            for earlier in self._traced:  # a process has one arena at a time
                earlier.replaced |= earlier.ids.pid == ids.pid and replaced_ns is None
            self._given_up.pop(ids.pid, None)
            know = self._know(ids.pid, found, start_ns, replaced_ns is not None)
            names = lookups(self._recording.processes.readings, self._recording.functions.user(ids.pid), know)
            self._traced.append(Traced(found, ids, start_ns, names, replaced_ns is not None, replaced_ns, lines=self._lines))

    def _refuse_name(self, directory: AgentDirectory, name: str, what: str) -> None:
        """The process that the file's name gives, where it is one of the directory's user."""
        if not directory.refuse(name):
            return
        inside, recorded = name.partition(".")[0], {traced.ids.pid for traced in self._traced}
        for pid, target in self._recording.processes.targets.items():
            if pid not in recorded and directory.serves(target.process) and str(own_id(pid, pid)) == inside:
                self._refuse(pid, what)

    def _start_ns(self, found: Arena) -> int:
        return max(self._began_ns, min(self._clock.at(found.started), time.monotonic_ns()))

    def _know(self, pid: int, found: Arena, start_ns: int, replaced: bool) -> Qualify:
        """Add the process to the table of processes; returns what names its functions where the agent cannot. `replaced`: it is that program no more."""
        processes = self._recording.processes
        try:
            if replaced:
                raise TargetError("it has become another program")
            target = processes.targets.get(pid) or inspect(pid)
            self._first = self._first or target
            processes.add_python(target, self.name, start_ns)
            return self._qualifiers.of(target)
        except (TargetError, HostError, OSError):  # it has ended already
            processes.set_source(pid, self.name, ".".join(str(found.python >> shift & 0xFF) for shift in (24, 16, 8)), start_ns)
            return self._qualifiers.first
        finally:
            if not any(each["pid"] == pid and each["source"] for each in self._recording.chosen):
                came = "run starts programs with the agent in them" if self._launches else "it came with the agent of its creator"
                self._recording.declare(pid, self.name, came)

    def _emit(self, traced: Traced, news: list[Piece]) -> None:
        pid, threads, runs = traced.ids.pid, self._recording.processes.threads, traced.take_runs()
        tids = traced.ids.here({piece.tid for piece in news} | runs.keys(), lambda tid: any(known == tid and of != pid for of, known in threads))
        self._recording.processes.run(pid, {tids[tid]: interpreters for tid, interpreters in runs.items()})
        by_thread = sorted(news, key=lambda piece: piece.tid)  # so that nobody has to sort their rows
        events = [piece for piece in by_thread if piece.stream == arena.CALLS]
        for columns in traced.events([piece for piece in events if tids[piece.tid] != UNKNOWN_THREAD], tids, self._clock):
            self._undrained.add(columns)
        for columns in traced.events([piece for piece in events if tids[piece.tid] == UNKNOWN_THREAD], tids, self._clock):
            self._lost[LOSS_CLASSES.index("thread_map")] += len(columns["ts"])
        grown = [piece for piece in by_thread if piece.stream == arena.ALLOCATIONS]
        for columns in traced.allocations.take(traced.arena, grown, tids, pid, traced.values.moments):
            self._undrained.add(columns, "allocations")
        values = [piece for piece in by_thread if piece.stream == arena.VALUES]
        for table, columns in statements.by_table(traced.values.take(traced.arena, values, tids, pid)):
            self._undrained.add(columns, table)
