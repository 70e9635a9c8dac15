"""One program with an arena, as the source of the agent's events knows it."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from pytrace_ebpf.record.agent import arena
from pytrace_ebpf.record.agent.agent_library import Clock
from pytrace_ebpf.record.agent.allocations import Allocations
from pytrace_ebpf.record.agent.arena import Arena, Function, Piece
from pytrace_ebpf.record.agent.opcodes import Opcodes, columns
from pytrace_ebpf.record.agent.values import Values
from pytrace_ebpf.record.cpython.functions import Functions, grown, no_func_ids
from pytrace_ebpf.record.cpython.lookups import Lookups, Names
from pytrace_ebpf.record.cpython.qualnames import Qualify, unknown
from pytrace_ebpf.record.output.tables import Columns
from pytrace_ebpf.record.process import stat
from pytrace_ebpf.record.process.namespaces import Ids
from pytrace_ebpf.record.process.readings import Readings
from pytrace_ebpf.trace.schema import LOSS_CLASSES

_MOST_HELD = 100_000  # pieces, of which a thread gives one at each reading
_BATCH = 500_000  # events after which the agent gets its memory back


def lookups(readings: Readings, user: int, qualify: Qualify) -> Lookups[Function]:
    """What names the functions of a program where the agent cannot: before Python 3.11."""

    def read(functions: Sequence[Function], plain: bool) -> list[Names]:
        names = unknown if plain else qualify
        return [Names(each.file, each.name, each.qualname or names(each.file, each.first_line, each.name)) for each in functions]

    return Lookups(readings, user, read)


@dataclass(eq=False)
class Traced:
    """One program with an arena. Every method may raise Damaged."""

    arena: Arena
    ids: Ids
    start_ns: int
    names: Lookups[Function]
    replaced: bool = False  # the program replaced itself by exec
    unwound_ns: int | None = None  # when it did, where that was known before its arena was: its calls ended then
    func_ids: np.ndarray = field(default_factory=no_func_ids)  # by the agent's id
    left_out: np.ndarray | None = field(default_factory=lambda: np.empty(0, np.int64))  # the agent's ids that it was asked to leave out; None: all
    unasked: bool = True  # a new function or decision came since the agent was last asked to leave out functions
    values: Values = field(default_factory=Values)
    runs: dict[int, list[int]] = field(default_factory=dict)  # tid, as the process says, to the ids of interpreters that are new of it
    lines: bool = False  # were asked for
    allocations: Allocations = field(default_factory=Allocations)
    opcodes: Opcodes = field(default_factory=Opcodes)
    held: list[Piece] = field(default_factory=list)  # of functions that have no names yet, and what came after them

    def introduce(self, functions: Functions) -> bool:
        """Take in the functions that were reported since the last time; returns whether all have their names."""
        unnamed = list[Function]()
        for function in self.arena.new_functions():  # one step per function, not per call
            if function.first_line == -arena.NAME:
                self.values.name(function.id, function.file)
                continue
            if function.first_line == -arena.INTERPRETER:
                self.runs.setdefault(function.flags, []).append(int(function.file))
                continue
            self.func_ids, self.unasked = grown(self.func_ids, function.id), True
            if function.first_line < 0:
                self.func_ids[function.id] = functions.intern_layer(-function.first_line, function.name)
                continue
            if function.qualname and self.names.since_ns is None:
                self._name(functions, function, function)
            else:
                unnamed.append(function)
        self.names.ask(unnamed, any(not function.qualname for function in unnamed))
        for function, names in self.names.take():
            self._name(functions, function, names)
        return self.names.since_ns is None

    def _name(self, functions: Functions, function: Function, names: Names | Function) -> None:
        self.unasked = True
        with functions.reading(self.ids.pid) as user:
            self.func_ids[function.id] = functions.intern(names.file, names.name, names.qualname, function.first_line, function.flags, unknown, user)

    def ready(self, news: list[Piece], functions: Functions) -> list[Piece]:
        """What can be taken in of `news` and of what was held: nothing while functions have no names, until half of the arena or very many pieces are held."""
        named, self.held = self.introduce(functions), [*self.held, *news]
        if not named and (len(self.held) > _MOST_HELD or 2 * sum(piece.full for piece in self.held) > self.arena.most_chunks):
            self.names.give_up()
            named = self.introduce(functions)
        ready, self.held = (self.held, []) if named else ([], self.held)
        return ready

    def take_runs(self) -> dict[int, list[int]]:
        """Of each thread, as the process says, the interpreters beside the main one of which it was first reported since the last time that it makes calls."""
        runs, self.runs = self.runs, {}
        return runs

    def events(self, pieces: Sequence[Piece], tids: dict[int, int], clock: Clock) -> Iterator[Columns]:
        """Columns of `events` of these pieces; by then the agent has their chunks back."""
        mapping = arena.Mapping(self.ids.pid, tids, self.func_ids, (self.start_ns, clock.now_ns), self.lines)
        for some in arena.batches(list(pieces), _BATCH):
            columns = arena.columns(self.arena, some, clock, mapping)
            self.arena.give_back(some)
            self.values.met(some, columns["ts"])
            yield columns

    def executed(self, functions: Functions, clock: Clock) -> Columns:
        """Columns of `opcodes`: what was counted since the last time."""
        records = self.opcodes.take(self.arena)
        self.introduce(functions)  # after them: now all of their functions are known
        return columns(records, self.func_ids, self.ids.pid, f"3.{self.arena.python >> 16 & 0xFF}", clock.ns_per_stamp)

    @property
    def waited_ns(self) -> int:
        """How long the program was held up for a place in its arena."""
        return min(self.arena.counted("waited_ns"), max(0, time.monotonic_ns() - self.start_ns))

    @property
    def has_ended(self) -> bool:
        """Whether there will be no more of it."""
        if self.arena.state in (arena.QUIET, arena.REFUSED):
            return True
        try:
            state = stat.fields(Path(f"/proc/{self.ids.pid}/stat").read_bytes())[stat.STATE]
        except OSError:
            return True
        return state in "ZX"

    @property
    def losses(self) -> np.ndarray:
        """Counts by loss class."""
        lost = np.zeros(len(LOSS_CLASSES), np.int64)
        lost[LOSS_CLASSES.index("call_ring")] = self.arena.counted("dropped")
        lost[LOSS_CLASSES.index("function_map")] = self.arena.counted("unnamed")
        lost[LOSS_CLASSES.index("value_ring")] = self.arena.counted("values_dropped") + self.values.lost
        lost[LOSS_CLASSES.index("opcode_table")] = self.arena.counted("opcodes_dropped")
        lost[LOSS_CLASSES.index("allocation_ring")] = (
            self.arena.counted("allocations_dropped") + self.arena.counted("untracked") + self.allocations.lost
        )
        return lost
