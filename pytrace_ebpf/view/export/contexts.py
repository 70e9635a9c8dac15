"""Own time by calling context, thread and part: what profiles are, whatever their format. Memory is bounded by the rows of the tree."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from pytrace_ebpf.analyze.samples.sampling import period_of
from pytrace_ebpf.analyze.samples.tree import nodes, untold
from pytrace_ebpf.view.export.parts import column, known
from pytrace_ebpf.view.states import with_off

NAMES = {
    "ns": "wall", "on_cpu_ns": "on_cpu", "runq_wait_ns": "runq_wait", "gil_wait_ns": "gil_wait", "blocked_ns": "blocked",
    "off_cpu_ns": "off_cpu", "unknown_ns": "not_recorded",
}  # fmt: skip
MOST_FRAMES = 1024  # of a stack: of deeper ones the innermost, since a profile writes each as a whole
UNKNOWN, FURTHER = 0, 1  # of `places`
_AT_ONCE = 1 << 20  # frames of the stacks that are made together

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Contexts:
    """Arrays of one length, a row a context, a caller before its callees.

    parent   the caller's row, -1 none
    place    row in `places`: name, file, first_line, line (-1 unknown) and layer; UNKNOWN, and FURTHER: contexts for which the tree had no room
    depth    callers above it
    thread   row in `threads`: pid, tid, name; the last one is of FURTHER
    values   own ones: the count ("calls", "samples"), then by NAMES, ns
    """

    parent: Ints
    place: Ints
    depth: Ints
    thread: Ints
    values: dict[str, Ints]
    places: pd.DataFrame
    threads: pd.DataFrame

    def rows(self, *names: str) -> Ints:
        """Those that have something of one of these values."""
        return np.flatnonzero(np.any([self.values[name] != 0 for name in names or self.values], axis=0))

    def same(self) -> Ints:
        """For each row the first one with the same stack, whatever the thread."""
        found, order = np.arange(len(self.parent)), np.argsort(self.depth, kind="stable")
        for level in np.split(order, np.flatnonzero(np.diff(self.depth[order])) + 1):
            above = np.where(self.parent[level] >= 0, found[self.parent[level]], -1)
            _, first, which = np.unique(above << 32 | self.place[level], return_index=True, return_inverse=True)
            found[level] = level[first][which.reshape(-1)]
        return found

    def stacks(self, rows: Ints) -> Iterator[tuple[Ints, Ints]]:
        """(some of `rows`, the places of each from the innermost frame out): those of one depth together, some at a time.

        Of a stack of more than MOST_FRAMES the outermost frames are one, FURTHER.
        """
        length = np.minimum(self.depth[rows] + 1, MOST_FRAMES + 1)
        order = np.argsort(length, kind="stable")
        ends = np.flatnonzero(np.diff(length[order], append=0)) + 1
        for first, last in zip([0, *ends.tolist()], ends.tolist(), strict=False):
            frames = int(length[order[first]])
            for at in range(first, last, max(1, _AT_ONCE // frames)):
                some = rows[order[at : min(last, at + max(1, _AT_ONCE // frames))]]
                yield some, self._stacks(some, frames)

    def _stacks(self, rows: Ints, frames: int) -> Ints:
        found, at = np.empty((len(rows), frames), np.int64), rows
        for frame in range(frames):
            found[:, frame] = self.place[at]
            at = self.parent[at]
        if frames > MOST_FRAMES:
            found[:, -1] = FURTHER
        return found


def of_trace(trace: Any) -> Contexts:
    """Those of a trace or of a window of it: of its calls, else of its samples, with the lines these were taken at."""
    if not period_of(trace):
        tree = trace.tree()
        return of_tree(tree, trace.functions(), trace.threads(), known(trace, tree))
    tree = nodes(trace, lines=True)
    tree = tree.drop(columns=untold(trace))
    return of_tree(tree.assign(calls=tree["self_samples"]), trace.functions(), trace.threads(), known(trace, tree), "samples")


def of_tree(tree: pd.DataFrame, functions: pd.DataFrame, threads: pd.DataFrame, parts: Sequence[str], count: str = "calls") -> Contexts:
    """Those of `tree` (schema.TREE; with a column line the lines that functions stood at, else they stand at the line of their `def`)."""
    tree, lines = with_off(tree), tree.get("line")
    rows = (tree["depth"] >= 0).to_numpy()
    # One row more, the first: what rows without a thread have above them.
    number = np.full(int(tree["node_id"].max() if len(tree) else 0) + 2, -1, np.int64)  # the last one is of the parent -1
    number[tree["node_id"].to_numpy(np.int64)[rows]] = 1 + np.arange(int(rows.sum()))
    of = tree[rows]
    parent, further = number[of["parent_id"].to_numpy(np.int64)], of["pid"].to_numpy(np.int64) < 0
    parent[further & (parent < 0)] = 0
    known_threads = threads.drop_duplicates(["pid", "tid"], keep="last")[["pid", "tid", "name"]]
    in_tree = of.loc[~further, ["pid", "tid"]].drop_duplicates().merge(known_threads, how="left", on=["pid", "tid"])
    thread = pd.MultiIndex.from_frame(in_tree[["pid", "tid"]]).get_indexer(pd.MultiIndex.from_frame(of[["pid", "tid"]])) if len(of) else []
    places, place = places_of(of["func_id"].to_numpy(np.int64), functions, None if lines is None else lines[rows].to_numpy(np.int64))
    values = {count: of["calls"]} | {NAMES[part]: of[column(part, "self_")] for part in parts}
    return Contexts(
        np.append(-1, parent),
        np.append(FURTHER, place),
        np.append(0, of["depth"].to_numpy(np.int64) + further),
        np.append(len(in_tree), np.where(further, len(in_tree), thread)).astype(np.int64),
        {name: np.append(0, own.fillna(0).to_numpy(np.int64)) for name, own in values.items()},
        places,
        pd.concat([in_tree, pd.DataFrame({"pid": [-1], "tid": [-1], "name": ["further contexts"]})], ignore_index=True),
    )


def places_of(func: Ints, functions: pd.DataFrame, line: Ints | None) -> tuple[pd.DataFrame, Ints]:
    """Contexts.places, and the one of each row."""
    table = functions.drop_duplicates("func_id", keep="last").set_index("func_id")
    func = np.where(np.isin(func, table.index), func, -1)
    key = np.where(func < 0, -1 << 32, func << 32 | (0 if line is None else line + 1))
    distinct, place = np.unique(np.append(-1 << 32, key), return_inverse=True)  # the unknown one is there, and the first
    found = table[["qualname", "file", "first_line", "function_layer"]].reindex((distinct >> 32)[1:]).set_axis(
        ["name", "file", "first_line", "layer"], axis=1
    )  # fmt: skip
    first = found["first_line"].fillna(-1).astype(np.int64)
    found = found.assign(first_line=first, line=first if line is None else (distinct & 0xFFFFFFFF)[1:] - 1)
    blank = pd.DataFrame({"name": ["(unknown)", "(further contexts)"], "file": "", "first_line": -1, "layer": "", "line": -1})
    places = pd.concat([blank, found.fillna({"name": "(unknown)", "file": "", "layer": ""})], ignore_index=True)
    place = place.reshape(-1)[1:]
    return places, np.where(place > 0, place + 1, UNKNOWN)
