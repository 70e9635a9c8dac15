"""Samples of a thread as if they were calls: a function that stands in the same place of stacks that follow each other was there in between.

Of intervals off the core those of their period and more are shown, exactly; shorter ones lie between the samples of what had the core.
"""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from pytrace_ebpf.analyze.samples.paths import Ints, Paths, segments
from pytrace_ebpf.analyze.samples.weights import Periods, off_core
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.trace.states import SPLIT

_APART = 0.5  # periods more than an interval off the core that was not shown: between two samples; the thread may have been elsewhere


def chart(trace: Trace, period: int) -> Iterator[pd.DataFrame]:
    """Rows of the one thread that `trace` is a window of, a segment at a time, as calls.

    depth, func_id, start_ns, end_ns, wall_ns, on_cpu_ns (a period for each sample in between), runq_wait_ns, gil_wait_ns and blocked_ns (null where
    threads off the core were not sampled), and null: worker_on_cpu_ns. In the order of start_ns within each depth.
    """
    paths, end, off_period = Paths(), 0, Periods.of(trace.manifest["sampling"]).off
    for samples, stacks in segments(trace):
        samples = samples[(samples["off_ns"] == 0) | (samples["off_ns"] >= off_period)]
        start = np.maximum((samples["ts"] - samples["off_ns"]).to_numpy(np.int64), trace.start_ns)
        order = np.argsort(start, kind="stable")
        samples, start = samples.iloc[order], start[order]
        later = start >= end
        samples, start = samples[later], start[later]
        if not len(samples):
            continue
        of_stack = paths.of_stacks(stacks)
        now = np.array([of_stack[stack] for stack in samples["stack_id"].tolist()], np.int64)
        if (now < 0).all():  # it was nowhere that is known
            continue
        off = samples["off_ns"].to_numpy(np.int64) > 0
        last = np.where(off, np.minimum(samples["ts"].to_numpy(np.int64), trace.end_ns), start + period)
        ends = np.minimum(last, np.append(start[1:], last[-1]))
        apart = np.append(True, start[1:] - last[:-1] > _APART * period + off_period)
        ends[:-1] = np.where(apart[1:], ends[:-1], start[1:])
        end = int(ends[-1])
        rows = _boxes(paths, now, start, ends, apart, samples[list(SPLIT)].to_numpy(np.int64))
        if not off_core(trace):
            rows[list(SPLIT[1:])] = pd.NA
        if len(rows):
            yield rows


def _boxes(paths: Paths, now: Ints, ts: Ints, ends: Ints, apart: "np.ndarray", split: Ints) -> pd.DataFrame:
    parents, depths = np.array([*paths.parents, -1], np.int64), np.array([*paths.depths, -1], np.int64)  # the last for no path
    sums = np.concatenate((np.zeros((1, split.shape[1]), np.int64), np.cumsum(split, axis=0)))
    found = []
    for depth in range(int(depths[now].max()), -1, -1):
        here = depths[now] == depth
        at = np.where(here, now, -1)
        begins = np.append(True, at[1:] != at[:-1]) | apart
        first = np.flatnonzero(begins)
        last = np.append(first[1:], len(at)) - 1
        there = at[first] >= 0
        found.append((depth, at[first][there], ts[first][there], ends[last][there], (sums[last + 1] - sums[first])[there]))
        now = np.where(here, parents[now], now)
    functions = np.array([*paths.functions, -1], np.int64)
    columns = {
        "depth": np.concatenate([np.full(len(path), depth) for depth, path, *_ in found]),
        "func_id": functions[np.concatenate([path for _, path, *_ in found])],
        "start_ns": np.concatenate([start for *_, start, _, _ in found]),
        "end_ns": np.concatenate([end for *_, end, _ in found]),
    }
    rows = pd.DataFrame(columns)
    left = rows["wall_ns"] = rows["end_ns"] - rows["start_ns"]
    for name, part in zip(reversed(SPLIT), np.concatenate([split for *_, split in found]).T[::-1], strict=True):  # exact ones first
        rows[name] = np.minimum(part, left)
        left = left - rows[name]
        rows[name] = rows[name].astype("Int64")
    rows["worker_on_cpu_ns"] = pd.array([pd.NA] * len(rows), "Int64")
    return rows.sort_values(["depth", "start_ns"], kind="stable")
