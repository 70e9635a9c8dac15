"""Pair entries with returns and find parents by levels alone, for all threads at once.

At one level of one thread entries and returns alternate. So a stable sort by (thread, level)
puts every return right behind its entry, and siblings behind one another.
"""

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
_Number = TypeVar("_Number", bound=np.generic)

# Flags of a row; a call has those of its entry and of its return.
OPEN_AT_END, OPEN_AT_START, UNWOUND, REPAIRED, IN_LOSS, RESUMED, YIELDED = 1, 2, 4, 8, 16, 32, 64


@dataclass
class Rows:
    """Function events as arrays of one length, grouped by `thread` (ascending), in each thread's own order.

    `delta`: +1 entry, -1 return, 0 reset. `given`: -1, or which of the stamps known beforehand is
    the row's (an entry carried over from an earlier chunk has the number of its carried call).
    """

    thread: Ints
    ts: Ints
    delta: npt.NDArray[np.int8]
    func: npt.NDArray[np.int32]
    frame: Ints
    line: npt.NDArray[np.int32]
    flags: npt.NDArray[np.int8]
    given: npt.NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.ts)

    def take(self, which: npt.NDArray[np.generic] | slice) -> "Rows":
        """The rows that `which` (mask, positions or slice) selects."""
        return Rows(*(column[which] for column in vars(self).values()))

    def insert(self, at: Ints, new: "Rows") -> "Rows":
        """Put row k of `new` before row at[k]; rows of one place stay in the order given."""
        if not len(new):
            return self
        pairs = zip(vars(self).values(), vars(new).values(), strict=True)
        return Rows(*(np.insert(old, at, values) for old, values in pairs))


@dataclass
class Groups:
    """Where each thread's rows lie: `start` and `count` of rows, `thread` its number."""

    start: Ints
    count: Ints
    thread: Ints

    @classmethod
    def of(cls, thread: Ints) -> "Groups":
        """The groups of a grouped column."""
        start = np.flatnonzero(np.concatenate(([True], thread[1:] != thread[:-1]))) if len(thread) else np.zeros(0, np.int64)
        return cls(start, np.diff(start, append=len(thread)), thread[start])

    def spread(self, values: npt.NDArray[_Number]) -> npt.NDArray[_Number]:
        """One value per group, repeated for each of its rows."""
        return np.repeat(values, self.count)


@dataclass
class Tree:
    """What belongs together. `depth`: of the call each row belongs to. `returned`: row of an entry's
    return, -1 where it has none yet. `parent`: row of the parent's entry, -1 for none; both for entries only."""

    depth: npt.NDArray[np.int32]
    returned: Ints
    parent: Ints


def depths(rows: Rows, groups: Groups) -> tuple[npt.NDArray[np.int32], Bools]:
    """Depth of the call each row belongs to, and which groups are out of order: more returns than entries, or a reset."""
    level = np.cumsum(rows.delta, dtype=np.int32)
    level -= groups.spread(level[groups.start] - rows.delta[groups.start])
    broken = np.minimum.reduceat(level, groups.start) < 0
    reset = rows.delta == 0
    if reset.any():
        broken |= np.logical_or.reduceat(reset, groups.start)
    return level - (rows.delta > 0), broken


def pair(rows: Rows, groups: Groups, depth: npt.NDArray[np.int32]) -> Tree:
    """Pair rows whose levels never go below a thread's first row."""
    entry = rows.delta > 0
    layers = np.maximum.reduceat(depth, groups.start).astype(np.int64) + 1
    key = depth + groups.spread(np.cumsum(layers) - layers)
    order = _stable_order(key, int(layers.sum()))
    entry_there = entry[order]
    returned = np.full(len(rows), -1, np.int64)
    has = np.flatnonzero(entry_there[:-1] & ~entry_there[1:])
    returned[order[has]] = order[has + 1]
    # A first child's parent is the row before it. Later children take it over from the sibling before.
    siblings = order[entry_there]
    before = np.concatenate(([True], entry[:-1]))
    before[groups.start] = True
    leads = np.maximum.accumulate(np.where(before[siblings], np.arange(len(siblings)), 0))
    candidate = siblings - 1
    candidate[depth[siblings] == 0] = -1
    parent = np.full(len(rows), -1, np.int64)
    parent[siblings] = candidate[leads]
    return Tree(depth, returned, parent)


def mismatched(rows: Rows, groups: Groups, tree: Tree) -> Bools:
    """Groups in which a return was paired with an entry of another activation."""
    entries = np.flatnonzero(tree.returned >= 0)
    came, went = rows.frame[entries], rows.frame[tree.returned[entries]]
    wrong = entries[(came != went) & (came != 0) & (went != 0)]
    broken = np.zeros(len(groups.start), bool)
    broken[np.searchsorted(groups.start, wrong, side="right") - 1] = True
    return broken


def _stable_order(key: npt.NDArray[np.integer], count: int) -> Ints:
    """A stable argsort of keys below `count`: NumPy sorts 16-bit keys by radix (10 ns a key), wider ones by comparing."""
    order = np.argsort(key.astype(np.uint16), kind="stable")
    for shift in range(16, max(count - 1, 0).bit_length(), 16):
        order = order[np.argsort((key[order] >> shift).astype(np.uint16), kind="stable")]
    return order
