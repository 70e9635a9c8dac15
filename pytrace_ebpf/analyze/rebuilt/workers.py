"""Time that threads without Python spend for a call: a worker belongs to the Python thread that woke it, until it is woken again.

The rule: a thread that never makes a Python call (of OpenMP, of a BLAS, of torch's pools) works for the thread that woke
or made it, directly or through other such threads, from then until it is woken again. What it has of a core meanwhile
is counted for every call that is open on that thread at that moment.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from pytrace_ebpf.analyze.rebuilt.growing import checked_rows
from pytrace_ebpf.analyze.time import split
from pytrace_ebpf.analyze.time.curve import Curve
from pytrace_ebpf.analyze.time.last_at import last_at
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.trace.schema import CALLS, SCHED, SchedKind

Ints = npt.NDArray[np.int64]

COLUMN = "worker_on_cpu_ns"
_SCHED = ("ts", "pid", "tid", "kind", "cpu", "state", "syscall", "address", "other_tid")
_WORKERS = np.dtype([(name, SCHED.arrow.field(name).type.to_pandas_dtype()) for name in _SCHED])
_NONE = -1


class Workers:
    """What the workers of each Python thread had of the cores; fills schema.CALLS's worker_on_cpu_ns."""

    def __init__(self, trace: Trace, first: int = 0, before: Mapping[str, npt.NDArray[Any]] | None = None) -> None:
        """Reads the scheduling of the threads without calls, and which these are; nothing where switches were not recorded by eBPF.

        `first`, `before`: that of so many segments is the state() of an earlier one. Raises KeyError and ValueError where that is none, or not
        true any more: what was a worker has made a call since.
        """
        self._curves: dict[int, Curve] = {}
        self._known = trace.scheduling["source"] == "bpf"
        if not self._known:
            return
        chosen, old, sched = trace.segments[first:], np.zeros(0, np.int64), [pd.DataFrame(np.zeros(0, _WORKERS))]
        if before is not None:
            old, sched = checked_rows(before["python"], np.dtype(np.int64)), [pd.DataFrame(checked_rows(before["workers"], _WORKERS))]
        self._python = np.union1d(old, _threads_with_calls(trace, chosen))
        if before is not None and np.isin(np.setdiff1d(self._python, old), _met(sched[0])).any():
            raise ValueError("a worker has made a call")
        for segment in chosen:
            rows = trace.part("sched", segment["index"], _SCHED).to_pandas()
            sched.append(rows[~np.isin(split.thread_keys(rows["pid"].to_numpy(), rows["tid"].to_numpy()), self._python)])
        self._sched = pd.concat(sched, ignore_index=True)
        if not len(self._sched):
            return
        timeline = split.timeline(self._sched, trace.processes(), trace.end_ns, trace.losses())
        slices = worked_for(self._sched, timeline, self._python)
        for master, own in slices.groupby("master"):
            self._curves[int(master)] = Curve.of(own["start_ns"].to_numpy(), own["end_ns"].to_numpy())

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """What was read, for another one of the trace when it has grown."""
        if not self._known:
            return {}
        rows = np.zeros(len(self._sched), _WORKERS)
        for name in _SCHED:
            rows[name] = self._sched[name].to_numpy()
        return {"python": self._python, "workers": rows}

    def fill(self, calls: pa.Table) -> pa.Table:
        """`calls` (schema.CALLS) with the column: null where scheduling is."""
        at = calls.schema.get_field_index(COLUMN)
        if not self._known:
            return calls
        spent = np.zeros(len(calls), np.int64)
        keys = split.thread_keys(calls["pid"].to_numpy(), calls["tid"].to_numpy())
        for master, curve in self._curves.items():
            mine = np.flatnonzero(keys == master)
            if len(mine):
                start, end = (calls[name].to_numpy()[mine] for name in ("start_ns", "end_ns"))
                spent[mine] = curve.at(end) - curve.at(start)
        unknown = pc.is_null(calls["on_cpu_ns"]).to_numpy()
        return calls.set_column(at, CALLS.arrow.field(COLUMN), pa.array(spent, mask=unknown))


def worked_for(sched: pd.DataFrame, timeline: pd.DataFrame, python: Ints) -> pd.DataFrame:
    """Slices of workers on a core, and for whom: columns start_ns, end_ns, master (pid << 32 | tid of a Python thread).

    `sched` (schema.SCHED) and `timeline` (analyze.time.split) are of the workers alone; `python`: keys of the threads with calls.
    """
    wakes = sched[sched["kind"].isin((SchedKind.WAKING, SchedKind.FORK))]
    keys = split.thread_keys(wakes["pid"].to_numpy(), wakes["tid"].to_numpy())
    order = np.lexsort((wakes["ts"].to_numpy(), keys))
    keys, when = keys[order], wakes["ts"].to_numpy()[order]
    # A waker of another process finds no match: its threads are not in `python` under this pid.
    wakers = split.thread_keys(wakes["pid"].to_numpy(), wakes["other_tid"].to_numpy())[order]
    masters = _masters(keys, when, wakers, python)
    slices = split.on_cores(timeline)
    own = split.thread_keys(slices["pid"].to_numpy(), slices["tid"].to_numpy())
    place = last_at(keys, when, own, slices["start_ns"].to_numpy())
    master = np.where(place >= 0, masters[place], _NONE) if len(masters) else np.full(len(slices), _NONE)
    return slices[["start_ns", "end_ns"]].assign(master=master)[master != _NONE]


def _masters(keys: Ints, when: Ints, wakers: Ints, python: Ints) -> Ints:
    """The Python thread behind each wake-up, however many workers are between; _NONE where none is."""
    direct = np.isin(wakers, python)
    above = last_at(keys, when, wakers, when - 1)  # the wake-up that the waker itself runs on
    above = np.where(direct | (above < 0), np.arange(len(keys)), above)
    while np.any(above[above] != above):
        above = above[above]
    found: Ints = np.where(direct[above], wakers[above], _NONE)
    return found


def _met(sched: pd.DataFrame) -> Ints:
    """All threads that rows name: their own, and who woke them."""
    pid = sched["pid"].to_numpy()
    return np.concatenate([split.thread_keys(pid, sched[name].to_numpy()) for name in ("tid", "other_tid")])


def _threads_with_calls(trace: Trace, segments: Sequence[dict[str, Any]]) -> Ints:
    keys = [np.zeros(0, np.int64)]
    for segment in segments:
        threads = trace.part("events", segment["index"], ("pid", "tid")).group_by(["pid", "tid"]).aggregate([])
        keys.append(split.thread_keys(threads["pid"].to_numpy(), threads["tid"].to_numpy()))
    return np.unique(np.concatenate(keys))
