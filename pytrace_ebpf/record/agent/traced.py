"""One program with an arena, as the source of the agent's events knows it."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from pytrace_ebpf.record.agent import arena
from pytrace_ebpf.record.agent.allocations import Allocations
from pytrace_ebpf.record.agent.arena import Arena, Piece
from pytrace_ebpf.record.agent.library import Clock
from pytrace_ebpf.record.agent.opcodes import Opcodes, columns
from pytrace_ebpf.record.agent.values import Values
from pytrace_ebpf.record.cpython.functions import Functions, grown, no_func_ids
from pytrace_ebpf.record.cpython.qualnames import Qualify, unknown
from pytrace_ebpf.record.output.tables import Columns
from pytrace_ebpf.record.process import stat
from pytrace_ebpf.record.process.namespaces import Ids
from pytrace_ebpf.trace.schema import LOSS_CLASSES

_BATCH = 500_000  # events after which the agent gets its memory back


@dataclass(eq=False)
class Traced:
    """One program with an arena. Every method may raise Damaged."""

    arena: Arena
    ids: Ids
    start_ns: int
    qualify: Qualify
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

    def introduce(self, functions: Functions) -> None:
        """Take in the functions that were reported since the last time."""
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
            with functions.reading(self.ids.pid) as (user, plain):
                qualify = self.qualify if not plain else unknown
                self.func_ids[function.id] = functions.intern(
                    function.file, function.name, function.qualname, function.first_line, function.flags, qualify, user
                )

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
