"""The intervals that threads were off their cores, from scheduling events: what each was for and who ended it, some segments at a time."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from pytrace_ebpf.derive.scheduling import split, wait_kinds
from pytrace_ebpf.derive.scheduling.switches import BLOCKED, GIL, OFF, ON_CPU, RUNQ, SLEPT, Bools, Ints, States, Switches
from pytrace_ebpf.derive.scheduling.windows import windows_of
from pytrace_ebpf.derive.store import checked_rows
from pytrace_ebpf.trace.schema import SCHED_LOSSES, SYSCALL_UNKNOWN, WAIT_KINDS, SchedKind

HOLDER_UNKNOWN = -1
SCHED = ("ts", "pid", "tid", "kind", "cpu", "state", "syscall", "address", "other_pid", "other_tid", "holder_tid", "resource_id")
"""Columns of schema.SCHED that are needed."""
_NEVER = 1 << 62
_BY_TIMER = 1 | 4  # BY_TIMER and BY_SOFTIRQ of probes/events.h
_ROW = np.dtype(
    [
        ("thread", "i4"), ("ts", "i8"), ("kind", "i1"), ("cpu", "i2"), ("state", "i4"), ("syscall", "i4"), ("address", "i8"),
        ("other_pid", "i4"), ("other_tid", "i4"), ("holder_tid", "i4"), ("resource_id", "i8"), ("to", "i1"),
    ]
)  # fmt: skip
WAIT = np.dtype(
    [
        ("key", "i8"), ("start_ns", "i8"), ("blocked_until_ns", "i8"), ("end_ns", "i8"), ("kind", "i1"), ("syscall", "i4"),
        ("lock_address", "i8"), ("resource_id", "i8"), ("waker_pid", "i4"), ("waker_tid", "i4"), ("holder_tid", "i4"),
        ("throttled_ns", "i8"), ("cpu_before", "i2"), ("cpu_after", "i2"), ("by_timer", "i1"),
    ]
)  # fmt: skip
"""schema.WAITS: key = (pid << 32 | tid), kind a place in WAIT_KINDS, -1 null; of waker_tid too, of resource_id and of throttled_ns; by_timer: a timer ended it."""

Rows = npt.NDArray[Any]


class Waits:
    """Waits (WAIT) from scheduling rows, some segments at a time."""

    def __init__(self, processes: pd.DataFrame, losses: pd.DataFrame, start_ns: int, machine: str, throttling: bool = False) -> None:
        """The tables schema.PROCESSES and LOSSES, when recording began, what `uname -m` said, and whether it was recorded for how long threads were throttled."""
        self._processes, self._machine, self._throttling = processes, machine, throttling
        self._states = States(start_ns, windows_of(losses, SCHED_LOSSES), machine)
        self._threads = split.Threads()
        self._going_on = np.zeros(0, _ROW)  # rows of the waits that have not ended

    def state(self) -> dict[str, Rows]:
        """What goes on after the segments so far, for resume()."""
        known, passed = self._states.save()
        return {"keys": self._threads.keys, "known": known, "passed": np.array([passed]), "going_on": self._going_on}

    def resume(self, state: Mapping[str, Rows]) -> None:
        """Go on from there, before anything is taken. Raises KeyError, and ValueError for what is no such state."""
        keys, going_on = checked_rows(state["keys"], np.dtype(np.int64)), checked_rows(state["going_on"], _ROW)
        known, passed = checked_rows(state["known"], np.dtype(np.uint8)), checked_rows(state["passed"], np.dtype(np.int64))
        if len(np.unique(keys)) < len(keys) or len(known) != len(keys) or len(passed) != 1:
            raise ValueError("no such state")
        if len(going_on) and not 0 <= going_on["thread"].min() <= going_on["thread"].max() < len(keys):
            raise ValueError("no such state")
        self._threads.resume(keys)
        self._states.grow(split.gil_ranges(self._processes, keys >> 32))
        self._states.resume(known, int(passed[0]))
        self._going_on = going_on

    def take(self, parts: Sequence[pa.Table], ends_ns: Sequence[int]) -> Rows:
        """The waits that ended in some segments that follow each other, from their rows of schema.SCHED and their ends."""
        sched, segment = pa.concat_tables(parts), np.repeat(np.arange(len(parts)), [len(part) for part in parts])
        thread, new = self._threads.number(split.thread_keys(sched["pid"].to_numpy(), sched["tid"].to_numpy()))
        self._states.grow(split.gil_ranges(self._processes, new >> 32))
        rows = np.concatenate((self._going_on, _rows(self._states.take(thread, sched, segment, ends_ns), sched)))
        rows = rows[np.argsort(rows["thread"], kind="stable")]
        begin, end, continues = _intervals(rows)
        over = end < len(rows)
        over[over] = rows["thread"][end[over]] == rows["thread"][begin[over]]
        last_begin = np.maximum.accumulate(np.where(continues, -1, np.arange(len(rows))))
        self._going_on = rows[np.isin(last_begin, begin[~over])]
        begin, end = begin[over], end[over]
        got = rows["to"][end] == ON_CPU
        throttled = np.where(got & (rows["kind"][end] == SchedKind.IN), rows["address"][end], 0)
        return self._waits(rows, begin, rows["ts"][end], got, np.where(got, rows["cpu"][end], -1), throttled, continues)

    def open(self, end_ns: int = _NEVER) -> Rows:
        """Those that have not ended so far, as if at `end_ns` they did."""
        rows = self._going_on
        begin, _, continues = _intervals(rows)
        end = np.maximum.reduceat(rows["ts"], begin) if len(begin) else rows["ts"]
        got, unknown = np.zeros(len(begin), bool), np.full(len(begin), -1)
        return self._waits(rows, begin, np.maximum(end, end_ns), got, unknown, np.zeros(len(begin), np.int64), continues)

    def _waits(self, rows: Rows, begin: Ints, end_ns: Ints, got: Bools, cpu_after: Ints, throttled: Ints, continues: Bools) -> Rows:
        """The waits that rows `begin` began, ended at `end_ns`: those that `got` a core, `cpu_after`, and were `throttled` for so long."""
        first = rows[begin]
        recorded = first["to"] == SLEPT  # but not when it was woken
        queued, unsplit = first["to"] == RUNQ, (first["to"] == OFF) | recorded
        first["to"][recorded] = np.where(self._states.is_gil(first["thread"], first["syscall"], first["address"]), GIL, BLOCKED)[recorded]
        woken = np.append(continues, False)[begin + 1] & ~queued
        waker = rows[np.where(woken, begin + 1, begin)]
        ended_by = woken | queued
        out = np.zeros(len(begin), WAIT)
        out["key"], out["start_ns"], out["end_ns"] = self._threads.keys[first["thread"]], first["ts"], end_ns
        out["blocked_until_ns"] = np.where(ended_by, waker["ts"], np.where(unsplit | got, -1, end_ns))
        out["kind"] = wait_kinds.kinds(first, self._machine)
        out["syscall"] = np.where(queued | (unsplit & ~recorded), -1, first["syscall"])
        futex = np.isin(out["kind"], [WAIT_KINDS.index(kind) for kind in ("gil", "lock", "object-lock")])
        out["lock_address"] = np.where(futex, first["address"], -1)
        found = np.where(woken & (waker["resource_id"] > 0), waker["resource_id"], first["resource_id"])
        out["resource_id"] = np.where(queued | (found <= 0), -1, found)
        for column, source in (("waker_pid", "other_pid"), ("waker_tid", "other_tid")):
            out[column] = np.where(first["syscall"] == SYSCALL_UNKNOWN, -1, np.where(ended_by, waker[source], 0))
        out["holder_tid"] = np.where((first["to"] == GIL) & (first["kind"] == SchedKind.OUT), first["holder_tid"], HOLDER_UNKNOWN)
        out["by_timer"] = woken & (waker["state"] & _BY_TIMER != 0)
        out["throttled_ns"] = np.minimum(throttled, end_ns - out["blocked_until_ns"]) if self._throttling else -1
        out["cpu_before"] = np.where(first["kind"] == SchedKind.OUT, first["cpu"], -1)
        out["cpu_after"] = cpu_after
        return out[out["end_ns"] > out["start_ns"]]


def _rows(switches: Switches, sched: pa.Table) -> Rows:
    out = np.zeros(len(switches.ts), _ROW)
    for name in ("thread", "ts", "kind", "cpu", "state", "syscall", "address", "other_tid", "to"):
        out[name] = getattr(switches, name)
    recorded = switches.row >= 0
    for name in ("other_pid", "holder_tid", "resource_id"):
        out[name][recorded] = sched[name].to_numpy()[switches.row[recorded]]
    return out


def _intervals(rows: Rows) -> tuple[Ints, Ints, Bools]:
    """The rows that begin a wait, for each the row that ends it (which may be another thread's, or none), and which go on with one."""
    off = ((rows["to"] >= RUNQ) & (rows["to"] <= OFF)) | (rows["to"] == SLEPT)
    continues = np.zeros(len(rows), bool)
    continues[1:] = off[1:] & off[:-1] & (rows["kind"][1:] == SchedKind.WAKING) & (rows["thread"][1:] == rows["thread"][:-1])
    begin = np.flatnonzero(off & ~continues)
    borders = np.append(np.flatnonzero(~continues), len(rows))
    return begin, borders[np.searchsorted(borders, begin, side="right")], continues
