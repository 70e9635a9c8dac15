"""Which call was open innermost on a thread at a moment, and of which function it is: one pass, no rows of calls."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pytrace_ebpf.analyze.rebuilt.passes import PIECE, segments, shards_of
from pytrace_ebpf.analyze.time.split import thread_keys
from pytrace_ebpf.trace.reader import Trace

NO_CALL = -1
_NO_LIBRARY = np.zeros(0, np.bool_)

Ints = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.integer[Any]]


class Innermost(NamedTuple):
    """For each moment, int64, -1 for none: the innermost call and its function; of the library's functions that it is in the outermost one,
    which the program called; and the function that called that, or func_id itself."""

    call_id: Ints
    func_id: Ints
    entry: Ints
    caller: Ints


def innermost(trace: Trace, pid: Numbers, tid: Numbers, ts: Numbers, library: npt.NDArray[np.bool_] = _NO_LIBRARY) -> Innermost:
    """The innermost call open on thread (pid, tid) at each moment ts; `library`: by func_id whether that is of a library.

    The moments are arrays of one length in any order. At its start a call is open, at its end only its caller is. Memory is bounded by
    the moments, a segment and what is open.
    """
    answer = Innermost(*np.full((len(Innermost._fields), len(ts)), NO_CALL, np.int64))
    if not len(ts):
        return answer
    key, when = thread_keys(np.asarray(pid), np.asarray(tid)), np.asarray(ts).astype(np.int64)
    order = np.lexsort((when, key))
    engines = shards_of(trace)
    found = engines.ask(key[order], when[order], library)
    for events, end_ns in segments(trace, engines):
        engines.take(events, end_ns, PIECE)
    engines.finish(trace.end_ns)
    for column, values in zip(answer, found(), strict=True):
        column[order] = values
    return answer
