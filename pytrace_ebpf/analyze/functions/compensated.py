"""A calling-context tree less what tracing its calls cost: from the sums of each context, so no call is read for it."""

import numpy as np
import numpy.typing as npt
import pandas as pd

from pytrace_ebpf.trace.frames import values_and_mask

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def compensated(tree: pd.DataFrame, cost_ns: Floats, own_ns: Floats) -> pd.DataFrame:
    """`tree` (schema.TREE, whole) with what tracing the calls below cost taken off total_ns and on_cpu_ns, and off their self_.

    `cost_ns`: of each call of a row, ns; `own_ns`: what of that lies within the call itself, and is taken off it too. Costs are
    averages, so they are taken off the calls of a context together: no time goes below zero, nor that on a core further than
    the whole; what of a context's time is unknown_ns bears its share.
    """
    calls, above = tree["calls"].to_numpy(np.float64), _callers(tree)
    taken = _below(tree, above, calls * cost_ns) + calls * own_ns
    on_cpu, _ = values_and_mask(tree["on_cpu_ns"])
    total, unknown = (tree[name].to_numpy(np.int64) for name in ("total_ns", "unknown_ns"))
    known = 1 - unknown / np.maximum(total, 1)
    off_cpu = _whole(tree, above, np.minimum(np.rint(taken * known).astype(np.int64), on_cpu))
    off_unknown = _whole(tree, above, np.minimum(np.rint(taken * (1 - known)).astype(np.int64), unknown))
    out = tree.assign(total_ns=total - off_cpu - off_unknown, unknown_ns=unknown - off_unknown)
    out["on_cpu_ns"] = tree["on_cpu_ns"] - off_cpu
    for name, off in (("self_on_cpu_ns", off_cpu), ("self_unknown_ns", off_unknown)):
        own = np.clip(off - _of_children(above, off), 0, values_and_mask(tree[name])[0])
        out[name] = tree[name] - own
        out["self_ns"] -= own
    return out


def _callers(tree: pd.DataFrame) -> Ints:
    """The place of each row's caller, -1 for none."""
    place = pd.Series(np.arange(len(tree)), tree["node_id"])
    return place.reindex(tree["parent_id"]).fillna(-1).to_numpy(np.int64)


def _of_children(above: Ints, what: Ints) -> Ints:
    """The sum of `what` over the rows that each row is the caller of."""
    out = np.zeros(len(above), np.int64)
    np.add.at(out, above[above >= 0], what[above >= 0])
    return out


def _whole(tree: pd.DataFrame, above: Ints, off: Ints) -> Ints:
    """`off`, and of a thread's own row what is taken off its outermost calls."""
    return np.where(tree["depth"].to_numpy() < 0, _of_children(above, off), off)


def _below(tree: pd.DataFrame, above: Ints, what: Floats) -> Floats:
    """The sum of `what` over all rows below each."""
    below, depth = np.zeros(len(tree)), tree["depth"].to_numpy()
    order = np.argsort(-depth, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(depth[order])) + 1):  # the deepest first
        called = rows[above[rows] >= 0]
        np.add.at(below, above[called], below[called] + what[called])
    return below
