"""What the samples of a segment stand for, by state: on a core their periods, off it the time since that thread was last asked."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from pytrace_ebpf.analyze.samples.weights import SQUARES
from pytrace_ebpf.derive.scheduling.last_at import last_at
from pytrace_ebpf.derive.scheduling.split import thread_keys
from pytrace_ebpf.trace.snapshot import TIMES
from pytrace_ebpf.trace.states import NAMES

Ints = npt.NDArray[np.int64]
_NO_WAIT: dict[str, Any] = {"kind": "", "syscall": -1, "by_tid": 0, "resource_id": 0}
_KEPT = 4  # segments whose intervals may still be asked for: a thread that is away is asked after a second or two


@dataclass
class Weights:
    """Samples come in the order of their segments; memory is bounded by some segments' intervals, and the threads sampled in them."""

    period_ns: int
    _recent: list[pd.DataFrame] = field(default_factory=list)
    _until: "pd.Series[int]" = field(default_factory=lambda: pd.Series(np.zeros(0, np.int64), np.zeros(0, np.int64)))  # what is counted, by thread

    def take(self, samples: pd.DataFrame, intervals: pd.DataFrame) -> pd.DataFrame:
        """`samples` (schema.SAMPLES) with TIMES, total_ns and SQUARES (samples.weights), and of the wait that they end kind, syscall (a number), by_tid and resource_id.

        `intervals`: of LiveStates, of the segment.

        A thread that does not come back is sampled again and again: each sample stands for the time since the one before it.
        """
        self._recent = [*self._recent[1 - _KEPT :], intervals]
        out = samples.copy(deep=False).reset_index(drop=True)
        off = out["off_ns"].to_numpy(np.int64) > 0
        times = np.zeros((len(out), len(TIMES)), np.int64)
        times[~off, 0] = self.period_ns * (1 + out["missed"].to_numpy(np.int64)[~off])
        waits = pd.DataFrame(_NO_WAIT, index=out.index)
        if off.any():
            times[off], waits.loc[off] = self._away(out[off])
        chance = np.where(off, 1 - 1 / np.maximum(self.period_ns / np.maximum(out["off_ns"].to_numpy(np.float64), 1.0), 1.0), 0.0)
        total = times.sum(axis=1)
        squares = chance[:, None] * np.column_stack((total, times)).astype(np.float64) ** 2
        columns = {name: times[:, at] for at, name in enumerate(TIMES)} | {name: squares[:, at] for at, name in enumerate(SQUARES)}
        return out.assign(total_ns=total, **columns, **{name: waits[name] for name in waits})

    def _away(self, samples: pd.DataFrame) -> tuple[Ints, pd.DataFrame]:
        key, ts = thread_keys(samples["pid"].to_numpy(), samples["tid"].to_numpy()), samples["ts"].to_numpy(np.int64)
        away = samples["off_ns"].to_numpy(np.int64)
        start = np.maximum(ts - away, self._counted(key, ts))
        states = _States.of(pd.concat(self._recent, ignore_index=True))
        parts, length = states.between(key, start, ts), np.maximum(ts - start, 0)
        said = samples["state"].to_numpy(np.int64)  # where the sample knows it itself
        for number in range(1, len(NAMES)):
            parts[said == number] = 0
            parts[said == number, number] = length[said == number]
        whole = np.column_stack((parts[:, 1:], np.maximum(length - parts[:, 1:].sum(axis=1), 0)))
        weight = np.maximum(self.period_ns / away, 1)  # of intervals shorter than a period only some are sampled
        times = np.zeros((len(ts), len(TIMES)), np.int64)
        times[:, 1:] = np.rint(whole * weight[:, None])
        return times, states.wait_before(key, ts).set_index(samples.index)

    def _counted(self, key: Ints, ts: Ints) -> Ints:
        """Until when each sample's thread is counted already; these samples are counted from now on."""
        rows = pd.DataFrame({"key": key, "ts": ts}).sort_values(["key", "ts"], kind="stable")
        before = rows.groupby("key")["ts"].shift(1)
        first = before.isna().to_numpy()
        before[first] = self._until.reindex(rows["key"][first]).fillna(0).to_numpy()
        latest = rows.groupby("key")["ts"].max()
        oldest = int(min(frame["start_ns"].min() for frame in self._recent if len(frame)) if any(map(len, self._recent)) else 0)
        kept = self._until[(self._until >= oldest) & ~self._until.index.isin(latest.index)]
        self._until = pd.concat([kept, latest]).astype(np.int64)
        return before.sort_index().to_numpy(np.int64)


@dataclass(frozen=True)
class _States:
    """Intervals in the order of thread and time; `spent` (intervals + 1, states): the time in each state before each."""

    table: pd.DataFrame
    key: Ints
    start: Ints
    end: Ints
    number: Ints
    spent: Ints

    @classmethod
    def of(cls, intervals: pd.DataFrame) -> "_States":
        key = thread_keys(intervals["pid"].to_numpy(), intervals["tid"].to_numpy())
        order = np.lexsort((intervals["start_ns"].to_numpy(), key))
        table = intervals.iloc[order]
        start, end = (table[name].to_numpy(np.int64) for name in ("start_ns", "end_ns"))
        state = table["state"].astype("object")
        number = np.select([(state == name).to_numpy() for name in NAMES], range(len(NAMES)), len(NAMES))
        length = np.zeros((len(table), len(NAMES)), np.int64)
        known = number < len(NAMES)
        length[np.flatnonzero(known), number[known]] = (end - start)[known]
        spent = np.concatenate((np.zeros((1, len(NAMES)), np.int64), np.cumsum(length, axis=0)))
        return cls(table, key[order], start, end, number, spent)

    def between(self, key: Ints, start: Ints, end: Ints) -> Ints:
        """The time of each thread in each state within [start, end), (n, states)."""
        return self._until(key, end) - self._until(key, start)

    def _until(self, key: Ints, ts: Ints) -> Ints:
        at = last_at(self.key, self.start, key, ts)
        out = self.spent[np.where(at >= 0, at, np.searchsorted(self.key, key))]
        inside = np.flatnonzero((at >= 0) & (self.number[at] < len(NAMES)) if len(self.key) else at >= 0)
        within = at[inside]
        out[inside, self.number[within]] += np.minimum(ts[inside], self.end[within]) - self.start[within]
        return out

    def wait_before(self, key: Ints, ts: Ints) -> pd.DataFrame:
        """What each thread waited for last before `ts`: kind, syscall, by_tid, resource_id."""
        at = last_at(self.key, self.start, key, ts - 1)
        kind = self.table["kind"].to_numpy()
        if not len(kind):
            return pd.DataFrame(_NO_WAIT, index=range(len(ts)))
        for _ in range(2):  # a wait, the run queue after it, and the core that it has just got
            back = np.maximum(at - 1, 0)
            again = (at > 0) & (kind[at] == "") & (self.key[back] == key)
            at = np.where(again, back, at)
        found = at >= 0
        columns = {"kind": "kind", "syscall": "syscall", "by_tid": "other_tid", "resource_id": "resource_id"}
        return pd.DataFrame({name: np.where(found, self.table[of].to_numpy()[at], _NO_WAIT[name]) for name, of in columns.items()})
