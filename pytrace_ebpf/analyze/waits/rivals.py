"""Who had the cores that the program's threads waited for, and for how long they had no CPU quota."""

from typing import Any

import numpy as np
import pandas as pd

from pytrace_ebpf.derive.added import added
from pytrace_ebpf.trace.schema import AGENT


def rivals(trace: Any) -> pd.DataFrame:
    """Of a pytrace_ebpf Trace, one row per thread that had a core for which one of the program's waited, most first: pid, tid, name, cgroup, traced (bool), ns.

    tid 0 is the idle thread: what a core took to wake up. name is null where the thread was gone before it was read, cgroup empty in the root group.
    """
    threads = trace.whole.threads()
    ours = threads.loc[threads["name"] == AGENT, "tid"]
    sums = added((part[~part["tid"].isin(ours)] for part in trace.rivals_by_part()), ["rival_pid", "rival_tid"], {"ns": "sum"})
    sums = sums.rename(columns={"rival_pid": "pid", "rival_tid": "tid"})
    known = pd.concat([threads[["pid", "tid", "name"]].assign(cgroup="", traced=True), trace.neighbours().assign(traced=False)])
    out = sums.merge(known.drop_duplicates(["pid", "tid"]), how="left", on=["pid", "tid"])
    out["traced"] = out["traced"].eq(True)
    out["cgroup"] = out["cgroup"].fillna("")
    return out.sort_values("ns", ascending=False, ignore_index=True)[["pid", "tid", "name", "cgroup", "traced", "ns"]]


def of_waits(trace: Any, waits: pd.DataFrame) -> pd.DataFrame:
    """The rows of trace.rivals() with which `waits` (schema.WAITS), which ended at about the same time, can be joined: by tid and blocked_until_ns."""
    since = waits["blocked_until_ns"].dropna()
    start, end = (int(since.min()), int(since.max()) + 1) if len(since) else (0, 0)
    return trace.whole.rivals(start_ns=start, end_ns=end).rename(columns={"queued_ns": "blocked_until_ns"})


def main_rivals(trace: Any, waits: pd.DataFrame) -> pd.DataFrame:
    """Of each of `waits` the thread that had the core longest: tid (that waited), blocked_until_ns (of its row in waits), rival_pid, rival_tid."""
    key = ["tid", "blocked_until_ns"]
    rows = of_waits(trace, waits).groupby([*key, "rival_pid", "rival_tid"], as_index=False)["ns"].sum()
    return rows.sort_values("ns", ascending=False, kind="stable").drop_duplicates(key)[[*key, "rival_pid", "rival_tid"]]


def throttled(waits: pd.DataFrame) -> "pd.Series[bool]":
    """Which of `waits` (schema.WAITS) are mostly for a CPU quota."""
    queued = waits["end_ns"] - waits["blocked_until_ns"].fillna(waits["end_ns"])
    return ((waits["throttled_ns"].fillna(0) * 2 > queued) & (queued > 0)).astype(np.bool_)
