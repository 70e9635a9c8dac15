"""The calling-context tree of samples: as that of calls, each sample standing for its period on a core, and nothing known of the rest."""

from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from pytrace_ebpf.analyze.samples.paths import NO_FRAMES, Paths, segments
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.trace.schema import TREE

Ints = npt.NDArray[np.int64]
_ROOT = -1  # stands for the path of a thread's own row


def grow(trace: Trace, period: int) -> pa.Table:
    """The tree as schema.TREE of samples of so many ns each; `calls` says how many samples were in a row's function or below."""
    paths, own = Paths(), Counter[tuple[int, int, int]]()
    for samples, stacks in segments(trace):
        of_stack = paths.of_stacks(stacks)
        counts = samples[samples["stack_id"] != NO_FRAMES].groupby(["pid", "tid", "stack_id"]).size()
        for (pid, tid, stack), count in counts.items():
            own[pid, tid, of_stack[stack]] += count
    rows = np.array([(*key, count) for key, count in own.items()], np.int64).reshape(-1, 4)
    thread = rows[:, 0] << 32 | rows[:, 1]
    threads, of = np.unique(thread, return_inverse=True)
    thread_of, path, selves, totals = _summed(paths, of.reshape(-1), rows[:, 2], rows[:, 3])
    return _table(paths, threads, thread_of, path, selves * period, totals * period, totals, functions_of(trace))


def functions_of(trace: Trace) -> "pd.Series[str]":
    """Modules by func_id."""
    return trace.functions().set_index("func_id")["module"]


def _summed(paths: Paths, thread: Ints, path: Ints, count: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """Samples by thread and path, with those of all callers: (thread, path, in its last function itself, there or below), in the order of both.

    A thread's own row comes first, as the path _ROOT, and has all its samples.
    """
    width = len(paths.parents) + 1
    parents, depths = np.array([_ROOT, *paths.parents], np.int64), np.array([-1, *paths.depths], np.int64)
    own = thread * width + path + 1
    by_depth = depths[path + 1]
    keys, totals = np.zeros(0, np.int64), np.zeros(0, np.int64)  # of the level below
    found: list[tuple[Ints, Ints]] = []
    for depth in range(int(depths.max(initial=-1)), -2, -1):
        here = by_depth == depth
        above = keys // width * width + parents[keys % width] + 1
        keys, which = np.unique(np.concatenate((above, own[here])), return_inverse=True)
        totals = np.bincount(which.reshape(-1), np.concatenate((totals, count[here])), len(keys)).astype(np.int64)
        found.append((keys, totals))
    all_keys, all_totals = (np.concatenate(columns) for columns in zip(*found, strict=True))
    order = np.argsort(all_keys)
    all_keys, all_totals = all_keys[order], all_totals[order]
    selves = np.zeros(len(all_keys), np.int64)
    np.add.at(selves, np.searchsorted(all_keys, own), count)
    return all_keys // width, all_keys % width - 1, selves, all_totals


def _table(
    paths: Paths, threads: Ints, thread: Ints, path: Ints, self_ns: Ints, total_ns: Ints, samples: Ints, modules: "pd.Series[str]"
) -> pa.Table:
    width, place = len(paths.parents) + 1, np.arange(len(path))
    function, parents, depths = (np.array([fill, *values], np.int64)[path + 1] for fill, values in (
        (-1, paths.functions), (_ROOT, paths.parents), (-1, paths.depths),
    ))  # fmt: skip
    roots = path == _ROOT
    parent = np.searchsorted(thread * width + path, thread * width + parents)
    numbers = pd.Series(pd.factorize(modules)[0], modules.index)
    of_path = np.array(paths.functions, np.int64)
    whole, of_module = (np.append(True, paths.outermost(key))[path + 1] for key in (of_path, numbers.reindex(of_path).fillna(-1).to_numpy(np.int64)))
    columns: dict[str, Any] = {
        "node_id": place, "parent_id": np.where(roots, -1, parent), "depth": depths,
        "pid": threads[thread] >> 32, "tid": threads[thread] & 0xFFFFFFFF, "func_id": function,
        "outermost": whole, "outermost_of_module": of_module, "calls": np.where(roots, 0, samples),
        "total_ns": total_ns, "on_cpu_ns": total_ns, "self_ns": np.where(roots, 0, self_ns), "self_on_cpu_ns": np.where(roots, 0, self_ns),
        "unknown_ns": 0 * place, "self_unknown_ns": 0 * place,
    }  # fmt: skip
    return pa.table([pa.array(columns[f.name], f.type) if f.name in columns else pa.nulls(len(path), f.type) for f in TREE.arrow], schema=TREE.arrow)
