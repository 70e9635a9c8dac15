"""What threads had of the cores, from their intervals, some segments at a time: by core, how many at once, and each process's CPU time so far.

Memory is bounded by the threads and by the intervals that begin or end in these segments and the one before.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from pytrace_ebpf.derive.scheduling.curve import Curve

_STEP = np.dtype([("ts", "i8"), ("pid", "i8"), ("step", "i8")])
_TOTAL = np.dtype([("pid", "i8"), ("ns", "i8"), ("running", "i8")])
_THREAD = ["cpu", "pid", "tid"]
THREADS = np.dtype([(name, "i8") for name in (*_THREAD, "busy_ns", "slices")])
AT_A_TIME = np.dtype([("cores", "i8"), ("ns", "i8")])

Rows = npt.NDArray[np.void]


class CoreTimes:
    """The sums of by_core and of cores.parallelism, and the curves by which busy_cores is known."""

    def __init__(self, start_ns: int) -> None:
        """When recording, or the window, begins."""
        self._since = start_ns  # what came before is in the sums alone
        self._steps, self._totals = np.zeros(0, _STEP), np.zeros(0, _TOTAL)
        self._threads, self._at_a_time = np.zeros(0, THREADS), np.zeros(1, np.int64)

    def take(self, intervals: pd.DataFrame) -> None:
        """Those of further segments in which a thread had a core (split.Timeline.take)."""
        rows = {name: intervals[name].to_numpy() for name in intervals}
        begins, ends = rows["start_ns"] == rows["began_ns"], ~rows["goes_on"]
        fresh = [_steps(rows["start_ns"][begins], rows["pid"][begins], 1), _steps(rows["end_ns"][ends], rows["pid"][ends], -1)]
        steps = np.concatenate([self._steps, *fresh])
        steps["ts"] = np.maximum(steps["ts"], self._since)
        self._steps = steps[np.lexsort((-steps["step"], steps["ts"]))]
        had = np.zeros(len(intervals), THREADS)
        for name in _THREAD:
            had[name] = rows[name]
        had["busy_ns"], had["slices"] = rows["end_ns"] - rows["start_ns"], begins
        self._threads = summed(np.concatenate((self._threads, had)), _THREAD)

    def curves(self) -> dict[int, Curve]:
        """By pid the CPU time of all its threads together, from what was settled last on."""
        found = {}
        for pid in np.union1d(self._totals["pid"], self._steps["pid"]).tolist():
            own, before = self._steps[self._steps["pid"] == pid], self._totals[self._totals["pid"] == pid]
            when = np.concatenate(([self._since], own["ts"]))
            slope = before["running"].sum() + np.concatenate(([0], np.cumsum(own["step"])))
            total = before["ns"].sum() + np.concatenate(([0], np.cumsum(slope[:-1] * np.diff(when))))
            found[int(pid)] = Curve(when, total, slope)
        return found

    def settle(self, ns: int) -> None:
        """Nothing is asked any more of what was before this moment."""
        ns = max(ns, self._since)
        early = self._steps["ts"] < ns
        steps, self._steps = self._steps[early], self._steps[~early]
        when = np.concatenate(([self._since], steps["ts"], [ns]))
        running = self._totals["running"].sum() + np.concatenate(([0], np.cumsum(steps["step"])))
        spent = np.zeros(max(len(self._at_a_time), int(running.max()) + 1), np.int64)
        spent[: len(self._at_a_time)] = self._at_a_time
        np.add.at(spent, running, np.diff(when))
        rows = np.zeros(len(steps), _TOTAL)
        rows["pid"], rows["ns"], rows["running"] = steps["pid"], steps["step"] * (ns - steps["ts"]), steps["step"]
        self._totals["ns"] += self._totals["running"] * (ns - self._since)
        self._totals = summed(np.concatenate((self._totals, rows)), ["pid"])
        self._since, self._at_a_time = ns, spent

    def threads(self) -> Rows:
        """THREADS by core, the busiest thread first."""
        rows = self._threads
        return rows[np.lexsort((rows["tid"], rows["pid"], -rows["busy_ns"], rows["cpu"]))]

    def at_a_time(self) -> Rows:
        """AT_A_TIME up to what was settled last: how long so many cores were busy at once, from 0 on."""
        spent = self._at_a_time[: int(np.flatnonzero(self._at_a_time).max(initial=0)) + 1]
        out = np.zeros(len(spent), AT_A_TIME)
        out["cores"], out["ns"] = np.arange(len(spent)), spent
        return out

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """For resume()."""
        sums = {"totals": self._totals, "threads_so_far": self._threads, "at_a_time_so_far": self._at_a_time}
        return {"since": np.array([self._since]), "steps": self._steps, **sums}

    def resume(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Go on from there. Raises KeyError, and ValueError for what is no such state."""
        dtypes = {"steps": _STEP, "totals": _TOTAL, "threads_so_far": THREADS, "at_a_time_so_far": np.dtype(np.int64), "since": np.dtype(np.int64)}
        steps, totals, threads, spent, since = (state[name] for name in dtypes)
        if any(state[name].dtype != dtype or state[name].ndim != 1 for name, dtype in dtypes.items()) or len(since) != 1 or not len(spent):
            raise ValueError("no such state")
        running = totals["running"].sum() + np.concatenate(([0], np.cumsum(steps["step"])))
        if (np.diff(steps["ts"]) < 0).any() or (steps["ts"] < since[0]).any() or not 0 <= running.min() <= running.max() <= 1 << 24:
            raise ValueError("no such state")
        self._since, self._steps, self._totals, self._threads, self._at_a_time = int(since[0]), steps, totals, threads, spent


def _steps(ts: npt.NDArray[np.int64], pid: npt.NDArray[np.int32], step: int) -> Rows:
    out = np.zeros(len(ts), _STEP)
    out["ts"], out["pid"], out["step"] = ts, pid, step
    return out


def summed(rows: Rows, by: list[str]) -> Rows:
    """One row for each value of the columns `by`, in their order, with the sums of the others."""
    order = np.lexsort([rows[name] for name in reversed(by)])
    rows = rows[order]
    first = np.append(True, np.any([rows[name][1:] != rows[name][:-1] for name in by], axis=0)) if len(rows) else np.zeros(0, bool)
    out = rows[first]
    for name in rows.dtype.names or ():
        if name not in by and len(rows):
            out[name] = np.add.reduceat(rows[name], np.flatnonzero(first))
    return out
