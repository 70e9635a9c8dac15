"""The calls of which it was recorded what they were given and returned, with that: one pass, no rows of other calls are kept.

Memory is bounded by a segment (of a window by those that it touches), the calls that are open, and values that belong to no call because that was lost.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pytrace_ebpf.analyze.rebuilt.calls import rebuild
from pytrace_ebpf.analyze.rebuilt.incremental import Growth, State
from pytrace_ebpf.rebuild.engine import Engine
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.trace.schema import OBSERVED

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


def joined(
    trace: Trace, columns: Sequence[str], waiting: "Waiting | None" = None, growth: Growth[Engine] | None = None
) -> Iterator[Iterator[Joined]]:
    """For each segment, and for what was open at the end, the calls that ended in it and have values, with `columns`; a piece at a time.

    `growth`: of a whole trace, from where that begins; then `waiting` has what waits there.
    """
    if not has_values(trace):
        return
    waiting, indices = waiting or Waiting(), [segment["index"] for segment in trace.segments]
    in_step = trace.whole is trace  # what rebuilds a window may begin before it
    for index in () if in_step else indices:
        waiting.add(trace.part("observed", index))
    for number, pieces in enumerate(rebuild(trace, growth), growth.first if growth else 0):
        if in_step and number < len(indices):
            waiting.add(trace.part("observed", indices[number]))
        yield (found for piece in pieces if (found := waiting.take(piece, columns)) is not None)


class Waiting:
    """Rows of `observed` whose calls have not been seen yet, in the order of time."""

    def __init__(self, state: State | None = None) -> None:
        """`state`: of an earlier one. Raises KeyError, ValueError and pa.ArrowException where it is none."""
        self._keep(OBSERVED.arrow.empty_table() if state is None else _unpacked(state))

    def state(self) -> State:
        """The rows, to go on from."""
        out = pa.BufferOutputStream()
        with pa.ipc.new_stream(out, self._rows.schema) as stream:
            stream.write_table(self._rows)
        return {_WAITING: np.frombuffer(out.getvalue(), np.uint8)}

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


def _unpacked(state: State) -> pa.Table:
    rows = pa.ipc.open_stream(state[_WAITING].tobytes()).read_all()
    rows.validate(full=True)
    if rows.schema != OBSERVED.arrow:
        raise ValueError("no such state")
    return rows
