"""How a program used its cores: how many at a time, which function on which, who moved and who was pushed off, and by whom."""

import numpy as np
import numpy.typing as npt
import pandas as pd

from pytrace_ebpf.analyze.by_function import outermost, values
from pytrace_ebpf.analyze.curve import Curve
from pytrace_ebpf.analyze.innermost import functions_of
from pytrace_ebpf.analyze.split import on_cores, thread_keys

Ints = npt.NDArray[np.int64]

COLUMNS = (
    "call_id", "parent_id", "last_descendant_id", "pid", "tid", "func_id", "start_ns", "end_ns", "wall_ns",
    "on_cpu_ns", "self_on_cpu_ns", "first_cpu", "migrations",
)  # fmt: skip
WAITS = ("call_id", "start_ns", "end_ns", "kind", "waker_tid", "cpu_before", "cpu_after")  # columns of schema.WAITS that are needed


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


def busy_ns(calls: pd.DataFrame, timeline: pd.DataFrame) -> Ints:
    """CPU time of the whole process, all its threads together, within each call; over its wall_ns: mean cores busy meanwhile."""
    found, slices, pid = np.zeros(len(calls), np.int64), on_cores(timeline), calls["pid"].to_numpy()
    for process, own in slices.groupby("pid"):
        curve = Curve.of(own["start_ns"].to_numpy(), own["end_ns"].to_numpy())
        mine = np.flatnonzero(pid == process)
        found[mine] = curve.at(calls["end_ns"].to_numpy()[mine]) - curve.at(calls["start_ns"].to_numpy()[mine])
    return found


def by_function(calls: pd.DataFrame, timeline: pd.DataFrame) -> pd.DataFrame:
    """One row per function and core: func_id, cpu, self_on_cpu_ns (without the calls below), most first; and busy_cores.

    `calls` needs COLUMNS. busy_cores (float, the same in a function's rows): mean cores that its process had within its calls.
    Calls whose scheduling is not known are left out.
    """
    known = calls[calls["self_on_cpu_ns"].notna() & calls["first_cpu"].notna()]
    outer = known[outermost(known, known["func_id"].to_numpy(np.int64))]
    busy = outer[["func_id", "wall_ns"]].assign(ns=busy_ns(outer, timeline)).groupby("func_id").sum()
    busy_cores = (busy["ns"] / busy["wall_ns"].where(busy["wall_ns"] > 0)).rename("busy_cores")
    moved = known["migrations"].to_numpy() > 0
    stayed = pd.DataFrame(
        {
            "func_id": known["func_id"],
            "cpu": known["first_cpu"].astype("int16"),
            "ns": values(known["self_on_cpu_ns"])[0],
        }
    )[~moved]
    parts = [stayed, _of_moved(known, moved, timeline)]
    out = pd.concat(parts).groupby(["func_id", "cpu"], as_index=False)["ns"].sum()
    out = out.rename(columns={"ns": "self_on_cpu_ns"}).merge(busy_cores, how="left", on="func_id")
    return out.sort_values("self_on_cpu_ns", ascending=False, ignore_index=True)


def _of_moved(calls: pd.DataFrame, moved: npt.NDArray[np.bool_], timeline: pd.DataFrame) -> pd.DataFrame:
    """func_id, cpu, ns of the calls that were on several cores: what each core gave them, less what it gave their children."""
    parent = calls[moved].set_index("call_id")["func_id"]
    whole = _per_core(calls[moved], timeline)
    inner = whole[whole["parent_id"].isin(parent.index)]
    still = calls[~moved & calls["parent_id"].isin(parent.index).to_numpy()]
    still = pd.DataFrame(
        {
            "parent_id": still["parent_id"],
            "cpu": still["first_cpu"].astype("int16"),
            "ns": values(still["on_cpu_ns"])[0],
        }
    )
    less = pd.concat([inner, still])
    less = pd.DataFrame(
        {
            "func_id": parent.reindex(less["parent_id"]).to_numpy(),
            "cpu": less["cpu"].to_numpy(),
            "ns": -less["ns"].to_numpy(),
        }
    )
    return pd.concat([whole[["func_id", "cpu", "ns"]], less])


def _per_core(calls: pd.DataFrame, timeline: pd.DataFrame) -> pd.DataFrame:
    """`calls` with a row for each core that its thread was on, and ns: how long, within the call."""
    slices = on_cores(timeline)
    keys = thread_keys(calls["pid"].to_numpy(), calls["tid"].to_numpy())
    parts = [calls.head(0)[["func_id", "parent_id"]].assign(cpu=np.int16(0), ns=0)]
    for (pid, tid, cpu), own in slices[
        np.isin(thread_keys(slices["pid"].to_numpy(), slices["tid"].to_numpy()), keys)
    ].groupby(["pid", "tid", "cpu"]):
        mine = calls[keys == (int(pid) << 32 | int(tid))]
        curve = Curve.of(own["start_ns"].to_numpy(), own["end_ns"].to_numpy())
        ns = curve.at(mine["end_ns"].to_numpy()) - curve.at(mine["start_ns"].to_numpy())
        parts.append(mine[["func_id", "parent_id"]].assign(cpu=np.int16(cpu), ns=ns)[ns > 0])
    return pd.concat(parts)


def migrations(waits: pd.DataFrame, calls: pd.DataFrame) -> pd.DataFrame:
    """How often a thread came back on another core: func_id (of the innermost call; -1 none), cpu_before, cpu_after, times; most first.

    `waits` needs WAITS; `calls` call_id and func_id, in the order of call_id.
    """
    moves = waits[(waits["cpu_before"] != waits["cpu_after"]).fillna(False)]
    moves = moves.assign(func_id=functions_of(calls, moves["call_id"].to_numpy()))
    out = moves.groupby(["func_id", "cpu_before", "cpu_after"], as_index=False).size().rename(columns={"size": "times"})
    return out.sort_values("times", ascending=False, ignore_index=True)


def preemptions(waits: pd.DataFrame, threads: pd.DataFrame, neighbours: pd.DataFrame) -> pd.DataFrame:
    """Who took the cores of runnable threads: pid, tid, name, traced (bool), times, ns (until these had a core again); most first.

    `waits` needs WAITS, the others are schema.THREADS and NEIGHBOURS. name is null where nobody could be asked any more.
    """
    pushed = waits[waits["kind"].astype("object") == "preempted"]
    pushed = pushed.assign(ns=pushed["end_ns"] - pushed["start_ns"], tid=pushed["waker_tid"].fillna(0).astype("int32"))
    out = pushed.groupby("tid", as_index=False).agg(times=("ns", "size"), ns=("ns", "sum"))
    known = pd.concat(
        [threads[["pid", "tid", "name"]].assign(traced=True), neighbours[["pid", "tid", "name"]].assign(traced=False)]
    )
    out = out.merge(known.drop_duplicates("tid"), how="left", on="tid")
    out["traced"] = out["traced"].eq(True)
    out["pid"] = out["pid"].astype("Int32")
    return out.sort_values("ns", ascending=False, ignore_index=True)[["pid", "tid", "name", "traced", "times", "ns"]]
