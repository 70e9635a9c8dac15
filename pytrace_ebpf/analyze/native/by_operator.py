"""Where the time of native code went, by operator and by layer, and how much was computed in it."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from pytrace_ebpf.analyze.functions.by_function import SELF, outermost, with_self
from pytrace_ebpf.analyze.native.operators import LAYERS, counted
from pytrace_ebpf.analyze.native.tensors import UNREAD, Ints, distinct_shapes
from pytrace_ebpf.trace.states import SPLIT

OPERATORS = ("call_id", "layer", "pid", "tid", "name", "overload", "library", "shapes", "worker_on_cpu_ns", "flops", "bytes")
_KEY = ["layer", "name", "library"]


def by_operator(operators: pd.DataFrame, calls: pd.DataFrame, shapes: bool = False) -> pd.DataFrame:
    """Aggregate `operators` (OPERATORS) by layer, name and library; with `shapes` also by overload and shapes. Most self time first.

    `calls` (by_function.COLUMNS) has all calls in the order of call_id or, with by_function.SELF, those of `operators`.
    One row each: the key (shapes as text, null not read); calls;
    total_ns, worker_on_cpu_ns, flops and bytes of its outermost activations; self_ns, self_SPLIT and self_unknown_ns, without the
    calls below, of all of them; flops_per_s, by the wall time of those whose flops are known. Null where nothing is known.
    """
    rows = _with_times(operators, calls)
    key = list(_KEY)
    if shapes:
        numbers, values = distinct_shapes(rows["shapes"])
        texts = np.array([*map(shapes_text, values), None], object)
        rows["shapes"], key = texts[np.where(numbers == UNREAD, len(values), numbers)], [*key, "overload", "shapes"]
    group = rows.groupby(key, dropna=False, sort=False).ngroup().to_numpy().astype(np.int64)
    table = rows[key].astype(object).groupby(group).first()
    table["calls"] = pd.Series(group).value_counts()
    whole = outermost(rows, group)
    for name, column, mask in (
        ("total_ns", "wall_ns", whole), ("worker_on_cpu_ns", "worker_on_cpu_ns", whole), ("flops", "flops", whole), ("bytes", "bytes", whole),
        ("self_ns", "self_wall_ns", None), *((f"self_{name}", f"self_{name}", None) for name in SPLIT),
    ):  # fmt: skip
        table[name] = _sum(rows[column], group, mask)
    table["self_unknown_ns"] = _sum(rows["self_wall_ns"].where(rows["self_on_cpu_ns"].isna(), 0), group)
    known = whole & rows["flops"].notna().to_numpy(bool)
    table["flops_per_s"] = _rate(table["flops"], _sum(rows["wall_ns"], group, known))
    return table.sort_values("self_ns", ascending=False, kind="stable", ignore_index=True)


def by_layer(operators: pd.DataFrame, calls: pd.DataFrame) -> list[dict[str, Any]]:
    """Of each native layer that has calls: layer, calls, total_ns of its outermost ones, self_ns, worker_on_cpu_ns, flops and flops_per_s.

    Each operation is counted once (operators.counted), and flops_per_s is by the time of the calls that are. Values are int or None.
    """
    rows = _with_times(operators, calls)
    adds_up = counted(operators, calls)
    code: Ints = rows["layer"].astype("object").map({name: i for i, name in enumerate(LAYERS)}).to_numpy(np.int64)
    whole = outermost(rows, code)
    out = []
    for number in np.unique(code).tolist():
        own = code == number
        flops, took = (_total(rows[column][own & adds_up]) for column in ("flops", "wall_ns"))
        out.append(
            {
                "layer": LAYERS[number],
                "calls": int(own.sum()),
                "total_ns": _total(rows["wall_ns"][own & whole]),
                "self_ns": _total(rows["self_wall_ns"][own]),
                "worker_on_cpu_ns": _total(rows["worker_on_cpu_ns"][own & whole]),
                "flops": flops,
                "flops_per_s": round(flops * 10**9 / took) if flops and took else None,
            }
        )
    return out


def shapes_text(shapes: tuple[tuple[int, ...] | None, ...]) -> str:
    """Shapes as a person writes them: "64x300x124, 128x300x2, 128"; () has no dimensions, - is undefined."""
    return ", ".join("-" if s is None else "x".join(map(str, s)) if s else "()" for s in shapes)


def _with_times(operators: pd.DataFrame, calls: pd.DataFrame) -> pd.DataFrame:
    """`operators` with the columns of `calls` and self_ of them, which `calls` may have already."""
    calls = calls if SELF[0] in calls else with_self(calls)
    at = np.searchsorted(calls["call_id"].to_numpy(np.int64), operators["call_id"].to_numpy(np.int64))
    times = calls.iloc[at].reset_index(drop=True)
    own = operators[[name for name in operators if name not in times]].reset_index(drop=True)
    return pd.concat([times, own], axis=1)


def _sum(column: "pd.Series[Any]", group: Ints, mask: npt.NDArray[np.bool_] | None = None) -> "pd.Series[Any]":
    column = pd.Series(column.array, dtype="Int64")
    if mask is not None:
        column, group = column[mask], group[mask]
    return column.groupby(group).sum(min_count=1)


def _total(column: "pd.Series[Any]") -> int | None:
    return int(column.sum()) if column.notna().any() else None


def _rate(amount: "pd.Series[Any]", ns: "pd.Series[Any]") -> "pd.Series[Any]":
    """Per second, null of no time."""
    ns = ns.reindex(amount.index).where(lambda took: took > 0)
    return (amount.astype("Float64") * 1e9 / ns.astype("Float64")).round().astype("Int64")
