"""What state threads are in after each of their scheduling events, as the library decides it for the calls."""

from typing import Any

import numpy as np
import numpy.typing as npt

from pytrace_ebpf.errors import HostError
from pytrace_ebpf.rebuild.library import Switches, columns, library

LOST = 8  # a kind of row of our own: from here the state is unknown, scheduling events were lost
DROPPED = 0xFF


def states(
    columns_of_rows: dict[str, npt.NDArray[Any]],
    thread: npt.NDArray[np.int64],
    segment: npt.NDArray[np.int64],
    known: npt.NDArray[np.uint8],
    gil: npt.NDArray[np.int64],
) -> npt.NDArray[np.uint8]:
    """The state (switches.STATES) after each row, DROPPED where it changes nothing.

    The rows are columns of schema.SCHED, `thread` and `segment` the numbers of each row's; ordered by thread, segment and time.
    `known` (contiguous): the state of each thread before its first row, and in the end after its last one. `gil`: shape
    (threads, 2), the addresses from which up to which a futex is the GIL's; (0, 0) unknown.
    """
    types = {"kind": np.int8, "state": np.int32, "syscall": np.int32, "address": np.int64}
    arrays = {name: np.ascontiguousarray(columns_of_rows[name], kind) for name, kind in types.items()}
    blank = np.zeros(0, np.int8)  # when and where the thread was does not matter
    held = columns(
        Switches, ts=blank, pid=blank, tid=blank, kind=arrays["kind"], cpu=blank, **{n: arrays[n] for n in ("state", "syscall", "address")}
    )
    held.rows = len(thread)
    borders = np.flatnonzero((thread[1:] != thread[:-1]) | (segment[1:] != segment[:-1])) + 1
    ends = np.append(borders, len(thread)).astype(np.int64) if len(thread) else borders
    runs, gil = np.ascontiguousarray(thread[ends - 1], np.int64), np.ascontiguousarray(gil, np.int64)
    to = np.zeros(len(thread), np.uint8)
    where = (ends.ctypes.data, runs.ctypes.data, len(ends), known.ctypes.data, gil.ctypes.data, len(known))
    if not library().states(held, *where, to.ctypes.data):
        raise HostError("there is not enough memory for the scheduling events of this trace")
    return to
