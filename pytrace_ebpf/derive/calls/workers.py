"""Time that threads without Python spend for a call: a worker belongs to the Python thread that woke it, until it is woken again.

The rule: a thread that never makes a Python call (of OpenMP, of a BLAS, of torch's pools) works for the thread that woke
or made it, directly or through other such threads, from then until it is woken again. What it has of a core meanwhile
is counted for every call that is open on that thread at that moment.

That is the one column of `calls` that the engine does not make: who is a worker is known once all events were looked through, and its switches
are no part of any thread that has calls. It is a difference of two values of a curve, which is drawn before. Switches are read some
segments at a time; memory is bounded by these and by what the workers had of cores: 200 bytes each time that one got a core (measured, at most).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from pytrace_ebpf.derive.read_ahead import sched_groups
from pytrace_ebpf.derive.scheduling.curve import Curve
from pytrace_ebpf.derive.scheduling.last_at import last_at
from pytrace_ebpf.derive.scheduling.split import Timeline, on_cores, thread_keys
from pytrace_ebpf.derive.store import checked_rows
from pytrace_ebpf.trace.manifest import machine_of
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.trace.schema import CALLS, SchedKind

Ints = npt.NDArray[np.int64]

COLUMN = "worker_on_cpu_ns"
_SCHED = ("ts", "pid", "tid", "kind", "cpu", "state", "syscall", "address", "other_tid")
_NONE = -1
_AT_ONCE = 1 << 17  # scheduling rows, of as many segments as have them
_INT = np.dtype(np.int64)


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
        self._timeline = Timeline(trace.processes(), trace.losses(), machine=machine_of(trace.manifest))
        self._woken = Woken(*np.zeros((3, 0), np.int64))
        self._slices = np.zeros((3, 0), np.int64)  # start_ns, end_ns, master
        self._python = self._met = np.zeros(0, np.int64)
        if before is not None:
            self._resume(before)
        old, chosen = self._python, trace.segments[first:]
        self._python = np.union1d(old, _threads_with_calls(trace, chosen))
        if np.isin(np.setdiff1d(self._python, old), self._met).any():
            raise ValueError("a worker has made a call")
        found = [self._slices]
        for place, sched in sched_groups(trace, chosen, _SCHED, _AT_ONCE):
            found.append(self._take(sched, [segment["end_ns"] for segment in chosen[place : place + len(sched)]]))
        self._slices = np.concatenate(found, axis=1)
        for master, own in pd.DataFrame(self._slices.T, columns=["start", "end", "master"]).groupby("master"):
            self._curves[int(master)] = Curve.of(own["start"].to_numpy(), own["end"].to_numpy())

    def _take(self, sched: Sequence[pa.Table], ends_ns: Sequence[int]) -> Ints:
        """The slices in which workers had a core in segments that end at `ends_ns`, as of _slices."""
        rows, segment = pa.concat_tables(sched), np.repeat(np.arange(len(sched)), [len(own) for own in sched])
        is_worker = ~np.isin(thread_keys(rows["pid"].to_numpy(), rows["tid"].to_numpy()), self._python)
        rows = rows.filter(pa.array(is_worker)).to_pandas()
        self._met = np.union1d(self._met, _met(rows))
        self._woken = self._woken.and_those_of(rows, self._python)
        slices = on_cores(self._timeline.take(rows, segment[is_worker], ends_ns))
        key = thread_keys(slices["pid"].to_numpy(), slices["tid"].to_numpy())
        began, goes_on = slices["began_ns"].to_numpy(), slices["goes_on"].to_numpy()
        master = self._woken.master_at(key, began)
        self._woken = self._woken.going_on(key[goes_on], began[goes_on])
        return np.stack((slices["start_ns"].to_numpy(), slices["end_ns"].to_numpy(), master))[:, master != _NONE]

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """What was read, for another one of the trace when it has grown."""
        if not self._known:
            return {}
        woken = np.stack((self._woken.keys, self._woken.when, self._woken.master))
        return {"python": self._python, "met": self._met, "woken": woken, "slices": self._slices, **self._timeline.state()}

    def _resume(self, before: Mapping[str, npt.NDArray[Any]]) -> None:
        """Go on from a state(). Raises KeyError and ValueError."""
        self._python, self._met = (checked_rows(before[name], _INT) for name in ("python", "met"))
        self._slices = checked_rows(before["slices"], _INT, 3)
        self._woken = Woken(*checked_rows(before["woken"], _INT, 3))
        self._timeline.resume(before)

    def fill(self, calls: pa.Table) -> pa.Table:
        """`calls` (schema.CALLS) with the column: null where scheduling is."""
        at = calls.schema.get_field_index(COLUMN)
        if not self._known:
            return calls
        spent = np.zeros(len(calls), np.int64)
        keys = thread_keys(calls["pid"].to_numpy(), calls["tid"].to_numpy())
        for master, curve in self._curves.items():
            mine = np.flatnonzero(keys == master)
            if len(mine):
                start, end = (calls[name].to_numpy()[mine] for name in ("start_ns", "end_ns"))
                spent[mine] = curve.at(end) - curve.at(start)
        unknown = pc.is_null(calls["on_cpu_ns"]).to_numpy()
        return calls.set_column(at, CALLS.arrow.field(COLUMN), pa.array(spent, mask=unknown))


@dataclass(frozen=True)
class Woken:
    """Wake-ups of workers, by worker and in the order of time: `keys` (thread_keys), `when`, and the Python thread behind each, `master`, _NONE: none."""

    keys: Ints
    when: Ints
    master: Ints

    def and_those_of(self, sched: pd.DataFrame, python: Ints) -> Woken:
        """With those in `sched` (schema.SCHED), which is of the workers alone; `python`: keys of the threads with calls."""
        wakes = sched[sched["kind"].isin((SchedKind.WAKING, SchedKind.FORK))]
        pid = wakes["pid"].to_numpy()
        keys = np.concatenate((self.keys, thread_keys(pid, wakes["tid"].to_numpy())))
        when = np.concatenate((self.when, wakes["ts"].to_numpy()))
        # A waker of another process finds no match: its threads are not in `python` under this pid.
        wakers = np.concatenate((self.master, thread_keys(pid, wakes["other_tid"].to_numpy())))
        order = np.lexsort((when, keys))
        keys, when = keys[order], when[order]
        return Woken(keys, when, _masters(keys, when, wakers[order], python))

    def master_at(self, worker: Ints, ts: Ints) -> Ints:
        """For whom each worker works at ts."""
        place = last_at(self.keys, self.when, worker, ts)
        return np.where(place >= 0, self.master[place], _NONE) if len(self.keys) else np.full(len(worker), _NONE)

    def going_on(self, worker: Ints, began: Ints) -> Woken:
        """The last of each worker, and those that are still at work by now: where one has had its core since `began`."""
        kept = np.append(self.keys[1:] != self.keys[:-1], True)[: len(self.keys)]
        place = last_at(self.keys, self.when, worker, began)
        kept[place[place >= 0]] = True
        return Woken(self.keys[kept], self.when[kept], self.master[kept])


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
    return np.concatenate([thread_keys(pid, sched[name].to_numpy()) for name in ("tid", "other_tid")])


def _threads_with_calls(trace: Trace, segments: Sequence[dict[str, Any]]) -> Ints:
    keys = [np.zeros(0, np.int64)]
    for segment in segments:
        threads = trace.part("events", segment["index"], ("pid", "tid")).group_by(["pid", "tid"]).aggregate([])
        keys.append(thread_keys(threads["pid"].to_numpy(), threads["tid"].to_numpy()))
    return np.unique(np.concatenate(keys))
