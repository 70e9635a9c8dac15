"""Where the wall time between two moments of a thread went, to the nanosecond: on a core, run queue, GIL or blocked.

Where no wake-ups were recorded (source perf), what follows a sleep is off-CPU time that is not told apart: of an
interval with any, only its time on a core is known.

Per thread a state timeline with running totals; a moment's totals are those at the last switch
before it plus the time since, in that switch's state. So the parts of an interval sum to its length.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from pytrace_ebpf.analyze.switches import (
    BLOCKED,
    GIL,
    GONE,
    LOST,
    OFF,
    ON_CPU,
    RUNQ,
    STATES,
    UNKNOWN,
    Bools,
    Ints,
    Switches,
    decide,
    firsts,
)
from pytrace_ebpf.trace.schema import SCHED_LOSSES, SchedKind

# Columns of a stamp: what is known of a thread at one moment. Differences of the first ten are what happened between.
TIMES = slice(0, 6)  # on_cpu, runq_wait, gil_wait, blocked, off_cpu, unknown
OFF_TIME, UNKNOWN_TIME = 4, 5
PREEMPTIONS, WAITS, MIGRATIONS, SLICES = 6, 7, 8, 9
STATE, LAST_CPU, NEXT_CPU = 10, 11, 12  # NEXT_CPU: the core at the moment or the first one after it; -1 not yet seen
STAMP = 13
COUNTS = slice(6, 10)
_UNKNOWN = np.array([0] * UNKNOWN_TIME + [-(1 << 60)] + [0] * 4 + [UNKNOWN, -1, -1])  # a difference to any other has unknown time

SPLIT = ("on_cpu_ns", "runq_wait_ns", "gil_wait_ns", "blocked_ns")
_TOLD = SPLIT[1:]
_COUNTED = ("preemptions", "waits", "migrations")

_COLUMNS = ("ts", "kind", "cpu", "state", "syscall", "address", "other_tid")


def windows_of(losses: pd.DataFrame, classes: tuple[str, ...]) -> Ints:
    """Loss windows of some classes as an array (n, 2) of [start, end], merged where they touch, in the order of time."""
    chosen = losses[losses["class"].isin(classes)].sort_values("start_ns")
    spans = chosen[["start_ns", "end_ns"]].to_numpy(np.int64)
    merged: list[list[int]] = []
    for start, end in spans.tolist():
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    return np.array(merged, np.int64).reshape(-1, 2)


def touches(windows: Ints, start: Ints, end: Ints) -> Bools:
    """Which of the intervals [start, end] meet a window of `windows` (disjoint, sorted)."""
    if not len(windows):
        return np.zeros(len(start), bool)
    at = np.searchsorted(windows[:, 1], start)
    padded = np.append(windows[:, 0], np.iinfo(np.int64).max)
    met: Bools = padded[at] <= end
    return met


class Scheduling:
    """The state timelines of all threads, one segment at a time.

    Threads are dense numbers; `grow` makes them known, `load` takes the next segment's rows,
    `find` and `stamps` then answer for moments in that segment and, where `load` was told so, in the one before.
    """

    def __init__(self, origin_ns: int, windows: Ints) -> None:
        """`windows`: when scheduling events were lost, as from `windows_of`."""
        self._origin, self._windows, self._windows_passed = origin_ns, windows, 0
        self._start = self._end = origin_ns  # of the loaded segment
        self._late = False  # whether moments before it are asked for
        self._gil = np.zeros((0, 2), np.int64)
        self._now = np.zeros((0, STAMP), np.int64)  # at each thread's last switch
        self._since = np.zeros(0, np.int64)  # when that was
        self._clear()
        self._drawn = self._base, self._when, self._owner  # the loaded segment's timeline alone

    def _clear(self) -> None:
        """No switch in this segment yet: every thread goes on in the state it is in."""
        self._base, self._when = self._now.copy(), self._since.copy()
        self._base[:, NEXT_CPU] = np.where(self._now[:, STATE] == ON_CPU, self._now[:, LAST_CPU], -1)
        self._owner = np.arange(len(self._now))
        self.first_slice = np.full(len(self._now), -1, np.int64)

    def grow(self, gil: Ints) -> None:
        """Further threads; `gil` (n, 2): the addresses of their GIL."""
        fresh = np.zeros((len(gil), STAMP), np.int64)
        fresh[:, STATE], fresh[:, LAST_CPU], fresh[:, NEXT_CPU] = UNKNOWN, -1, -1
        self._gil = np.concatenate((self._gil, gil))
        self._now = np.concatenate((self._now, fresh))
        self._since = np.concatenate((self._since, np.full(len(gil), self._origin, np.int64)))
        self._clear()

    def load(self, thread: Ints, sched: pa.Table, start_ns: int, end_ns: int) -> Switches:
        """Take the rows of the segment that ends at `end_ns`: `thread` for each row of `sched` (schema.SCHED).

        `start_ns`: when it begins, or the earliest moment that will be asked for where that is before it. What is older
        than the thread's last switch before the previous segment is unknown. Returns the rows that change a thread's state.
        """
        self._clear()
        rows = decide(self._with_losses(thread, sched, end_ns), self._now[:, STATE], self._gil)
        if len(rows.ts):
            self._draw(rows)
        before, self._drawn = self._drawn, (self._base, self._when, self._owner)
        self._late = start_ns < self._end
        if self._late:
            self._put_before(*before)
        self._start, self._end = max(start_ns, self._origin), end_ns
        return rows

    def _draw(self, rows: Switches) -> None:
        """Each thread's timeline: the state it comes in with, then its rows."""
        threads = np.arange(len(self._now))
        owner = np.concatenate((threads, rows.thread))
        order = np.argsort(owner, kind="stable")
        base = np.concatenate((self._base, self._happenings(rows)))[order]
        when = np.concatenate((self._since, rows.ts))[order]
        owner = owner[order]
        first = firsts(owner)
        base[:, COUNTS] = _running(base[:, COUNTS], first)
        spent = np.zeros((len(when), TIMES.stop), np.int64)
        length = np.append(np.diff(when), 0)
        last = np.append(owner[1:] != owner[:-1], True)
        counted = np.flatnonzero(~last & (base[:, STATE] != GONE))
        spent[counted + 1, base[counted, STATE]] = length[counted]
        beginnings = np.flatnonzero(first == np.arange(len(first)))
        spent[beginnings] = base[beginnings, TIMES]
        base[:, TIMES] = _running(spent, first)
        base[:, NEXT_CPU] = _next_cpu(base[:, NEXT_CPU], owner)
        self._base, self._when, self._owner = base, when, owner
        self._now, self._since = base[last], when[last]
        self.first_slice = base[beginnings + 1 - last[beginnings], NEXT_CPU]

    def _put_before(self, base: Ints, when: Ints, owner: Ints) -> None:
        """Let each thread's timeline begin with that of the previous segment: totals run on from there anyway."""
        owner = np.concatenate((owner, self._owner))
        order = np.argsort(owner, kind="stable")
        self._base, self._when, self._owner = np.concatenate((base, self._base))[order], np.concatenate((when, self._when))[order], owner[order]
        self._base[:, NEXT_CPU] = _next_cpu(self._base[:, NEXT_CPU], self._owner)

    def _with_losses(self, thread: Ints, sched: pa.Table, end_ns: int) -> Switches:
        """The segment's rows by thread; those in a loss window left out, and a LOST row of every thread at its start."""
        columns = {name: sched[name].to_numpy().astype(np.int64) for name in _COLUMNS}
        rows = Switches(thread=thread, row=np.arange(len(thread)), to=np.zeros(len(thread), np.int64), **columns)
        inside = touches(self._windows, rows.ts, rows.ts) & (rows.kind != SchedKind.EXIT)
        rows = rows.take(~inside)
        threads = np.arange(len(self._now))
        lost = [rows]
        while self._windows_passed < len(self._windows) and self._windows[self._windows_passed, 0] < end_ns:
            at = max(int(self._windows[self._windows_passed, 0]), self._origin)
            blank = np.zeros(len(threads), np.int64)
            lost.append(Switches(threads, blank + at, blank + LOST, blank - 1, blank, blank, blank, blank, blank - 1, blank))
            self._windows_passed += 1
        lost.reverse()
        whole = Switches(*(np.concatenate(parts) for parts in zip(*(vars(s).values() for s in lost), strict=True)))
        return whole.take(np.lexsort((whole.ts, whole.thread)))

    def _happenings(self, rows: Switches) -> Ints:
        """Stamps that hold only what happens at each row itself."""
        out = np.zeros((len(rows.ts), STAMP), np.int64)
        left = rows.kind == SchedKind.OUT
        came = rows.kind == SchedKind.IN
        out[:, PREEMPTIONS] = left & (rows.to == RUNQ)
        out[:, WAITS] = left & (rows.to != RUNQ)
        out[:, SLICES] = rows.to == ON_CPU
        out[:, STATE] = rows.to
        on_core = (left | came | (rows.to == ON_CPU)) & (rows.cpu >= 0)
        first = firsts(rows.thread)
        at = np.maximum.accumulate(np.where(on_core, np.arange(len(first)), -1))
        core = np.where(at >= first, rows.cpu[at], self._now[rows.thread, LAST_CPU])
        before = np.where(first == np.arange(len(first)), self._now[rows.thread, LAST_CPU], np.roll(core, 1))
        out[:, MIGRATIONS] = came & (before >= 0) & (before != rows.cpu)
        out[:, LAST_CPU] = core
        out[:, NEXT_CPU] = np.where(rows.to == ON_CPU, core, -1)
        return out

    def find(self, thread: Ints, ts: Ints) -> Ints:
        """The position on the timeline of each moment; both arrays grouped by thread (ascending), ascending in time."""
        return positions(self._owner, self._when, self._start, thread, ts)

    def stamps(self, at: npt.NDArray[np.integer], ts: Ints) -> Ints:
        """Stamps, shape (n, STAMP), of the moments `ts` at the positions that `find` gave."""
        out = self._base[at]
        running = np.flatnonzero(out[:, STATE] != GONE)
        since = ts - self._when[at]
        out[running, out[running, STATE]] += since[running]
        out[since < 0] = _UNKNOWN
        return out

    def within(self, at: npt.NDArray[np.integer], start: Ints, end: Ints) -> dict[str, npt.NDArray[Any]]:
        """The columns of calls (-1 = null) that began and ended at one position each: all their time went to one state.

        `known`: whether on_cpu_ns is.
        """
        state = self._base[:, STATE].astype(np.int8)[at]
        core = self._base[:, LAST_CPU].astype(np.int16)[at]
        if self._late:
            state[start < self._when[at]] = UNKNOWN
        wall = end - start
        columns: dict[str, npt.NDArray[Any]] = {name: np.where(state == number, wall, 0) for number, name in enumerate(SPLIT)}
        columns |= {name: np.zeros(len(wall), np.int32) for name in _COUNTED}
        cpu = np.where(state == ON_CPU, core, np.int16(-1))
        columns |= {"first_cpu": cpu, "last_cpu": cpu.copy(), "known": state < UNKNOWN}
        _blank(columns, ~columns["known"], (state == OFF) & (wall > 0))
        return columns

    def between(self, came: Ints, went: Ints, wall: Ints) -> dict[str, npt.NDArray[Any]]:
        """The same of calls between any two stamps each."""
        passed = went - came
        columns: dict[str, npt.NDArray[Any]] = {name: passed[:, number] for number, name in enumerate(SPLIT)}
        columns |= {name: passed[:, number].astype(np.int32) for number, name in enumerate(_COUNTED, start=PREEMPTIONS)}
        whole = passed[:, :UNKNOWN_TIME].sum(axis=1) == wall
        nothing = (wall == 0) & (came[:, STATE] >= UNKNOWN)
        columns["known"] = (passed[:, UNKNOWN_TIME] == 0) & whole & ~nothing
        had_core = (came[:, STATE] == ON_CPU) | (passed[:, SLICES] > 0)
        columns["first_cpu"] = np.where(had_core, came[:, NEXT_CPU], -1)
        columns["last_cpu"] = np.where(had_core, went[:, LAST_CPU], -1)
        _blank(columns, ~columns["known"], passed[:, OFF_TIME] > 0)
        return columns

    def ended(self) -> tuple[Bools, Ints]:
        """Which threads have ended, and when each switched last."""
        return self._now[:, STATE] == GONE, self._since


def positions(owner: Ints, when: Ints, origin: int, thread: Ints, ts: Ints) -> Ints:
    """The last row of (owner, when) not after each moment (thread, ts), of its thread.

    Rows and moments are both grouped by thread (ascending) and ascending in time; a thread's first row counts
    as older than everything. `origin`: any time before which moments need not be told apart.
    """
    span = max(int(when.max(initial=0)), int(ts.max(initial=0))) - origin + 1
    bits = max(span, 1).bit_length()
    first = firsts(owner) == np.arange(len(owner))
    switches = (owner << bits) | np.where(first, 0, np.maximum(when - origin, 0))
    moments = thread.astype(np.int64) << bits
    moments |= np.maximum(ts - origin, 0)
    # Both sides are sorted: place the few switches among the many moments.
    places = np.searchsorted(np.maximum.accumulate(moments), switches)
    return np.repeat(np.arange(len(switches), dtype=np.int32), np.diff(places, append=len(moments)))


def _blank(columns: dict[str, npt.NDArray[Any]], unknown: Bools, untold: Bools) -> None:
    """Null (-1): everything of unknown calls; of those with off-CPU time that is not told apart, how it was spent."""
    if unknown.any():
        for name, column in columns.items():
            if name != "known":
                column[unknown] = -1
    if untold.any():
        for name in _TOLD:
            columns[name][untold] = -1


def _running(steps: Ints, first: Ints) -> Ints:
    """Running sums down the rows, starting anew with each thread's first row."""
    sums = np.cumsum(steps, axis=0)
    before: Ints = sums[first] - steps[first]
    return sums - before


def _next_cpu(core: Ints, owner: Ints) -> Ints:
    """Fill -1 with the next known core of the same thread."""
    count = len(core)
    at = np.minimum.accumulate(np.where(core >= 0, np.arange(count), count)[::-1])[::-1]
    inside = at < count
    at = np.where(inside, at, 0)
    return np.where(inside & (owner[at] == owner), core[at], -1)


def timeline(sched: pd.DataFrame, processes: pd.DataFrame, end_ns: int, losses: pd.DataFrame | None = None) -> pd.DataFrame:
    """State intervals of every thread: one row per interval, by thread and in the order of time.

    Takes schema.SCHED, schema.PROCESSES and schema.LOSSES rows; the last interval of a living thread
    ends at `end_ns`. Columns: pid, tid, start_ns, end_ns, state (on_cpu, runq_wait, gil_wait, blocked),
    cpu (of the interval's first event), syscall (gil_wait, blocked; else -1), other_tid (gil_wait,
    blocked: the waker; runq_wait after preemption: who got the core; else 0). Unknown time has no row.
    """
    keys, thread = np.unique(thread_keys(sched["pid"].to_numpy(), sched["tid"].to_numpy()), return_inverse=True)
    gil = gil_ranges(processes, keys >> 32)
    windows = np.zeros((0, 2), np.int64) if losses is None else windows_of(losses, SCHED_LOSSES)
    scheduling = Scheduling(0, windows)
    scheduling.grow(gil)
    table = pa.table({name: sched[name].to_numpy() for name in _COLUMNS})
    rows = scheduling._with_losses(thread.astype(np.int64), table, end_ns)
    rows = decide(rows, np.full(len(keys), UNKNOWN), gil)
    follows = np.append(rows.thread[1:] == rows.thread[:-1], False) if len(rows.ts) else np.zeros(0, bool)
    end = np.where(follows, np.append(rows.ts[1:], end_ns), end_ns)
    waits = (rows.to == GIL) | (rows.to == BLOCKED)
    woken = follows & (np.append(rows.kind[1:], -1) == SchedKind.WAKING)
    waker = np.where(waits & woken, np.append(rows.other_tid[1:], 0), 0)
    preempted = (rows.kind == SchedKind.OUT) & (rows.to == RUNQ)
    frame = pd.DataFrame(
        {
            "pid": (keys >> 32)[rows.thread].astype(np.int32),
            "tid": (keys & 0xFFFFFFFF)[rows.thread].astype(np.int32),
            "start_ns": rows.ts,
            "end_ns": end,
            "state": pd.Categorical.from_codes(np.where(rows.to < UNKNOWN, rows.to, -1), list(STATES)),
            "cpu": rows.cpu.astype(np.int16),
            "syscall": np.where(waits, rows.syscall, -1).astype(np.int32),
            "other_tid": np.where(preempted, rows.other_tid, waker).astype(np.int32),
        }
    )
    return frame[(rows.to < UNKNOWN) & (end > rows.ts)].reset_index(drop=True)


def on_cores(timeline: pd.DataFrame) -> pd.DataFrame:
    """The rows of a `timeline` in which a thread had a core."""
    return timeline[timeline["state"].astype("object") == "on_cpu"]


def thread_keys(pid: npt.NDArray[np.integer], tid: npt.NDArray[np.integer]) -> Ints:
    """One number for (pid, tid), in their order."""
    return (pid.astype(np.int64) << 32) | tid.astype(np.int64)


def gil_ranges(processes: pd.DataFrame, pid: Ints) -> Ints:
    """The addresses of each process's GIL, shape (n, 2); (0, 0) where unknown."""
    known = processes.set_index("pid")[["gil_start", "gil_end"]]
    return known.reindex(pid, fill_value=0).to_numpy(np.int64)
