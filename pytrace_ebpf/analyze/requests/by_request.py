"""Requests by endpoint: how many, how long they took, and where the time of all and of the slowest went."""

import numpy as np
import pandas as pd

from pytrace_ebpf.analyze.functions.by_function import unknown
from pytrace_ebpf.analyze.quantiles import nearest_ranks
from pytrace_ebpf.trace.states import SPLIT

QUANTILES = {"p50_ns": 0.5, "p95_ns": 0.95, "p99_ns": 0.99, "max_ns": 1.0}
_PARTS = ("run_ns", *SPLIT, "unknown_ns", "awaited_ns")


def by_request(requests: pd.DataFrame) -> pd.DataFrame:
    """Aggregate `requests` (schema.REQUESTS) per kind and endpoint, the largest total first; int64/Int64 nanoseconds.

    Columns: kind; func_id of the endpoint; requests; p50_ns, p95_ns, p99_ns and max_ns, wall times by nearest rank; run_ns and its
    parts, SPLIT (of the requests whose split is known; null where none is) and unknown_ns, of the others; awaited_ns, the time outside of run_ns;
    slow_ with each of these names, of the requests that took p95_ns or longer; slowest_id, the request_id of the longest.
    """
    rows = requests.assign(
        func_id=requests["endpoint_func_id"],
        kind=requests["kind"].astype(object),
        run_ns=requests["wall_ns"] - requests["awaited_ns"],
    )
    rows["unknown_ns"] = unknown(rows, "run_ns")
    columns = ["kind", "func_id", "requests", *QUANTILES, *_PARTS, *(f"slow_{name}" for name in _PARTS), "slowest_id"]
    table = pd.DataFrame([_row(kind, func_id, group) for (kind, func_id), group in rows.groupby(["kind", "func_id"])], columns=columns)
    table = table.astype({name: "Int64" for name in columns if name != "kind"})
    return table.loc[(table["run_ns"] + table["awaited_ns"]).sort_values(ascending=False, kind="stable").index].reset_index(drop=True)


def _row(kind: str, func_id: int, group: pd.DataFrame) -> list[object]:
    ranks = nearest_ranks(group["wall_ns"].to_numpy(np.int64), QUANTILES.values())
    slow = group[group["wall_ns"] >= ranks[1]]
    sums = [[_sum(part, name) for name in _PARTS] for part in (group, slow)]
    return [kind, func_id, len(group), *ranks, *sums[0], *sums[1], group.loc[group["wall_ns"].idxmax(), "request_id"]]


def _sum(rows: pd.DataFrame, name: str) -> object:
    """Of those of which it is known; null where that is none, or where of some it is known whether they had a core and this is not."""
    apart = rows["on_cpu_ns"].isna() | rows[name].notna()
    return rows[name].sum(min_count=1) if apart.all() else pd.NA
