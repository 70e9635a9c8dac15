"""The calling-context tree for a page: of all threads together and of each, its smallest nodes left out, and who called whom."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from pytrace_ebpf.trace.frames import values_and_mask
from pytrace_ebpf.trace.states import SPLIT
from pytrace_ebpf.view.page.columns import Columns
from pytrace_ebpf.view.page.timeline import Lanes

_MOST_NODES = 20_000  # of either tree
_MOST_PAIRS = 30_000  # of caller and callee
TIMES = ("total_ns", *SPLIT, "unknown_ns", "self_ns", *(f"self_{name}" for name in SPLIT), "self_unknown_ns")

_SHOWN = ("calls", *TIMES)
_WHOLE = TIMES[: 2 + len(SPLIT)]

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


def together(tree: pd.DataFrame, columns: Columns) -> dict[str, Any]:
    """The tree (schema.TREE) with the threads' added up: packed()'s columns."""
    parent, depth, func = (tree[name].to_numpy(np.int64) for name in ("parent_id", "depth", "func_id"))
    path, count = np.full(len(tree), -1), 0  # the thread's own node: -1, as its parent
    own, rows = [], np.flatnonzero(depth == 0)
    place = pd.Series(np.arange(len(tree)), tree["node_id"].to_numpy(np.int64))
    above = place.reindex(parent).fillna(-1).to_numpy(np.int64)
    order = np.argsort(depth, kind="stable")
    edges = np.searchsorted(depth[order], np.arange(int(depth.max(initial=-1)) + 2))
    for begin, end in zip(edges, edges[1:], strict=False):
        rows = order[begin:end]
        parents = np.where(above[rows] >= 0, path[above[rows]], -1)
        keys, inverse = np.unique((parents + 1) << 32 | (func[rows] + 1), return_inverse=True)
        path[rows] = count + inverse
        own.append(np.stack(((keys >> 32) - 1, (keys & 0xFFFFFFFF) - 1)))
        count += len(keys)
    called = path >= 0
    path, tree = path[called], tree[called]
    up, of = np.concatenate(own, axis=1) if own else np.zeros((2, 0), np.int64)

    def columns_of(keep: Bools) -> dict[str, Ints]:
        rows, place = keep[path], np.cumsum(keep) - 1
        return {"func": of[keep], **{name: _sum(_numbers(tree, name)[rows], place[path[rows]], int(keep.sum())) for name in _SHOWN}}

    return packed(up, _sum(_numbers(tree, "total_ns"), path, count), columns_of, columns)


def by_thread(tree: pd.DataFrame, lanes: Lanes, columns: Columns) -> dict[str, Any]:
    """The tree of each thread: packed()'s columns, where a thread's own node has func -1, and `thread`, its place in `lanes`."""
    place = pd.Series(np.arange(len(tree)), tree["node_id"].to_numpy(np.int64))
    parent = place.reindex(tree["parent_id"].to_numpy(np.int64)).fillna(-1).to_numpy(np.int64)

    def columns_of(keep: Bools) -> dict[str, Ints]:
        kept = tree[keep]
        thread = lanes.of(kept["pid"].to_numpy(), kept["tid"].to_numpy())
        func = np.where(kept["depth"] < 0, -1, kept["func_id"].to_numpy(np.int64))
        return {"func": func, "thread": thread, **{name: _numbers(kept, name) for name in _SHOWN}}

    return packed(parent, _numbers(tree, "total_ns"), columns_of, columns)


def packed(parent: Ints, total: Ints, columns_of: Callable[[Bools], dict[str, Ints]], columns: Columns) -> dict[str, Any]:
    """Nodes, callers before callees, those with the most time: parent (a place, -1 none), func, calls and times; `left_out`, how many are not there.

    `parent` and `total` are of all nodes, and what `columns_of` gives of those that are kept: of a large tree each column counts.
    """
    keep = np.ones(len(total), bool)
    if len(total) > _MOST_NODES:
        keep = total > np.partition(total, -_MOST_NODES)[-_MOST_NODES]
    for at in np.flatnonzero(keep & (parent >= 0)).tolist():  # a callee whose caller is not there cannot be shown
        keep[at] = keep[parent[at]]
    place = np.append(np.cumsum(keep) - 1, -1)
    kept = {**columns_of(keep), "parent": place[parent[keep]]}
    return {"left_out": int((~keep).sum()), "columns": {name: columns.add(each) for name, each in kept.items()}}


def pairs(tree: pd.DataFrame, columns: Columns) -> dict[str, Any]:
    """Who called whom, those with the most time: caller (func_id; -1 nobody), callee, calls and the callee's times."""
    caller = tree.set_index("node_id")["func_id"].reindex(tree["parent_id"]).fillna(-1).to_numpy(np.int64)
    called = (tree["depth"] >= 0).to_numpy()
    tree, caller = tree[called], caller[called]
    keys, pair = np.unique((caller + 1) << 32 | (tree["func_id"].to_numpy(np.int64) + 1), return_inverse=True)
    pair = pair.reshape(-1)
    # A function that is called below itself counts once: the time of inner activations is in the outer one's.
    outermost = tree["outermost"].to_numpy(bool)

    def sums(name: str) -> Ints:
        numbers = _numbers(tree, name)
        return _sum(np.where(outermost, numbers, 0) if name in _WHOLE else numbers, pair, len(keys))

    kept = np.lexsort((-sums("self_ns"), -sums("total_ns")))[:_MOST_PAIRS]
    found = {"caller": (keys[kept] >> 32) - 1, "callee": (keys[kept] & 0xFFFFFFFF) - 1}
    found |= {name: sums(name)[kept] for name in _SHOWN}
    return {"left_out": len(keys) - len(kept), "columns": {name: columns.add(each) for name, each in found.items()}}


def _numbers(tree: pd.DataFrame, name: str) -> Ints:
    return values_and_mask(tree[name])[0]


def _sum(numbers: Ints, group: Ints, count: int) -> Ints:
    """Sums by group, of which there are so many."""
    sums = np.zeros(count, np.int64)
    np.add.at(sums, group, numbers)
    return sums
