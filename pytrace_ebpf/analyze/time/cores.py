"""How a program used its cores: how many at a time, what kept its threads off them, who moved and who was pushed off, and by whom."""

from collections.abc import Iterable

import numpy as np
import pandas as pd

from pytrace_ebpf.derive.added import added
from pytrace_ebpf.derive.scheduling.split import on_cores

WAITS = ("func_id", "start_ns", "end_ns", "kind", "waker_tid", "cpu_before", "cpu_after")  # columns of schema.WAITS that are needed
OFF_CORE = ("tid", "func_id", "start_ns", "blocked_until_ns", "end_ns", "kind")  # of kept_off
CORE = "core"


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


def kept_off(parts: Iterable[pd.DataFrame], left_out: Iterable[int], start_ns: int, end_ns: int) -> pd.DataFrame:
    """What threads waited for, how long all together, and in which function most: kind (of schema.WAIT_KINDS; CORE in the run queue), ns, func_id, func_ns.

    `parts` (Trace.waits_by_part) need OFF_CORE. Threads `left_out` are not counted, nor is what was before `start_ns` and after `end_ns`.
    """
    sums = added((_by_state(part[~part["tid"].isin(list(left_out))], start_ns, end_ns) for part in parts), ["kind", "func_id"], {"ns": "sum"})
    most = sums.sort_values("ns", ascending=False, kind="stable").drop_duplicates("kind").rename(columns={"ns": "func_ns"})
    whole = sums.groupby("kind", as_index=False)["ns"].sum().merge(most, on="kind")
    return whole[whole["ns"] > 0].sort_values("ns", ascending=False, kind="stable", ignore_index=True)


def _by_state(waits: pd.DataFrame, start_ns: int, end_ns: int) -> pd.DataFrame:
    """A row for the part of each wait that a thread was blocked for, and one for that in the run queue."""
    until = waits["blocked_until_ns"].fillna(waits["end_ns"]).astype(np.int64)
    begin, until, end = (column.clip(start_ns, end_ns) for column in (waits["start_ns"], until, waits["end_ns"]))
    kind = waits["kind"].astype("object").replace("preempted", CORE)
    blocked = pd.DataFrame({"kind": kind, "func_id": waits["func_id"], "ns": until - begin})
    return pd.concat([blocked, blocked.assign(kind=CORE, ns=end - until)])


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
