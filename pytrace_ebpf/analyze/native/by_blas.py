"""Which products of matrices a BLAS computed, for which operators, and on how many threads."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from pytrace_ebpf.derive.added import KNOWN, Added
from pytrace_ebpf.derive.calls.preorder import outermost
from pytrace_ebpf.derive.native.flops import product
from pytrace_ebpf.derive.native.tensors import distinct_shapes
from pytrace_ebpf.derive.sinks.operators import nearest

COLUMNS = ("layer", "name", "library", "wall_ns", "on_cpu_ns", "worker_on_cpu_ns", "shapes", "flops")
OPTIMIZED = ("MKL", "oneDNN", "OpenBLAS")
_KEY = ["library", "name", "operator", "m", "n", "k"]
_SUMS = {"calls": "sum", "total_ns": "sum", "cpu_ns": KNOWN, "flops": KNOWN, "unknown": "sum"}


def blas_calls(rows: pd.DataFrame) -> pd.DataFrame:
    """The calls of layer blas in `rows` (COLUMNS of around.native_by_part), each with what it was for.

    Adds operator, the name of that it was called for (null none); m, n and k (null not known); cpu_ns, what the thread and its workers had
    of the cores (null not known).
    """
    of = nearest(rows, (rows["layer"] == "operator").to_numpy())
    names = np.array([*rows["name"], None], object)
    own = rows.assign(operator=names[of])[rows["layer"] == "blas"].reset_index(drop=True)
    numbers, shapes = distinct_shapes(own["shapes"])
    sizes = pd.DataFrame([product(s) or (None,) * 3 for s in (*shapes, ())], columns=["m", "n", "k"], dtype="Int64")
    own[["m", "n", "k"]] = sizes.iloc[numbers].reset_index(drop=True)
    return own.assign(cpu_ns=own["on_cpu_ns"] + own["worker_on_cpu_ns"])


def by_blas(parts: Iterable[pd.DataFrame]) -> tuple[pd.DataFrame, list[dict[str, Any]]]:
    """Sums of the calls of layer blas in `parts` (COLUMNS of around.native_by_part) by what they were for, and by library.

    The first by library, name, operator, m, n and k, most time first: the key; calls; threads, how many made them; total_ns, cpu_ns and
    flops of those that are in no other of the same row. The second as of by_library().
    """
    products, libraries = Added([*_KEY, "tid"], _SUMS), Added(["library", "name", "operator", "tid"], _SUMS)
    for part in parts:
        rows = blas_calls(part)
        for sums, whole in (
            (products, outermost(rows, rows.groupby(_KEY, dropna=False, sort=False).ngroup().to_numpy(np.int64))),
            (libraries, outermost(rows, np.zeros(len(rows), np.int64))),
        ):
            sums.add(_measures(rows, whole)[rows["own"].to_numpy() & (whole | (sums is products))])
    groups = products.table.groupby(_KEY, dropna=False, as_index=False)
    table = groups.agg({"calls": "sum", "tid": "nunique", "total_ns": "sum"}).rename(columns={"tid": "threads"})
    table[["cpu_ns", "flops"]] = groups[["cpu_ns", "flops"]].sum(min_count=1)[["cpu_ns", "flops"]]
    return table.sort_values("total_ns", ascending=False, kind="stable", ignore_index=True), by_library(libraries.table)


def _measures(rows: pd.DataFrame, whole: npt.NDArray[np.bool_]) -> pd.DataFrame:
    """What each row adds: it counts as a call, and where it is one of `whole`, with its times; unknown: whether its cpu_ns is."""
    times = {name: rows[of].astype("Int64").where(whole) for name, of in (("total_ns", "wall_ns"), ("cpu_ns", "cpu_ns"), ("flops", "flops"))}
    return rows[[*_KEY, "tid"]].assign(calls=1, **times, unknown=(rows["cpu_ns"].isna() & whole).astype(np.int64))


def by_library(sums: pd.DataFrame) -> list[dict[str, Any]]:
    """Sums (of _measures) of the calls that no other BLAS call made, by library, most time first.

    library, optimized, calls, total_ns, cpu_ns, threads, names and operators: (name, its total_ns), most first; operator None for none.
    """
    out = []
    for library, own in sums.groupby("library", sort=False):
        ns = {column: own.groupby(column, dropna=False)["total_ns"].sum().sort_values(ascending=False) for column in ("name", "operator")}
        out.append(
            {
                "library": library,
                "optimized": library in OPTIMIZED,
                "calls": int(own["calls"].sum()),
                "total_ns": int(own["total_ns"].sum()),
                "cpu_ns": None if own["unknown"].any() else int(own["cpu_ns"].sum()),
                "threads": int(own["tid"].nunique()),
                "names": [(str(name), int(spent)) for name, spent in ns["name"].items()],
                "operators": [(None if pd.isna(name) else str(name), int(spent)) for name, spent in ns["operator"].items()],
            }
        )
    return sorted(out, key=lambda row: -row["total_ns"])
