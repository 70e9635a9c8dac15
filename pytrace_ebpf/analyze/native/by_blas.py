"""Which products of matrices a BLAS computed, for which operators, and on how many threads."""

from typing import Any

import numpy as np
import pandas as pd

from pytrace_ebpf.analyze.functions.by_function import outermost
from pytrace_ebpf.analyze.native.flops import product
from pytrace_ebpf.analyze.native.operators import enclosing
from pytrace_ebpf.analyze.native.tensors import distinct_shapes

OPERATORS = ("call_id", "layer", "pid", "tid", "name", "library", "wall_ns", "on_cpu_ns", "worker_on_cpu_ns", "shapes", "flops")
OPTIMIZED = ("MKL", "oneDNN", "OpenBLAS")
_KEY = ["library", "name", "operator", "m", "n", "k"]


def blas_calls(operators: pd.DataFrame, calls: pd.DataFrame) -> pd.DataFrame:
    """The calls of layer blas in `operators` (OPERATORS), each with what it was for.

    `calls` has these and all that they lie in (around.calls_around), in the order of call_id:
    call_id, parent_id, last_descendant_id, layer. Adds operator, the name of that it was called
    for (null none); m, n and k (null not known); cpu_ns, what the thread and its workers had of the cores (null not known); last_descendant_id.
    """
    rows = operators[operators["layer"] == "blas"].astype({"library": object, "name": object}).reset_index(drop=True)
    ids = rows["call_id"].to_numpy(np.int64)
    names = operators.set_index("call_id")["name"].astype(object)
    rows["operator"] = names.reindex(enclosing(calls, ids, (calls["layer"] == "operator").to_numpy())).to_numpy()
    numbers, shapes = distinct_shapes(rows["shapes"])
    sizes = pd.DataFrame([product(s) or (None,) * 3 for s in (*shapes, ())], columns=["m", "n", "k"], dtype="Int64")
    rows[["m", "n", "k"]] = sizes.iloc[numbers].reset_index(drop=True)
    rows["cpu_ns"] = rows["on_cpu_ns"] + rows["worker_on_cpu_ns"]
    at = np.searchsorted(calls["call_id"].to_numpy(np.int64), ids)
    return rows.assign(last_descendant_id=calls["last_descendant_id"].to_numpy(np.int64)[at])


def by_blas(rows: pd.DataFrame) -> pd.DataFrame:
    """Aggregate blas_calls' rows by library, name, operator, m, n and k; most time first.

    One row each: the key; calls; threads, how many made them; total_ns, cpu_ns and flops of those that are in no other of the same row.
    """
    group = rows.groupby(_KEY, dropna=False, sort=False).ngroup().to_numpy(np.int64)
    table = rows.groupby(group)[_KEY].first() if len(rows) else rows[_KEY]
    table["calls"], table["threads"] = rows.groupby(group).size(), rows.groupby(group)["tid"].nunique()
    whole = rows[outermost(rows, group)]
    sums = whole.groupby(group[whole.index])[["wall_ns", "cpu_ns", "flops"]].sum(min_count=1)
    table = table.join(sums.rename(columns={"wall_ns": "total_ns"}))
    return table.sort_values("total_ns", ascending=False, kind="stable", ignore_index=True)


def by_library(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """blas_calls' rows by library, most time first: library, optimized, calls, total_ns, cpu_ns, threads, names and operators.

    Of the calls that no other BLAS call made. names, operators: (name, its total_ns), most first; operator None for none.
    """
    rows = rows[outermost(rows, np.zeros(len(rows), np.int64))]
    out = []
    for library, own in rows.groupby("library", sort=False):
        ns = {column: own.groupby(column, dropna=False)["wall_ns"].sum().sort_values(ascending=False) for column in ("name", "operator")}
        out.append(
            {
                "library": library,
                "optimized": library in OPTIMIZED,
                "calls": len(own),
                "total_ns": int(own["wall_ns"].sum()),
                "cpu_ns": int(own["cpu_ns"].sum()) if own["cpu_ns"].notna().all() else None,
                "threads": int(own["tid"].nunique()),
                "names": [(str(name), int(spent)) for name, spent in ns["name"].items()],
                "operators": [(None if pd.isna(name) else str(name), int(spent)) for name, spent in ns["operator"].items()],
            }
        )
    return sorted(out, key=lambda row: -row["total_ns"])
