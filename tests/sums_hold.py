"""What must be true of any trace's calls and of every table made of them, checked against the calls alone, one rule a function.

Nothing here knows how calls are rebuilt or sums are made: totals are lengths of unions of intervals.
"""

from typing import Any

import numpy as np
import pandas as pd

from pytrace_ebpf.analyze.functions.by_function import by_function, overall
from pytrace_ebpf.analyze.functions.checks import wrong_sums
from pytrace_ebpf.analyze.native.around import native_by_part
from pytrace_ebpf.analyze.native.by_operator import COLUMNS, by_operator
from pytrace_ebpf.analyze.time.by_core import by_core
from pytrace_ebpf.analyze.time.by_thread import by_thread
from pytrace_ebpf.derive.scheduling import split
from pytrace_ebpf.derive.sinks.cores import sums_of
from pytrace_ebpf.trace.schema import AGENT
from pytrace_ebpf.view.by import BY

SPLIT = ("on_cpu_ns", "runq_wait_ns", "gil_wait_ns", "blocked_ns")
THREAD = ["pid", "tid"]


def assert_sums_hold(trace: Any, calls: pd.DataFrame | None = None) -> pd.DataFrame:
    """Every rule below, of a trace whose scheduling is exact; returns its calls. `calls`: other rows of the same calls, such as with other ids."""
    calls = trace.calls() if calls is None else calls
    assert_calls_nest(calls)
    assert_splits_add_up(calls)
    functions = trace.functions()
    own = assert_functions_add_up(calls, by_function(calls, functions), calls["func_id"])
    modules = calls["func_id"].map(functions.set_index("func_id")["module"].astype("object")).fillna("")
    of_modules = by_function(calls, functions, "module")
    assert own.groupby(modules.groupby(calls["func_id"]).first()).sum().to_dict() == (
        of_modules.assign(module=of_modules["module"].astype("object").fillna("")).set_index("module")["self_ns"].to_dict()
    )
    assert_functions_add_up(calls, of_modules.rename(columns={"module": "func_id"}).astype({"func_id": object}).fillna({"func_id": ""}), modules)
    assert_threads_and_cores_agree(trace, calls)
    assert_operators_add_up(trace, calls)
    return calls


def assert_reports_agree(trace: Any) -> None:
    """No kind of report of the trace finds its own sums wrong."""
    calls = trace.calls()
    for by, kind in BY.items():
        if kind.of_samples:
            continue
        facts = {"by": by, "sort": "self", "scheduling": trace.scheduling, "start_ns": trace.start_ns, "requests": [], "slowest": 1}
        table, _ = kind.found(trace, trace.tree(), facts)
        assert wrong_sums(table, overall(calls), len(calls)) == [], by


def assert_calls_nest(calls: pd.DataFrame) -> None:
    """Children lie in their parents, a layer deeper; of one thread no two calls of one layer overlap; ids are a preorder."""
    assert calls["call_id"].is_unique
    above = calls.set_index("call_id")[["start_ns", "end_ns", "depth", *THREAD]]
    inner = calls[calls["parent_id"] != -1]
    parents = above.loc[inner["parent_id"]].reset_index(drop=True)
    inner = inner.reset_index(drop=True)
    assert (parents["start_ns"] <= inner["start_ns"]).all() and (inner["end_ns"] <= parents["end_ns"]).all()
    assert (parents["depth"] + 1 == inner["depth"]).all() and (parents[THREAD] == inner[THREAD]).all(axis=None)
    assert ((calls["parent_id"] == -1) == (calls["depth"] == 0)).all()
    rows = calls.sort_values([*THREAD, "depth", "call_id"])
    same = (rows[[*THREAD, "depth"]] == rows[[*THREAD, "depth"]].shift()).all(axis=1)
    assert (rows["start_ns"] >= rows["end_ns"].shift().fillna(0))[same].all()
    assert (calls["start_ns"] <= calls["end_ns"]).all() and (calls["wall_ns"] == calls["end_ns"] - calls["start_ns"]).all()


def assert_splits_add_up(calls: pd.DataFrame) -> None:
    """The four ways make up a call's time, and what it has itself is what its children leave."""
    split_known = calls[list(SPLIT)].notna().all(axis=1)
    assert (calls[split_known][list(SPLIT)].sum(axis=1) == calls["wall_ns"][split_known]).all()
    assert (calls[list(SPLIT)].fillna(0) >= 0).all(axis=None)
    below = calls[calls["parent_id"] != -1].groupby("parent_id")["wall_ns"].sum()
    assert (calls["self_wall_ns"] == calls["wall_ns"] - calls["call_id"].map(below).fillna(0)).all()
    assert (calls["self_wall_ns"] >= 0).all() and calls["self_wall_ns"].sum() == calls["wall_ns"][calls["depth"] == 0].sum()
    assert (calls["self_on_cpu_ns"].fillna(0) >= 0).all() and (
        calls["self_on_cpu_ns"].isna() | (calls["self_on_cpu_ns"] <= calls["self_wall_ns"])
    ).all()
    whole = calls.loc[calls["depth"] == 0, "on_cpu_ns"]
    if calls["on_cpu_ns"].notna().all():
        assert calls["self_on_cpu_ns"].sum() == whole.sum()


def covered(calls: pd.DataFrame, key: "pd.Series[Any]") -> "pd.Series[Any]":
    """Per key the time in which a call of it was open on a thread, all threads together: the length of a union of intervals."""
    rows = calls[[*THREAD, "start_ns", "end_ns"]].assign(key=key).sort_values(["key", *THREAD, "start_ns"], kind="stable")
    group = ["key", *THREAD]
    reach = rows.groupby(group, sort=False)["end_ns"].cummax()
    before = reach.groupby([rows[name] for name in group], sort=False).shift().fillna(-1)
    added = (rows["end_ns"] - np.maximum(rows["start_ns"], before)).clip(lower=0)
    return added.groupby(rows["key"]).sum().astype(np.int64)


def assert_functions_add_up(calls: pd.DataFrame, table: pd.DataFrame, key: "pd.Series[Any]") -> "pd.Series[Any]":
    """Rows by function (or by any `key` of calls): total >= self, self times together the outermost calls, each of the four ways too."""
    whole = overall(calls)
    assert whole["wall_ns"] == calls["wall_ns"][calls["depth"] == 0].sum()
    rows = table.set_index("func_id")
    assert rows["total_ns"].sort_index().to_dict() == covered(calls, key).to_dict()
    assert rows["self_ns"].sort_index().to_dict() == calls["self_wall_ns"].groupby(key).sum().to_dict()
    assert (rows["total_ns"] >= rows["self_ns"]).all() and rows["self_ns"].sum() == whole["wall_ns"]
    assert rows["calls"].sum() == len(calls)
    parts = {name: whole[name] for name in SPLIT}
    outer = calls[calls["depth"] == 0]
    told_apart = (outer["on_cpu_ns"].isna() | outer["blocked_ns"].notna()).all()  # not where the kernel did not report a wake-up
    if whole["unknown_ns"] == 0 and told_apart:
        assert whole["wall_ns"] == sum(part or 0 for part in parts.values())
        for name, part in parts.items():
            assert rows[f"self_{name}"].sum() == (part or 0)
            assert (rows[name] >= rows[f"self_{name}"]).all()
    for total, prefix in (("total_ns", ""), ("self_ns", "self_")):
        of = rows[[*(prefix + name for name in SPLIT), f"{prefix}unknown_ns"]]
        told = of.notna().all(axis=1)
        assert (of.sum(axis=1)[told] == rows[total][told]).all()
    assert wrong_sums(table, whole, len(calls)) == []
    return rows["self_ns"]


def assert_threads_and_cores_agree(trace: Any, calls: pd.DataFrame) -> None:
    """What each thread of the program's had of the cores is what the cores gave it, and no less than its calls had."""
    timeline = split.timeline(trace.sched(), trace.processes(), trace.end_ns, trace.losses())
    threads = by_thread(trace.thread_times(), trace.threads(), trace.start_ns, trace.end_ns).set_index(THREAD)
    given = by_core(timeline, trace.threads()).groupby(THREAD)["busy_ns"].sum()
    rows = trace.threads()
    given = given.drop(pd.MultiIndex.from_frame(rows[rows["name"] == AGENT][THREAD]), errors="ignore")
    assert given[given > 0].to_dict() == threads["on_cpu_ns"][(threads["on_cpu_ns"] > 0).fillna(False)].to_dict()
    assert threads["calls"].sum() == len(calls)
    outer = calls[calls["depth"] == 0]
    on_cpu = outer.groupby(THREAD)["on_cpu_ns"].sum()
    assert (on_cpu <= threads["on_cpu_ns"].reindex(on_cpu.index).fillna(0)).all()
    if calls["on_cpu_ns"].notna().all():
        assert sums_of(trace).functions["self_on_cpu_ns"].sum() == outer["on_cpu_ns"].sum()


def assert_operators_add_up(trace: Any, calls: pd.DataFrame) -> None:
    """Operators and layers have the self times of the native calls, and a layer's total is the time in which a call of it was open."""
    native = calls[calls["layer"].astype("object").isin(["operator", "blas", "cuda"])]
    table, layers = by_operator(native_by_part(trace, COLUMNS))
    assert table["self_ns"].sum() == native["self_wall_ns"].sum() == sum(row["self_ns"] for row in layers)
    assert (table["total_ns"] >= table["self_ns"]).all() and table["calls"].sum() == len(native) == sum(row["calls"] for row in layers)
    assert {row["layer"]: row["total_ns"] for row in layers} == covered(native, native["layer"].astype("object")).to_dict()
    assert wrong_sums(table, overall(calls), len(calls)) == []
