"""A window's samples as rows of `profile`: summed by process and stack, in a calling-context tree."""

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from pytrace_ebpf.trace.profile import RARE, SQUARES
from pytrace_ebpf.trace.schema import PROFILE
from pytrace_ebpf.trace.states import SPLIT

MOST_STACKS = 1 << 16
"""Of a window and all processes: of more the rarest stand as one per process."""
_COUNTS = ("samples", "off_samples", "missed")
_TIMES = (*SPLIT, "unknown_ns")

Ints = npt.NDArray[np.int64]


def profile(samples: pd.DataFrame, stacks: pa.Table, start_ns: int, end_ns: int, most: int = MOST_STACKS) -> pa.Table:
    """schema.PROFILE of the window [start_ns, end_ns): `samples` as of live.samples, and their `stacks` (schema.STACKS), a caller before its callees.

    Memory is bounded by the samples of the window, and the result by `most` stacks and their callers.
    """
    ids, parent_ids = (stacks[name].to_numpy().astype(np.int64) for name in ("stack_id", "parent_id"))
    order = np.argsort(ids)
    parents = np.where(parent_ids >= 0, _places(ids, order, parent_ids), -1)
    stack = samples["stack_id"].to_numpy(np.int64)
    place = np.where(stack >= 0, _places(ids, order, stack), stack)
    key, which = np.unique(_key(samples["pid"].to_numpy(np.int64), place), return_inverse=True)
    sums = {name: _added(len(key), which.reshape(-1), values) for name, values in _columns(samples).items()}
    key, sums = _without_rare(key, sums, most)
    nodes = _with_callers(key, parents)
    own = np.searchsorted(nodes, key)
    columns: dict[str, npt.NDArray[np.generic]] = {}
    for name, values in sums.items():
        columns[name] = np.zeros(len(nodes), values.dtype)
        columns[name][own] = values
    return _table(nodes, parents, stacks, columns, start_ns, end_ns)


def _places(ids: Ints, order: Ints, wanted: Ints) -> Ints:
    return order[np.minimum(np.searchsorted(ids, wanted, sorter=order), len(ids) - 1)] if len(ids) else np.full(len(wanted), -1)


def _columns(samples: pd.DataFrame) -> dict[str, npt.NDArray[np.generic]]:
    off = samples["off_ns"].to_numpy(np.int64) > 0
    counts = {
        "samples": (~off).astype(np.int64),
        "off_samples": off.astype(np.int64),
        "missed": np.where(off, 0, samples["missed"].to_numpy(np.int64)),
    }
    return counts | {name: samples[name].to_numpy() for name in (*_TIMES, *SQUARES)}


def _added(count: int, which: Ints, values: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    out = np.zeros(count, values.dtype)
    np.add.at(out, which, values)
    return out


def _key(pid: Ints, place: Ints) -> Ints:
    """In the order of processes and of the places of stacks, what is none last."""
    return pid << 32 | place & 0xFFFFFFFF


def _pid_of(key: Ints) -> Ints:
    return key >> 32


def _place_of(key: Ints) -> Ints:
    """A stack's place, or what is no stack of Python's (-1, -2, -3)."""
    return (key & 0xFFFFFFFF).astype(np.uint32).view(np.int32).astype(np.int64)


def _without_rare(key: Ints, sums: dict[str, npt.NDArray[np.generic]], most: int) -> tuple[Ints, dict[str, npt.NDArray[np.generic]]]:
    """The `most` stacks with most time, and one row per process of all others."""
    if len(key) <= most:
        return key, sums
    time = sum(sums[name].astype(np.int64) for name in _TIMES)
    rare = np.ones(len(key), bool)
    rare[np.argsort(-time, kind="stable")[:most]] = False
    key = np.where(rare, _key(_pid_of(key), np.full(len(key), RARE)), key)
    unique, which = np.unique(key, return_inverse=True)
    return unique, {name: _added(len(unique), which.reshape(-1), values) for name, values in sums.items()}


def _with_callers(key: Ints, parents: Ints) -> Ints:
    """These keys and those of all callers, ascending: of one process a caller first. Each node is looked at once, from the deepest ones outwards."""
    place = _place_of(key)
    depth = np.where(place >= 0, _depths(parents)[np.maximum(place, 0)], -1) if len(parents) else np.full(len(place), -1)
    order = np.argsort(depth, kind="stable")
    key, ends = key[order], np.searchsorted(depth[order], np.arange(int(depth.max(initial=-1)) + 2))
    found, here = [key[: ends[0]]], key[:0]
    for level in range(len(ends) - 2, -1, -1):
        here = np.union1d(here, key[ends[level] : ends[level + 1]])
        found.append(here)
        here = _key(_pid_of(here), parents[_place_of(here)]) if level else here
    return np.sort(np.concatenate(found))


def _depths(parents: Ints) -> Ints:
    """How many callers each place has, by steps that double."""
    depth, above = (parents >= 0).astype(np.int64), parents.copy()
    while (has := above >= 0).any():
        depth[has] += depth[above[has]]
        above[has] = above[above[has]]
    return depth


def _table(nodes: Ints, parents: Ints, stacks: pa.Table, columns: dict[str, npt.NDArray[np.generic]], start_ns: int, end_ns: int) -> pa.Table:
    place, pid = _place_of(nodes), _pid_of(nodes)
    known = place >= 0
    number = np.where(known, np.cumsum(known) - 1, place)
    above = np.full(len(nodes), -1, np.int64)
    above[known] = parents[place[known]]
    parent = np.full(len(nodes), -1, np.int64)
    has = above >= 0
    parent[has] = number[np.searchsorted(nodes, _key(pid[has], above[has]))]
    of_stack = {}
    for name in ("func_id", "line"):
        of_stack[name] = np.full(len(nodes), -1, np.int64)
        of_stack[name][known] = stacks[name].to_numpy()[place[known]]
    whole = {"start_ns": np.full(len(nodes), start_ns), "end_ns": np.full(len(nodes), end_ns), "pid": pid, "node_id": number, "parent_id": parent}
    return pa.table({name: pa.array(values) for name, values in (whole | of_stack | columns).items()}).cast(PROFILE.arrow)
