"""Which call was open innermost on a thread at a moment, and of which function it is: one pass, no rows of calls."""

from typing import Any

import numpy as np
import numpy.typing as npt

from pytrace_ebpf.analyze.rebuilt.passes import PIECE, segments, shards_of
from pytrace_ebpf.analyze.time.split import thread_keys
from pytrace_ebpf.trace.reader import Trace

NO_CALL = -1

Ints = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.integer[Any]]


def innermost(trace: Trace, pid: Numbers, tid: Numbers, ts: Numbers) -> tuple[Ints, Ints]:
    """(call_id, func_id) of the innermost call open on thread (pid, tid) at each moment ts; -1 where none was.

    The moments are arrays of one length in any order, the answers int64. At its start a call is open, at its end only its caller
    is. Memory is bounded by the moments, a segment and what is open.
    """
    call_id, func_id = np.full((2, len(ts)), NO_CALL, np.int64)
    if not len(ts):
        return call_id, func_id
    key, when = thread_keys(np.asarray(pid), np.asarray(tid)), np.asarray(ts).astype(np.int64)
    order = np.lexsort((when, key))
    engines = shards_of(trace)
    found = engines.ask(key[order], when[order])
    for events, end_ns in segments(trace, engines):
        engines.take(events, end_ns, PIECE)
    engines.finish(trace.end_ns)
    call_id[order], func_id[order] = found()
    return call_id, func_id
