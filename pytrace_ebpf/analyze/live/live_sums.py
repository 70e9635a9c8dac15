"""What a segment adds to a picture: sums by thread, by function, by line, by wait and by request, of its samples and its threads' states."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from pytrace_ebpf.analyze.findings.sampled import Standing, summed
from pytrace_ebpf.analyze.live.live_requests import LiveRequests
from pytrace_ebpf.analyze.live.live_stacks import functions_of
from pytrace_ebpf.analyze.samples.paths import NO_FRAMES
from pytrace_ebpf.trace.sampled import NATIVE
from pytrace_ebpf.trace.snapshot import OUTSIDE, SELF_TIMES, TIMES
from pytrace_ebpf.trace.states import NAMES

THREAD = ["pid", "tid"]
KEYS = {
    "threads": THREAD,
    "functions": [*THREAD, "func_id"],
    "lines": [*THREAD, "func_id", "line"],
    "requests": [*THREAD, "func_id"],
    "waits": [*THREAD, "kind", "syscall", "resource", "func_id", "by_tid"],
}
"""By which each table has one row."""
_OFF = list(TIMES[1:])
_ADDED = (*TIMES, "idle_ns")


@dataclass(frozen=True)
class Sums:
    """Tables by name, each with KEYS and what adds up, but for GIL and core of threads with idle_ns, blocked time without anything to do. `last`: by thread
    (KEYS) the moment ts at which it was seen last, its func_id and cpu, and the state, kind and syscall that it was in for since_ns. `standing`: of
    findings.sampled.summed."""

    tables: dict[str, pd.DataFrame]
    last: pd.DataFrame
    standing: pd.DataFrame


def sums(
    samples: pd.DataFrame,
    stacks: pd.DataFrame,
    functions: pd.DataFrame,
    intervals: pd.DataFrame,
    called: "pd.Series[Any]",
    requests: LiveRequests,
) -> Sums:
    """Of samples as of weights.Weights, their stacks (schema.STACKS), the functions (schema.FUNCTIONS), the intervals of states.LiveStates, what resources
    are called (LiveResources), and what answers requests."""
    natives = functions.loc[functions["function_layer"] == NATIVE, "func_id"].to_numpy(np.int64)
    standing = Standing(stacks, functions)
    samples = samples.assign(resource=samples["resource_id"].map(called).astype("object").fillna(""))
    idle = standing.idle(samples[[*THREAD, "resource"]].join(standing.of(samples)))
    found = functions_of(stacks, samples["stack_id"].to_numpy(np.int64), natives)
    leaves = found.leaves.reindex(samples["stack_id"].to_numpy())
    leaves.index = samples.index
    leaves.loc[samples["stack_id"] == NO_FRAMES, "func_id"] = OUTSIDE
    own = samples[[*THREAD, "ts", "cpu", "off_ns", "stack_id", *TIMES, "kind", "syscall", "resource", "by_tid"]]
    own = own.assign(func_id=leaves["func_id"], line=leaves["line"], samples=1, idle_ns=samples["blocked_ns"].where(idle, 0))
    by_stack = own.groupby([*THREAD, "stack_id"], sort=False)[[*_ADDED, "samples"]].sum().reset_index()
    total = by_stack.merge(found.members, on="stack_id").groupby(KEYS["functions"])[[*_ADDED, "samples"]].sum()
    self_ = own.groupby(KEYS["functions"])[list(_ADDED)].sum().set_axis([*SELF_TIMES, "self_idle_ns"], axis=1)
    by_function = total.join(self_, how="outer").fillna(0).astype(np.int64).reset_index()
    lines = own[own["func_id"] >= 0].groupby(KEYS["lines"])[[*_ADDED, "samples"]].sum().reset_index()
    tree = standing.tree
    answered = pd.Series(requests.endpoints(tree), tree.index)
    answering = own.assign(func_id=own["stack_id"].map(answered).fillna(-1).astype(np.int64))
    by_request = answering[answering["func_id"] >= 0].groupby(KEYS["requests"])[[*_ADDED, "samples"]].sum().reset_index()
    away = own[(own[_OFF].sum(axis=1) > 0).to_numpy()].assign(queue_ns=own["runq_wait_ns"])
    away["wait_ns"] = away[_OFF].sum(axis=1) - away["queue_ns"]
    waits = away.groupby(KEYS["waits"])[["wait_ns", "queue_ns", "idle_ns", "samples"]].sum().reset_index()
    held = _held_on_core(samples, leaves, intervals)
    threads = (
        of_threads(intervals).add(held, fill_value=0).fillna(0).astype(np.int64).reset_index() if len(held) else of_threads(intervals).reset_index()
    )
    threads = threads.merge(own.groupby(THREAD, as_index=False)["idle_ns"].sum(), how="left", on=THREAD)
    threads["idle_ns"] = threads["idle_ns"].fillna(0).astype(np.int64)
    return Sums(
        {"threads": threads, "functions": by_function, "lines": lines, "requests": by_request, "waits": waits}, _last(own), summed(samples, standing)
    )


def _last(own: pd.DataFrame) -> pd.DataFrame:
    """Of each thread the last sample, as Sums.last."""
    rows = own.sort_values("ts", kind="stable").drop_duplicates(THREAD, keep="last")
    state = np.array([*NAMES, ""], object)[rows[list(TIMES)].to_numpy().argmax(axis=1)]
    off = (rows["off_ns"] > 0).to_numpy()
    columns = {"state": np.where(off, state, NAMES[0]), "kind": rows["kind"].where(off, ""), "since_ns": rows["off_ns"]}
    return rows[[*THREAD, "ts", "func_id", "cpu", "syscall"]].assign(**columns)


def of_threads(intervals: pd.DataFrame) -> pd.DataFrame:
    """TIMES by thread, and gil_held_ns of what they had of the GIL off their cores."""
    length = (intervals["end_ns"] - intervals["start_ns"]).to_numpy(np.int64)
    state = intervals["state"].astype("object")
    columns = {f"{name}_ns": np.where(state == name, length, 0) for name in NAMES}
    columns["unknown_ns"] = length - sum(columns.values())
    columns["gil_held_ns"] = np.where(intervals["held"], length, 0)
    columns["samples"] = np.zeros(len(length), np.int64)
    return pd.DataFrame({"pid": intervals["pid"], "tid": intervals["tid"], **columns}).groupby(THREAD).sum()


def _held_on_core(samples: pd.DataFrame, leaves: pd.DataFrame, intervals: pd.DataFrame) -> pd.DataFrame:
    """How long threads had the GIL on a core. Who runs Python has it.

    Who runs what Python called has it too, unless another thread had it at that moment, or
    about then the thread itself lost its core without having it, or another one ran Python.
    """
    on_core = (samples["off_ns"] == 0).to_numpy() & (leaves["func_id"] != OUTSIDE).to_numpy()
    if not on_core.any():
        return pd.DataFrame({"gil_held_ns": np.zeros(0, np.int64)})
    rows = samples.loc[on_core, [*THREAD, "ts"]].assign(ns=samples["on_cpu_ns"], native=leaves["native"].eq(True), samples=1)
    rows = rows.sort_values("ts", kind="stable").astype(dict.fromkeys(THREAD, np.int64))
    period = int(rows["ns"].min())
    python = rows.loc[~rows["native"], ["pid", "ts", "tid"]].rename(columns={"tid": "holder"})
    lost = intervals.loc[intervals["kind"] == "preempted", [*THREAD, "began_ns", "held"]].rename(columns={"began_ns": "ts"})
    lost = lost.sort_values("ts", kind="stable").astype(dict.fromkeys(THREAD, np.int64))
    others = pd.merge_asof(rows, python, on="ts", by="pid", direction="nearest", tolerance=period)["holder"].to_numpy(float)
    held = pd.merge_asof(rows, lost, on="ts", by=THREAD, direction="nearest", tolerance=period)["held"].to_numpy(float)
    without = np.where(np.isnan(held), ~np.isnan(others) & (others != rows["tid"].to_numpy()), held == 0) | _elsewhere(rows, intervals)
    rows.loc[rows["native"].to_numpy() & without, "ns"] = 0
    return rows.groupby(THREAD).agg(gil_held_ns=("ns", "sum"), samples=("samples", "sum"))


def _elsewhere(rows: pd.DataFrame, intervals: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Whether another thread of the process had the GIL at the moment of each of the rows (THREAD, ts, native; sorted by ts).

    It had it off its core, or on it, from its sample before one in Python to the one after, as far as it kept that core.
    """
    stays = intervals.loc[intervals["state"] == "on_cpu", [*THREAD, "start_ns", "end_ns"]].astype(np.int64).sort_values("start_ns", kind="stable")
    by_thread = rows.groupby(THREAD)["ts"]
    ran = rows[[*THREAD, "ts"]].assign(before=by_thread.shift(1, fill_value=0), after=by_thread.shift(-1, fill_value=np.iinfo(np.int64).max))
    ran = pd.merge_asof(ran[~rows["native"]], stays, left_on="ts", right_on="start_ns", by=THREAD)
    ran = ran[ran["ts"] < ran["end_ns"]]
    ran = ran[THREAD].assign(start_ns=ran[["start_ns", "before"]].max(axis=1), end_ns=ran[["end_ns", "after"]].min(axis=1))
    had = pd.concat([intervals.loc[intervals["held"], ran.columns], ran]).astype(np.int64)
    return _how_many(rows, had, ["pid"]) > _how_many(rows, had, THREAD)


def _how_many(rows: pd.DataFrame, intervals: pd.DataFrame, by: list[str]) -> npt.NDArray[np.int64]:
    """Of the intervals, how many with the same `by` there are at the moment of each of the rows, which are sorted by ts."""
    edges = pd.concat(
        [intervals[[*by, edge]].set_axis([*by, "ts"], axis=1).assign(number=change) for edge, change in (("end_ns", -1), ("start_ns", 1))]
    )
    edges = edges.sort_values("ts", kind="stable")
    edges["number"] = edges.groupby(by)["number"].cumsum()
    return pd.merge_asof(rows, edges, on="ts", by=by)["number"].fillna(0).to_numpy(np.int64)
