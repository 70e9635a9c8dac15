"""Calls to boxes of a picture: those too short to see are merged with their neighbours, so that no trace makes a large picture."""

import numpy as np
import numpy.typing as npt
import pandas as pd

from pytrace_ebpf.trace.frames import values_and_mask
from pytrace_ebpf.trace.states import NAMES, SPLIT

# What a box's wall time consists of; off: off the core, but not known why; unknown: not recorded.
PARTS = (*NAMES, "off", "unknown")
COLUMNS = ("depth", "func_id", "start_ns", "end_ns", "wall_ns", *SPLIT)

ROOM = 1 << 16  # boxes that are kept before any are merged

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


class Boxes:
    """Boxes of calls, which come a piece at a time; memory is bounded by a piece and by how many are wanted.

    Box by box nothing is lost by merging in pieces but which function has most of a merged box's wall time: that is of what the pieces
    told of each.
    """

    def __init__(self, most: int) -> None:
        """At most about `most` boxes."""
        self._most, self.least_ns = most, 0  # least_ns: what is shorter is merged
        self._boxes = of_calls(pd.DataFrame({name: np.zeros(0, np.int64) for name in COLUMNS}))
        self._fresh: list[pd.DataFrame] = []  # what came since

    def add(self, boxes: pd.DataFrame) -> None:
        """Take boxes as of_calls() makes them: level by level, there in the order of time, and after those that came before."""
        self._fresh.append(_merged(boxes, self.least_ns))
        if len(self._boxes) + sum(map(len, self._fresh)) > max(3 * self._most // 2, ROOM):
            self._merge(max(self._most, ROOM // 2))

    def made(self) -> pd.DataFrame:
        """One row each, level by level and in the order of time.

        Columns, int64: depth, start_ns, end_ns, calls (how many the box stands for), func_id (of the one call, or that with the most wall time),
        wall_ns and PARTS, which add up to wall_ns; these are sums over the box's calls.
        """
        self._merge(self._most)
        return self._boxes.drop(columns="most_ns")

    def _merge(self, most: int) -> None:
        """Merge what is shorter than the least power of two, in ns, with which no more than `most` boxes remain; nothing where none need be."""
        both = pd.concat([self._boxes, *self._fresh], ignore_index=True)
        self._boxes, self._fresh = both[:0], []  # of each copy the one before goes: together they were most of what a page's making took
        self._boxes = both.iloc[np.argsort(both["depth"].to_numpy(), kind="stable")]
        del both
        self._boxes.index = pd.RangeIndex(len(self._boxes))
        depth, start, end, calls = (self._boxes[name].to_numpy(np.int64) for name in ("depth", "start_ns", "end_ns", "calls"))
        single = calls == 1
        if len(depth) > most:
            low, high = max(0, self.least_ns.bit_length() - 1), int(end.max() - start.min() + 1).bit_length()
            while low < high:
                middle = (low + high) // 2
                low, high = (low, middle) if _begins(depth, start, end, single, 1 << middle).sum() <= most else (middle + 1, high)
            self.least_ns = 1 << low
        self._boxes = _merged(self._boxes, self.least_ns)


def _merged(boxes: pd.DataFrame, least_ns: int) -> pd.DataFrame:
    """Boxes, level by level, of which those shorter than `least_ns` are merged with such neighbours."""
    if not least_ns or not len(boxes):
        return boxes
    depth, start, end, calls = (boxes[name].to_numpy(np.int64) for name in ("depth", "start_ns", "end_ns", "calls"))
    first = np.flatnonzero(_begins(depth, start, end, calls == 1, least_ns))
    if len(first) == len(boxes):
        return boxes
    stop = np.append(first[1:], len(depth))
    func, ns = _foremost(np.repeat(np.arange(len(first)), stop - first), boxes["func_id"].to_numpy(), boxes["most_ns"].to_numpy())
    sums = {name: np.add.reduceat(boxes[name].to_numpy(np.int64), first) for name in ("calls", "wall_ns", *PARTS)}
    box = {"depth": depth[first], "start_ns": start[first], "end_ns": end[stop - 1], "calls": sums.pop("calls"), "func_id": func}
    return pd.DataFrame(box | sums | {"most_ns": ns})


def of_calls(calls: pd.DataFrame) -> pd.DataFrame:
    """A box for each of some calls with COLUMNS, in their order, int64; most_ns: of its wall time, that of func_id."""
    columns = {c: calls[c].to_numpy(np.int64) for c in ("depth", "start_ns", "end_ns", "func_id", "wall_ns")}
    box = {name: columns[name] for name in ("depth", "start_ns", "end_ns")} | {"calls": np.ones(len(calls), np.int64), "func_id": columns["func_id"]}
    parts = {"wall_ns": columns["wall_ns"], **_parts(calls)}
    return pd.DataFrame(box | parts | {"most_ns": columns["wall_ns"]})


def _begins(depth: Ints, start: Ints, end: Ints, single: Bools, least_ns: int) -> Bools:
    """Mask of the boxes that stay apart from the one before: all but those that, like it and the gap between, are shorter than `least_ns`.

    Those of several calls (not `single`) are of short ones.
    """
    long = single & (end - start >= least_ns)
    begins = np.ones(len(depth), bool)
    begins[1:] = long[1:] | long[:-1] | (depth[1:] != depth[:-1]) | (start[1:] - end[:-1] >= least_ns)
    return begins


def _parts(calls: pd.DataFrame) -> dict[str, Ints]:
    """PARTS of every call: what is null in the states is put under `off` where the time on the core is known, else under `unknown`."""
    wall = calls["wall_ns"].to_numpy(np.int64)
    of = {part: values_and_mask(calls[f"{part}_ns"])[0] for part in NAMES}
    known = values_and_mask(calls["on_cpu_ns"])[1]
    rest = wall - sum(of.values())
    return {part: np.where(known, amount, 0) for part, amount in of.items()} | {
        "off": np.where(known, rest, 0),
        "unknown": np.where(known, 0, wall),
    }


def _foremost(box: Ints, func: Ints, wall: Ints) -> tuple[Ints, Ints]:
    """Of each box (numbered from 0, in order) the function that has most of its wall time, and how much."""
    least = int(func.min())
    key = box * (int(func.max()) - least + 1) + func - least
    order = np.argsort(key)
    box, func, wall, key = box[order], func[order], wall[order], key[order]
    first = np.flatnonzero(np.append(True, key[1:] != key[:-1]))
    total = np.add.reduceat(wall, first)
    box, func = box[first], func[first]
    most = np.maximum.reduceat(total, np.flatnonzero(np.append(True, box[1:] != box[:-1])))
    last = np.flatnonzero(total == most[box])
    last = last[np.append(box[last][1:] != box[last][:-1], True)]
    return func[last], most
