"""What a pass over a trace (one_pass.py) can be asked for: a sink takes what the engines find, and makes one table or one answer of it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from pytrace_ebpf.derive.store import State
from pytrace_ebpf.rebuild.engine import Engine, Ids
from pytrace_ebpf.rebuild.shards import Shards
from pytrace_ebpf.trace.frames import to_frame
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.trace.schema import CALLS, Table


@dataclass(frozen=True)
class RowsOf:
    """Rows of the calls of these functions (func_id) alone, in no order; `suspended`: and of calls that yielded or were resumed, but for those of the functions `never`."""

    functions: Ids
    suspended: bool = False
    never: Ids = field(default_factory=lambda: np.zeros(0, np.int64))

    def among(self, rows: pa.Table) -> pa.Table:
        """Those of them in `rows` (schema.CALLS), which may have others."""
        mask = pc.is_in(rows["func_id"], pa.array(self.functions))
        if self.suspended:
            other = pc.or_(rows["resumed"], rows["yielded"])
            mask = pc.or_(mask, pc.and_not(other, pc.is_in(rows["func_id"], pa.array(self.never))) if len(self.never) else other)
        return rows.filter(mask)


@dataclass(frozen=True)
class Needs:
    """What the engines are told before they take anything. Sinks share a pass where one set of engines serves all of them.

    rows: every call as a row, in the order of time, which takes one engine. one_engine: that without rows. rows_of: rows of some calls, in no
    order. nodes: a tree of at most so many contexts. switches: what scheduled() is given. sums: keep the sums of the calls in the same pass,
    where they are not kept yet. lines: each line is a call, from the beginning of the trace on. alone: no other table and no answer.
    """

    rows: bool = False
    one_engine: bool = False
    rows_of: RowsOf | None = None
    nodes: int = 0
    switches: bool = False
    sums: bool = False
    lines: bool = False
    alone: bool = False

    def with_(self, other: "Needs") -> "Needs | None":
        """What both need; None where no engines can serve both."""
        if (self.rows_of and other.rows_of) or (self.nodes and other.nodes) or self.lines or other.lines:
            return None
        return Needs(
            self.rows or other.rows,
            self.one_engine or other.one_engine,
            self.rows_of or other.rows_of,
            max(self.nodes, other.nodes),
            self.switches or other.switches,
            self.sums or other.sums,
            self.lines,
            self.alone or other.alone,
        )


class Sink:
    """One thing that a pass makes. begin() is called first, and end() last; between them, for segments in the order of time:

    scheduled() for some that follow each other, then for each of these events(), rows() any number of times, taken(), and for all of them grouped().
    """

    table: ClassVar[Table | None] = None
    """The table that it writes; None for an answer."""

    def __init__(self, trace: Trace, into: Path | None = None) -> None:
        """Of this trace or window; `into`: the folder that its table is written to."""
        self.trace = trace
        self.segments = trace.whole.segments  # by their place; the trace makes a new list of them whenever it is asked
        self.parts: list[str] = []  # of the table, those that are written and that no later segment changes
        self._into = into

    @property
    def into(self) -> Path:
        """The folder of its table."""
        assert self._into is not None
        return self._into

    @property
    def idle(self) -> bool:
        """Whether nothing was recorded that it could be made of: then there is no pass."""
        return False

    def needs(self) -> Needs:
        """What it needs."""
        return Needs()

    def prepare(self, engines: Shards) -> None:
        """Tell fresh engines what else it needs, before they go on from a state."""

    def begin(self, engines: Shards, first: int, state: State | None) -> None:
        """Forget all; `engines` will take the segments from the `first` on. `state`: what state() gave after those before, None at the beginning.

        Raises KeyError, ValueError or pa.ArrowException for what is no such state: then it is called again with none.
        """

    def state(self) -> State:
        """What it goes on with after the segments so far, besides the engines: for begin() once the trace has grown."""
        return {}

    def scheduled(self, first: int, switches: Sequence[pa.Table], ends_ns: Sequence[int]) -> None:
        """The switches (scheduling.off_core.SCHED) of the segments from the `first` on that come next, and their ends."""

    def events(self, place: int, switches: pa.Table | None, events: Iterator[pa.Table]) -> Iterator[pa.Table]:
        """The events of the segment at `place`, on their way to the engines."""
        return events

    def rows(self, engine: Engine, rows: pa.Table) -> None:
        """Calls (schema.CALLS without worker_on_cpu_ns), there until the next but one; of several engines by a thread of each."""

    def taken(self, place: int) -> None:
        """The engines have taken the segment at `place`."""

    def grouped(self, place: int) -> None:
        """They have taken those of scheduled(), of which that at `place` is the last; where no sink wants switches, all of them."""

    def end(self) -> None:
        """They have taken all, and finished."""


class AgainError(Exception):
    """Raised by a sink that is alone: the pass has to begin anew, as it knows by now what it did not before."""


class RowsSink(Sink):
    """One that is made of some calls, those that ended in a segment at a time: part() gets them."""

    columns: Sequence[str] = ()

    def rows_of(self) -> RowsOf:
        """Which calls."""
        raise NotImplementedError

    def needs(self) -> Needs:
        return Needs(rows_of=self.rows_of())

    def begin(self, engines: Shards, first: int, state: State | None) -> None:
        self._rows_of = self.rows_of()
        self._pieces = {engine: list[pa.Table]() for engine in engines.engines}

    def rows(self, engine: Engine, rows: pa.Table) -> None:
        self._pieces[engine].append(self._rows_of.among(rows).select(list(self.columns)))

    def part(self, calls: pd.DataFrame) -> None:
        """Calls that ended in a segment, or were open at the end: `columns` of them."""
        raise NotImplementedError

    def taken(self, place: int) -> None:
        self._hand_over()

    def end(self) -> None:
        self._hand_over()

    def _hand_over(self) -> None:
        pieces = [piece for own in self._pieces.values() for piece in own]
        for own in self._pieces.values():
            own.clear()
        if pieces:
            self.part(to_frame(pa.concat_tables(pieces), CALLS))
