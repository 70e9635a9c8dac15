"""Why each thread was off its core: every interval with what it waited for, who ended it and which call was open.

The scheduling rows are read a segment at a time, as for the calls, and the same rows decide: so the waits
within a call add up to its runq_wait_ns, gil_wait_ns and blocked_ns.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from pytrace_ebpf.analyze.arrow_table import to_arrow
from pytrace_ebpf.analyze.rebuilt.innermost import NO_CALL, Innermost, innermost
from pytrace_ebpf.analyze.time import split
from pytrace_ebpf.analyze.time.switches import GIL, OFF, ON_CPU, RUNQ, Bools, Ints, States, Switches
from pytrace_ebpf.analyze.time.windows import windows_of
from pytrace_ebpf.analyze.waits import wait_kinds
from pytrace_ebpf.analyze.waits.primitives import LIBRARY, PRIMITIVES, among
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.trace.schema import SCHED_LOSSES, SYSCALL_UNKNOWN, WAIT_KINDS, WAITS, SchedKind

ROW_GROUP = 1 << 16
_AT_ONCE = 1 << 17  # rows of as many segments as have them: what is done for each open wait is not done for each segment
HOLDER_UNKNOWN = -1
_SCHED = ("ts", "pid", "tid", "kind", "cpu", "state", "syscall", "address", "other_pid", "other_tid", "holder_tid")
_ROW = np.dtype(
    [
        ("thread", "i4"), ("ts", "i8"), ("kind", "i1"), ("cpu", "i2"), ("state", "i4"), ("syscall", "i4"), ("address", "i8"),
        ("other_pid", "i4"), ("other_tid", "i4"), ("holder_tid", "i4"), ("to", "i1"),
    ]
)  # fmt: skip
_WAIT = np.dtype(
    [
        ("key", "i8"), ("start_ns", "i8"), ("blocked_until_ns", "i8"), ("end_ns", "i8"), ("kind", "i1"), ("syscall", "i4"),
        ("lock_address", "i8"), ("waker_pid", "i4"), ("waker_tid", "i4"), ("holder_tid", "i4"), ("cpu_before", "i2"), ("cpu_after", "i2"),
    ]
)  # fmt: skip
"""schema.WAITS: key = (pid << 32 | tid), kind a place in WAIT_KINDS, -1 null; of waker_tid too."""

_Rows = npt.NDArray[Any]


def derive(trace: Trace, into: Path) -> None:
    """Write the waits of `trace` as a Parquet part into the folder `into`."""
    waits = np.concatenate([np.zeros(0, _WAIT), *_all(trace)])
    waits = waits[np.lexsort((waits["key"], waits["start_ns"]))]
    if len(waits):
        names = wait_kinds.names(waits["syscall"], trace.manifest["host"].get("machine", ""))
        table = _table(trace, waits, names)
        pq.write_table(table, into / "part-00000.parquet", row_group_size=ROW_GROUP, compression="lz4")


def _all(trace: Trace) -> Iterator[_Rows]:
    stream = Waits(trace.processes(), trace.losses(), trace.start_ns, trace.manifest["host"].get("machine", ""))
    segments, waiting, rows = trace.segments, list[pa.Table](), 0
    for count, segment in enumerate(segments, 1):
        trace.progress("Reading switches", count / len(segments))
        waiting.append(trace.part("sched", segment["index"], _SCHED))
        rows += len(waiting[-1])
        if rows >= _AT_ONCE or count == len(segments):
            yield stream.take(waiting, [each["end_ns"] for each in segments[count - len(waiting) : count]])
            waiting, rows = [], 0
    yield stream.finish(trace.end_ns)


class Waits:
    """Waits (_WAIT) from scheduling rows, some segments at a time."""

    def __init__(self, processes: pd.DataFrame, losses: pd.DataFrame, start_ns: int, machine: str) -> None:
        """The tables schema.PROCESSES and LOSSES, when recording began, and what `uname -m` said."""
        self._processes, self._machine = processes, machine
        self._states = States(start_ns, windows_of(losses, SCHED_LOSSES))
        self._keys = np.zeros(0, np.int64)
        self._number: dict[int, int] = {}
        self._going_on = np.zeros(0, _ROW)  # rows of the waits that have not ended

    def take(self, parts: Sequence[pa.Table], ends_ns: Sequence[int]) -> _Rows:
        """The waits that ended in some segments that follow each other, from their rows of schema.SCHED and their ends."""
        sched, segment = pa.concat_tables(parts), np.repeat(np.arange(len(parts)), [len(part) for part in parts])
        unique, inverse = np.unique(split.thread_keys(sched["pid"].to_numpy(), sched["tid"].to_numpy()), return_inverse=True)
        new = np.array([key for key in unique.tolist() if key not in self._number], np.int64)
        self._number.update(zip(new.tolist(), range(len(self._keys), len(self._keys) + len(new)), strict=True))
        self._keys = np.concatenate((self._keys, new))
        self._states.grow(split.gil_ranges(self._processes, new >> 32))
        thread = np.array([self._number[key] for key in unique.tolist()], np.int64)[inverse]
        rows = np.concatenate((self._going_on, _rows(self._states.take(thread, sched, segment, ends_ns), sched)))
        rows = rows[np.argsort(rows["thread"], kind="stable")]
        begin, end, continues = _intervals(rows)
        over = end < len(rows)
        over[over] = rows["thread"][end[over]] == rows["thread"][begin[over]]
        last_begin = np.maximum.accumulate(np.where(continues, -1, np.arange(len(rows))))
        self._going_on = rows[np.isin(last_begin, begin[~over])]
        begin, end = begin[over], end[over]
        return self._waits(rows, begin, rows["ts"][end], np.where(rows["to"][end] == ON_CPU, rows["cpu"][end], -1), continues)

    def finish(self, end_ns: int) -> _Rows:
        """Those that had not ended at `end_ns`, when the recording did."""
        rows = self._going_on
        begin, _, continues = _intervals(rows)
        end = np.maximum.reduceat(rows["ts"], begin) if len(begin) else rows["ts"]
        return self._waits(rows, begin, np.maximum(end, end_ns), np.full(len(begin), -1), continues)

    def _waits(self, rows: _Rows, begin: Ints, end_ns: Ints, cpu_after: Ints, continues: Bools) -> _Rows:
        """The waits that rows `begin` began, ended at `end_ns` by getting the core `cpu_after`."""
        first = rows[begin]
        queued, unsplit = first["to"] == RUNQ, first["to"] == OFF
        woken = np.append(continues, False)[begin + 1] & ~queued
        waker = rows[np.where(woken, begin + 1, begin)]
        ended_by = woken | queued
        out = np.zeros(len(begin), _WAIT)
        out["key"], out["start_ns"], out["end_ns"] = self._keys[first["thread"]], first["ts"], end_ns
        out["blocked_until_ns"] = np.where(unsplit, -1, np.where(ended_by, waker["ts"], end_ns))
        out["kind"] = wait_kinds.kinds(first, self._machine)
        out["syscall"] = np.where(queued | unsplit, -1, first["syscall"])
        futex = np.isin(out["kind"], [WAIT_KINDS.index("gil"), WAIT_KINDS.index("lock")])
        out["lock_address"] = np.where(futex, first["address"], -1)
        for column, source in (("waker_pid", "other_pid"), ("waker_tid", "other_tid")):
            out[column] = np.where(first["syscall"] == SYSCALL_UNKNOWN, -1, np.where(ended_by, waker[source], 0))
        out["holder_tid"] = np.where((first["to"] == GIL) & (first["kind"] == SchedKind.OUT), first["holder_tid"], HOLDER_UNKNOWN)
        out["cpu_before"] = np.where(first["kind"] == SchedKind.OUT, first["cpu"], -1)
        out["cpu_after"] = cpu_after
        return out[out["end_ns"] > out["start_ns"]]


def _rows(switches: Switches, sched: pa.Table) -> _Rows:
    out = np.zeros(len(switches.ts), _ROW)
    for name in ("thread", "ts", "kind", "cpu", "state", "syscall", "address", "other_tid", "to"):
        out[name] = getattr(switches, name)
    recorded = switches.row >= 0
    for name in ("other_pid", "holder_tid"):
        out[name][recorded] = sched[name].to_numpy()[switches.row[recorded]]
    return out


def _intervals(rows: _Rows) -> tuple[Ints, Ints, Bools]:
    """The rows that begin a wait, for each the row that ends it (which may be another thread's, or none), and which go on with one."""
    off = (rows["to"] >= RUNQ) & (rows["to"] <= OFF)
    continues = np.zeros(len(rows), bool)
    continues[1:] = off[1:] & off[:-1] & (rows["kind"][1:] == SchedKind.WAKING) & (rows["thread"][1:] == rows["thread"][:-1])
    begin = np.flatnonzero(off & ~continues)
    borders = np.append(np.flatnonzero(~continues), len(rows))
    return begin, borders[np.searchsorted(borders, begin, side="right")], continues


def _table(trace: Trace, waits: _Rows, syscalls: npt.NDArray[np.object_]) -> pa.Table:
    pid, tid, start = (waits["key"] >> 32).astype(np.int32), (waits["key"] & 0xFFFFFFFF).astype(np.int32), waits["start_ns"]
    gil, preempted = (waits["kind"] == WAIT_KINDS.index(kind) for kind in ("gil", "preempted"))
    until = np.where(preempted, start, np.where(waits["blocked_until_ns"] < 0, waits["end_ns"], waits["blocked_until_ns"]))
    held = np.flatnonzero(waits["holder_tid"] > 0)
    ended = np.flatnonzero(~gil & (waits["waker_tid"] > 0) & np.isin(waits["waker_pid"], trace.processes()["pid"]))
    asked = np.array(
        [
            np.concatenate((pid, pid[held], waits["waker_pid"][ended])),
            np.concatenate((tid, waits["holder_tid"][held], waits["waker_tid"][ended])),
            np.concatenate((start, start[held], until[ended])),
        ]
    )
    functions = trace.functions()
    found = innermost(trace, asked[0], asked[1], asked[2], among(functions, LIBRARY))
    borders = np.cumsum([len(waits), len(held)])
    own, holder, waker = (Innermost(*each) for each in zip(*(np.split(column, borders) for column in found), strict=True))
    named = _primitive(own, among(functions, PRIMITIVES))
    columns: dict[str, pa.Array] = {
        "pid": pa.array(pid),
        "tid": pa.array(tid),
        "call_id": pa.array(own.call_id),
        "func_id": pa.array(own.func_id.astype(np.int32)),
        "primitive_func_id": pa.array(named.astype(np.int32)),
        "caller_func_id": pa.array(np.where(named >= 0, own.caller, own.func_id).astype(np.int32)),
        "kind": pa.DictionaryArray.from_arrays(waits["kind"].astype(np.int32), list(WAIT_KINDS)),
        "syscall": pa.array(syscalls, pa.string()).dictionary_encode(),
        "holder_call_id": _at(held, holder.call_id, len(waits)),
        "holder_func_id": _at(held, holder.func_id, len(waits)).cast(pa.int32()),
        "waker_func_id": _at(ended, waker.func_id, len(waits)).cast(pa.int32()),
        "waker_primitive_func_id": _at(ended, np.where(waker.caller >= 0, waker.entry, NO_CALL), len(waits)).cast(pa.int32()),
        "waker_caller_func_id": _at(ended, np.where(waker.caller >= 0, waker.caller, waker.func_id), len(waits)).cast(pa.int32()),
    }
    return to_arrow(WAITS, waits, columns)


def _primitive(own: Innermost, primitives: npt.NDArray[np.bool_]) -> Ints:
    """The function of PRIMITIVES that the program called and that waits; NO_CALL for none."""
    called = (own.entry >= 0) & (own.caller >= 0)
    return np.where(called & np.append(primitives, False)[np.where(called, own.entry, len(primitives))], own.entry, NO_CALL)


def _at(places: Ints, values: Ints, length: int) -> pa.Array:
    """An array of NO_CALL but at `places`."""
    out = np.full(length, NO_CALL, np.int64)
    out[places] = values
    return pa.array(out)
