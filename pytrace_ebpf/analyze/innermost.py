"""Which call was open innermost on a thread at a moment, and which function a call is of."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from pytrace_ebpf.analyze.last_at import last_at
from pytrace_ebpf.analyze.preorder import begin_end
from pytrace_ebpf.analyze.split import thread_keys

COLUMNS = ("call_id", "parent_id", "last_descendant_id", "depth", "pid", "tid", "start_ns", "end_ns")
NO_CALL = NO_FUNCTION = -1

Ints = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.integer[Any]]


def innermost(calls: pd.DataFrame, pid: Numbers, tid: Numbers, ts: Numbers) -> Ints:
    """The call_id of the innermost call open on thread (pid, tid) at each moment ts; -1 where none was.

    `calls` needs COLUMNS, and with a call all those it lies in. The moments are arrays of one length in any order,
    the answer is int64. At its start a call is open, at its end only its caller is.
    """
    if not len(calls) or not len(ts):
        return np.full(len(ts), NO_CALL, np.int64)
    row, is_end = begin_end(calls)
    id_, parent, start, end = (calls[c].to_numpy(np.int64) for c in ("call_id", "parent_id", "start_ns", "end_ns"))
    when = np.where(is_end, end[row], start[row])
    after = np.where(is_end, parent[row], id_[row])
    keys = thread_keys(calls["pid"].to_numpy(), calls["tid"].to_numpy())[row]
    # begin_end takes the threads in the order of their first row; searching needs them in that of their number.
    order = np.argsort(keys, kind="stable")
    at = last_at(keys[order], when[order], thread_keys(np.asarray(pid), np.asarray(tid)), np.asarray(ts, np.int64))
    return np.where(at >= 0, after[order][at], NO_CALL)


def functions_of(calls: pd.DataFrame, call_id: Ints) -> Ints:
    """The func_id (int64) of each call_id in `calls` (call_id and func_id, in the order of call_id); -1 for what is not there, as NO_CALL."""
    if not len(calls):
        return np.full(len(call_id), NO_FUNCTION, np.int64)
    ids = calls["call_id"].to_numpy()
    at = np.minimum(np.searchsorted(ids, call_id), len(ids) - 1)
    return np.where(ids[at] == call_id, calls["func_id"].to_numpy(np.int64)[at], NO_FUNCTION)


def innermost_in(trace: Any, pid: Numbers, tid: Numbers, ts: Numbers) -> Ints:
    """The same of a pytrace_ebpf Trace, whose calls are read a part at a time: memory is bounded by the largest and the moments."""
    out = np.full(len(ts), NO_CALL, np.int64)
    pid, tid, ts = np.asarray(pid), np.asarray(tid), np.asarray(ts, np.int64)
    order = np.argsort(ts, kind="stable")
    upto = len(order)
    going_on: pd.DataFrame | None = None
    # Calls lie where they ended, so from the last part backwards all that were open at a moment are known before it.
    for part, earlier_end_ns in trace.calls_backwards(COLUMNS):
        calls = part if going_on is None else pd.concat([part, going_on], ignore_index=True)
        first = int(np.searchsorted(ts[order[:upto]], earlier_end_ns))
        asked = order[first:upto]
        out[asked] = innermost(calls, pid[asked], tid[asked], ts[asked])
        going_on, upto = calls[calls["start_ns"] <= earlier_end_ns], first
        if not upto:
            break
    return out
