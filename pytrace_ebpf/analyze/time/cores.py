"""How a program used its cores: how many at a time, which function on which, who moved and who was pushed off, and by whom."""

from collections.abc import Iterable

import numpy as np
import pandas as pd

from pytrace_ebpf.analyze.added import added
from pytrace_ebpf.analyze.time.split import on_cores

WAITS = ("func_id", "start_ns", "end_ns", "kind", "waker_tid", "cpu_before", "cpu_after")  # columns of schema.WAITS that are needed


def parallelism(timeline: pd.DataFrame, start_ns: int, end_ns: int) -> pd.DataFrame:
    """How long so many cores at a time were busy with the traced threads: columns cores (from 0), ns (int64, the sum is the window)."""
    slices = on_cores(timeline)
    start, end = (slices[name].clip(start_ns, end_ns).to_numpy(np.int64) for name in ("start_ns", "end_ns"))
    when = np.concatenate(([start_ns], start, end, [end_ns]))
    step = np.concatenate(([0], np.ones_like(start), -np.ones_like(end), [0]))
    order = np.argsort(when, kind="stable")
    busy, ns = np.cumsum(step[order])[:-1], np.diff(when[order])
    spent = np.bincount(busy, weights=ns).astype(np.int64)
    return pd.DataFrame({"cores": np.arange(len(spent)), "ns": spent})


def migrations(parts: Iterable[pd.DataFrame]) -> pd.DataFrame:
    """How often a thread came back on another core: func_id (of the innermost call; -1 none), cpu_before, cpu_after, times; most first.

    `parts` (Trace.waits_by_part) need WAITS.
    """
    moves = (waits[(waits["cpu_before"] != waits["cpu_after"]).fillna(False)].assign(times=1) for waits in parts)
    out = added(moves, ["func_id", "cpu_before", "cpu_after"], {"times": "sum"})
    return out.sort_values("times", ascending=False, ignore_index=True)


def preemptions(parts: Iterable[pd.DataFrame], threads: pd.DataFrame, neighbours: pd.DataFrame) -> pd.DataFrame:
    """Who took the cores of runnable threads: pid, tid, name, traced (bool), times, ns (until these had a core again); most first.

    `parts` (Trace.waits_by_part) need WAITS, the others are schema.THREADS and NEIGHBOURS. name is null where the thread was gone before its name was read.
    """
    out = added(map(_pushed_off, parts), ["tid"], {"times": "sum", "ns": "sum"})
    known = pd.concat([threads[["pid", "tid", "name"]].assign(traced=True), neighbours[["pid", "tid", "name"]].assign(traced=False)])
    out = out.merge(known.drop_duplicates("tid"), how="left", on="tid")
    out["traced"] = out["traced"].eq(True)
    out["pid"] = out["pid"].astype("Int32")
    return out.sort_values("ns", ascending=False, ignore_index=True)[["pid", "tid", "name", "traced", "times", "ns"]]


def _pushed_off(waits: pd.DataFrame) -> pd.DataFrame:
    pushed = waits[waits["kind"].astype("object") == "preempted"]
    return pushed.assign(ns=pushed["end_ns"] - pushed["start_ns"], times=1, tid=pushed["waker_tid"].fillna(0).astype("int32"))
