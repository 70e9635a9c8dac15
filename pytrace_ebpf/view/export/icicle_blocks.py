"""Calls to boxes of a picture: those too short to see are merged with their neighbours, so that no trace makes a large picture."""

import numpy as np
import numpy.typing as npt
import pandas as pd

from pytrace_ebpf.analyze.by_function import values

# What a box's wall time consists of; off: off the core, but not known why; unknown: not recorded.
PARTS = ("on_cpu", "runq_wait", "gil_wait", "blocked", "off", "unknown")
COLUMNS = ("depth", "func_id", "start_ns", "end_ns", "wall_ns", "on_cpu_ns", "runq_wait_ns", "gil_wait_ns", "blocked_ns", "worker_on_cpu_ns")

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


def blocks(calls: pd.DataFrame, most: int) -> pd.DataFrame:
    """At most about `most` boxes for the calls of one thread: one row each, layer by layer and in the order of time.

    `calls` has COLUMNS, in the order of time within each depth. Columns, int64: depth, start_ns, end_ns, calls (how many
    the box stands for), func_id (of the one call, or that with the most wall time), wall_ns, PARTS (which add up to
    wall_ns) and workers (worker_on_cpu_ns, 0 where unknown); the last three are sums over the box's calls.
    """
    calls = calls.iloc[np.argsort(calls["depth"].to_numpy(), kind="stable")]
    depth, func, start, end = (calls[c].to_numpy(np.int64) for c in ("depth", "func_id", "start_ns", "end_ns"))
    first = np.flatnonzero(_begins(depth, start, end, _least(depth, start, end, most)))
    if not len(first):
        return pd.DataFrame({c: np.zeros(0, np.int64) for c in ("depth", "start_ns", "end_ns", "calls", "func_id", "wall_ns", *PARTS, "workers")})
    stop = np.append(first[1:], len(depth))
    amounts = {"wall_ns": calls["wall_ns"].to_numpy(np.int64), **_parts(calls), "workers": values(calls["worker_on_cpu_ns"])[0]}
    box = {"depth": depth[first], "start_ns": start[first], "end_ns": end[stop - 1], "calls": stop - first}
    box["func_id"] = _foremost(np.repeat(np.arange(len(first)), stop - first), func, amounts["wall_ns"])
    return pd.DataFrame(box | {name: np.add.reduceat(amount, first) for name, amount in amounts.items()})


def _begins(depth: Ints, start: Ints, end: Ints, least_ns: int) -> Bools:
    """Mask of the calls a box begins with: all but those that, like the one before them and the gap between, are shorter than `least_ns`."""
    long = end - start >= least_ns
    begins = np.ones(len(depth), bool)
    begins[1:] = long[1:] | long[:-1] | (depth[1:] != depth[:-1]) | (start[1:] - end[:-1] >= least_ns)
    return begins


def _least(depth: Ints, start: Ints, end: Ints, most: int) -> int:
    """The least power of two, in ns, below which calls are merged so that no more than `most` boxes remain; 0 where none need be."""
    if len(depth) <= most:
        return 0
    low, high = 0, int(end.max() - start.min() + 1).bit_length()
    while low < high:
        middle = (low + high) // 2
        if _begins(depth, start, end, 1 << middle).sum() <= most:
            high = middle
        else:
            low = middle + 1
    return 1 << low


def _parts(calls: pd.DataFrame) -> dict[str, Ints]:
    """PARTS of every call: what is null in the four is put under `off` where the time on the core is known, else under `unknown`."""
    wall = calls["wall_ns"].to_numpy(np.int64)
    of = {part: values(calls[f"{part}_ns"])[0] for part in PARTS[:4]}
    known = values(calls["on_cpu_ns"])[1]
    rest = wall - sum(of.values())
    return {part: np.where(known, amount, 0) for part, amount in of.items()} | {
        "off": np.where(known, rest, 0),
        "unknown": np.where(known, 0, wall),
    }


def _foremost(box: Ints, func: Ints, wall: Ints) -> Ints:
    """Of each box (numbered from 0, in order) the function that has most of its wall time."""
    order = np.lexsort((func, box))
    box, func, wall = box[order], func[order], wall[order]
    first = np.flatnonzero(np.append(True, (box[1:] != box[:-1]) | (func[1:] != func[:-1])))
    total = np.add.reduceat(wall, first)
    box, func = box[first], func[first]
    order = np.lexsort((total, box))
    last = np.append(box[order][1:] != box[order][:-1], True)
    return func[order][last]
