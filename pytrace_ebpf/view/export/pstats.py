"""What cProfile would have written, for Python's pstats, SnakeViz, gprof2dot or tuna: calls, own and total time by function, and by its callers.

The file is one marshalled dictionary, as pstats.Stats.dump_stats() writes it: (file, line, name) to (primitive calls, calls, own time, total time,
callers), each caller to (calls, primitive calls, own time, total time); times in seconds. Memory is bounded by the rows of the tree.
"""

import marshal
from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pandas as pd

from pytrace_ebpf.printable import printable
from pytrace_ebpf.trace.frames import values_and_mask
from pytrace_ebpf.view.export.parts import column, part_of

SUFFIX = ".pstats"
_NOBODY = -2
_AT_ONCE = 1 << 16  # rows

Ints = npt.NDArray[np.int64]
Key = tuple[str, int, str]


def write(trace: Any, value: str, out: BinaryIO) -> None:
    """Write the calls of `trace` or of a window of it, and of their time `value` (values.VALUES). Raises UsageError where that is not known."""
    tree = trace.tree()
    part = part_of(tree, value)
    rows = tree[(tree["depth"] >= 0) & (tree["calls"] > 0)]
    caller = _callers(tree, rows)
    found = pd.DataFrame(
        {"caller": caller, "func_id": rows["func_id"], "calls": rows["calls"], "own": values_and_mask(rows[column(part, "self_")])[0]}
    )
    total = values_and_mask(rows[column(part, "")])[0]
    keys = _keys(trace.functions())
    nobody: dict[Key, tuple[int, int, float, float]] = {}  # stands for all that have no callers: there may be a million
    stats: dict[Key, tuple[int, int, float, float, dict[Key, tuple[int, int, float, float]]]] = {}
    for func_id, calls, primitive, own, whole in _sums(found, ["func_id"], rows["outermost"].to_numpy(bool), total):
        before = stats.get(key := keys.get(func_id, _UNKNOWN), (0, 0, 0.0, 0.0, nobody))
        stats[key] = (before[0] + primitive, before[1] + calls, before[2] + own, before[3] + whole, nobody)
    within = found["caller"] != _NOBODY
    outermost = _first_of_pair(tree, rows)[within]
    for above, func_id, calls, primitive, own, whole in _sums(found[within], ["caller", "func_id"], outermost, total[within]):
        callers = stats[of := keys.get(func_id, _UNKNOWN)][4]
        if callers is nobody:
            callers = {}
            stats[of] = (*stats[of][:4], callers)
        was = callers.get(key := keys.get(above, _UNKNOWN), (0, 0, 0.0, 0.0))
        callers[key] = (was[0] + calls, was[1] + primitive, was[2] + own, was[3] + whole)
    marshal.dump(stats, out)


_UNKNOWN: Key = ("~", 0, "(unknown)")


def _keys(functions: pd.DataFrame) -> dict[int, Key]:
    """Functions as pstats names them; ~ stands for the file of what is not Python, and is left out by it."""
    code, files = pd.factorize(functions["file"])  # of which there are fewer: each once
    files = [printable(file) or "~" for file in files]
    rows = zip(functions["func_id"], code, functions["first_line"], functions["qualname"], strict=True)
    return {int(i): (files[file], max(0, int(line)), printable(name)) for i, file, line, name in rows}


def _callers(tree: pd.DataFrame, rows: pd.DataFrame) -> Ints:
    """The func_id of each row's caller; _NOBODY where none is known."""
    inner = tree[tree["depth"] >= 0]
    return rows["parent_id"].map(inner.set_index("node_id")["func_id"]).fillna(_NOBODY).to_numpy(np.int64)


def _first_of_pair(tree: pd.DataFrame, rows: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Of each row, whether no other call of its function from the same caller is above it: their total times add up without counting recursion twice."""
    size = int(tree["node_id"].max()) + 2
    parent, func = np.full(size, -1, np.int64), np.full(size, _NOBODY, np.int64)  # the last one is above the outermost
    number = tree["node_id"].to_numpy(np.int64)
    parent[number], func[number] = tree["parent_id"].to_numpy(np.int64), np.where(tree["depth"] >= 0, tree["func_id"], _NOBODY)
    own = rows["node_id"].to_numpy(np.int64)
    first, left = np.ones(len(own), bool), np.flatnonzero(~rows["outermost"].to_numpy(bool))
    at = parent[own[left]]
    while len(left):
        again = (func[at] == func[own[left]]) & (func[parent[at]] == func[parent[own[left]]])
        first[left[again]] = False
        on = ~again & (parent[at] >= 0)
        left, at = left[on], parent[at[on]]
    return first


def _sums(rows: pd.DataFrame, by: list[str], outermost: npt.NDArray[np.bool_], total: Ints) -> Iterator[tuple[Any, ...]]:
    """The keys `by`, calls, primitive ones, and own and total time in s."""
    parts = rows.assign(primitive=np.where(outermost, rows["calls"], 0), whole=np.where(outermost, total, 0))
    table = parts.groupby(by)[["calls", "primitive", "own", "whole"]].sum().reset_index()
    table[["own", "whole"]] /= 1e9
    for at in range(0, len(table), _AT_ONCE):
        some = table.iloc[at : at + _AT_ONCE]
        yield from zip(*(some[name].tolist() for name in some), strict=True)
