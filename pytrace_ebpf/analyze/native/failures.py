"""What raised an error in native code: the operator, what it was given, the lines of Python that led to it, and the message."""

from pathlib import PurePath

import numpy as np
import pandas as pd

from pytrace_ebpf.analyze.native.by_operator import shapes_text
from pytrace_ebpf.derive.native.tensors import UNREAD, Ints, distinct_shapes
from pytrace_ebpf.derive.sinks.operators import enclosing
from pytrace_ebpf.trace.frames import to_frame
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.trace.schema import OPERATORS as SCHEMA

CALLS = ("call_id", "parent_id", "last_descendant_id", "layer", "pid", "func_id", "line", "status")
OPERATORS = ("call_id", "parent_id", "pid", "tid", "name", "overload", "end_ns", "shapes", "dtypes", "error", "status")
LIBRARY = "torch"  # a folder of this name holds no code of the user's
_SIDES = ("", "caller_")


def failed_calls(trace: Trace) -> pd.DataFrame:
    """OPERATORS of the native calls that an error left, in the order of call_id: no others are held."""
    parts = (part[part["status"] == "unwound"] for part in trace.operators_by_part(OPERATORS))
    none = to_frame(SCHEMA.arrow.empty_table().select(list(OPERATORS)), SCHEMA)
    return pd.concat([none, *(part for part in parts if len(part))]).sort_values("call_id", ignore_index=True)


def failures(failed: pd.DataFrame, calls: pd.DataFrame, functions: pd.DataFrame, lines_anyway: bool) -> pd.DataFrame:
    """One row per different error that left a native call whose caller was Python, or which had none, in the order of time.

    `failed`: of failed_calls(); `calls` (CALLS): these and all that they lie in (around.calls_around); `functions` schema.FUNCTIONS. times; end_ns, pid and tid of
    the first; name, overload; shapes and dtypes as text, null not read; inner, inner_shapes: the innermost call below it that failed with it, null where it is the same;
    qualname, file, line: the Python call that it was called from, and caller_ of these: the nearest of them that is not PyTorch's own;
    error: the message, null not read. A line is null where the call went on: then it is not reported. `lines_anyway`: the source
    does not report which calls went on, so a line is taken for that of the error where nothing was called after it.
    """
    root = _roots(failed)
    rows = failed.loc[np.unique(root)].reset_index(drop=True)
    out = rows[["end_ns", "pid", "tid", "name", "overload"]].astype({"name": object, "overload": object})
    ids, deepest = rows["call_id"].to_numpy(np.int64), failed["call_id"].to_numpy(np.int64)
    # Of several below it that failed one after the other, the first were caught.
    innermost = failed["call_id"].groupby(root).max().to_numpy(np.int64)
    by_id = failed.set_index("call_id")
    out["error"] = by_id["error"].reindex(innermost).to_numpy()
    numbers, shapes = distinct_shapes(failed["shapes"])
    texts = pd.Series(np.array([*map(shapes_text, shapes), None], object)[np.where(numbers == UNREAD, len(shapes), numbers)], deepest)
    out["shapes"] = texts.reindex(ids).to_numpy()
    out["dtypes"] = [None if types is None else ", ".join(t or "-" for t in types) for types in rows["dtypes"]]
    differs = innermost != ids
    out["inner"] = by_id["name"].astype(object).reindex(innermost).where(differs).to_numpy()
    out["inner_shapes"] = texts.reindex(innermost).where(differs).to_numpy()
    nearest = enclosing(calls, ids, (calls["layer"] == "python").to_numpy())
    for side, of in zip(_SIDES, (nearest, _outside(calls, functions, nearest)), strict=True):
        out = pd.concat([out, _place(calls, functions, of, ids, lines_anyway).add_prefix(side)], axis=1)
    same = [name for name in out if name not in ("end_ns", "pid", "tid")]
    table = out.groupby(same, dropna=False, sort=False, as_index=False).agg(
        end_ns=("end_ns", "min"), pid=("pid", "first"), tid=("tid", "first"), times=("end_ns", "size")
    )
    return table.sort_values("end_ns", kind="stable", ignore_index=True)


def _roots(failed: pd.DataFrame) -> Ints:
    """Of each row the row of the outermost call that failed with it."""
    ids = failed["call_id"].to_numpy(np.int64)
    parent = np.searchsorted(ids, failed["parent_id"].to_numpy(np.int64))
    has = failed["parent_id"].isin(failed["call_id"]).to_numpy()
    root = np.where(has, parent, np.arange(len(ids)))
    while (root[root] != root).any():
        root = root[root]
    return root


def _at(calls: pd.DataFrame, ids: Ints) -> Ints:
    return np.minimum(np.searchsorted(calls["call_id"].to_numpy(np.int64), ids), len(calls) - 1)


def _last_of(calls: pd.DataFrame, ids: Ints) -> Ints:
    return calls["last_descendant_id"].to_numpy(np.int64)[_at(calls, ids)]


def _outside(calls: pd.DataFrame, functions: pd.DataFrame, ids: Ints) -> Ints:
    """The nearest Python call around each, or itself, that is not of LIBRARY; -1 where there is none."""
    own = functions.loc[[LIBRARY in PurePath(file).parts[:-1] for file in functions["file"]], "func_id"]
    others = (calls["layer"] == "python").to_numpy() & ~calls["func_id"].isin(own).to_numpy()
    further = (ids >= 0) & ~others[_at(calls, ids)]
    out = ids.copy()
    out[further] = enclosing(calls, ids[further], others)
    return out


def _place(calls: pd.DataFrame, functions: pd.DataFrame, ids: Ints, failed: Ints, lines_anyway: bool) -> pd.DataFrame:
    """qualname, file, line of the calls `ids` (-1 for none, then null), whose call `failed` failed."""
    rows = calls.iloc[_at(calls, ids)].reset_index(drop=True)
    there = pd.Series(ids >= 0)
    names = functions.set_index("func_id")[["qualname", "file"]].reindex(rows["func_id"]).reset_index(drop=True).where(there, None)
    left = (rows["status"] == "unwound") | (lines_anyway & (_last_of(calls, ids) == _last_of(calls, failed)))
    return names.assign(line=rows["line"].astype("Int64").where(there & left & (rows["line"] > 0)))
