"""What was recorded of processes while functions of theirs have no names yet, in its order."""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from pytrace_ebpf.record.output.tables import Columns, where

_MOST_ROWS = 2_000_000  # of all processes: about 100 MB


class _Batch(NamedTuple):
    is_named: Callable[[], bool]
    emit: Callable[[], None]
    rows: int


class Held:
    """Of the processes of one interpreter."""

    def __init__(self, pending: set[int]) -> None:
        """`pending`: the programs' ids of functions that have no names yet, kept up to date by its owner."""
        self._pending = pending
        self._batches: dict[int, deque[_Batch]] = {}  # by process
        self._rows = 0

    def __contains__(self, pid: int) -> bool:
        return pid in self._batches

    @property
    def is_full(self) -> bool:
        """Whether no more should be held."""
        return self._rows > _MOST_ROWS

    def hold(self, pid: int, is_named: Callable[[], bool], emit: Callable[[], None], rows: int) -> None:
        """Hold rows of a process: `emit` is called once `is_named()`, and after what was held before."""
        self._batches.setdefault(pid, deque()).append(_Batch(is_named, emit, rows))
        self._rows += rows

    def release(self) -> None:
        """Emit what does not wait any more."""
        for pid, batches in list(self._batches.items()):
            while batches and batches[0].is_named():
                batch = batches.popleft()
                self._rows -= batch.rows
                batch.emit()
            if not batches:
                del self._batches[pid]

    def sort(self, rows: Columns, ids: np.ndarray, emit: Callable[[Columns, np.ndarray], None]) -> None:
        """Emit rows, or hold them: those of processes of which something is held already, or that have a function without a name. `ids`: the programs', by row."""
        if self._batches or self._pending:
            unnamed = np.isin(ids, np.fromiter(self._pending, ids.dtype, len(self._pending)))
            late = np.union1d(rows["pid"][unnamed], np.array(list(self._batches), np.int32))
            for pid in late.tolist():
                its = rows["pid"] == pid
                if its.any():
                    self._hold(pid, where(rows, its), ids[its], emit)
            others = ~np.isin(rows["pid"], late)
            rows, ids = where(rows, others), ids[others]
        emit(rows, ids)

    def _hold(self, pid: int, rows: Columns, ids: np.ndarray, emit: Callable[[Columns, np.ndarray], None]) -> None:
        waits_for = self._pending.intersection(np.unique(ids).tolist())
        self.hold(pid, lambda: waits_for.isdisjoint(self._pending), lambda: emit(rows, ids), len(ids))
