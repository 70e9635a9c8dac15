"""Why each thread was off its core: every interval with what it waited for, who ended it and which call was open.

The scheduling rows are read some segments at a time, as for the calls, and the same rows decide: so the waits
within a call add up to its runq_wait_ns, gil_wait_ns and blocked_ns. In the same pass over the events it turns out in which calls they
were: a wait is written once that is known for sure, by the next event of each thread that it asks for. That pass also keeps the sums of the
calls where these are not kept yet, and serves who observes it. Memory is bounded by what is open,
these segments and _MOST_HELD waits.
"""

from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pytrace_ebpf.analyze.arrow_table import to_arrow
from pytrace_ebpf.analyze.rebuilt.incremental import Growth, checked_rows
from pytrace_ebpf.analyze.rebuilt.innermost import NO_CALL, Moments
from pytrace_ebpf.analyze.rebuilt.pass_observers import observer_of
from pytrace_ebpf.analyze.rebuilt.passes import segments, shards_of
from pytrace_ebpf.analyze.rebuilt.read_ahead import PIECE, sched_groups
from pytrace_ebpf.analyze.rebuilt.sums import beside
from pytrace_ebpf.analyze.time.split import thread_keys
from pytrace_ebpf.analyze.time.switches import Bools, Ints
from pytrace_ebpf.analyze.waits import wait_kinds
from pytrace_ebpf.analyze.waits.off_core import SCHED, WAIT, Rows, Waits
from pytrace_ebpf.analyze.waits.primitives import LIBRARY, PRIMITIVES, among
from pytrace_ebpf.rebuild.engine import Answers
from pytrace_ebpf.rebuild.library import NO_ANSWER
from pytrace_ebpf.rebuild.shards import Shards
from pytrace_ebpf.trace.derived import Settled
from pytrace_ebpf.trace.manifest import machine_of
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.trace.schema import WAIT_KINDS, WAITS
from pytrace_ebpf.trace.segments import part_name
from pytrace_ebpf.trace.writing import write

ROW_GROUP = 1 << 16
_AT_ONCE = 1 << 17  # rows of as many segments as have them: what is done for each open wait is not done for each segment
_HELD = "held"
_MOST_HELD = 1 << 16  # waits whose calls a later event may still tell: of more of them the oldest are written as if none did


def derive(trace: Trace, into: Path) -> Settled | None:
    """Write the waits of `trace` as Parquet parts into the folder `into`, in each those of some segments in the order of time."""
    if not any(segment["rows"].get("sched") for segment in trace.segments):
        return None
    made, keeper = beside(trace)
    growth = Growth(trace, WAITS, into, partial(shards_of, trace), made)
    try:
        stream, moments, held = _begun(trace, growth)
    except (KeyError, ValueError):
        growth.refuse()
        stream, moments, held = _begun(trace, growth)
    # Both need engines that take all of it.
    whole = growth.engines is made and not growth.first
    keeper, observer = (keeper, observer_of(trace)) if whole else (None, None)
    if observer:
        observer.begin(made)
    writer, engines, listed = _Writer(trace, into, growth.parts), growth.engines, trace.segments
    for place, sched in sched_groups(trace, listed[growth.first :], SCHED, _AT_ONCE):
        first, last = growth.first + place, growth.first + place + len(sched)
        ends = [segment["end_ns"] for segment in listed[first:last]]
        held = np.concatenate((held, stream.take(sched, ends)))
        if observer:
            observer.scheduled(made, sched, ends)
        moments.ask(*writer.questions(np.concatenate((held, stream.open()))))
        for place_of, (events, end_ns) in enumerate(segments(trace, engines, first, last, sched), first):
            engines.take(observer.passing(place_of, sched[place_of - first], events) if observer else events, end_ns, PIECE)
            if keeper:
                keeper.took(place_of, place_of + 1 == len(listed))
        if observer:
            observer.taken(listed[last - 1]["start_ns"])
        held = writer.write(held, moments, listed[last - 1]["start_ns"])
    if growth.due(len(listed)):
        growth.settle(growth.parts, stream.state() | moments.state() | {_HELD: held})
    engines.finish(trace.end_ns)
    if observer:
        observer.end(engines)
    writer.write(np.concatenate((held, stream.open(trace.end_ns))), moments)
    return growth.settled


def _begun(trace: Trace, growth: Growth[Shards]) -> tuple[Waits, Moments, Rows]:
    """What follows the scheduling, what is asked of the engines, and the waits that are held back. Raises KeyError and ValueError for no such state."""
    stream = Waits(trace.processes(), trace.losses(), trace.start_ns, machine_of(trace.manifest))
    moments, held = Moments(growth.engines, among(trace.functions(), LIBRARY)), np.zeros(0, WAIT)
    if growth.state is not None:
        stream.resume(growth.state)
        moments.resume(growth.state)
        held = checked_rows(growth.state[_HELD], WAIT)
        if ((held["kind"] < 0) | (held["kind"] >= len(WAIT_KINDS))).any():
            raise ValueError("no such state")
    return stream, moments, held


class _Questions(NamedTuple):
    """Of waits: in which call the thread was, that which held the GIL (of the rows `held`), and that which ended the wait (of `ended`)."""

    own: tuple[Ints, Ints]
    holder: tuple[Ints, Ints]
    waker: tuple[Ints, Ints]
    held: Ints
    ended: Ints


class _Writer:
    """Writes waits once it is known in which calls they were."""

    def __init__(self, trace: Trace, into: Path, parts: list[str]) -> None:
        """`parts`: those that are there; further ones are added."""
        self._into, self._parts = into, parts
        self._machine = machine_of(trace.manifest)
        self._pids, self._primitives = trace.processes()["pid"].to_numpy(), among(trace.functions(), PRIMITIVES)

    def questions(self, waits: Rows) -> tuple[Ints, Ints]:
        """The moments (thread, ts) that have to be known of `waits` (WAIT)."""
        asked = self._asked(waits)
        key, ts = (np.concatenate(parts) for parts in zip(asked.own, asked.holder, asked.waker, strict=True))
        return key, ts

    def write(self, waits: Rows, moments: Moments, until_ns: int | None = None) -> Rows:
        """Write those of `waits` of which everything is known, as a part; returns the others, but at most _MOST_HELD that ended before `until_ns`.

        None: write all of them.
        """
        asked = self._asked(waits)
        unknown = self._unknown(asked, moments)
        if until_ns is None:
            unknown[:] = False
        elif len(late := np.flatnonzero(unknown & (waits["end_ns"] < until_ns))) > _MOST_HELD:
            oldest = late[np.argsort(waits["end_ns"][late], kind="stable")[:-_MOST_HELD]]
            moments.settle(int(waits["end_ns"][oldest[-1]]) + 1)
            unknown = self._unknown(asked, moments)
            unknown[oldest] = False
        if not unknown.all():
            order = np.flatnonzero(~unknown)
            order = order[np.lexsort((waits["key"][order], waits["start_ns"][order]))]
            table = self._table(waits[order], moments)
            self._parts.append(part_name(len(self._parts)))
            write(WAITS, table, self._into / self._parts[-1], row_group_size=ROW_GROUP)
        return waits[unknown]

    def _unknown(self, asked: _Questions, moments: Moments) -> Bools:
        own, holder, waker = (_unanswered(moments.answers(*of)) for of in (asked.own, asked.holder, asked.waker))
        own[asked.held] |= holder
        own[asked.ended] |= waker
        return own

    def _asked(self, waits: Rows) -> _Questions:
        key, start = waits["key"], waits["start_ns"]
        gil, preempted = (waits["kind"] == WAIT_KINDS.index(kind) for kind in ("gil", "preempted"))
        until = np.where(preempted, start, np.where(waits["blocked_until_ns"] < 0, waits["end_ns"], waits["blocked_until_ns"]))
        held = np.flatnonzero(waits["holder_tid"] > 0)
        ended = np.flatnonzero(~gil & (waits["waker_tid"] > 0) & np.isin(waits["waker_pid"], self._pids))
        holder = thread_keys(key[held] >> 32, waits["holder_tid"][held])
        waker = thread_keys(waits["waker_pid"][ended], waits["waker_tid"][ended])
        return _Questions((key, start), (holder, start[held]), (waker, until[ended]), held, ended)

    def _table(self, waits: Rows, moments: Moments) -> pa.Table:
        asked = self._asked(waits)
        answers = (moments.answers(*of) for of in (asked.own, asked.holder, asked.waker))
        own, holder, waker = (Answers(*(np.maximum(column, NO_CALL) for column in of)) for of in answers)
        named = _primitive(own, self._primitives)
        syscalls = wait_kinds.names(waits["syscall"], self._machine)
        columns: dict[str, pa.Array] = {
            "pid": pa.array((waits["key"] >> 32).astype(np.int32)),
            "tid": pa.array((waits["key"] & 0xFFFFFFFF).astype(np.int32)),
            "call_id": pa.array(own.call_id),
            "func_id": pa.array(own.func_id.astype(np.int32)),
            "primitive_func_id": pa.array(named.astype(np.int32)),
            "caller_func_id": pa.array(np.where(named >= 0, own.caller, own.func_id).astype(np.int32)),
            "kind": pa.DictionaryArray.from_arrays(waits["kind"].astype(np.int32), list(WAIT_KINDS)),
            "syscall": pa.array(syscalls, pa.string()).dictionary_encode(),
            "holder_call_id": _at(asked.held, holder.call_id, len(waits)),
            "holder_func_id": _at(asked.held, holder.func_id, len(waits)).cast(pa.int32()),
            "waker_func_id": _at(asked.ended, waker.func_id, len(waits)).cast(pa.int32()),
            "waker_primitive_func_id": _at(asked.ended, np.where(waker.caller >= 0, waker.entry, NO_CALL), len(waits)).cast(pa.int32()),
            "waker_caller_func_id": _at(asked.ended, np.where(waker.caller >= 0, waker.caller, waker.func_id), len(waits)).cast(pa.int32()),
        }
        return to_arrow(WAITS, waits, columns)


def _unanswered(answers: Answers) -> Bools:
    return (answers.call_id == NO_ANSWER) | (answers.func_id == NO_ANSWER)


def _primitive(own: Answers, primitives: npt.NDArray[np.bool_]) -> Ints:
    """The function of PRIMITIVES that the program called and that waits; NO_CALL for none."""
    called = (own.entry >= 0) & (own.caller >= 0)
    return np.where(called & np.append(primitives, False)[np.where(called, own.entry, len(primitives))], own.entry, NO_CALL)


def _at(places: Ints, values: npt.NDArray[np.integer[Any]], length: int) -> pa.Array:
    """An array of NO_CALL but at `places`."""
    out = np.full(length, NO_CALL, np.int64)
    out[places] = values
    return pa.array(out)
