"""The time that each sample stands for, by the state that its thread was in.

A sample of a thread on a core stands for one period there, and for those before it in which that core's clock did not tick: the thread had it
all the while, as far as anything in this machine knows, and stands where it stood. One of a thread that came back to a core stands for the interval off
it, whose states are those of the wait that the scheduling events tell or, where nobody recorded these, for a part of it, in the state that the
sample says: an interval or part of L, which was sampled with the probability p = min(1, L / period), counts 1 / p times (Horvitz and Thompson, 1952).
The variance of a sum y of such intervals' times, each
already multiplied, is the sum of (1 - p) y^2, to which intervals of a period and more add nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from pytrace_ebpf.derive.scheduling.last_at import last_at
from pytrace_ebpf.derive.scheduling.split import thread_keys
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.trace.states import SPLIT

Ints = npt.NDArray[np.int64]
SUMS = ("samples", "total_ns", *SPLIT, "unknown_ns")
"""What adds up: samples on a core and off it, the time that they stand for, and that by state; unknown_ns where no wait is known."""
SQUARES = tuple(name.replace("_ns", "_square") for name in SUMS[1:])
"""The variance of each of these times, ns^2, as far as it comes from samples off the core."""
COLUMNS = (*SUMS, *SQUARES)


def named(whole: str, prefix: str) -> list[str]:
    """SUMS and SQUARES as columns of a table: of total times ("total", ""), of self times ("self", "self_")."""
    return [
        f"{whole}_{name}" if name == "samples" else name.replace("total", whole) if "total" in name else prefix + name for name in (*SUMS, *SQUARES)
    ]


_LOOKED_AT = 1  # of the manifest's sampling.states: without eBPF
_QUEUED = 1  # there such samples stand for time in the queue as those on a core do for CPU time: whichever function is met has it
_SOON_NS = 10 * 10**9  # a thread is sampled as soon as it has come back to a core: its interval does not end longer before
_WAITS = ["pid", "tid", "kind", "start_ns", "blocked_until_ns", "end_ns"]


def off_core(trace: Trace) -> bool:
    """Whether threads off the core were sampled, too."""
    return bool((trace.manifest.get("sampling") or {}).get("off_core"))


def with_states(trace: Trace) -> bool:
    """Whether samples of threads off the core say themselves what these waited for."""
    return bool((trace.manifest.get("sampling") or {}).get("states"))


@dataclass(frozen=True)
class Periods:
    """What samples were drawn by, ns: those of threads on a core, and those of threads off it."""

    on: int
    off: int

    @classmethod
    def of(cls, sampling: Mapping[str, Any]) -> "Periods":
        """Of the manifest's `sampling`."""
        on = round(sampling["period_ns"])
        return cls(on, round(sampling.get("off_period_ns", on)))


@dataclass(frozen=True)
class Intervals:
    """Waits by thread and time: what intervals off the core consisted of."""

    key: Ints
    start: Ints
    until: Ints  # blocked, or waiting for the GIL, up to then; in the run queue from then on
    end: Ints
    gil: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, trace: Trace, samples: pd.DataFrame) -> "Intervals":
        """Those of a trace that any of `samples` (schema.SAMPLES) can have been taken after; none where no thread off the core was sampled."""
        off = samples[(samples["off_ns"] > 0) & (samples["state"] < 0)]
        if not len(off) or not off_core(trace):
            blank = np.zeros(0, np.int64)
            return cls(blank, blank, blank, blank, blank > 0)
        first, last = int(off["ts"].min()), int(off["ts"].max())
        waits = trace.whole.waits(_WAITS, start_ns=max(int((off["ts"] - off["off_ns"]).min()), first - _SOON_NS), end_ns=last)
        key = thread_keys(waits["pid"].to_numpy(), waits["tid"].to_numpy())
        order = np.lexsort((waits["start_ns"], key))
        start, until, end = (waits[name].to_numpy(np.int64, na_value=-1)[order] for name in ("start_ns", "blocked_until_ns", "end_ns"))
        return cls(key[order], start, until, end, (waits["kind"] == "gil").to_numpy(bool)[order])

    def before(self, key: Ints, ts: Ints) -> Ints:
        """The place of the last interval of each thread that began before `ts`; -1 where there is none."""
        return last_at(self.key, self.start, key, ts - 1)


def looked_at(trace: Trace) -> bool:
    """Whether its samples are of looks from outside, without eBPF."""
    return bool((trace.manifest.get("sampling") or {}).get("states") == _LOOKED_AT)


def weighed(samples: pd.DataFrame, intervals: Intervals, periods: Periods, start_ns: int, end_ns: int, looks: bool = False) -> pd.DataFrame:
    """`samples` (schema.SAMPLES) with SUMS, int64, and SQUARES, float64; of intervals off the core what lies within [start_ns, end_ns).

    `looks`: of looked_at().
    """
    out, off = samples.copy(deep=False), samples["off_ns"].to_numpy(np.int64) > 0
    sums = {name: np.zeros(len(samples), np.int64) for name in SUMS}
    sums["samples"][:] = 1
    sums["on_cpu_ns"][~off] = periods.on * (1 + samples["missed"].to_numpy(np.int64)[~off])
    squares = {name: np.zeros(len(samples)) for name in SQUARES}
    if off.any():
        parts, seen = _parts(samples[off], intervals, start_ns, end_ns)
        weight = np.maximum(periods.off / seen, 1)
        whole = np.zeros(len(weight), np.int64)
        chance = np.where(looks & (samples.loc[off, "state"] == _QUEUED), 1.0, 1 - 1 / weight)
        for name, part in parts.items():
            sums[name][off] = np.rint(part * weight).astype(np.int64)
            whole += sums[name][off]
            squares[name.replace("_ns", "_square")][off] = chance * sums[name][off].astype(np.float64) ** 2
        squares["total_square"][off] = chance * whole.astype(np.float64) ** 2
    sums["total_ns"] = sum((sums[name] for name in (*SPLIT, "unknown_ns")), np.zeros(len(samples), np.int64))
    return out.assign(**sums, **squares)


def _parts(samples: pd.DataFrame, intervals: Intervals, start_ns: int, end_ns: int) -> tuple[dict[str, Ints], Ints]:
    """The states of the intervals off the core that samples were taken after, and how long each was."""
    ts, seen = samples["ts"].to_numpy(np.int64), samples["off_ns"].to_numpy(np.int64)
    at = intervals.before(thread_keys(samples["pid"].to_numpy(), samples["tid"].to_numpy()), ts)
    found = at >= 0
    found[found] = (intervals.end[at[found]] > (ts - seen)[found]) & (intervals.until[at[found]] >= 0)
    start, until, end, gil = (np.where(found, column[at], filled) if len(column) else filled for column, filled in (
        (intervals.start, ts - seen), (intervals.until, ts - seen), (intervals.end, ts), (intervals.gil, np.zeros(len(ts), bool)),
    ))  # fmt: skip
    start, until, end = (np.clip(moment, start_ns, end_ns) for moment in (start, until, end))
    waited, none = until - start, np.zeros(len(ts), np.int64)
    parts = {
        "runq_wait_ns": np.where(found, end - until, none),
        "gil_wait_ns": np.where(found & gil, waited, none),
        "blocked_ns": np.where(found & ~gil, waited, none),
        "unknown_ns": np.where(found, none, end - start),
    }
    state = samples["state"].to_numpy(np.int64)
    whole = np.clip(ts, start_ns, end_ns) - np.clip(ts - seen, start_ns, end_ns)
    for number, name in enumerate((*SPLIT[1:], "unknown_ns"), 1):
        parts[name] = np.where(state > 0, np.where(state == number, whole, none), parts[name])
    return parts, seen
