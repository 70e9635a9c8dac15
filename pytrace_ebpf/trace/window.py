"""A piece of a trace, as if only that had been recorded: every table of it, cut at its edges."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from pytrace_ebpf.trace.conditions import Wanted, all_of, are, began, equal, overlap
from pytrace_ebpf.trace.derived import Pieces
from pytrace_ebpf.trace.parts import Part
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.trace.schema import CALLS, OPERATORS, TABLES, TASKS, TREE, Table

_ENDS = ("start_ns", "blocked_until_ns", "end_ns")
_NOBODY = 0  # the kernel's idle threads: no process has this id


class Window(Trace):
    """The window [start_ns, end_ns) of a trace, and of it the threads of `pid` and `tid` where these are given.

    Its segments are those that overlap it, and one more: what a thread stamps it may hand over a segment later.
    """

    def __init__(self, whole: Trace, start_ns: int | None, end_ns: int | None, pid: int | None, tid: Wanted) -> None:
        vars(self).update(vars(whole))
        self._whole = whole
        self.pid, self.tid = pid, tid
        self._start_ns = whole.start_ns if start_ns is None else max(start_ns, whole.start_ns)
        self._end_ns = max(self._start_ns, whole.end_ns if end_ns is None else min(end_ns, whole.end_ns))
        of_whole = whole.segments
        self.first = next((place for place, s in enumerate(of_whole) if s["end_ns"] > self._start_ns), len(of_whole))
        after = next((place for place, s in enumerate(of_whole) if s["start_ns"] >= self._end_ns), len(of_whole))
        self.last = max(self.first, min(len(of_whole), after + 1))
        self.manifest = {**whole.manifest, "segments": of_whole[self.first : self.last], "lost": {}}
        self._start_deriving(whole._maker)
        self._indexes, self._held = {}, {}
        self._by_index = {}

    def __repr__(self) -> str:
        return f"<Window [{self.start_ns}, {self.end_ns}) of {self._whole!r}>"

    @property
    def whole(self) -> Trace:
        return self._whole

    @property
    def start_ns(self) -> int:
        return self._start_ns

    @property
    def end_ns(self) -> int:
        return self._end_ns

    @property
    def _all_along(self) -> bool:
        return (self._start_ns, self._end_ns) == (self.whole.start_ns, self.whole.end_ns)

    def tree(
        self,
        columns: Sequence[str] | None = None,
        pid: int | None = None,
        tid: Wanted = None,
        start_ns: int | None = None,
        end_ns: int | None = None,
    ) -> pd.DataFrame:
        """As of a trace. Of some threads all along it is part of the whole's, unless that has rows of no thread's."""
        if start_ns is None and end_ns is None and self._all_along and not len(self.whole.tree(["calls"], pid=-1)):
            rows = self.whole.tree(TREE.known(columns), *self._whose(pid, tid))
            if "node_id" not in rows and "parent_id" in rows:
                rows = rows.assign(node_id=self.whole.tree(["node_id"], *self._whose(pid, tid))["node_id"])
            return _renumbered(rows)[TREE.known(columns)]
        return super().tree(columns, pid, tid, start_ns, end_ns)

    def thread_times(self) -> pd.DataFrame:
        """As of a trace."""
        if not self._all_along:
            return super().thread_times()
        rows = self.whole.thread_times()
        for name, wanted in (("pid", self.pid), ("tid", self.tid)):
            rows = rows[are(rows[name], wanted)]
        return rows.reset_index(drop=True)

    def waits(
        self,
        columns: Sequence[str] | None = None,
        pid: int | None = None,
        tid: Wanted = None,
        start_ns: int | None = None,
        end_ns: int | None = None,
    ) -> pd.DataFrame:
        """As of a trace, cut at the edges. These are the whole trace's, which are derived once."""
        start, end = self._within(start_ns, end_ns)
        return self._cut(self.whole.waits(columns, *self._whose(pid, tid), start, end))

    def waits_by_part(self, columns: Sequence[str], where: pc.Expression | None = None) -> Iterator[pd.DataFrame]:
        """As of a trace, cut at the edges."""
        own = [*equal(pid=self.pid, tid=self.tid), *overlap(self._start_ns, self._end_ns)]
        return map(self._cut, self.whole.waits_by_part(columns, all_of([*own, *([] if where is None else [where])])))

    def rivals(self, pid: int | None = None, tid: Wanted = None, start_ns: int | None = None, end_ns: int | None = None) -> pd.DataFrame:
        """As of a trace. These are the whole trace's, which are derived once."""
        return self.whole.rivals(*self._whose(pid, tid), *self._within(start_ns, end_ns))

    def rivals_by_part(self, where: pc.Expression | None = None) -> Iterator[pd.DataFrame]:
        """As of a trace."""
        own = [*equal(pid=self.pid, tid=self.tid), *began("queued_ns", self._start_ns, self._end_ns)]
        return self.whole.rivals_by_part(all_of([*own, *([] if where is None else [where])]))

    def _cut(self, rows: pd.DataFrame) -> pd.DataFrame:
        return rows.assign(**{name: rows[name].clip(self._start_ns, self._end_ns) for name in _ENDS if name in rows})

    def window(self, start_ns: int | None = None, end_ns: int | None = None, pid: int | None = None, tid: Wanted = None) -> Trace:
        """A window within this one."""
        return Window(self.whole, *self._within(start_ns, end_ns), *self._whose(pid, tid))

    def profile_by_part(
        self, columns: Sequence[str] | None = None, pid: int | None = None, start_ns: int | None = None, end_ns: int | None = None
    ) -> Iterator[pa.Table]:
        """As of a trace; of a window that crosses an edge all of it."""
        return super().profile_by_part(columns, _both(self.pid, pid), *self._within(start_ns, end_ns))

    def profile_waits(self, pid: int | None = None, start_ns: int | None = None, end_ns: int | None = None) -> pd.DataFrame:
        """As of a trace; of a window that crosses an edge all of it."""
        return super().profile_waits(_both(self.pid, pid), *self._within(start_ns, end_ns))

    def losses(self) -> pd.DataFrame:
        rows = self.whole.losses()
        return rows[(rows["end_ns"] >= self._start_ns) & (rows["start_ns"] < self._end_ns)].reset_index(drop=True)

    def threads(self) -> pd.DataFrame:
        rows = self._lived(self.whole.threads())
        return rows[are(rows["tid"], self.tid)].reset_index(drop=True)

    def processes(self) -> pd.DataFrame:
        rows = self._lived(self.whole.processes())
        return rows[rows["pid"].isin(self.threads()["pid"])].reset_index(drop=True) if self.tid is not None else rows

    def functions(self) -> pd.DataFrame:
        return self.whole.functions()

    def neighbours(self) -> pd.DataFrame:
        return self.whole.neighbours()

    def resources(self) -> pd.DataFrame:
        return self.whole.resources()

    def _lived(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Threads or processes that were there at some time of the window."""
        there = (rows["start_ns"] < self._end_ns) & (rows["end_ns"].isna() | (rows["end_ns"] > self._start_ns)).astype(bool)
        return rows[there & ((rows["pid"] == self.pid) if self.pid is not None else True)].reset_index(drop=True)

    def _whose(self, pid: int | None, tid: Wanted) -> tuple[int | None, Wanted]:
        """The threads of `pid` and `tid` that are also the window's."""
        return _both(self.pid, pid), _all_of(self.tid, tid)

    def _within(self, start_ns: int | None, end_ns: int | None) -> tuple[int, int]:
        return max(self._start_ns, start_ns or 0), self._end_ns if end_ns is None else min(self._end_ns, end_ns)

    def _log(self, name: str, columns: Sequence[str] | None, start_ns: int | None, end_ns: int | None, where: list[pc.Expression]) -> pd.DataFrame:
        has = {column.name for column in TABLES[name].columns}
        threads = equal(pid=self.pid, tid=self.tid) if {"pid", "tid"} <= has else equal(pid=self.pid) if "pid" in has and name != "usage" else []
        return super()._log(name, columns, *self._within(start_ns, end_ns), [*where, *threads])

    def _rows(self, spec: Table, columns: list[str], where: pc.Expression | None) -> Iterator[pa.Table]:
        return (super()._rows if spec in (CALLS, TASKS, OPERATORS) else self._rows_of_frame)(spec, columns, where)

    def pieces(self, name: str) -> Pieces:
        return self.whole.pieces(name)

    def _has_kept(self, spec: Table) -> bool:
        return False

    def _kept(self, spec: Table) -> list[Part]:
        return []

    def _make(self, tables: Sequence[Table], beside: Sequence[Any], keep: bool = False) -> dict[str, list[Part]]:
        return super()._make(tables, beside, keep=False)

    def sizes(self, name: str) -> Any:
        return self.whole.sizes(name)


def _renumbered(tree: pd.DataFrame) -> pd.DataFrame:
    """Some threads' rows of a calling-context tree as one of their own: node_id is the place of a row, parent_id that of its caller, -1 none."""
    if "node_id" not in tree:
        return tree
    places = {"node_id": np.arange(len(tree))}
    if "parent_id" in tree:
        at = np.searchsorted(tree["node_id"].to_numpy(), tree["parent_id"].to_numpy())  # in the order of the whole's
        places["parent_id"] = np.where(tree["parent_id"] >= 0, at, -1)
    return tree.assign(**{name: place.astype(tree[name].dtype) for name, place in places.items()})


def _both(one: int | None, other: int | None) -> int | None:
    """Which id is both, where None is any."""
    if one is None or other is None:
        return other if one is None else one
    return one if one == other else _NOBODY


def _some(ids: int | tuple[int, ...]) -> tuple[int, ...]:
    return ids if isinstance(ids, tuple) else (ids,)


def _all_of(one: Wanted, other: Wanted) -> Wanted:
    """Which ids are in both, where None is any."""
    if one is None or other is None:
        return other if one is None else one
    both = tuple(each for each in _some(one) if each in _some(other))
    return both[0] if len(both) == 1 else both or _NOBODY
