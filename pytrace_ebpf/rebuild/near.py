"""Which of a segment's events stand next to another thread's, by the compiled library."""

from typing import Any

import numpy as np
import numpy.typing as npt

from pytrace_ebpf.rebuild.library import library


def near(ts: npt.NDArray[np.int64], pid: npt.NDArray[Any], tid: npt.NDArray[Any], moments: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Mask of the events next to another thread's, or to one of the `moments`, and of some more: the ends of each thread's.

    Columns of schema.EVENTS, of which each thread's lie together; times are ns from -1 on. What lies between would be put in order only to be left out.
    """
    found = np.zeros(len(ts), np.bool_)
    columns: list[npt.NDArray[Any]] = [np.ascontiguousarray(ts, np.int64), *(np.ascontiguousarray(each, np.int32) for each in (pid, tid))]
    moments = np.sort(moments)
    addresses = (each.ctypes.data for each in columns)
    if not library().near(*addresses, len(ts), moments.ctypes.data, len(moments), found.ctypes.data):
        found[:] = True  # without memory for the search all of them are taken
    return found
