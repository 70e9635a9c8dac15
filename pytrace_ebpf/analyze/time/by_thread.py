"""Where the time went by thread: how long each was seen, its four-way split and its number of calls."""

import pandas as pd

from pytrace_ebpf.trace.schema import AGENT
from pytrace_ebpf.trace.states import SPLIT


def by_thread(times: pd.DataFrame, threads: pd.DataFrame, start_ns: int, end_ns: int) -> pd.DataFrame:
    """One row per thread of the program's, longest on a core first. The agent's own is left out.

    `times`, `threads`: schema.THREAD_TIMES and THREADS; start_ns and end_ns bound the recording.
    Out: pid, tid, name, start_ns, end_ns, wall_ns (seen within the recording), the four split columns
    (Int64; all null for a thread whose scheduling was not recorded, but on_cpu_ns where the kinds of waits are not known), unknown_ns (the rest of wall_ns), calls.
    """
    ours = threads["name"] == AGENT
    times = times[~_of(times, threads[ours]) | _of(times, threads[~ours])]
    threads = threads[~ours]
    out = threads[["pid", "tid", "name", "start_ns", "end_ns"]].copy()
    out["start_ns"] = out["start_ns"].clip(lower=start_ns).astype("int64")
    out["end_ns"] = out["end_ns"].fillna(end_ns).clip(upper=end_ns).astype("int64")
    out["wall_ns"] = (out["end_ns"] - out["start_ns"]).clip(lower=0)
    # `threads` may not list every thread: one that made calls, or was seen to run, is shown even if its `threads` row was lost.
    out = out.merge(times[(times["calls"] > 0) | (times["known_ns"] > 0) | _of(times, threads)], how="outer", on=["pid", "tid"])
    out["calls"] = out["calls"].fillna(0).astype("int64")
    for name in SPLIT:
        out[name] = out[name].astype("Int64")
    seen = out.pop("known_ns").fillna(0).astype("int64")
    out["wall_ns"] = out["wall_ns"].astype("Int64").fillna(seen)
    out["unknown_ns"] = (out["wall_ns"] - seen).clip(lower=0)
    return out.sort_values(["on_cpu_ns", "wall_ns", "calls"], ascending=False, na_position="last", ignore_index=True)


def _of(times: pd.DataFrame, threads: pd.DataFrame) -> "pd.Series[bool]":
    keys = pd.MultiIndex.from_frame(threads[["pid", "tid"]])
    return pd.Series(pd.MultiIndex.from_frame(times[["pid", "tid"]]).isin(keys), times.index)
