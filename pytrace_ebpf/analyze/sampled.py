"""Time on a core between two moments of a thread where only samples of its CPU time are there: an estimate.

A thread's CPU time is a curve through its samples, straight between two of them and, with the slope of the
nearest interval, up to EDGE_NS beyond the first and the last. Further out nothing is known. What a call
spent off the core is known as a whole, of its parts only the time in the run queue, if that was sampled.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pytrace_ebpf.analyze.split import NEXT_CPU, STAMP, STATE, positions
from pytrace_ebpf.analyze.switches import ON_CPU, RUNQ, UNKNOWN, Bools, Ints

EDGE_NS = 1_000_000_000  # samples are 10 to 50 ms apart, where the sampler is not kept from a core
_VALUES = (ON_CPU, RUNQ)  # columns of a stamp, and of the curves


class Sampled:
    """The curves of all threads, one segment at a time; used as analyze.split's Scheduling is."""

    def __init__(self) -> None:
        self._has_queue = True
        self._start = 0
        self._ts = np.zeros(0, np.int64)  # of each thread's last sample so far; -1 none
        self._value = np.zeros((0, 2), np.int64)
        self._last_slope = np.zeros((0, 2))  # before it; NaN where it is the first
        self._draw(*self._samples_so_far())

    def grow(self, gil: Ints) -> None:
        """As many further threads as `gil` has rows."""
        count = len(gil)
        self._ts = np.concatenate((self._ts, np.full(count, -1, np.int64)))
        self._value = np.concatenate((self._value, np.zeros((count, 2), np.int64)))
        self._last_slope = np.concatenate((self._last_slope, np.full((count, 2), np.nan)))
        self._draw(*self._samples_so_far())

    def load(self, thread: Ints, samples: pa.Table, start_ns: int, end_ns: int) -> None:
        """Take the samples (schema.CPUTIME) of the segment [start_ns, end_ns) and those that follow it at once.

        `thread`: the thread of each. The last samples before `end_ns` are kept for the next segment.
        """
        self._start = start_ns
        queue = samples["runq_wait_ns"]
        self._has_queue &= not queue.null_count
        value = np.stack([samples[name].fill_null(0).to_numpy() for name in ("on_cpu_ns", "runq_wait_ns")], axis=1)
        carried, ts, values = self._samples_so_far()
        owner, ts, value = np.concatenate((carried, thread)), np.concatenate((ts, samples["ts"].to_numpy())), np.concatenate((values, value))
        order = np.lexsort((ts, owner))
        owner, ts, value = owner[order], ts[order], value[order]
        slope = self._draw(owner, ts, value)
        here = np.flatnonzero(ts < end_ns)
        last = here[np.append(owner[here][1:] != owner[here][:-1], True)] if len(here) else here
        before = np.where((last > 0) & (owner[last - 1] == owner[last]), last - 1, -1)
        kept = owner[last]
        has = before >= 0  # else it is the sample kept from before, with the slope that it has
        self._last_slope[kept[has]] = slope[before[has]]
        self._ts[kept], self._value[kept] = ts[last], value[last]

    def _samples_so_far(self) -> tuple[Ints, Ints, Ints]:
        seen = np.flatnonzero(self._ts >= 0)
        return seen, self._ts[seen], self._value[seen]

    def _draw(self, owner: Ints, ts: Ints, value: Ints) -> npt.NDArray[np.float64]:
        """Make the curves through samples grouped by thread; returns the slope behind each sample, NaN unknown."""
        follows = np.append(owner[1:] == owner[:-1], False)[: len(owner)]
        led = np.append(False, follows[:-1])[: len(owner)]
        at = np.flatnonzero(follows)
        slope = np.full((len(ts), 2), np.nan)
        slope[at] = (value[at + 1] - value[at]) / np.maximum(ts[at + 1] - ts[at], 1)[:, None]
        last = np.flatnonzero(~follows)
        slope[last] = np.where(led[last, None], slope[last - 1], self._last_slope[owner[last]])
        first = np.flatnonzero(~led & (self._ts[owner] < 0))
        threads = np.arange(len(self._ts))
        blank, steep = np.zeros((len(threads), 2), np.int64), np.zeros((len(threads), 2))
        nothing = np.isnan(slope[:, 0])
        back = np.floor(np.nan_to_num(slope[first]) * EDGE_NS).astype(np.int64)
        # Each thread's curve: unknown; before its first sample; its samples; unknown again.
        curve_owner = np.concatenate((threads, owner[first], owner, owner[last]))
        when = np.concatenate((np.zeros(len(threads), np.int64), ts[first] - EDGE_NS, ts, ts[last] + EDGE_NS))
        order = np.lexsort((np.repeat(np.arange(4), [len(threads), len(first), len(ts), len(last)]), when, curve_owner))
        self._owner, self._when = curve_owner[order], when[order]
        self._base = np.concatenate((blank, value[first] - back, value, value[last]))[order]
        self._slope = np.nan_to_num(np.concatenate((steep, slope[first], slope, steep[owner[last]])))[order]
        unknown = np.concatenate((np.ones(len(threads), bool), nothing[first], nothing, np.ones(len(last), bool)))
        self._unknown: Bools = unknown[order]
        self.first_slice = np.full(len(threads), -1, np.int64)
        return slope

    def find(self, thread: Ints, ts: Ints) -> Ints:
        """The position on the curves of each moment; as analyze.split's Scheduling.find."""
        return positions(self._owner, self._when, self._start, thread, ts)

    def stamps(self, at: npt.NDArray[np.integer], ts: Ints) -> Ints:
        """Stamps, shape (n, split.STAMP), of the moments `ts` at the positions that `find` gave."""
        out = np.zeros((len(ts), STAMP), np.int64)
        out[:, _VALUES] = self._values(at, ts)
        out[:, STATE] = np.where(self._unknown[at], UNKNOWN, ON_CPU)
        out[:, NEXT_CPU] = -1
        return out

    def _values(self, at: npt.NDArray[np.integer], ts: Ints) -> Ints:
        since = (ts - self._when[at])[:, None]
        values = self._base[at] + np.floor(self._slope[at] * since).astype(np.int64)
        return np.maximum(values, 0)  # a thread's first sample may be its birth

    def within(self, at: npt.NDArray[np.integer], start: Ints, end: Ints) -> dict[str, npt.NDArray[Any]]:
        """The columns of calls that began and ended at one position each; as analyze.split's Scheduling.within."""
        return self._columns(self._values(at, end) - self._values(at, start), end - start, self._unknown[at])

    def between(self, came: Ints, went: Ints, wall: Ints) -> dict[str, npt.NDArray[Any]]:
        """The same of calls between any two stamps each."""
        unknown = (came[:, STATE] == UNKNOWN) | (went[:, STATE] == UNKNOWN)
        return self._columns((went - came)[:, _VALUES], wall, unknown)

    def _columns(self, passed: Ints, wall: Ints, unknown: Bools) -> dict[str, npt.NDArray[Any]]:
        on_cpu = np.clip(passed[:, 0], 0, wall)
        queued = np.clip(passed[:, 1], 0, wall - on_cpu) if self._has_queue else np.full(len(wall), -1)
        on_cpu[unknown], queued[unknown] = -1, -1
        columns: dict[str, npt.NDArray[Any]] = {"on_cpu_ns": on_cpu, "runq_wait_ns": queued, "known": ~unknown}
        columns |= {name: np.full(len(wall), -1, np.int64) for name in ("gil_wait_ns", "blocked_ns")}
        columns |= {name: np.full(len(wall), -1, np.int32) for name in ("preemptions", "waits", "migrations")}
        return columns | {name: np.full(len(wall), -1, np.int16) for name in ("first_cpu", "last_cpu")}

    def ended(self) -> tuple[Bools, Ints]:
        """No thread is known to have ended."""
        return np.zeros(len(self._ts), bool), np.zeros(len(self._ts), np.int64)
