"""Where the time of native code went, by operator and by layer, and how much was computed in it."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from pytrace_ebpf.analyze.functions.by_function import SELF, unknown
from pytrace_ebpf.derive.added import KNOWN, Added
from pytrace_ebpf.derive.calls.preorder import outermost
from pytrace_ebpf.derive.native.tensors import UNREAD, Ints, distinct_shapes
from pytrace_ebpf.derive.sinks.operators import counted
from pytrace_ebpf.trace.layers import NATIVE_NAMES
from pytrace_ebpf.trace.states import SPLIT

COLUMNS = ("layer", "name", "overload", "library", "shapes", "wall_ns", *SELF, "worker_on_cpu_ns", "flops", "bytes")
_KEY = ["layer", "name", "library"]
_SELF_SPLIT = {f"self_{name}": f"self_{name}" for name in SPLIT}
_OF_OUTERMOST = {"total_ns": "wall_ns", "worker_on_cpu_ns": "worker_on_cpu_ns"}


def by_operator(parts: Iterable[pd.DataFrame], shapes: bool = False) -> tuple[pd.DataFrame, list[dict[str, Any]]]:
    """Sums of native calls (COLUMNS of around.native_by_part) by layer, name and library, with `shapes` also by overload and shapes; and by layer.

    The first, most self time first: the key (shapes as text, null not read); calls; total_ns, worker_on_cpu_ns, flops and bytes of
    its outermost activations; self_ns, self_SPLIT and self_unknown_ns, without the calls below, of all of them; flops_per_s, by the
    wall time of those whose flops are known. Null where nothing is known.

    The second, of each native layer that has calls: layer, calls, total_ns of its outermost ones, self_ns, worker_on_cpu_ns, flops and
    flops_per_s. Each operation is counted once (operators.counted), and flops_per_s is by the time of the calls that are. Values are int or None.
    """
    key = [*_KEY, "overload", "shapes"] if shapes else _KEY
    more = {"self_unknown_ns": KNOWN, "took_ns": KNOWN}
    times = dict.fromkeys(("total_ns", "self_ns", "worker_on_cpu_ns", "flops"), KNOWN)
    operators = Added(key, {"calls": "sum", **times, **dict.fromkeys(_SELF_SPLIT, KNOWN), "bytes": KNOWN, **more})
    layers = Added(["layer"], {"calls": "sum", **times, "took_ns": KNOWN})
    for rows in parts:
        operators.add(_of_operators(_with_shapes(rows) if shapes else rows, key))
        layers.add(_of_layers(rows))
    table = operators.table
    table["flops_per_s"] = _rate(table["flops"], table.pop("took_ns"))
    return table.sort_values("self_ns", ascending=False, kind="stable", ignore_index=True), _layers(layers.table)


def _of_operators(rows: pd.DataFrame, key: list[str]) -> pd.DataFrame:
    """What the calls of a part add to the sums of their operators."""
    whole = outermost(rows, _numbers(rows, key))
    known = whole & rows["flops"].notna().to_numpy(bool)
    out = _of_either(rows, whole).assign(**{name: rows[name] for name in key}, **{name: rows[of] for name, of in _SELF_SPLIT.items()})
    out["flops"], out["bytes"], out["took_ns"] = _of(rows["flops"], whole), _of(rows["bytes"], whole), _of(rows["wall_ns"], known)
    out["self_unknown_ns"] = unknown(rows, "self_wall_ns", "self_")
    return _plain(out)[rows["own"].to_numpy()]


def _of_layers(rows: pd.DataFrame) -> pd.DataFrame:
    """What the calls of a part add to the sums of their layers."""
    adds_up = counted(rows)
    out = _of_either(rows, outermost(rows, _numbers(rows, ["layer"]))).assign(layer=rows["layer"])
    out["flops"], out["took_ns"] = _of(rows["flops"], adds_up), _of(rows["wall_ns"], adds_up)
    return _plain(out)[rows["own"].to_numpy()]


def _of_either(rows: pd.DataFrame, whole: npt.NDArray[np.bool_]) -> pd.DataFrame:
    out = pd.DataFrame({"calls": np.ones(len(rows), np.int64), "self_ns": rows["self_wall_ns"]}, rows.index)
    return out.assign(**{name: _of(rows[of], whole) for name, of in _OF_OUTERMOST.items()})


def _numbers(rows: pd.DataFrame, key: list[str]) -> Ints:
    return rows.groupby(key, dropna=False, sort=False).ngroup().to_numpy(np.int64)


def _of(column: "pd.Series[Any]", mask: npt.NDArray[np.bool_]) -> "pd.Series[Any]":
    """`column`, null but for the rows of the mask."""
    return column.astype("Int64").where(mask)


def _plain(rows: pd.DataFrame) -> pd.DataFrame:
    """Times as Int64, whichever of them have nulls in this part."""
    return rows.astype({name: "Int64" for name in rows if name != "calls" and pd.api.types.is_numeric_dtype(rows[name])})


def _layers(table: pd.DataFrame) -> list[dict[str, Any]]:
    table["flops_per_s"] = _rate(table["flops"], table["took_ns"].where(table["flops"] > 0))
    rows = table.set_index("layer").reindex([name for name in NATIVE_NAMES if name in set(table["layer"])]).reset_index()
    names = ("layer", "calls", "total_ns", "self_ns", "worker_on_cpu_ns", "flops", "flops_per_s")
    return [
        {name: row[name] if name == "layer" else None if pd.isna(row[name]) else int(row[name]) for name in names} for row in rows.to_dict("records")
    ]


def _with_shapes(rows: pd.DataFrame) -> pd.DataFrame:
    numbers, values = distinct_shapes(rows["shapes"])
    texts = np.array([*map(shapes_text, values), None], object)
    return rows.assign(shapes=texts[np.where(numbers == UNREAD, len(values), numbers)])


def shapes_text(shapes: tuple[tuple[int, ...] | None, ...]) -> str:
    """Shapes as a person writes them: "64x300x124, 128x300x2, 128"; () has no dimensions, - is undefined."""
    return ", ".join("-" if s is None else "x".join(map(str, s)) if s else "()" for s in shapes)


def _rate(amount: "pd.Series[Any]", ns: "pd.Series[Any]") -> "pd.Series[Any]":
    """Per second, null of no time."""
    return (amount.astype("Float64") * 1e9 / ns.where(ns > 0).astype("Float64")).round().astype("Int64")
