"""The states of threads while they are recorded, segment by segment: what each is in, for how long, and what it waits for."""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from pytrace_ebpf.derive.scheduling import split, wait_kinds
from pytrace_ebpf.derive.scheduling.switches import BLOCKED, GIL, RUNQ, UNKNOWN, Switches
from pytrace_ebpf.derive.scheduling.windows import windows_of
from pytrace_ebpf.trace.schema import PROCESSES, SCHED, SCHED_LOSSES, WAIT_KINDS, SchedKind

_MOST_GONE = 4096  # threads that have ended, and are yet to be forgotten

Ints = npt.NDArray[np.int64]


class LiveStates(split.Timeline):
    """Intervals as Timeline.take() has them, and kind (of schema.WAIT_KINDS; "" no wait), resource_id (of what is waited for; 0 not known), held (bool): off the
    core with the GIL.

    Memory is bounded by the threads that live, and some thousand that do not.
    """

    def __init__(self, machine: str) -> None:
        """`machine`: what `uname -m` says."""
        self._machine = machine
        self._named, self._carried = np.zeros((2, 0), np.int64)  # resource_id of rows of this segment, and of those that go on from the one before
        self._holding = np.zeros(0, np.int64)  # threads that went off their core with the GIL, and have not come back
        super().__init__(PROCESSES.arrow.empty_table().to_pandas(), machine=machine)

    def segment(self, sched: pa.Table | None, end_ns: int, losses: pa.Table | None = None) -> pd.DataFrame:
        """The intervals of the next segment, which ends at `end_ns`, from its rows of schema.SCHED and LOSSES."""
        if losses is not None:
            self._states.lose(windows_of(losses.to_pandas(), SCHED_LOSSES))
        sched = SCHED.arrow.empty_table() if sched is None else sched
        out = self.take(sched, np.zeros(len(sched), np.int64), [end_ns])
        out["held"] = self._held(out, sched)
        if (self._last.to >= UNKNOWN).sum() > _MOST_GONE:
            self._forget()
        return out

    def know(self, processes: pd.DataFrame) -> None:
        """The table schema.PROCESSES as it stands now: a program that starts has no GIL yet."""
        self._processes = processes.drop_duplicates("pid", keep="last")
        self._states.set_gil(split.gil_ranges(self._processes, self._threads.keys >> 32))

    def take(self, sched: pa.Table | pd.DataFrame, segment: Ints, ends_ns: Sequence[int]) -> pd.DataFrame:
        """As Timeline.take(); what was in a segment is a row of it no more: its number counts from -2 downwards, in _carried."""
        self._last.row = -2 - np.arange(len(self._last.row))
        self._named = sched["resource_id"].to_numpy().astype(np.int64)
        out = super().take(sched, segment, ends_ns)
        self._carried = self._resources(self._last.row)
        return out

    def _resources(self, row: Ints) -> Ints:
        """resource_id of rows by their numbers, as take() has them."""
        out = np.zeros(len(row), np.int64)
        out[row >= 0] = self._named[row[row >= 0]]
        out[row <= -2] = self._carried[-2 - row[row <= -2]]
        return out

    def _frame(self, rows: Switches, end: Ints, follows: npt.NDArray[np.bool_]) -> pd.DataFrame:
        waits = (rows.to == GIL) | (rows.to == BLOCKED)
        preempted = (rows.kind == SchedKind.OUT) & (rows.to == RUNQ)
        number = wait_kinds.kinds(cast(Any, vars(rows)), self._machine)
        kind = np.where(waits | preempted, np.array(WAIT_KINDS, object)[number], "")
        resource = self._resources(rows.row)
        ready = np.where(follows & (np.append(rows.kind[1:], -1)[: len(follows)] == SchedKind.WAKING), np.append(resource[1:], 0)[: len(follows)], 0)
        return super()._frame(rows, end, follows).assign(kind=kind, resource_id=np.where(waits, np.where(ready > 0, ready, resource), 0))

    def _held(self, intervals: pd.DataFrame, sched: pa.Table) -> npt.NDArray[np.bool_]:
        """Which intervals off the core began with having the GIL, or go on with such a one in the run queue."""
        key = split.thread_keys(intervals["pid"].to_numpy(), intervals["tid"].to_numpy())
        out = sched["kind"].to_numpy() == SchedKind.OUT
        pid, tid, ts, holder = (sched[name].to_numpy()[out] for name in ("pid", "tid", "ts", "holder_tid"))
        own = (holder == tid) & (holder > 0)
        left = pd.MultiIndex.from_arrays([split.thread_keys(pid[own], tid[own]), ts[own]])
        off = ~intervals["state"].isin(["on_cpu", "gil_wait"]).to_numpy()
        start, began = intervals["start_ns"].to_numpy(), intervals["began_ns"].to_numpy()
        held = pd.MultiIndex.from_arrays([key, start]).isin(left) | ((began < start) & np.isin(key, self._holding))
        held &= off
        if len(key):
            woken = np.append(False, (key[1:] == key[:-1]) & held[:-1]) & (intervals["state"] == "runq_wait").to_numpy()
            held |= woken
        self._holding = key[held & intervals["goes_on"].to_numpy()]
        return held

    def _forget(self) -> None:
        """Let go of the threads that have ended."""
        lives = self._last.to < UNKNOWN
        last, self._began, self._carried = self._last.take(lives), self._began[lives], self._carried[lives]
        keys = self._threads.keys[last.thread]
        self._threads = split.Threads()
        self._states.forget()
        last.thread = self._thread(keys)
        self._states.set(last.thread, last.to)
        self._last = last
