"""The calling-context tree of a trace: calls summed by the functions they were called through, without rows of calls."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pytrace_ebpf.derive.sums import Sums
from pytrace_ebpf.rebuild.library import NO_THREAD
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.trace.schema import TREE
from pytrace_ebpf.trace.states import ON_CPU, RUN_QUEUE, STATES, WAITS

Ints = npt.NDArray[np.int64]


def of_sums(_: Trace, sums: Sums) -> pa.Table:
    """The tree as schema.TREE; what had no node once there were as many as there may be stands by its function alone."""
    return table(sums.nodes, sums.keys)


def table(nodes: npt.NDArray[np.void], keys: Ints) -> pa.Table:
    """`nodes` (rebuild.library.NODE) as schema.TREE; `keys`: pid << 32 | tid by thread number."""
    roots = nodes["thread"] != NO_THREAD
    thread = _threads(nodes, roots)
    key = np.append(keys, -1)[thread]  # -1: pid and tid are
    order = np.append(0, 1 + np.argsort(key[1:], kind="stable"))[: len(nodes)]  # thread by thread
    columns = {name: pa.array(values, TREE.arrow.field(name).type) for name, values in _columns(nodes, order, roots[order], key[order])}
    return pa.table([columns[name] for name in TREE.arrow.names], schema=TREE.arrow).slice(1)


def _columns(nodes: npt.NDArray[np.void], order: Ints, roots: npt.NDArray[np.bool_], key: Ints) -> Iterator[tuple[str, Any]]:
    """One after the other, since of a large tree all of them together are as large as it is; `roots` and `key` are in their order already."""
    # The root of all has no row: its children have no parent.
    yield "node_id", np.arange(len(nodes)) - 1
    yield "parent_id", np.argsort(order)[nodes["parent"][order]] - 1
    yield "pid", key >> 32
    yield "tid", key.astype(np.int32)
    for name in ("depth", "func_id"):
        yield name, nodes[name][order]
    outermost, calls = nodes["outermost"][order], nodes["calls"][order]
    yield "outermost", (outermost & 1) != 0
    yield "outermost_of_module", (outermost & 2) != 0
    yield "calls", np.where(roots, 0, calls)
    for prefix, name in (("", "total"), ("self_", "self")):
        yield from columns_of(prefix, nodes[name][order], calls)


def _threads(nodes: npt.NDArray[np.void], roots: npt.NDArray[np.bool_]) -> Ints:
    """The number of each node's thread; -1 for those by function alone."""
    thread = np.where(roots, nodes["thread"].astype(np.int64), -1)
    parent = nodes["parent"].astype(np.int64)
    above = np.where(roots, np.arange(len(nodes)), parent)
    while np.any(above[above] != above):  # half of the way up that is left, each time
        above = above[above]
    return thread[above]


def columns_of(prefix: str, sums: npt.NDArray[np.void] | Mapping[str, Ints], calls: Ints) -> Iterator[tuple[str, Any]]:
    """Columns of the times of several `calls`, whose names begin with `prefix`, from `sums` (library.NODE's total or self)."""
    yield f"{prefix or 'total_'}ns", sums["wall"]
    none_known = calls == sums["unknown"]
    unsplit = {ON_CPU: 0, RUN_QUEUE: sums["unsplit_runq"], WAITS: sums["unsplit_waits"]}
    for state in STATES:
        yield f"{prefix}{state.name}_ns", pa.array(sums[state.name], mask=none_known | (np.asarray(unsplit[state.known]) > 0))
    yield f"{prefix}unknown_ns", sums["unknown_wall"]
