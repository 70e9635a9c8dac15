"""Samples by source line: at the line itself, and in the functions called from it."""

import numpy as np
import pandas as pd

from pytrace_ebpf.analyze.samples.errors import with_errors
from pytrace_ebpf.analyze.samples.paths import segments
from pytrace_ebpf.trace.reader import Trace

_PLACE = ["func_id", "line"]


def by_line(trace: Trace, period: int, of: int) -> pd.DataFrame:
    """One row per function and line that a sample was taken at, function by function, those with most time of their own first, there by line.

    func_id, qualname, file, first_line, module, line (-1 unknown); total_ns (a line that recursion comes to again counts once) and
    self_ns, with X_samples and X_error_ns as errors.with_errors has them, of `of` samples in all.
    """
    sums = [_counted(samples, stacks) for samples, stacks in segments(trace)]
    table = pd.concat(sums or [pd.DataFrame({name: np.zeros(0, np.int64) for name in (*_PLACE, "total", "own")})])
    table = table.groupby(_PLACE)[["total", "own"]].sum().reset_index()
    table["total_ns"], table["self_ns"] = table.pop("total") * period, table.pop("own") * period
    names = trace.functions()[["func_id", "qualname", "file", "first_line", "module"]]
    table = names.merge(with_errors(table, period, of), on="func_id")
    rank = table.groupby("func_id")[["self_ns", "total_ns"]].transform("sum")
    order = np.lexsort((table["line"], table["func_id"], -rank["total_ns"], -rank["self_ns"]))
    return table.iloc[order].reset_index(drop=True)


def _counted(samples: pd.DataFrame, stacks: pd.DataFrame) -> pd.DataFrame:
    """func_id, line, total and own of one segment."""
    at = pd.Series(np.arange(len(stacks)), stacks["stack_id"])
    own = samples.loc[samples["stack_id"] >= 0, "stack_id"].map(at).value_counts()
    count = np.zeros(len(stacks), np.int64)
    count[own.index.to_numpy(np.int64)] = own.to_numpy()
    parents = stacks["parent_id"].map(at).fillna(-1).to_numpy(np.int64)
    below = count.tolist()
    for child in range(len(parents) - 1, -1, -1):  # callers come first
        if parents[child] >= 0:
            below[parents[child]] += below[child]
    place = (stacks["func_id"].to_numpy(np.int64) + 1) << 32 | (stacks["line"].to_numpy(np.int64) + 1)
    return pd.DataFrame({"func_id": stacks["func_id"], "line": stacks["line"], "total": np.where(_first(place, parents), below, 0), "own": count})


def _first(
    place: "np.ndarray[tuple[int], np.dtype[np.int64]]", parents: "np.ndarray[tuple[int], np.dtype[np.int64]]"
) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
    """Of each stack, whether no caller stands at the same place."""
    places, found = place.tolist(), np.ones(len(place), bool)
    for at, parent in enumerate(parents.tolist()):
        while parent >= 0 and places[parent] != places[at]:
            parent = int(parents[parent])
        found[at] = parent < 0
    return found
