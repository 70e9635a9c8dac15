"""Which functions were left out to keep a bound on the cost, for how long, and which callers their time stands with."""

import pandas as pd

from pytrace_ebpf.trace.left_out import INTERVAL


def left_out(table: pd.DataFrame, functions: pd.DataFrame, start_ns: int, end_ns: int) -> pd.DataFrame:
    """One row per function that was left out (schema.LEFT_OUT) between two moments, the most calls missed first.

    func_id (-1: every function), qualname (null then), left_out_ns, times, calls_per_s (the mean of what it had each time), why.
    """
    ends = table["to_ns"].fillna(end_ns).astype("int64").clip(upper=end_ns)
    rows = table.assign(left_out_ns=ends - table["from_ns"].astype("int64").clip(lower=start_ns))
    rows = rows[rows["left_out_ns"] > 0].astype({"why": "object"})
    found = rows.groupby("func_id", as_index=False).agg(
        left_out_ns=("left_out_ns", "sum"), times=("left_out_ns", "size"), calls_per_s=("calls_per_s", "mean"), why=("why", "last")
    )
    named = functions[functions["func_id"].isin(found["func_id"])]
    found = found.join(named.set_index("func_id")["qualname"].astype("object"), on="func_id")
    order = (found["calls_per_s"] * found["left_out_ns"]).where(found["why"] != INTERVAL, float("inf"))
    return found.loc[order.sort_values(ascending=False, kind="stable").index].reset_index(drop=True)


def callers(calls: pd.DataFrame, func_ids: "pd.Series[int]") -> set[int]:
    """func_ids of what called these functions while they were recorded, but for themselves; `calls`: schema.CALLS or schema.TREE."""
    number = "node_id" if "node_id" in calls else "call_id"
    below = calls.loc[calls["func_id"].isin(func_ids), ["parent_id", "func_id"]]
    by = below["parent_id"].map(calls.set_index(number)["func_id"])
    return {int(func_id) for func_id in by[by.notna() & (by != below["func_id"])].unique() if func_id >= 0}
