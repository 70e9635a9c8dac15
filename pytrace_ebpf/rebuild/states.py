"""What state threads are in after each of their scheduling events, as the library decides it for the calls."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pytrace_ebpf.errors import HostError
from pytrace_ebpf.processors import engines_numbers
from pytrace_ebpf.rebuild.library import Switches, columns, library
from pytrace_ebpf.trace.states import NAMES

LOST = 8  # a kind of row of our own: from here the state is unknown, scheduling events were lost
DROPPED = 0xFF
OFF, UNKNOWN, READY, SLEPT, UNSEEN, GONE = range(len(NAMES), len(NAMES) + 6)  # states besides those that have names, as in common.h
NO_ROW = -(1 << 63)  # of Decided.since: the state began before the rows


class Decided(NamedTuple):
    """By row.

    to       the state (switches.STATES) after it, DROPPED where it changes nothing
    order    which row of those that were given it is: a wake-up of a thread that was still about to leave its core comes after that; it has that time then
    missing  kinds of events (bits 1 << SchedKind) that did not come between it and the one that began the state before it
    since    when that one was, NO_ROW for one before the rows
    """

    to: npt.NDArray[np.uint8]
    order: npt.NDArray[np.int64]
    missing: npt.NDArray[np.uint8]
    since: npt.NDArray[np.int64]


def states(
    columns_of_rows: dict[str, npt.NDArray[Any]],
    thread: npt.NDArray[np.int64],
    segment: npt.NDArray[np.int64],
    known: npt.NDArray[np.uint8],
    gil: npt.NDArray[np.int64],
    machine: str = "",
) -> Decided:
    """What is decided of scheduling rows.

    The rows are columns of schema.SCHED, `thread` and `segment` the numbers of each row's; ordered by thread, segment and time.
    `known` (contiguous): the state of each thread before its first row, and in the end after its last one. `gil`: shape
    (threads, 2), the addresses from which up to which a futex is the GIL's; (0, 0) unknown. `machine`: what `uname -m` said.
    """
    types = {"ts": np.int64, "kind": np.int8, "state": np.int32, "syscall": np.int32, "address": np.int64}
    arrays = {name: np.ascontiguousarray(columns_of_rows[name], kind) for name, kind in types.items()}
    arrays["syscall"] = engines_numbers(arrays["syscall"], machine)
    blank = np.zeros(0, np.int8)  # where the thread was does not matter
    held = columns(Switches, **{name: arrays.get(name, blank) for name, *_ in Switches._fields_[:-1]})
    held.rows = len(thread)
    borders = np.flatnonzero((thread[1:] != thread[:-1]) | (segment[1:] != segment[:-1])) + 1
    ends = np.append(borders, len(thread)).astype(np.int64) if len(thread) else borders
    runs, gil = np.ascontiguousarray(thread[ends - 1], np.int64), np.ascontiguousarray(gil, np.int64)
    rows = len(thread)
    decided = Decided(np.zeros(rows, np.uint8), np.zeros(rows, np.int64), np.zeros(rows, np.uint8), np.zeros(rows, np.int64))
    where = (ends.ctypes.data, runs.ctypes.data, len(ends), known.ctypes.data, gil.ctypes.data, len(known))
    if not library().states(held, *where, *(column.ctypes.data for column in decided)):
        raise HostError("there is not enough memory for the scheduling events of this trace")
    return decided
