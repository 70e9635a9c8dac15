"""Waits that go on: libraries wait in slices, as a driver that polls for 100 ms at a time to see signals, and CPython for the GIL for 5 ms at a time.

A wait goes on with the one before it on its thread where that was ended by a timer, was in the same function for the same thing, and the thread has
only looked at the clock between the two.
"""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from pytrace_ebpf.derive.scheduling.switches import Bools, Ints
from pytrace_ebpf.derive.store import State, checked_rows
from pytrace_ebpf.trace.schema import WAIT_KINDS

_MOST_NS, _MOST_SHARE = 1_000_000, 0.1  # between two slices, and of the first of them
_SAME = ("key", "kind", "syscall", "resource_id", "lock_address", "func_id", "caller_func_id", "own_func_id", "own_line")
_OF_WAITS = ("key", "kind", "syscall", "resource_id", "lock_address", "by_timer", "start_ns", "end_ns", "blocked_until_ns")
_OF_CALLS = ("func_id", "caller_func_id", "own_func_id", "own_line")
_LAST = np.dtype([(name, "i8") for name in (*_OF_WAITS, *_OF_CALLS, "slices")])
_NEVER = [WAIT_KINDS.index(kind) for kind in ("sleep", "other", "page-fault")]  # these are for nothing that is there in the next one
_PREEMPTED = WAIT_KINDS.index("preempted")
_STATE = "slices"


class Slices:
    """Numbers the slices of waits, some at a time; the memory is bounded by threads."""

    def __init__(self) -> None:
        self._last = np.zeros(0, _LAST)  # of each thread

    def state(self) -> State:
        """For resume()."""
        return {_STATE: self._last}

    def resume(self, state: State) -> None:
        """Go on from there. Raises KeyError, and ValueError for what is no such state."""
        self._last = checked_rows(state[_STATE], _LAST)

    def number(self, waits: npt.NDArray[np.void], of_calls: Mapping[str, Ints]) -> Ints:
        """The which slice of its wait each of `waits` (off_core.WAIT) is, from 1 on; those of a thread come in the order of time.

        `of_calls` has func_id, caller_func_id, own_func_id and own_line of each.
        """
        numbers = np.ones(len(waits), np.int64)
        chosen = np.flatnonzero(waits["kind"] != _PREEMPTED)  # who loses its core between two slices has still only looked at the clock
        rows = np.zeros(len(chosen), _LAST)
        for name in _OF_WAITS:
            rows[name] = waits[name][chosen]
        for name in _OF_CALLS:
            rows[name] = of_calls[name][chosen]
        old = len(self._last)
        rows = np.concatenate((self._last, rows))
        order = np.lexsort((rows["start_ns"], rows["key"]))
        rows = rows[order]
        goes_on = np.append(False, _goes_on(rows[:-1], rows[1:])) if len(rows) else np.zeros(0, np.bool_)
        place = np.arange(len(rows))
        first = np.maximum.accumulate(np.where(goes_on, 0, place))
        rows["slices"] = place - first + np.maximum(rows["slices"][first], 1)
        last = np.append(rows["key"][1:] != rows["key"][:-1], True) if len(rows) else np.zeros(0, np.bool_)
        self._last = rows[last]
        of_rows = np.empty(len(rows), np.int64)
        of_rows[order] = rows["slices"]
        numbers[chosen] = of_rows[old:]
        return numbers


def _goes_on(before: npt.NDArray[np.void], after: npt.NDArray[np.void]) -> Bools:
    gap = after["start_ns"] - before["end_ns"]
    by_timer = (before["by_timer"] != 0) & (before["blocked_until_ns"] >= 0) & ~np.isin(before["kind"], _NEVER)
    short = (gap >= 0) & (gap <= _MOST_NS) & (gap <= _MOST_SHARE * (before["end_ns"] - before["start_ns"]))
    same = np.logical_and.reduce([before[name] == after[name] for name in _SAME])
    return same & by_timer & short
