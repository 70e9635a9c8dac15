"""Where the time went by thread: how long each was seen, its four-way split and its number of calls."""

import pandas as pd

STATES = {"on_cpu": "on_cpu_ns", "runq_wait": "runq_wait_ns", "gil_wait": "gil_wait_ns", "blocked": "blocked_ns"}
COLUMNS = ("pid", "tid")


def by_thread(
    calls: pd.DataFrame, timeline: pd.DataFrame, threads: pd.DataFrame, start_ns: int, end_ns: int, cputime: pd.DataFrame | None = None
) -> pd.DataFrame:
    """One row per thread, longest on a core first.

    `calls` needs COLUMNS; `timeline` is that of analyze.split; start_ns and end_ns bound the recording; `cputime`: schema.CPUTIME,
    for a trace that has samples instead of a timeline.
    Out: pid, tid, name, start_ns, end_ns, wall_ns (seen within the recording), the four split columns
    (Int64; all null for a thread whose scheduling was not recorded, but on_cpu_ns where waits are not told apart), unknown_ns (the rest of wall_ns), calls.
    """
    out = threads[["pid", "tid", "name", "start_ns", "end_ns"]].copy()
    out["start_ns"] = out["start_ns"].clip(lower=start_ns).astype("int64")
    out["end_ns"] = out["end_ns"].fillna(end_ns).clip(upper=end_ns).astype("int64")
    out["wall_ns"] = (out["end_ns"] - out["start_ns"]).clip(lower=0)
    counts = calls.groupby(["pid", "tid"]).size().rename("calls").reset_index()
    # Not trusted to list every thread: one that made calls is shown even if its `threads` row was lost.
    out = out.merge(counts, how="outer", on=["pid", "tid"])
    out["calls"] = out["calls"].fillna(0).astype("int64")
    spent = _sampled(cputime) if cputime is not None and len(cputime) else _switched(timeline, start_ns, end_ns)
    out = out.merge(spent.reset_index(), how="left", on=["pid", "tid"])
    for name in (*STATES.values(), "seen"):
        out[name] = out[name].astype("Int64")
    seen = out.pop("seen").fillna(0)
    out["wall_ns"] = out["wall_ns"].astype("Int64").fillna(seen)
    out["unknown_ns"] = (out["wall_ns"] - seen).clip(lower=0)
    return out.sort_values(["on_cpu_ns", "wall_ns", "calls"], ascending=False, na_position="last", ignore_index=True)


def _switched(timeline: pd.DataFrame, start_ns: int, end_ns: int) -> pd.DataFrame:
    """The split columns and `seen`, how much time they are of, by (pid, tid)."""
    spent = timeline.assign(
        ns=timeline["end_ns"].clip(upper=end_ns) - timeline["start_ns"].clip(lower=start_ns), state=timeline["state"].astype("object")
    )
    spent = spent[spent["ns"] > 0].pivot_table(index=["pid", "tid"], columns="state", values="ns", aggfunc="sum", fill_value=0)
    spent = spent.reindex(columns=[*STATES, "off_cpu"], fill_value=0).rename(columns=STATES).astype("Int64")
    spent["seen"] = spent.sum(axis=1)
    spent.loc[spent.pop("off_cpu") > 0, ["runq_wait_ns", "gil_wait_ns", "blocked_ns"]] = pd.NA
    return spent


def _sampled(cputime: pd.DataFrame) -> pd.DataFrame:
    """The same from samples: what passed between a thread's first and last."""
    queued = cputime["runq_wait_ns"].where(cputime["runq_wait_ns"] >= 0)
    ends = cputime.assign(runq_wait_ns=queued).sort_values("ts").groupby(["pid", "tid"])[["ts", "on_cpu_ns", "runq_wait_ns"]]
    spent = (ends.last() - ends.first()).astype("Int64").rename(columns={"ts": "seen"})
    spent["on_cpu_ns"] = spent["on_cpu_ns"].clip(upper=spent["seen"])
    return spent.assign(gil_wait_ns=pd.NA, blocked_ns=pd.NA)
