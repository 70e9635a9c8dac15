"""When events were lost, and what happened meanwhile."""

import numpy as np
import numpy.typing as npt
import pandas as pd

from pytrace_ebpf.trace.kinds import SchedKind
from pytrace_ebpf.trace.losses import NOT_REPORTED

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


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


def unseen_of(losses: pd.DataFrame) -> Ints:
    """What the kernel did not report, an array (n, 4): pid << 32 | tid, since when its state is in doubt and up to when, and the kind of event that showed that, sorted."""
    rows = losses[losses["class"].isin(NOT_REPORTED.values()) & losses["tid"].notna()]
    pid, tid, start, end = (rows[name].to_numpy(np.int64) for name in ("pid", "tid", "start_ns", "end_ns"))
    shown = np.where(rows["class"].to_numpy(object) == NOT_REPORTED[SchedKind.IN], SchedKind.OUT, SchedKind.IN)
    key = pid << 32 | tid
    order = np.lexsort((-shown, start, key))  # of several of one moment OUT tells most
    found: Ints = np.column_stack((key, start, end, shown))[order].reshape(-1, 4)
    return found


def touches(windows: Ints, start: Ints, end: Ints) -> Bools:
    """Which of the intervals [start, end] meet a window of `windows` (disjoint, sorted)."""
    if not len(windows):
        return np.zeros(len(start), bool)
    at = np.searchsorted(windows[:, 1], start)
    padded = np.append(windows[:, 0], np.iinfo(np.int64).max)
    met: Bools = padded[at] <= end
    return met
