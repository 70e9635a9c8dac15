"""The calling-context tree of samples: as that of calls, of the time that the samples stand for."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from pytrace_ebpf.analyze.samples.paths import NO_FRAMES, OTHER, UNKNOWN, Paths, segments
from pytrace_ebpf.analyze.samples.weights import COLUMNS, SQUARES, SUMS, named, off_core
from pytrace_ebpf.derive.scheduling.split import thread_keys
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.trace.schema import TREE
from pytrace_ebpf.trace.segments import part_name
from pytrace_ebpf.trace.states import SPLIT
from pytrace_ebpf.trace.writing import write

Ints = npt.NDArray[np.int64]
MOST_PATHS = 1 << 18  # some 400 bytes each
_ROOT = -1  # stands for the path of a thread's own row


def derive(trace: Trace, into: Path) -> None:
    """Write the tree of a trace of samples as a Parquet part into the folder `into`."""
    write(TREE, grow(trace), into / part_name(0))


def grow(trace: Trace) -> pa.Table:
    """The tree of a trace of samples as schema.TREE; `calls` says how many samples were in a row's function or below."""
    frame = nodes(trace)
    columns = {name: frame[name] for name in frame if name not in untold(trace)}
    return pa.table(
        [pa.array(columns[f.name], f.type, from_pandas=True) if f.name in columns else pa.nulls(len(frame), f.type) for f in TREE.arrow],
        schema=TREE.arrow,
    )


def untold(trace: Trace) -> list[str]:
    """Columns of nodes() of which such samples say nothing: what threads waited for, where those off the core were not sampled."""
    return [] if off_core(trace) else [prefix + name for name in SPLIT[1:] for prefix in ("", "self_")]


def nodes(trace: Trace, most: int = MOST_PATHS, native: bool = True, lines: bool = False, outside: bool = False) -> pd.DataFrame:
    """The rows of the tree, with schema.TREE's columns and weights.named's of total and self times; by thread, a caller before its callees.

    Without `native` frames what was in native code stands where Python called it; `outside`: those that no Python called stay. With `lines` there is a row for each line that a
    function stood at (column line; -1 unknown), and outermost is of functions as ever.

    Of more than `most` paths the rarest become one row below the caller that is left, as an unknown function, `merged`.
    """
    paths, own, places = Paths(), _Own(), _Places()
    for samples, stacks in segments(trace, native, outside):
        samples = samples[samples["stack_id"] != NO_FRAMES]
        stacks = places.instead(stacks) if lines else stacks
        of_stack = paths.of_stacks(stacks)
        path = np.array([of_stack[stack] for stack in samples["stack_id"].tolist()], np.int64)
        own.add(thread_keys(samples["pid"].to_numpy(), samples["tid"].to_numpy()), path, samples)
        if len(paths.parents) > most:
            paths, became = paths.merged(_by_path(paths, own), most // 2)
            own.rename(became)
    key, path, sums = own.rows()
    threads, thread = np.unique(key, return_inverse=True)
    thread_of, path_of, selves, totals = _summed(paths, thread.reshape(-1), path, sums)
    columns = {
        name: column
        for prefix, parts in ((("total", ""), totals), (("self", "self_"), selves))
        for name, column in zip(named(*prefix), (column for part in parts for column in part.T), strict=True)
    }
    if not lines:
        return _frame(paths, threads, thread_of, path_of, columns, functions_of(trace))
    at = np.array([-1 if path < 0 else paths.functions[path] for path in path_of.tolist()], np.int64)
    paths.functions = places.functions(paths.functions)
    return _frame(paths, threads, thread_of, path_of, columns, functions_of(trace)).assign(line=places.lines(at))


class _Places:
    """Functions with a line, numbered from 0: what stands in a path instead of functions."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, int], int] = {}

    def instead(self, stacks: pd.DataFrame) -> pd.DataFrame:
        """`stacks` (schema.STACKS) whose func_id is that number; of an unknown function it stays UNKNOWN."""
        found = [
            self._numbers.setdefault(place, len(self._numbers)) if place[0] >= 0 else place[0]
            for place in zip(stacks["func_id"].tolist(), stacks["line"].tolist(), strict=True)
        ]
        return stacks.assign(func_id=np.array(found, np.int64))

    def functions(self, numbers: list[int]) -> list[int]:
        """The func_ids of these; what is no number of a place stays."""
        of = [func_id for func_id, _ in self._numbers]
        return [of[number] if number >= 0 else number for number in numbers]

    def lines(self, numbers: Ints) -> Ints:
        """The lines of these, -1 of what is no place."""
        of = np.array([*(line for _, line in self._numbers), -1], np.int64)
        return of[np.where(numbers >= 0, numbers, -1)]


class _Own:
    """Sums of samples by thread and by the path that they were taken at."""

    def __init__(self) -> None:
        self._parts: list[pd.DataFrame] = []
        self._waiting = self._size = 0

    def add(self, thread: Ints, path: Ints, samples: pd.DataFrame) -> None:
        """Samples with weights.COLUMNS, of these threads (thread_keys) and at these paths."""
        self._parts.append(_grouped(samples[[*COLUMNS]], thread, path))
        self._waiting += len(self._parts[-1])
        if self._waiting > self._size:
            self._fold()

    def rename(self, became: Ints) -> None:
        """Paths got other numbers, or became one."""
        self._fold()
        whole = self._parts[0]
        self._parts = [_grouped(whole, *(np.array(whole.index.get_level_values(0)), became[whole.index.get_level_values(1)]))]

    def rows(self) -> tuple[Ints, Ints, tuple[npt.NDArray[Any], npt.NDArray[Any]]]:
        """Thread and path of each row, and its SUMS and SQUARES."""
        self._fold()
        whole = self._parts[0]
        thread, path = (whole.index.get_level_values(level).to_numpy(np.int64) for level in (0, 1))
        return thread, path, (whole[list(SUMS)].to_numpy(np.int64), whole[list(SQUARES)].to_numpy(np.float64))

    def _fold(self) -> None:
        blank = pd.DataFrame(columns=[*COLUMNS], index=pd.MultiIndex.from_arrays([[], []]))
        self._parts = [pd.concat(self._parts).groupby(level=[0, 1]).sum() if self._parts else blank]
        self._waiting, self._size = 0, len(self._parts[0])


def _grouped(rows: pd.DataFrame, thread: Ints, path: Ints) -> pd.DataFrame:
    return rows.groupby([thread, path]).sum()


def _by_path(paths: Paths, own: _Own) -> Ints:
    """The time at each path or below, of all threads."""
    _, path, (sums, _) = own.rows()
    total = np.zeros(len(paths.parents), np.int64)
    np.add.at(total, path, sums[:, SUMS.index("total_ns")])
    for at in range(len(total) - 1, -1, -1):
        if paths.parents[at] >= 0:
            total[paths.parents[at]] += total[at]
    return total


def functions_of(trace: Trace) -> "pd.Series[str]":
    """Modules by func_id."""
    return trace.functions().set_index("func_id")["module"]


def _summed(
    paths: Paths, thread: Ints, path: Ints, sums: tuple[npt.NDArray[Any], ...]
) -> tuple[Ints, Ints, tuple[npt.NDArray[Any], ...], tuple[npt.NDArray[Any], ...]]:
    """Sums (rows, columns) by thread and path, with those of all callers: (thread, path, of its last function itself, there or below), in the order of both.

    A thread's own row comes first, as the path _ROOT, and has all its samples.
    """
    width = len(paths.parents) + 1
    parents, depths = np.array([_ROOT, *paths.parents], np.int64), np.array([-1, *paths.depths], np.int64)
    own = thread * width + path + 1
    by_depth = depths[path + 1]
    keys, totals = np.zeros(0, np.int64), tuple(values[:0] for values in sums)  # of the level below
    found: list[tuple[npt.NDArray[Any], ...]] = []
    for depth in range(int(depths.max(initial=-1)), -2, -1):
        here = by_depth == depth
        above = keys // width * width + parents[keys % width] + 1
        keys, which = np.unique(np.concatenate((above, own[here])), return_inverse=True)
        totals = tuple(
            _added(len(keys), which.reshape(-1), np.concatenate((below, values[here]))) for below, values in zip(totals, sums, strict=True)
        )
        found.append((keys, *totals))
    all_keys, *all_totals = (np.concatenate(columns) for columns in zip(*found, strict=True))
    order = np.argsort(all_keys)
    all_keys = all_keys[order]
    selves = tuple(_added(len(all_keys), np.searchsorted(all_keys, own), values) for values in sums)
    return all_keys // width, all_keys % width - 1, selves, tuple(values[order] for values in all_totals)


def _added(rows: int, which: Ints, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The sums of rows of `values` by `which`."""
    out = np.zeros((rows, values.shape[1]), values.dtype)
    np.add.at(out, which, values)
    return out


def _frame(paths: Paths, threads: Ints, thread: Ints, path: Ints, values: dict[str, npt.NDArray[Any]], modules: "pd.Series[str]") -> pd.DataFrame:
    width, place = len(paths.parents) + 1, np.arange(len(path))
    function, parents, depths = (np.array([fill, *each], np.int64)[path + 1] for fill, each in (
        (-1, paths.functions), (_ROOT, paths.parents), (-1, paths.depths),
    ))  # fmt: skip
    roots = path == _ROOT
    parent = np.searchsorted(thread * width + path, thread * width + parents)
    numbers = pd.Series(pd.factorize(modules)[0], modules.index)
    merged, function = function == OTHER, np.maximum(function, UNKNOWN)
    of_path = np.maximum(np.array(paths.functions, np.int64), UNKNOWN)
    whole, of_module = (np.append(True, paths.outermost(key))[path + 1] for key in (of_path, numbers.reindex(of_path).fillna(-1).to_numpy(np.int64)))
    return pd.DataFrame({
        "node_id": place, "parent_id": np.where(roots, -1, parent), "depth": depths,
        "pid": threads[thread] >> 32, "tid": threads[thread] & 0xFFFFFFFF, "func_id": function,
        "outermost": whole, "outermost_of_module": of_module, "merged": merged, "calls": np.where(roots, 0, values["total_samples"]), **values,
    })  # fmt: skip
