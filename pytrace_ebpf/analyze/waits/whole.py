"""Slices of one wait as one row, which ends by what ended the last of them."""

from collections.abc import Iterable, Iterator

import numpy as np
import pandas as pd

COLUMNS = ("pid", "tid", "start_ns", "blocked_until_ns", "end_ns", "kind", "slices")
"""Of schema.WAITS, needed."""
_BY_THE_LAST = (
    "waker_pid",
    "waker_tid",
    "waker_func_id",
    "waker_primitive_func_id",
    "waker_caller_func_id",
    "waker_own_func_id",
    "cpu_after",
    "slices",
    "end_ns",
)


def whole_waits(parts: Iterable[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    """`parts` of Trace.waits_by_part with COLUMNS and any others, slices joined, some at a time: memory is bounded by the part, and by threads.

    A joined row is as long as its slices together: start_ns and blocked_until_ns are later by the time in which the thread had a core between them.
    What ended it is that of the last, the rest that of the first. `slices`: how many.
    """
    held: pd.DataFrame | None = None
    following = iter(parts)
    part = next(following, None)
    while part is not None:
        after = next(following, None)
        preempted = part["kind"] == "preempted"  # these may lie between two slices
        rows = part[~preempted] if held is None else pd.concat([held, part[~preempted]])
        rows = rows.sort_values(["pid", "tid", "start_ns"], kind="stable", ignore_index=True)
        joined = _joined(rows)
        # The row that a later slice may go on with.
        ends = ~rows.duplicated(["pid", "tid"], keep="last").to_numpy()[joined.index] & (after is not None)
        held = joined[ends]
        yield pd.concat([part[preempted], joined[~ends]], ignore_index=True)
        part = after


def _joined(rows: pd.DataFrame) -> pd.DataFrame:
    """By the place of the last slice of each."""
    slices = rows["slices"].to_numpy(np.int64)
    same = (rows["pid"].to_numpy()[1:] == rows["pid"].to_numpy()[:-1]) & (rows["tid"].to_numpy()[1:] == rows["tid"].to_numpy()[:-1])
    goes_on = np.zeros(len(rows), np.bool_)
    kind = rows["kind"].astype("object").to_numpy()
    goes_on[1:] = same & (slices[1:] > 1) & (slices[1:] == slices[:-1] + 1) & (kind[1:] == kind[:-1])
    if not goes_on.any():
        return rows
    first, last = np.flatnonzero(~goes_on), np.append(np.flatnonzero(~goes_on)[1:] - 1, len(rows) - 1)
    begin, end = (rows[name].to_numpy(np.int64) for name in ("start_ns", "end_ns"))
    queued = end - rows["blocked_until_ns"].fillna(rows["end_ns"]).to_numpy(np.int64)
    out = rows.iloc[first].set_axis(last)
    for name in _BY_THE_LAST:
        if name in rows:
            out[name] = rows[name].iloc[last].set_axis(last)
    until = end[last]
    out["start_ns"] = until - np.add.reduceat(end - begin, first)
    known = out["blocked_until_ns"].notna()
    out["blocked_until_ns"] = pd.Series(until - np.add.reduceat(queued, first), last).astype(out["blocked_until_ns"].dtype).where(known)
    if "throttled_ns" in rows:
        out["throttled_ns"] = pd.Series(np.add.reduceat(rows["throttled_ns"].fillna(0).to_numpy(np.int64), first), last).astype(
            out["throttled_ns"].dtype
        )
    return out
