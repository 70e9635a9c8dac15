"""Where the time went by thread: how long each was seen, its four-way split and its number of calls."""

import pandas as pd

STATES = {"on_cpu": "on_cpu_ns", "runq_wait": "runq_wait_ns", "gil_wait": "gil_wait_ns", "blocked": "blocked_ns"}
COLUMNS = ("pid", "tid")


def by_thread(
    calls: pd.DataFrame, timeline: pd.DataFrame, threads: pd.DataFrame, start_ns: int, end_ns: int
) -> pd.DataFrame:
    """One row per thread, longest on a core first.

    `calls` needs COLUMNS; `timeline` is that of analyze.split; start_ns and end_ns bound the recording.
    Out: pid, tid, name, start_ns, end_ns, wall_ns (seen within the recording), the four split columns
    (Int64; all null for a thread whose scheduling was not recorded), unknown_ns (the rest of wall_ns), calls.
    """
    out = threads[["pid", "tid", "name", "start_ns", "end_ns"]].copy()
    out["start_ns"] = out["start_ns"].clip(lower=start_ns).astype("int64")
    out["end_ns"] = out["end_ns"].fillna(end_ns).clip(upper=end_ns).astype("int64")
    out["wall_ns"] = (out["end_ns"] - out["start_ns"]).clip(lower=0)
    counts = calls.groupby(["pid", "tid"]).size().rename("calls").reset_index()
    # Not trusted to list every thread: one that made calls is shown even if its `threads` row was lost.
    out = out.merge(counts, how="outer", on=["pid", "tid"])
    out["calls"] = out["calls"].fillna(0).astype("int64")
    spent = timeline.assign(
        ns=timeline["end_ns"].clip(upper=end_ns) - timeline["start_ns"].clip(lower=start_ns), state=timeline["state"].astype("object")
    )
    spent = spent[spent["ns"] > 0].pivot_table(index=["pid", "tid"], columns="state", values="ns", aggfunc="sum", fill_value=0)
    spent = spent.reindex(columns=list(STATES), fill_value=0).rename(columns=STATES).astype("Int64")
    out = out.merge(spent.reset_index(), how="left", on=["pid", "tid"])
    for name in STATES.values():
        out[name] = out[name].astype("Int64")
    seen = out[list(STATES.values())].sum(axis=1)
    out["wall_ns"] = out["wall_ns"].astype("Int64").fillna(seen)
    out["unknown_ns"] = (out["wall_ns"] - seen).clip(lower=0)
    return out.sort_values(["on_cpu_ns", "wall_ns", "calls"], ascending=False, na_position="last", ignore_index=True)
