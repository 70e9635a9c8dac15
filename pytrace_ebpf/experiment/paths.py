"""The calls of one trace summed by call path, under ids that are the same in every trace of the program."""

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from pytrace_ebpf.trace.states import SPLIT

CALLS = ("call_id", "parent_id", "depth", "func_id", "wall_ns", *SPLIT, "worker_on_cpu_ns")  # columns of schema.CALLS
FRAME = ("layer", "module", "qualname", "first_line")  # what makes a function the same one in another trace
PARTS = (*SPLIT, "unknown_ns")  # of wall_ns, which they sum to
TIMES = ("wall_ns", *PARTS, "worker_on_cpu_ns")
SQUARES = tuple(name.replace("_ns", "_square") for name in ("wall_ns", *PARTS))  # of samples: see analyze.samples.weights
NAMED = ("path_id", "parent_path_id", "qualname")
NO_PATH = 0  # above the outermost calls

_FURTHER = np.uint64(0xD6E8FEB86659FD93)  # tells paths of contexts that have no place in a tree from outermost calls

Ids = npt.NDArray[np.uint64]


def by_path(calls: pd.DataFrame, functions: pd.DataFrame) -> pd.DataFrame:
    """One row per call path of a trace, callers before callees.

    In: CALLS in the order of call_id, and schema.FUNCTIONS. A path is the chain of functions (FRAME) from the outermost
    call of a thread down; threads and processes are added up. Out: path_id (int64, the same in every trace), parent_path_id
    (NO_PATH for none), depth, FRAME, file, calls, TIMES and self_TIMES (without the calls below), ns.
    unknown_ns is the time whose scheduling was not recorded; another part is null where it is known of only some of its calls.
    """
    frames = _frames(functions)
    at = frames.index.get_indexer(calls["func_id"].to_numpy())
    path, parent = _path_ids(calls, frames["frame_id"].to_numpy()[at])
    group, first = _grouped(path)
    out = pd.DataFrame({"path_id": path[first].view(np.int64), "parent_path_id": parent[first].view(np.int64)})
    out["depth"] = calls["depth"].to_numpy()[first]
    named = frames.drop(columns="frame_id").iloc[at[first]].reset_index(drop=True)
    out = pd.concat([out, named, _sums(calls, group, len(first))], axis=1)
    return with_self(out).sort_values(["depth", "path_id"], kind="stable", ignore_index=True)


def of_tree(tree: pd.DataFrame, functions: pd.DataFrame) -> pd.DataFrame:
    """The same of the calls in `tree` (schema.TREE), but worker_on_cpu_ns, which a tree does not have and is null.

    Contexts for which there was no room in the tree are paths of their own. Of samples' nodes (analyze.samples.tree) there are SQUARES and self_SQUARES, too.
    """
    renamed = {
        "node_id": "call_id",
        "total_ns": "wall_ns",
        "self_ns": "self_wall_ns",
        "total_square": "wall_square",
        "self_square": "self_wall_square",
    }
    nodes = tree[tree["depth"] >= 0].rename(columns=renamed)
    frames = _frames(functions)
    at = frames.index.get_indexer(nodes["func_id"].to_numpy())
    frame = frames["frame_id"].to_numpy()[at] ^ np.where(nodes["pid"] < 0, _FURTHER, np.uint64(0))
    path, parent = _path_ids(nodes, frame)
    group, first = _grouped(path)
    out = pd.DataFrame({"path_id": path[first].view(np.int64), "parent_path_id": parent[first].view(np.int64)})
    out["depth"] = nodes["depth"].to_numpy()[first]
    out = pd.concat([out, frames.drop(columns="frame_id").iloc[at[first]].reset_index(drop=True)], axis=1)
    out["calls"] = np.bincount(group, nodes["calls"], len(first)).astype(np.int64)
    for prefix in ("", "self_"):
        known = nodes[f"{prefix}on_cpu_ns"].notna()
        for name in ("wall_ns", *PARTS):
            column = pd.Series(nodes[prefix + name].array, dtype="Int64")
            sums = column.groupby(group).sum(min_count=1)
            sums[np.unique(group[(column.isna().to_numpy(bool) & known.to_numpy(bool))])] = pd.NA
            out[prefix + name] = sums.array
        out[f"{prefix}worker_on_cpu_ns"] = pd.array([pd.NA] * len(first), dtype="Int64")
        for name in SQUARES if "wall_square" in nodes else ():
            out[prefix + name] = np.bincount(group, nodes[prefix + name], len(first))
    return out.sort_values(["depth", "path_id"], kind="stable", ignore_index=True)


def with_self(paths: pd.DataFrame) -> pd.DataFrame:
    """`paths` with self_X for each X of TIMES: X less that of the paths right below, null where either is, never negative."""
    row = pd.Index(paths["path_id"]).get_indexer(paths["parent_path_id"])
    below, above = np.flatnonzero(row >= 0), row[row >= 0]
    out = paths.copy(deep=False)
    for name in TIMES:
        column = paths[name].astype("Int64")
        values, unknown = column.fillna(0).to_numpy(np.int64).copy(), column.isna().to_numpy(bool).copy()
        np.subtract.at(values, above, values[below].copy())
        unknown[above[unknown[below]]] = True
        out[f"self_{name}"] = pd.arrays.IntegerArray(np.maximum(values, 0), unknown)
    return out


def repeated(paths: pd.DataFrame, key: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Mask of the paths with another one of the same `key` (one per path) above them: their time is in that one's already."""
    above = pd.Index(paths["path_id"]).get_indexer(paths["parent_path_id"])
    found = np.zeros(len(paths), bool)
    rows, ancestor = np.arange(len(paths)), above
    while True:
        rows, ancestor = rows[ancestor >= 0], ancestor[ancestor >= 0]
        if not len(rows):
            return found
        hit = key[ancestor] == key[rows]
        found[rows[hit]] = True
        rows, ancestor = rows[~hit], above[ancestor[~hit]]


def names_of(runs: Iterable[pd.DataFrame], paths: Sequence[int]) -> dict[int, list[str]]:
    """The qualified names from the outermost call down to each of these path_ids; `runs`: NAMED of each."""
    above: dict[int, tuple[int, str]] = {}
    for rows in runs:
        above |= dict(zip(rows["path_id"], zip(rows["parent_path_id"], rows["qualname"], strict=True), strict=True))
        if all(path in above for path in paths):
            break
    found: dict[int, list[str]] = {}
    for path in paths:
        names, at = [], path
        while at in above:
            at, name = above[at]
            names.append(name)
        found[path] = names[::-1]
    return found


def _frames(functions: pd.DataFrame) -> pd.DataFrame:
    """FRAME, file and frame_id (uint64) by func_id, with a row for the unknown function, -1."""
    columns = {"function_layer": "layer", "module": "module", "qualname": "qualname", "first_line": "first_line", "file": "file"}
    frames = functions.set_index("func_id")[list(columns)].rename(columns=columns)
    frames.loc[-1] = ["python", "?", "?", -1, ""]
    frames = frames.astype(dict.fromkeys(("layer", "module", "qualname", "file"), "object")).fillna("?")
    words = frames["layer"] + "\0" + frames["module"] + "\0" + frames["qualname"] + "\0" + frames["first_line"].astype(int).astype(str)
    return frames.assign(frame_id=pd.util.hash_array(words.to_numpy(dtype=object), categorize=False))


def _path_ids(calls: pd.DataFrame, frame: Ids) -> tuple[Ids, Ids]:
    """The ids of each call's path and of that above it, level by level."""
    depth = calls["depth"].to_numpy()
    parent_row = pd.Index(calls["call_id"]).get_indexer(calls["parent_id"])
    order = np.argsort(depth, kind="stable")
    bounds = np.flatnonzero(np.diff(depth[order], prepend=-1))
    path, parent = np.zeros(len(calls), np.uint64), np.full(len(calls), NO_PATH, np.uint64)
    for level in np.split(order, bounds[1:]):
        has = parent_row[level] >= 0
        parent[level[has]] = path[parent_row[level[has]]]
        path[level] = _mixed(parent[level], frame[level])
    return path, parent


def _mixed(above: Ids, frame: Ids) -> Ids:
    """One id of two: SplitMix64's output function over their combination."""
    z = above * np.uint64(0x9E3779B97F4A7C15) + frame
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def _grouped(path: Ids) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """(number of its group for each call, first call of each group)."""
    _, first, group = np.unique(path, return_index=True, return_inverse=True)
    return group.astype(np.int64), first


def _sums(calls: pd.DataFrame, group: npt.NDArray[np.int64], count: int) -> pd.DataFrame:
    """calls and TIMES per group."""
    out = pd.DataFrame({"calls": np.bincount(group, minlength=count)})
    unknown = calls["on_cpu_ns"].isna()
    for name in TIMES:
        column = calls["wall_ns"].where(unknown, 0) if name == "unknown_ns" else calls[name]
        sums = pd.Series(column.array, dtype="Int64").groupby(group).sum(min_count=1)
        if name not in ("wall_ns", "unknown_ns", "on_cpu_ns"):
            unsplit = (column.isna() & ~unknown).to_numpy(bool)
            sums[np.unique(group[unsplit])] = pd.NA
        out[name] = sums.to_numpy() if name in ("wall_ns", "unknown_ns") else sums.array
    return out
