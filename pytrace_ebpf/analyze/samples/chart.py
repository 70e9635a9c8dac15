"""Samples of a thread as if they were calls: a function that stands in the same place of stacks that follow each other was there in between."""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from pytrace_ebpf.analyze.samples.paths import Paths, segments
from pytrace_ebpf.trace.reader import Trace

_APART = 2.5  # periods after which the thread may have been elsewhere


def chart(trace: Trace, period: int) -> Iterator[pd.DataFrame]:
    """Rows of the one thread that `trace` is a window of, a segment at a time: as calls, of which nothing but the time on a core is known.

    depth, func_id, start_ns, end_ns, wall_ns, on_cpu_ns (how many samples there were in between), and null: runq_wait_ns, gil_wait_ns,
    blocked_ns, worker_on_cpu_ns. In the order of start_ns within each depth.
    """
    paths, end = Paths(), 0
    for samples, stacks in segments(trace):
        samples = samples[samples["ts"] >= end].sort_values("ts", kind="stable")
        if not len(samples):
            continue
        ts, of_stack = samples["ts"].to_numpy(np.int64), paths.of_stacks(stacks)
        now = np.array([of_stack[stack] for stack in samples["stack_id"].tolist()], np.int64)
        ends = np.minimum(ts + period, np.append(ts[1:], ts[-1] + period))
        apart = np.append(True, np.diff(ts) > _APART * period)
        ends[:-1] = np.where(apart[1:], ends[:-1], ts[1:])
        end = int(ends[-1])
        rows = _boxes(paths, now, ts, ends, apart, period)
        if len(rows):
            yield rows


def _boxes(paths: Paths, now: "np.ndarray", ts: "np.ndarray", ends: "np.ndarray", apart: "np.ndarray", period: int) -> pd.DataFrame:
    parents, depths = np.array([*paths.parents, -1], np.int64), np.array([*paths.depths, -1], np.int64)  # the last for no path
    found = []
    for depth in range(int(depths[now].max()), -1, -1):
        here = depths[now] == depth
        at = np.where(here, now, -1)
        begins = np.append(True, at[1:] != at[:-1]) | apart
        first = np.flatnonzero(begins)
        last = np.append(first[1:], len(at)) - 1
        there = at[first] >= 0
        found.append((depth, at[first][there], ts[first][there], ends[last][there], (last - first + 1)[there]))
        now = np.where(here, parents[now], now)
    functions = np.array([*paths.functions, -1], np.int64)
    columns = {
        "depth": np.concatenate([np.full(len(path), depth) for depth, path, *_ in found]),
        "func_id": functions[np.concatenate([path for _, path, *_ in found])],
        "start_ns": np.concatenate([start for *_, start, _, _ in found]),
        "end_ns": np.concatenate([end for *_, end, _ in found]),
    }
    rows = pd.DataFrame(columns)
    rows["wall_ns"] = rows["end_ns"] - rows["start_ns"]
    rows["on_cpu_ns"] = np.minimum(np.concatenate([count for *_, count in found]) * period, rows["wall_ns"])
    empty = pd.array([pd.NA] * len(rows), "Int64")
    return rows.assign(runq_wait_ns=empty, gil_wait_ns=empty, blocked_ns=empty, worker_on_cpu_ns=empty).sort_values(
        ["depth", "start_ns"], kind="stable"
    )
