"""Why each thread was off its core: every interval with what it waited for, who ended it and which call was open.

The scheduling rows are read some segments at a time, as for the calls, and the same rows decide: so the waits
within a call add up to its runq_wait_ns, gil_wait_ns and blocked_ns. In the same pass over the events it turns out in which calls they
were: a wait is written once that is known for sure, by the next event of each thread that it asks for. That pass also keeps the sums of the
calls where these are not kept yet. Memory is bounded by what is open, these segments and _MOST_HELD waits.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from pytrace_ebpf.derive.arrow_table import to_arrow
from pytrace_ebpf.derive.calls.innermost import NO_CALL, Moments
from pytrace_ebpf.derive.calls.own_code import foreign
from pytrace_ebpf.derive.calls.primitives import LIBRARY, PRIMITIVES, among
from pytrace_ebpf.derive.scheduling import off_core, wait_kinds
from pytrace_ebpf.derive.scheduling.off_core import WAIT, Rows
from pytrace_ebpf.derive.scheduling.slices import Slices
from pytrace_ebpf.derive.scheduling.split import thread_keys
from pytrace_ebpf.derive.scheduling.switches import Bools, Ints
from pytrace_ebpf.derive.sink import Needs, Sink
from pytrace_ebpf.derive.store import State, checked_rows
from pytrace_ebpf.rebuild.answers import LIBRARY as THROUGH
from pytrace_ebpf.rebuild.answers import Answers
from pytrace_ebpf.rebuild.library import NO_ANSWER
from pytrace_ebpf.rebuild.shards import Shards
from pytrace_ebpf.trace.manifest import machine_of
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.trace.schema import WAIT_KINDS, WAITS
from pytrace_ebpf.trace.segments import part_name
from pytrace_ebpf.trace.writing import write

ROW_GROUP = 1 << 16
CALL_SOURCES = ("usdt", "agent")  # of processes' source
_HELD = "held"
_MOST_HELD = 1 << 16  # waits whose calls a later event may still tell: of more of them the oldest are written as if none did


class Waits(Sink):
    """Writes schema.WAITS, in each part those of some segments in the order of time; the sums of the calls are kept in the same pass."""

    table = WAITS

    @property
    def idle(self) -> bool:
        return not any(segment["rows"].get("sched") for segment in self.trace.segments)

    def needs(self) -> Needs:
        return Needs(switches=True, sums=True)

    def begin(self, engines: Shards, first: int, state: State | None) -> None:
        trace = self.trace
        self._off_core = off_core.Waits(trace.processes(), trace.losses(), trace.start_ns, machine_of(trace.manifest), trace.throttling)
        self._moments, self._held = Moments(engines, _kinds(trace.functions())), np.zeros(0, WAIT)
        if state is not None:
            self._off_core.resume(state)
            self._moments.resume(state)
            self._held = checked_rows(state[_HELD], WAIT)
            if ((self._held["kind"] < 0) | (self._held["kind"] >= len(WAIT_KINDS))).any():
                raise ValueError("no such state")
        self._writer, self._known = _Writer(trace, self.into, self.parts), _known_from(trace.processes())
        if state is not None:
            self._writer.slices.resume(state)

    def state(self) -> State:
        return self._off_core.state() | self._moments.state() | {_HELD: self._held} | self._writer.slices.state()

    def scheduled(self, first: int, switches: Sequence[pa.Table], ends_ns: Sequence[int]) -> None:
        self._held = np.concatenate((self._held, _cut(self._off_core.take(switches, ends_ns), self._known)))
        self._moments.ask(*self._writer.questions(np.concatenate((self._held, _cut(self._off_core.open(), self._known)))))

    def grouped(self, place: int) -> None:
        self._held = self._writer.write(self._held, self._moments, self.segments[place]["start_ns"])

    def end(self) -> None:
        self._writer.write(np.concatenate((self._held, _cut(self._off_core.open(self.trace.end_ns), self._known))), self._moments)


def _known_from(processes: pd.DataFrame) -> "pd.Series[int]":
    """By pid the moment at which the calls of a process were first known, after its scheduling where it ran already."""
    called = processes[processes["source"].isin(CALL_SOURCES)]
    return called.groupby("pid")["start_ns"].min()


def _cut(waits: Rows, known: "pd.Series[int]") -> Rows:
    """Waits, those during which the calls of their process became known as two: before that they are of no call, from then on of the one that was open."""
    at = known.reindex(waits["key"] >> 32).to_numpy(np.float64, na_value=-1).astype(np.int64)
    crosses = (waits["start_ns"] < at) & (at < waits["end_ns"])
    if not crosses.any():
        return waits
    at, out, before = at[crosses], waits.copy(), waits[crosses]
    blocked = before["blocked_until_ns"] >= at
    for name, value in (("waker_pid", 0), ("waker_tid", 0), ("by_timer", 0)):
        before[name][blocked] = value
    before["throttled_ns"] = np.minimum(before["throttled_ns"], 0)
    before["blocked_until_ns"] = np.minimum(before["blocked_until_ns"], at)
    before["end_ns"], before["cpu_after"] = at, -1
    out["start_ns"][crosses] = at
    out["blocked_until_ns"][crosses] = np.where(out["blocked_until_ns"][crosses] < 0, -1, np.maximum(out["blocked_until_ns"][crosses], at))
    queued = out["end_ns"][crosses] - out["blocked_until_ns"][crosses]
    out["throttled_ns"][crosses] = np.minimum(out["throttled_ns"][crosses], queued)
    return np.concatenate((before, out))


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
        self.slices = Slices()
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
        caller = np.where(named >= 0, own.caller, own.func_id)
        of_calls = {"func_id": own.func_id, "caller_func_id": caller, "own_func_id": own.own, "own_line": own.own_line}
        columns: dict[str, pa.Array] = {
            "pid": pa.array((waits["key"] >> 32).astype(np.int32)),
            "tid": pa.array((waits["key"] & 0xFFFFFFFF).astype(np.int32)),
            "call_id": pa.array(own.call_id),
            "func_id": pa.array(own.func_id.astype(np.int32)),
            "primitive_func_id": pa.array(named.astype(np.int32)),
            "caller_func_id": pa.array(caller.astype(np.int32)),
            "slices": pa.array(self.slices.number(waits, of_calls).astype(np.int32)),
            "kind": pa.DictionaryArray.from_arrays(waits["kind"].astype(np.int32), list(WAIT_KINDS)),
            "syscall": pa.array(syscalls, pa.string()).dictionary_encode(),
            "holder_call_id": _at(asked.held, holder.call_id, len(waits)),
            "own_func_id": pa.array(own.own.astype(np.int32)),
            "own_line": pa.array(own.own_line.astype(np.int32), mask=own.own_line <= 0),
            "own_called_func_id": pa.array(own.own_called.astype(np.int32)),
            "holder_own_func_id": _at(asked.held, holder.own, len(waits)).cast(pa.int32()),
            "waker_own_func_id": _at(asked.ended, waker.own, len(waits)).cast(pa.int32()),
            "holder_func_id": _at(asked.held, holder.func_id, len(waits)).cast(pa.int32()),
            "waker_func_id": _at(asked.ended, waker.func_id, len(waits)).cast(pa.int32()),
            "waker_primitive_func_id": _at(asked.ended, np.where(waker.caller >= 0, waker.entry, NO_CALL), len(waits)).cast(pa.int32()),
            "waker_caller_func_id": _at(asked.ended, np.where(waker.caller >= 0, waker.caller, waker.func_id), len(waits)).cast(pa.int32()),
        }
        return to_arrow(WAITS, waits, columns)


def _kinds(functions: pd.DataFrame) -> npt.NDArray[np.uint8]:
    """What each function is, as of Engine.ask()."""
    what = foreign(functions)
    what[among(functions, LIBRARY)] |= THROUGH
    return what


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
