"""Scheduling events that change a thread's state, and which state it is in after them; decided by the library, as for the calls."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from pytrace_ebpf import processors
from pytrace_ebpf.derive.scheduling.windows import touches
from pytrace_ebpf.rebuild.states import DROPPED, LOST, states
from pytrace_ebpf.rebuild.states import GONE as GONE
from pytrace_ebpf.rebuild.states import OFF as OFF
from pytrace_ebpf.rebuild.states import SLEPT as SLEPT
from pytrace_ebpf.rebuild.states import UNKNOWN as UNKNOWN
from pytrace_ebpf.trace.schema import OTHER_GIL, SchedKind
from pytrace_ebpf.trace.states import NAMES

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

ON_CPU, RUNQ, GIL, BLOCKED = (NAMES.index(name) for name in ("on_cpu", "runq_wait", "gil_wait", "blocked"))
STATES = (*NAMES, "off_cpu")  # off_cpu: without a core, not known in which of the others
_COLUMNS = ("ts", "kind", "cpu", "state", "syscall", "address", "other_tid")


@dataclass
class Switches:
    """Scheduling rows as arrays of one length, ordered by `thread`, `segment` and time.

    `thread` is a dense number of (pid, tid), `segment` one of the segments that were taken together, `row` the place in the table they were taken from, -1 where events were lost;
    `to` is the state after the row (ON_CPU ...); the others are schema.SCHED's columns.
    """

    thread: Ints
    segment: Ints
    ts: Ints
    kind: Ints
    cpu: Ints
    state: Ints
    syscall: Ints
    address: Ints
    other_tid: Ints
    row: Ints
    to: Ints

    def take(self, which: npt.NDArray[np.generic]) -> "Switches":
        """The rows that `which` (mask or positions) selects."""
        return Switches(*(column[which] for column in vars(self).values()))

    @classmethod
    def known(cls, thread: Ints, ts: int, cpu: Ints, to: Ints) -> "Switches":
        """A row of each of `thread` that is in the state `to` from `ts` on."""
        blank = np.zeros(len(thread), np.int64)
        return cls(thread, blank - 1, blank + ts, blank - 1, cpu, blank, blank - 1, blank, blank, blank - 1, to)

    @classmethod
    def joined(cls, *parts: "Switches") -> "Switches":
        """The rows of all of them, one after the other."""
        return cls(*(np.concatenate(columns) for columns in zip(*(vars(part).values() for part in parts), strict=True)))


class States:
    """The states of all threads, some segments at a time."""

    def __init__(self, origin_ns: int, windows: Ints, machine: str = "") -> None:
        """When recording began, when scheduling events were lost (windows.windows_of), and what `uname -m` said."""
        self._machine, self._futex = machine, processors.of_trace(machine).call("futex")
        self._origin, self._windows, self._passed = origin_ns, windows, 0
        self._known = np.zeros(0, np.uint8)
        self._gil = np.zeros((0, 2), np.int64)

    def grow(self, gil: Ints) -> None:
        """Further threads; `gil` (n, 2): the addresses of their GIL."""
        self._gil = np.concatenate((self._gil, gil))
        self._known = np.concatenate((self._known, np.full(len(gil), UNKNOWN, np.uint8)))

    def is_gil(self, thread: Ints, syscall: Ints, address: Ints) -> Bools:
        """Whether a thread waits there for the GIL of its process, or another interpreter's own: as in states.c."""
        start, end = self._gil[thread].T
        found: Bools = (syscall == self._futex) & (((address >= start) & (address < end)) | (address & 7 == OTHER_GIL))
        return found

    def set(self, thread: Ints, state: Ints) -> None:
        """Threads whose state is known."""
        self._known[thread] = state

    def set_gil(self, gil: Ints) -> None:
        """The addresses of the GIL of each thread, (n, 2), as they stand now."""
        self._gil = gil

    def lose(self, windows: Ints) -> None:
        """Further events were lost, later than those that are known of."""
        self._windows = np.concatenate((self._windows[self._passed :], windows))
        self._passed = 0

    def forget(self) -> None:
        """All threads."""
        self._known, self._gil = self._known[:0], self._gil[:0]

    def save(self) -> tuple[npt.NDArray[np.uint8], int]:
        """The state of each thread, and how many windows were passed: for resume()."""
        return self._known.copy(), self._passed

    def resume(self, known: npt.NDArray[np.uint8], passed: int) -> None:
        """Go on from there with the same threads and windows. Raises ValueError for what is no such state."""
        if len(known) != len(self._known) or not 0 <= passed <= len(self._windows) or (known > GONE).any():
            raise ValueError("no such state")
        self._known, self._passed = known, passed

    def take(self, thread: Ints, sched: pa.Table | pd.DataFrame, segment: Ints, ends_ns: Sequence[int]) -> Switches:
        """Of segments that follow each other, and end at `ends_ns`: the rows of `sched` (schema.SCHED) that change a thread's state.

        `thread`, `segment`: the number of each row's thread, and that of its segment from 0 on.
        """
        rows = self._with_losses(thread, sched, segment, ends_ns)
        decided = states(vars(rows), rows.thread, rows.segment, self._known, self._gil, self._machine)
        late = np.flatnonzero(decided.order[1:] < decided.order[:-1]) + 1  # who was woken in the moment in which it left its core
        if len(late):
            rows = rows.take(decided.order)
            rows.ts[late] = rows.ts[late - 1]
        rows.to = decided.to.astype(np.int64)
        return rows.take(rows.to != DROPPED)

    def _with_losses(self, thread: Ints, sched: pa.Table | pd.DataFrame, segment: Ints, ends_ns: Sequence[int]) -> Switches:
        """The segments' rows by thread; those in a loss window left out, and a LOST row of every thread at its start."""
        columns = {name: sched[name].to_numpy().astype(np.int64) for name in _COLUMNS}
        rows = Switches(thread=thread, segment=segment, row=np.arange(len(thread)), to=np.zeros(len(thread), np.int64), **columns)
        inside = touches(self._windows, rows.ts, rows.ts) & (rows.kind != SchedKind.EXIT)
        rows = rows.take(~inside)
        threads = np.arange(len(self._known))
        lost = [rows]
        while self._passed < len(self._windows) and self._windows[self._passed, 0] < ends_ns[-1]:
            start = int(self._windows[self._passed, 0])
            at, blank = max(start, self._origin), np.zeros(len(threads), np.int64)
            lost.append(
                Switches(
                    threads, blank + bisect_right(ends_ns, start), blank + at, blank + LOST, blank - 1, blank, blank, blank, blank, blank - 1, blank
                )
            )
            self._passed += 1
        lost.reverse()
        whole = Switches.joined(*lost)
        return whole.take(np.lexsort((whole.ts, whole.segment, whole.thread)))
