"""What a daemon always samples as contexts: the rows of a window, without threads."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd

from pytrace_ebpf.analyze.samples.paths import NO_FRAMES
from pytrace_ebpf.trace.states import NAMES, SPLIT
from pytrace_ebpf.view.export.contexts import FURTHER, UNKNOWN, Contexts, places_of

_RARE = -3  # of `node_id`: the rarest stacks of the window
_NOBODY = -1


def contexts_of(rows: pd.DataFrame, functions: pd.DataFrame) -> Contexts:
    """Those of `rows` (table profile, of one window): a thread for each process. Time of which no frame is known is left out."""
    rows = rows[rows["node_id"] != NO_FRAMES]
    node = rows["node_id"].to_numpy(np.int64)
    places, place = places_of(rows["func_id"].to_numpy(np.int64), functions, rows["line"].to_numpy(np.int64))
    place = np.where(node == _RARE, FURTHER, np.where(node < 0, UNKNOWN, place))
    number = {int(each): at for at, each in enumerate(node.tolist(), 1) if each >= 0}
    parent = np.array([number.get(each, -1) for each in rows["parent_id"].tolist()], np.int64)
    depth = [0]
    for above in parent.tolist():  # a caller comes before its callees
        depth.append(depth[above] + 1 if above >= 0 else 0)
    pids, thread = np.unique(rows["pid"].to_numpy(np.int64), return_inverse=True)
    times = {name: rows[f"{name}_ns"].to_numpy(np.int64) for name in NAMES} | {"not_recorded": rows["unknown_ns"].to_numpy(np.int64)}
    samples = rows["samples"].to_numpy(np.int64) + rows["off_samples"].to_numpy(np.int64)
    values = {"samples": samples, "wall": np.sum([*times.values()], axis=0)} | times
    return Contexts(
        np.append(-1, parent),
        np.append(FURTHER, place),
        np.array(depth, np.int64),
        np.append(len(pids), thread.reshape(-1)).astype(np.int64),
        {name: np.append(0, own) for name, own in values.items()},
        places,
        pd.DataFrame({"pid": [*pids.tolist(), _NOBODY], "tid": _NOBODY, "name": "all threads"}),
    )


def held_loops(rows: pd.DataFrame, functions: pd.DataFrame) -> dict[int, int]:
    """By process the time, ns, in which callbacks of asyncio's loop had it: on a core or off it, all that is below events.Handle._run."""
    of = functions[functions["file"].str.endswith("asyncio/events.py") & (functions["name"] == "_run")]["func_id"]
    handles = set(of.tolist())
    within, out = set[int](), dict[int, int]()
    columns: Iterable[Any] = zip(*(rows[name].tolist() for name in ("pid", "node_id", "parent_id", "func_id", *SPLIT, "unknown_ns")), strict=True)
    for pid, node, parent, func, *times in columns:
        if node >= 0 and (func in handles or parent in within):
            within.add(node)
            out[pid] = out.get(pid, 0) + sum(times)
    return out
