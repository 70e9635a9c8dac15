"""Switches and wake-ups that the kernel did not report, which the next event of the thread shows: rows of `losses`."""

from __future__ import annotations

from collections import deque

import numpy as np
import numpy.typing as npt

from pytrace_ebpf.lazy_imports import pa
from pytrace_ebpf.rebuild.states import DROPPED, GONE, NO_ROW, UNKNOWN, states
from pytrace_ebpf.trace.losses import LOSSES, NOT_REPORTED, SCHED_LOSSES

_MOST_THREADS = 1 << 16
_MOST_WINDOWS = 256
_COLUMNS = ("ts", "kind", "state", "syscall", "address")

Ints = npt.NDArray[np.int64]


class Missing:
    """Looks at the scheduling of one segment after the other by the rules of rebuild/states.c, as readers do. Memory is bounded by the threads that live."""

    def __init__(self) -> None:
        self._last: dict[int, tuple[int, int]] = {}  # of each thread (pid << 32 | tid): its state, and since when
        self._windows: deque[tuple[int, int]] = deque(maxlen=_MOST_WINDOWS)  # in which events were lost: these may be any

    def found(self, sched: pa.Table, losses: pa.Table | None) -> pa.Table:
        """Rows of schema.LOSSES: what did not come according to the next segment's rows of schema.SCHED, in the order of time. Raises HostError."""
        for row in losses.to_pylist() if losses is not None else []:
            if row["class"] in SCHED_LOSSES:
                self._windows.append((row["start_ns"], row["end_ns"]))
        keys = sched["pid"].to_numpy().astype(np.int64) << 32 | sched["tid"].to_numpy()
        order = np.argsort(keys, kind="stable")
        columns = {name: sched[name].to_numpy()[order] for name in _COLUMNS}
        threads, thread = np.unique(keys[order], return_inverse=True)
        state, since = (np.array([self._last.get(key, (UNKNOWN, NO_ROW))[k] for key in threads.tolist()], np.int64) for k in (0, 1))
        known = state.astype(np.uint8)
        decided = states(columns, thread, np.zeros(len(thread), np.int64), known, np.zeros((len(threads), 2), np.int64))
        at = np.flatnonzero(decided.missing)
        begun = np.where(decided.since[at] == NO_ROW, since[thread[at]], decided.since[at])
        rows = self._rows(begun, columns["ts"][at], decided.missing[at], threads[thread[at]])
        self._keep(threads, known, _since(thread, columns["ts"][decided.order], decided.to, since))
        return rows

    def _rows(self, start: Ints, end: Ints, missing: npt.NDArray[np.uint8], key: Ints) -> pa.Table:
        lost = np.zeros(len(start), bool)
        for begins, ends in self._windows:
            lost |= (start <= ends) & (end >= begins)
        each = [np.flatnonzero(~lost & ((missing >> kind & 1) == 1)) for kind in NOT_REPORTED]
        which = np.concatenate(each)
        classes = np.repeat(list(NOT_REPORTED.values()), [len(of) for of in each])
        columns = {"start_ns": start, "end_ns": end, "count": np.ones(len(start), np.int64), "pid": key >> 32, "tid": key & 0xFFFFFFFF}
        arrays = {name: pa.array(column[which]).cast(LOSSES.arrow.field(name).type) for name, column in columns.items()}
        return pa.table({"class": pa.array(classes, pa.string()).dictionary_encode(), **arrays}, schema=LOSSES.arrow)

    def _keep(self, threads: Ints, state: npt.NDArray[np.uint8], since: Ints) -> None:
        for key, of, ts in zip(threads.tolist(), state.tolist(), since.tolist(), strict=True):  # one step per thread
            self._last.pop(key, None)
            if of != GONE:
                self._last[key] = of, ts
        while len(self._last) > _MOST_THREADS:
            del self._last[next(iter(self._last))]


def _since(thread: Ints, ts: Ints, to: npt.NDArray[np.uint8], before: Ints) -> Ints:
    """Since when each thread is in its last state: rows by thread, and what it was before them."""
    since = before.copy()
    changes = to != DROPPED
    since[thread[changes]] = ts[changes]  # of several the last one stays
    return since
