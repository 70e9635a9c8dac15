"""Ranks of a training on one host: which comes last into what they do together, by how much, and in which phase and state it spent that."""

import numpy as np
import pandas as pd

from pytrace_ebpf.trace.states import SPLIT
from pytrace_ebpf.trace.steps import STEP

_COMMUNICATION = "communication"
_LATE = 0.05  # of the median step: less is nobody's fault
_KEYS = ["job", "step"]
WAYS = (*SPLIT, "throttled_ns")
NONE = "unknown"  # the way where scheduling was not recorded

LATE = ["job", "step", "rank", "pid", "tid", "start_ns", "end_ns", "wall_ns", "by_ns", "phase", "way", "more_ns"]


def with_ranks(steps: pd.DataFrame, processes: pd.DataFrame) -> pd.DataFrame:
    """`steps` (schema.STEPS) of threads that communicate, with their job; a rank that no launcher said is the place of its process among those of the job.

    Step numbers count from rank to rank alike: where recording began in the middle of one, by when what they do together ended.
    """
    job = processes.drop_duplicates("pid", keep="last").set_index("pid")["job"].astype("object")
    rows = steps.assign(job=steps["pid"].map(job).fillna("").astype(str))
    together = rows[rows["phase"] == _COMMUNICATION]
    rows = rows[pd.MultiIndex.from_frame(rows[["pid", "tid"]]).isin(pd.MultiIndex.from_frame(together[["pid", "tid"]]))]
    place = rows.groupby("job")["pid"].rank("dense").astype("Int64") - 1
    rows = rows.assign(rank=rows["rank"].astype("Int64").fillna(place))
    parts = [_aligned(own) for _, own in rows.groupby("job")]
    return pd.concat([rows.head(0), *parts], ignore_index=True)


def _aligned(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of one job with the step numbers of the rank that has most of them."""
    together = rows[rows["phase"] == _COMMUNICATION]
    first = together.groupby("rank")["step"].size().idxmax()
    of_first = together[together["rank"] == first].sort_values("end_ns")
    ends, numbers = of_first["end_ns"].to_numpy(np.int64), of_first["step"].to_numpy(np.int64)
    middle = (ends[1:] + ends[:-1]) // 2
    at = np.searchsorted(middle, together["end_ns"].to_numpy(np.int64))
    shift = pd.Series(numbers[at] - together["step"].to_numpy(np.int64), together["rank"].array).groupby(level=0).median().round().astype("int64")
    return rows.assign(step=rows["step"] + rows["rank"].map(shift).astype("int64"))


def late(rows: pd.DataFrame) -> pd.DataFrame:
    """One row per step of all ranks in `rows` (with_ranks()) of which one came last, the latest first: LATE.

    Who waited least for the others came last: by_ns is how much less than whoever waited second least. phase and way are what it had most more of than the
    median of the others, more_ns; throttled_ns is no part of runq_wait_ns here.
    """
    wide = rows[rows["phase"] == _COMMUNICATION].pivot_table(index=_KEYS, columns="rank", values="wall_ns", aggfunc="sum")
    whole = rows[rows["phase"] == STEP]
    there = whole.groupby(_KEYS)["rank"].nunique()
    ranks = whole.groupby("job")["rank"].nunique()
    wide = wide[(there.reindex(wide.index) == ranks.reindex(wide.index.get_level_values("job")).to_numpy()).to_numpy()]
    if wide.shape[1] < 2 or not len(wide):
        return pd.DataFrame(columns=LATE)
    present = whole.pivot_table(index=_KEYS, columns="rank", values="wall_ns", aggfunc="sum").reindex(wide.index)
    waited = wide.reindex(columns=present.columns).fillna(0).where(present.notna(), np.inf).to_numpy(np.float64)
    least = np.sort(waited, axis=1)[:, :2]
    last = present.columns.to_numpy()[waited.argmin(axis=1)]
    found = pd.DataFrame({"rank": last, "by_ns": least[:, 1] - least[:, 0]}, wide.index).reset_index().astype({"rank": "int64", "by_ns": "int64"})
    found = found[found["by_ns"] >= _LATE * whole["wall_ns"].median()]
    found = found.merge(_more(rows, found), how="left", on=_KEYS)
    names = [*_KEYS, "rank", "pid", "tid", "start_ns", "end_ns", "wall_ns"]
    found = found.merge(whole[names].astype({"rank": "int64"}).drop_duplicates([*_KEYS, "rank"]), on=[*_KEYS, "rank"])
    return found.sort_values("by_ns", ascending=False, kind="stable", ignore_index=True)[LATE]


def _more(rows: pd.DataFrame, found: pd.DataFrame) -> pd.DataFrame:
    """By step, the phase and way of which the rank that came last had most more than the median of the others, and more_ns."""
    work = rows[~rows["phase"].isin((_COMMUNICATION, STEP))].merge(found[[*_KEYS, "rank"]].rename(columns={"rank": "last"}), on=_KEYS)
    throttled = work["throttled_ns"].fillna(0)
    known = work[list(SPLIT)].notna().all(axis=1)
    ways = work.assign(runq_wait_ns=work["runq_wait_ns"] - throttled, throttled_ns=throttled)[list(WAYS)].astype("Float64").fillna(0)
    ways[NONE] = work["wall_ns"].where(~known, 0).astype("Float64")
    keys = [*_KEYS, "phase"]
    long = pd.concat([work[[*keys, "rank", "last"]].assign(way=name, ns=ways[name]) for name in (*WAYS, NONE)]).astype({"phase": "object"})
    sums = long.groupby([*keys, "way", "rank", "last"])["ns"].sum().reset_index()
    is_last = sums["rank"] == sums["last"]
    own = sums[is_last].set_index([*keys, "way"])["ns"]
    others = sums[~is_last].groupby([*keys, "way"])["ns"].median()
    more = (own - others.reindex(own.index).fillna(0)).rename("more_ns").astype("float64").round().astype("int64").reset_index()
    return more.sort_values("more_ns", ascending=False, kind="stable").drop_duplicates(_KEYS)[[*keys, "way", "more_ns"]]


def by_rank(rows: pd.DataFrame, came_late: pd.DataFrame) -> pd.DataFrame:
    """One row per rank in `rows` (with_ranks()), whoever cost the others most first; int64 nanoseconds.

    Columns: job, rank, pid; steps; p50_ns of a step, own_ns and waited_ns, the medians of its time without and in communication; late, how many steps it came last into,
    late_ns, by how much together, and p50_late_ns; phase and way of most of that, null for none.
    """
    keys = ["job", "rank"]
    whole = rows[rows["phase"] == STEP]
    steps = whole.groupby([*keys, "step"]).agg(pid=("pid", "first"), wall_ns=("wall_ns", "sum"))
    waited = rows[rows["phase"] == _COMMUNICATION].groupby([*keys, "step"])["wall_ns"].sum().reindex(steps.index).fillna(0)
    steps = steps.assign(waited_ns=waited, own_ns=steps["wall_ns"] - waited)
    ranks = steps.groupby(keys)
    table = ranks.agg(
        pid=("pid", "first"), steps=("pid", "size"), p50_ns=("wall_ns", "median"), own_ns=("own_ns", "median"), waited_ns=("waited_ns", "median")
    )
    of_late = came_late.groupby(keys)["by_ns"].agg(late="size", late_ns="sum", p50_late_ns="median") if len(came_late) else None
    table = table.join(of_late) if of_late is not None else table.assign(late=0, late_ns=0, p50_late_ns=0)
    numbers = ["pid", "steps", "p50_ns", "own_ns", "waited_ns", "late", "late_ns", "p50_late_ns"]
    table = table.fillna(0).round().astype(dict.fromkeys(numbers, "int64")).reset_index()
    causes = came_late.groupby([*keys, "phase", "way"])["by_ns"].sum().reset_index().sort_values("by_ns", ascending=False, kind="stable")
    table = table.merge(causes.drop_duplicates(keys)[[*keys, "phase", "way"]], how="left", on=keys)
    return table.sort_values(["late_ns", "rank"], ascending=[False, True], kind="stable", ignore_index=True)
