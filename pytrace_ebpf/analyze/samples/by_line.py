"""Samples by source line: at the line itself, and in the functions called from it."""

from itertools import chain

import numpy as np
import pandas as pd

from pytrace_ebpf.analyze.samples.errors import with_errors
from pytrace_ebpf.analyze.samples.paths import segments
from pytrace_ebpf.analyze.samples.weights import SQUARES, SUMS, named
from pytrace_ebpf.derive.added import added
from pytrace_ebpf.trace.reader import Trace

_PLACE = ["func_id", "line"]


def by_line(trace: Trace, period: int, of: int) -> pd.DataFrame:
    """One row per function and line that a sample was taken at, function by function, those with most time of their own first, there by line.

    func_id, qualname, file, first_line, module, line (-1 unknown); total_ns (a line that recursion comes to again counts once) and
    self_ns, what each is split into (weights.SUMS), samples, and errors as errors.with_errors has them, of `of` samples on a core.
    """
    columns = [*named("total", ""), *named("self", "self_")]
    none = pd.DataFrame({name: np.zeros(0, np.int64) for name in (*_PLACE, *columns)})
    table = added(chain([none], (_counted(*segment) for segment in segments(trace, native=False))), _PLACE, dict.fromkeys(columns, "sum"))
    table = table.drop(columns=[name for name in columns if "unknown" in name])
    names = trace.functions()[["func_id", "qualname", "file", "first_line", "module"]]
    table = names.merge(with_errors(table, period, of), on="func_id")
    rank = table.groupby("func_id")[["self_ns", "total_ns"]].transform("sum")
    order = np.lexsort((table["line"], table["func_id"], -rank["total_ns"], -rank["self_ns"]))
    return table.iloc[order].reset_index(drop=True)


def _counted(samples: pd.DataFrame, stacks: pd.DataFrame) -> pd.DataFrame:
    """func_id, line, and the sums of one segment."""
    at = pd.Series(np.arange(len(stacks)), stacks["stack_id"])
    known = samples[samples["stack_id"] >= 0]
    place = known["stack_id"].map(at).to_numpy(np.int64)
    parents = stacks["parent_id"].map(at).fillna(-1).to_numpy(np.int64)
    key = (stacks["func_id"].to_numpy(np.int64) + 1) << 32 | (stacks["line"].to_numpy(np.int64) + 1)
    counts = np.where(_first(key, parents), 1, 0)[:, None]
    table = {"func_id": stacks["func_id"], "line": stacks["line"]}
    for columns in (SUMS, SQUARES):
        own = np.zeros((len(stacks), len(columns)), known[columns[0]].dtype)
        np.add.at(own, place, known[list(columns)].to_numpy())
        below = own.copy()
        for child in range(len(parents) - 1, -1, -1):  # callers come first
            if parents[child] >= 0:
                below[parents[child]] += below[child]
        of = slice(0, len(SUMS)) if columns is SUMS else slice(len(SUMS), None)
        table |= dict(zip(named("total", "")[of], (below * counts).T, strict=True)) | dict(zip(named("self", "self_")[of], own.T, strict=True))
    return pd.DataFrame(table)


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
