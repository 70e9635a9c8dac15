"""The calls of which it was recorded what they were given and returned, with that: no rows of other calls are kept.

Memory is bounded by a segment (of a window by those that it touches), the calls that are open, and values that belong to no call because that was lost.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pytrace_ebpf.derive.sink import Needs, Sink
from pytrace_ebpf.derive.store import State
from pytrace_ebpf.rebuild.engine import Engine
from pytrace_ebpf.rebuild.shards import Shards
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.trace.schema import OBSERVED
from pytrace_ebpf.trace.table import Table

_WHO = ("pid", "tid")
_WAITING = "waiting"

Ints = npt.NDArray[np.int64]


class Joined(NamedTuple):
    """Some calls, columns of schema.CALLS; rows of schema.OBSERVED; and of each of these the place of its call."""

    calls: pa.Table
    values: pa.Table
    call: Ints


def has_values(trace: Trace) -> bool:
    """Whether anything was recorded of what calls were given and returned."""
    return any(segment["rows"].get("observed") for segment in trace.segments)


class Waiting:
    """Rows of `observed` whose calls have not been seen yet, in the order of time."""

    def __init__(self, state: State | None = None) -> None:
        """`state`: of an earlier one. Raises KeyError, ValueError and pa.ArrowException where it is none."""
        self._keep(OBSERVED.arrow.empty_table() if state is None else unpacked(OBSERVED, state[_WAITING]))

    def state(self) -> State:
        """The rows, to go on from."""
        return {_WAITING: packed(self._rows)}

    def add(self, rows: pa.Table) -> None:
        self._keep(pa.concat_tables([self._rows, rows]))

    def _keep(self, rows: pa.Table) -> None:
        rows = rows.unify_dictionaries().combine_chunks()
        ts = rows["ts"].to_numpy()
        order = np.argsort(ts, kind="stable")
        self._rows = rows if (order[1:] > order[:-1]).all() else rows.take(pa.array(order))
        self._ts = self._rows["ts"].to_numpy()
        self._is_argument = pc.equal(self._rows["what"], "argument").to_numpy(zero_copy_only=False).astype(bool)

    def take(self, calls: pa.Table, columns: Sequence[str]) -> Joined | None:
        """What belongs to these calls, None where nothing does; it does not wait any more."""
        if not len(self._ts):
            return None
        pairs = [self._pairs(calls, end, is_argument) for end, is_argument in (("start_ns", True), ("end_ns", False))]
        call, value = (np.concatenate(part) for part in zip(*pairs, strict=True))
        if not len(call):
            return None
        order = np.lexsort((value, call))
        own, place = np.unique(call[order], return_inverse=True)
        found = Joined(calls.select(columns).take(pa.array(own)), self._rows.take(pa.array(value[order])), place.astype(np.int64))
        left = np.ones(len(self._ts), np.bool_)
        left[value] = False
        self._keep(self._rows.filter(pa.array(left)))
        return found

    def _pairs(self, calls: pa.Table, end: str, is_argument: bool) -> tuple[Ints, Ints]:
        """(row of calls, row that waits) of those of one thread and one moment."""
        moments = calls[end].to_numpy()
        first, last = (np.searchsorted(self._ts, moments, side) for side in ("left", "right"))
        some = np.flatnonzero(last > first)
        counts = (last - first)[some]
        call = np.repeat(some, counts)
        value = np.arange(len(call)) - np.repeat(np.cumsum(counts) - counts, counts) + np.repeat(first[some], counts)
        same: Any = self._is_argument[value] == is_argument
        for name in _WHO:
            same = same & (calls[name].to_numpy()[call] == self._rows[name].to_numpy()[value])
        return call[same], value[same]


def packed(rows: pa.Table) -> npt.NDArray[np.uint8]:
    """Rows as a state has them."""
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, rows.schema) as stream:
        stream.write_table(rows)
    return np.frombuffer(out.getvalue(), np.uint8)


def unpacked(table: Table, content: npt.NDArray[Any]) -> pa.Table:
    """Rows of a table that packed() made. Raises ValueError and pa.ArrowException for what is none."""
    rows = pa.ipc.open_stream(content.tobytes()).read_all()
    rows.validate(full=True)
    if rows.schema != table.arrow:
        raise ValueError("no such state")
    return rows


class ObservedSink(Sink):
    """One that is made of the calls that have values: found() gets them, some at a time."""

    columns: Sequence[str] = ()

    @property
    def idle(self) -> bool:
        return not has_values(self.trace)

    def needs(self) -> Needs:
        return Needs(rows=True)

    def begin(self, engines: Shards, first: int, state: State | None) -> None:
        self._waiting = Waiting(state)
        if self.trace.whole is not self.trace:  # what rebuilds a window may begin before it
            for segment in self.trace.segments:
                self._add(segment)

    def state(self) -> State:
        return self._waiting.state()

    def events(self, place: int, switches: pa.Table | None, events: Iterator[pa.Table]) -> Iterator[pa.Table]:
        if self.trace.whole is self.trace:
            self._add(self.segments[place])
        return events

    def _add(self, segment: dict[str, Any]) -> None:
        self._waiting.add(self.wanted(self.trace.part(OBSERVED.name, segment["index"])))

    def wanted(self, rows: pa.Table) -> pa.Table:
        """Those of rows of schema.OBSERVED that are to be joined."""
        return rows

    def rows(self, engine: Engine, rows: pa.Table) -> None:
        if (joined := self._waiting.take(rows, self.columns)) is not None:
            self.found(joined)

    def found(self, joined: Joined) -> None:
        """Calls that have ended, with `columns`, and their values."""
        raise NotImplementedError
