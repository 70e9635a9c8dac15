"""The states of threads over time: on a core, in the run queue, waiting for the GIL, or blocked.

Where no wake-ups were recorded (source perf), what follows a sleep is off-CPU time of unknown kind.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from pytrace_ebpf.derive.scheduling.last_at import thread_keys as thread_keys
from pytrace_ebpf.derive.scheduling.switches import BLOCKED, GIL, OFF, RUNQ, SLEPT, STATES, UNKNOWN, States, Switches
from pytrace_ebpf.derive.scheduling.windows import windows_of
from pytrace_ebpf.trace.schema import SCHED_LOSSES, SchedKind

Ints = npt.NDArray[np.int64]
_ROW = np.dtype([(name, "i8") for name in ("thread", "ts", "kind", "cpu", "state", "syscall", "address", "other_tid", "to", "began")])


@dataclass(frozen=True)
class Known:
    """What was known at the moment `ts`: of the threads `keys` (thread_keys, ascending) the state (switches.STATES) and the core, -1 unknown."""

    ts: int
    keys: Ints
    state: Ints
    cpu: Ints


def timeline(
    sched: pd.DataFrame, processes: pd.DataFrame, end_ns: int, losses: pd.DataFrame | None = None, known: Known | None = None, machine: str = ""
) -> pd.DataFrame:
    """State intervals of every thread: one row per interval, by thread and in the order of time.

    Takes schema.SCHED, schema.PROCESSES and schema.LOSSES rows; the last interval of a living thread
    ends at `end_ns`. `known`: where `sched` does not begin with the recording; `machine`: what `uname -m` said.
    Columns: pid, tid, start_ns, end_ns, state (on_cpu, runq_wait, gil_wait, blocked),
    cpu (of the interval's first event), syscall (gil_wait, blocked; else -1), other_tid (gil_wait,
    blocked: the waker; runq_wait after preemption: who got the core; else 0). Unknown time has no row.
    """
    rows = Timeline(processes, losses, known, machine).take(sched, np.zeros(len(sched), np.int64), [end_ns])
    return rows.drop(columns=["began_ns", "goes_on"])


class Timeline:
    """The same, some segments at a time: intervals are cut at the end of the last of them, and go on with the next."""

    def __init__(self, processes: pd.DataFrame, losses: pd.DataFrame | None = None, known: Known | None = None, machine: str = "") -> None:
        """As of timeline()."""
        before = Known(0, *np.zeros((3, 0), np.int64)) if known is None else known
        windows = np.zeros((0, 2), np.int64) if losses is None else windows_of(losses, SCHED_LOSSES)
        self._processes, self._threads = processes, Threads()
        self._states = States(before.ts, windows[windows[:, 1] >= before.ts], machine)
        thread = self._thread(before.keys)
        self._states.set(thread, before.state)
        self._last = Switches.known(thread, before.ts, before.cpu, before.state)  # the row of each thread that goes on
        self._began, self._until = self._last.ts, before.ts

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """What goes on after the segments so far, for resume()."""
        known, passed = self._states.save()
        going_on = np.zeros(len(self._began), _ROW)
        for name in (_ROW.names or ())[:-1]:
            going_on[name] = getattr(self._last, name)
        going_on["began"] = self._began
        return {"keys": self._threads.keys, "known": known, "passed": np.array([passed, self._until]), "going_on": going_on}

    def resume(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Go on from there, before anything is taken. Raises KeyError, and ValueError for what is no such state."""
        keys, known, passed, rows = (state[name] for name in ("keys", "known", "passed", "going_on"))
        dtypes = [np.dtype(np.int64), np.dtype(np.uint8), np.dtype(np.int64), _ROW]
        if [each.dtype for each in (keys, known, passed, rows)] != dtypes or passed.shape != (2,):
            raise ValueError("no such state")
        if not len(np.unique(keys)) == len(keys) == len(known) or len(np.unique(rows["thread"])) < len(rows):
            raise ValueError("no such state")
        if len(rows) and not 0 <= rows["thread"].min() <= rows["thread"].max() < len(keys):
            raise ValueError("no such state")
        self._threads.resume(keys)
        self._states.grow(gil_ranges(self._processes, keys >> 32))
        self._states.resume(known, int(passed[0]))
        blank = np.zeros(len(rows), np.int64)
        self._last = Switches(segment=blank - 1, row=blank - 1, **{name: rows[name] for name in (_ROW.names or ())[:-1]})
        self._began, self._until = rows["began"], int(passed[1])

    def _thread(self, keys: Ints) -> Ints:
        thread, new = self._threads.number(keys)
        self._states.grow(gil_ranges(self._processes, new >> 32))
        return thread

    def take(self, sched: pa.Table | pd.DataFrame, segment: Ints, ends_ns: Sequence[int]) -> pd.DataFrame:
        """The intervals of segments that follow each other, and end at `ends_ns`; `segment`: the number of each row's, from 0 on.

        With began_ns, where the interval really began, and goes_on (bool): it is cut at the last end.
        """
        thread = self._thread(thread_keys(sched["pid"].to_numpy(), sched["tid"].to_numpy()))
        new = self._states.take(thread, sched, segment, ends_ns)
        new.ts = np.maximum(new.ts, self._until)  # what comes late counts from the last end on
        rows, began = Switches.joined(self._last, new), np.concatenate((self._began, new.ts))
        order = np.lexsort((np.arange(len(rows.ts)), self._threads.keys[rows.thread]))
        rows, began = rows.take(order), began[order]
        follows = np.append(rows.thread[1:] == rows.thread[:-1], False) if len(rows.ts) else np.zeros(0, bool)
        end = np.where(follows, np.append(rows.ts[1:], 0), ends_ns[-1]) if len(rows.ts) else rows.ts
        found = self._frame(rows, end, follows).assign(began_ns=began, goes_on=~follows)
        self._last, self._began = rows.take(~follows), began[~follows]
        self._until = ends_ns[-1]
        self._last.ts = np.maximum(self._last.ts, self._until)
        there = (end > rows.ts) | (rows.ts > began)  # what ended just where it had been cut is of no length
        return found[((rows.to < UNKNOWN) | (rows.to == SLEPT)) & there].reset_index(drop=True)

    def _frame(self, rows: Switches, end: Ints, follows: npt.NDArray[np.bool_]) -> pd.DataFrame:
        waits = (rows.to == GIL) | (rows.to == BLOCKED)
        woken = follows & (np.append(rows.kind[1:], -1)[: len(rows.kind)] == SchedKind.WAKING)
        waker = np.where(waits & woken, np.append(rows.other_tid[1:], 0)[: len(rows.kind)], 0)
        preempted = (rows.kind == SchedKind.OUT) & (rows.to == RUNQ)
        key = self._threads.keys[rows.thread]
        return pd.DataFrame(
            {
                "pid": (key >> 32).astype(np.int32),
                "tid": (key & 0xFFFFFFFF).astype(np.int32),
                "start_ns": rows.ts,
                "end_ns": end,
                "state": pd.Categorical.from_codes(np.where(rows.to < UNKNOWN, rows.to, np.where(rows.to == SLEPT, OFF, -1)), list(STATES)),
                "cpu": rows.cpu.astype(np.int16),
                "syscall": np.where(waits, rows.syscall, -1).astype(np.int32),
                "other_tid": np.where(preempted, rows.other_tid, waker).astype(np.int32),
            }
        )


class Threads:
    """Numbers for threads, from 0 in the order in which they are met; `keys`: thread_keys by number."""

    def __init__(self) -> None:
        self.keys = np.zeros(0, np.int64)
        self._number: dict[int, int] = {}

    def resume(self, keys: Ints) -> None:
        """Go on with these, by number."""
        self.keys, self._number = keys, {key: number for number, key in enumerate(keys.tolist())}

    def number(self, keys: Ints) -> tuple[Ints, Ints]:
        """The number of each, and the keys that are new."""
        unique, inverse = np.unique(keys, return_inverse=True)
        new = np.array([key for key in unique.tolist() if key not in self._number], np.int64)
        self._number.update(zip(new.tolist(), range(len(self.keys), len(self.keys) + len(new)), strict=True))
        self.keys = np.concatenate((self.keys, new))
        return np.array([self._number[key] for key in unique.tolist()], np.int64)[inverse], new


def on_cores(timeline: pd.DataFrame) -> pd.DataFrame:
    """The rows of a `timeline` in which a thread had a core."""
    return timeline[timeline["state"].astype("object") == "on_cpu"]


def gil_ranges(processes: pd.DataFrame, pid: Ints) -> Ints:
    """The addresses of each process's GIL, shape (n, 2); (0, 0) where unknown."""
    known = processes.set_index("pid")[["gil_start", "gil_end"]]
    return known.reindex(pid, fill_value=0).to_numpy(np.int64)
