"""The waits within every call, cut at its ends, add up to its gil_wait, blocked and run-queue time."""

from typing import Any

import numpy as np
import pandas as pd


def within(begin: np.ndarray, end: np.ndarray, moments: np.ndarray) -> np.ndarray:
    """How much of the intervals (disjoint, in the order of time) lies before each moment."""
    before = np.concatenate(([0], np.cumsum(end - begin)))
    at = np.searchsorted(begin, moments, side="right")
    last = np.maximum(at - 1, 0)
    running = np.minimum(moments, end[last]) - begin[last] if len(begin) else 0
    return np.where(at > 0, before[last] + running, 0)


def assert_waits_add_up(trace: Any) -> int:
    """Of all calls whose split is known; returns how many have waited."""
    calls = trace.calls().dropna(subset=["runq_wait_ns", "gil_wait_ns", "blocked_ns"])
    waits = trace.waits()
    assert waits["start_ns"].is_monotonic_increasing
    assert ((waits["start_ns"] <= waits["blocked_until_ns"]) & (waits["blocked_until_ns"] <= waits["end_ns"])).all()
    waits = waits.dropna(subset=["blocked_until_ns", "end_ns"])  # whose wake-up the kernel did not report: they lie in no call whose split is known
    waited = 0
    for thread, own in calls.groupby(["pid", "tid"]):
        rows = waits[(waits["pid"] == thread[0]) & (waits["tid"] == thread[1])]
        assert (rows["start_ns"].to_numpy()[1:] >= rows["end_ns"].to_numpy()[:-1]).all()
        gil = rows[rows["kind"] == "gil"]
        rest = rows[rows["kind"] != "gil"]
        for column, part, begin, end in (
            ("gil_wait_ns", gil, "start_ns", "blocked_until_ns"),
            ("blocked_ns", rest, "start_ns", "blocked_until_ns"),
            ("runq_wait_ns", rows, "blocked_until_ns", "end_ns"),
        ):
            spans = part[begin].to_numpy(np.int64), part[end].to_numpy(np.int64)
            found = within(*spans, own["end_ns"].to_numpy()) - within(*spans, own["start_ns"].to_numpy())
            pd.testing.assert_series_equal(pd.Series(found), own[column].astype(np.int64), check_names=False, check_index=False)
        waited += int((own["waits"] > 0).sum())
    return waited
