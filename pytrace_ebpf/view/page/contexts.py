"""The calling-context tree for a page: of all threads together and of each, its smallest nodes left out, and who called whom."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from pytrace_ebpf.trace.states import SPLIT
from pytrace_ebpf.view.page.columns import Columns
from pytrace_ebpf.view.page.timeline import Lanes

_MOST_NODES = 20_000  # of either tree
_MOST_PAIRS = 30_000  # of caller and callee
TIMES = ("total_ns", *SPLIT, "unknown_ns", "self_ns", *(f"self_{name}" for name in SPLIT), "self_unknown_ns")

Ints = npt.NDArray[np.int64]


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
    if not count:
        return packed(pd.DataFrame({name: np.zeros(0, np.int64) for name in ("parent", "func", "calls", *TIMES)}), columns)
    called = path >= 0
    sums = tree.loc[called, ["calls", *TIMES]].fillna(0).astype("int64").groupby(path[called]).sum()
    up, of = np.concatenate(own, axis=1)
    return packed(sums.assign(parent=up, func=of), columns)


def by_thread(tree: pd.DataFrame, lanes: Lanes, columns: Columns) -> dict[str, Any]:
    """The tree of each thread: packed()'s columns, where a thread's own node has func -1, and `thread`, its place in `lanes`."""
    place = pd.Series(np.arange(len(tree)), tree["node_id"].to_numpy(np.int64))
    parent = place.reindex(tree["parent_id"].to_numpy(np.int64)).fillna(-1).to_numpy(np.int64)
    thread = lanes.of(tree["pid"].to_numpy(), tree["tid"].to_numpy())
    times = tree[["calls", *TIMES]].fillna(0).astype("int64").reset_index(drop=True)
    func = np.where(tree["depth"] < 0, -1, tree["func_id"].to_numpy(np.int64))
    return packed(times.assign(parent=parent, func=func, thread=thread), columns)


def packed(nodes: pd.DataFrame, columns: Columns) -> dict[str, Any]:
    """Nodes, callers before callees, those with the most time: parent (a place, -1 none), func, calls and times; `left_out`, how many are not there."""
    total, parent = (nodes[name].to_numpy(np.int64) for name in ("total_ns", "parent"))
    keep = np.ones(len(nodes), bool)
    if len(nodes) > _MOST_NODES:
        keep = total > np.partition(total, -_MOST_NODES)[-_MOST_NODES]
    for at in np.flatnonzero(keep & (parent >= 0)).tolist():  # a callee whose caller is not there cannot be shown
        keep[at] = keep[parent[at]]
    place = np.append(np.cumsum(keep) - 1, -1)
    kept = nodes[keep].assign(parent=place[parent[keep]])
    return {"left_out": int((~keep).sum()), "columns": {name: columns.add(kept[name]) for name in kept.columns}}


def pairs(tree: pd.DataFrame, columns: Columns) -> dict[str, Any]:
    """Who called whom, those with the most time: caller (func_id; -1 nobody), callee, calls and the callee's times."""
    caller = tree.set_index("node_id")["func_id"].reindex(tree["parent_id"]).fillna(-1).to_numpy(np.int64)
    rows = tree.assign(caller=caller, callee=tree["func_id"])[(tree["depth"] >= 0).to_numpy()]
    # A function that is called below itself counts once: the time of inner activations is in the outer one's.
    numbers = rows[["calls", *TIMES]].fillna(0).astype("int64")
    whole = list(TIMES[: 2 + len(SPLIT)])
    numbers[whole] = numbers[whole].where(rows["outermost"].astype(bool), 0)
    sums = numbers.assign(caller=rows["caller"], callee=rows["callee"]).groupby(["caller", "callee"], as_index=False).sum()
    kept = sums.nlargest(_MOST_PAIRS, ["total_ns", "self_ns"])
    return {"left_out": len(sums) - len(kept), "columns": {name: columns.add(kept[name]) for name in kept.columns}}
