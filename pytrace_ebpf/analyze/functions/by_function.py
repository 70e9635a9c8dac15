"""Where the time went by function (or module): calls, total and self time, each split four ways."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from pytrace_ebpf.derive.calls.preorder import outermost, preorder
from pytrace_ebpf.trace.frames import values_and_mask
from pytrace_ebpf.trace.states import SPLIT

COLUMNS = ("call_id", "parent_id", "last_descendant_id", "pid", "tid", "func_id", "wall_ns", *SPLIT)
SELF = ("self_wall_ns", *(f"self_{name}" for name in SPLIT))  # of schema.CALLS, what with_self() makes of COLUMNS
KEYS = {"function": "func_id", "module": "module"}

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]


def with_self(calls: pd.DataFrame) -> pd.DataFrame:
    """`calls` (COLUMNS) with a column self_X for wall_ns and each of SPLIT: X without the children's, null where X or a child's is."""
    ids = calls["call_id"].to_numpy(dtype=np.int64)
    order = np.argsort(ids, kind="stable")
    parent = calls["parent_id"].to_numpy(dtype=np.int64)
    at = np.searchsorted(ids[order], parent)
    at[at == len(ids)] = 0
    at = order[at] if len(ids) else at
    has = (ids[at] == parent) if len(ids) else np.zeros(0, bool)
    out = calls.copy(deep=False)
    for name in ("wall_ns", *SPLIT):
        own, known = values_and_mask(calls[name])
        rest = own.copy()
        np.subtract.at(rest, at[has], own[has])
        if not known.all():
            known = known.copy()
            known[at[has & ~values_and_mask(calls[name])[1]]] = False
        # Below zero only after compensate(), where a child could not give back all it cost.
        out[f"self_{name}"] = _nullable(np.maximum(rest, 0), known)
    return out


def compensate(calls: pd.DataFrame, cost_ns: float | Floats, own_ns: float | Floats = 0.0) -> pd.DataFrame:
    """`calls` (COLUMNS) with what tracing the calls below cost taken off wall_ns and on_cpu_ns, neither below zero.

    `cost_ns`: of a call, or of each; `own_ns`: what of that lies within the call itself, and is taken off it too.
    """
    order, descendants = preorder(calls)
    before = np.concatenate(([0.0], np.cumsum(np.broadcast_to(cost_ns, len(calls))[order])))
    first = np.arange(1, len(calls) + 1)
    below = np.empty(len(calls), np.float64)
    below[order] = before[first + descendants] - before[first]
    cost = np.rint(below + own_ns).astype(np.int64)
    on_cpu, known = values_and_mask(calls["on_cpu_ns"])
    wall, _ = values_and_mask(calls["wall_ns"])
    cost = np.minimum(cost, np.where(known, on_cpu, wall))
    return calls.assign(wall_ns=wall - cost, on_cpu_ns=_nullable(np.maximum(on_cpu - cost, 0), known))


def by_function(calls: pd.DataFrame, functions: pd.DataFrame, key: str = "function") -> pd.DataFrame:
    """Aggregate `calls` (COLUMNS) per function or, with key "module", per module.

    One row each, largest total first: the key's names; calls; total_ns and the four of SPLIT over its
    outermost activations (so recursion is not counted twice); self_ns and self_SPLIT over all of them;
    unknown_ns and self_unknown_ns, the part of total and self whose scheduling was not recorded.
    A split of which nothing is known is null; so is a wait that is not known of some calls whose on_cpu_ns is. Times are int64/Int64 nanoseconds, summed over threads.
    """
    names, group = _groups(calls, functions, key)
    calls = with_self(calls)
    times = {"calls": 1, "total_ns": calls["wall_ns"], "self_ns": calls["self_wall_ns"]}
    times |= {f"{prefix}unknown_ns": unknown(calls, f"{prefix}wall_ns", prefix) for prefix in ("", "self_")}
    return _sums(calls.assign(**times), outermost(calls, group), names, group, key)


def of_tree(tree: pd.DataFrame, functions: pd.DataFrame, key: str = "function") -> pd.DataFrame:
    """The same, of the calls in `tree` (schema.TREE)."""
    rows = tree[(tree["depth"] >= 0) & (tree["calls"] > 0)]  # none: entered without a name, which only their ends gave
    names, group = _groups(rows, functions, key)
    return _sums(rows, rows["outermost" if key == "function" else "outermost_of_module"].to_numpy(), names, group, key)


def _groups(rows: pd.DataFrame, functions: pd.DataFrame, key: str) -> tuple[pd.DataFrame, Ints]:
    """Names of what rows are grouped by, indexed by the numbers of the groups; and the group of each of `rows`, with func_id."""
    functions = functions[["func_id", "qualname", "file", "first_line", "module"]]
    if key == "function":
        return functions.set_index("func_id", drop=False), rows["func_id"].to_numpy(dtype=np.int64)
    code, modules = pd.factorize(functions["module"])
    at = pd.Index(functions["func_id"]).get_indexer(rows["func_id"])
    return pd.DataFrame({"module": np.asarray(modules, object)}), np.append(code, -1)[at].astype(np.int64)


def _sums(rows: pd.DataFrame, whole: Bools, names: pd.DataFrame, group: Ints, key: str) -> pd.DataFrame:
    """Sums of `rows` by `group`: of their totals those of `whole`."""
    table = pd.DataFrame({"calls": rows["calls"].groupby(group).sum()})
    table["total_ns"], table["self_ns"] = _sum(rows["total_ns"], group, whole), _sum(rows["self_ns"], group)
    for prefix, mask in (("", whole), ("self_", None)):
        on_cpu = rows[f"{prefix}on_cpu_ns"]
        table[f"{prefix}unknown_ns"] = _sum(rows[f"{prefix}unknown_ns"], group, mask)
        for name in SPLIT:
            table[prefix + name] = _sum(rows[prefix + name], group, mask)
            unsplit = (rows[prefix + name].isna() & on_cpu.notna()).to_numpy(dtype=bool) & (True if mask is None else mask)
            if unsplit.any():
                table.loc[np.unique(group[unsplit]), prefix + name] = pd.NA
    table = names.join(table, how="right")
    if key == "function":
        table["func_id"] = table.index
        table["first_line"] = table["first_line"].fillna(-1).astype(np.int64)
    return table.sort_values(["total_ns", "self_ns"], ascending=False, kind="stable").reset_index(drop=True)


def unknown(rows: pd.DataFrame, whole: str = "wall_ns", prefix: str = "") -> "pd.Series[Any]":
    """What of the column `whole` is none of the four ways that are known, of rows whose on_cpu_ns is null; 0 of others, whose waits may not be told apart."""
    known = sum(rows[prefix + name].fillna(0) for name in SPLIT)
    return (rows[whole] - known).where(rows[f"{prefix}on_cpu_ns"].isna(), 0)


def overall(calls: pd.DataFrame) -> dict[str, int | None]:
    """wall_ns, SPLIT and unknown_ns of the outermost calls (COLUMNS and depth) of all threads, null as in by_function."""
    outer = calls[calls["depth"] == 0]
    return _whole(outer.assign(total_ns=outer["wall_ns"], unknown_ns=unknown(outer)))


def overall_of_tree(tree: pd.DataFrame) -> dict[str, int | None]:
    """The same, of the calls in `tree` (schema.TREE)."""
    return _whole(tree[tree["depth"] < 0])


def _whole(rows: pd.DataFrame) -> dict[str, int | None]:
    known = rows["on_cpu_ns"].notna()
    is_split = {name: rows[name].notna().any() and not (rows[name].isna() & known).any() for name in SPLIT}
    split = {name: int(rows[name].sum()) if is_split[name] else None for name in SPLIT}
    return {"wall_ns": int(rows["total_ns"].sum()), **split, "unknown_ns": int(rows["unknown_ns"].sum())}


def _nullable(numbers: Ints, known: Bools) -> "pd.api.extensions.ExtensionArray | Ints":
    return numbers if known.all() else pd.arrays.IntegerArray(numbers, ~known)


def _sum(column: "pd.Series[int]", group: Ints, mask: Bools | None = None) -> "pd.Series[int]":
    """Sum per group over `mask`; null where no value of the group is known."""
    column = pd.Series(column.array, dtype="Int64")
    if mask is not None:
        column, group = column[mask], group[mask]
    return column.groupby(group).sum(min_count=1)
