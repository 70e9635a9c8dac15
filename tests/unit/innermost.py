"""Which call was open innermost on a thread at a moment, asked in a pass of its own."""

from typing import Any

import numpy as np
import numpy.typing as npt

from pytrace_ebpf.derive.calls.innermost import NO_CALL, Bools, Ints, Moments
from pytrace_ebpf.derive.one_pass import run
from pytrace_ebpf.derive.scheduling.split import thread_keys
from pytrace_ebpf.derive.sink import Sink
from pytrace_ebpf.derive.store import State
from pytrace_ebpf.rebuild.answers import Answers
from pytrace_ebpf.rebuild.shards import Shards
from pytrace_ebpf.trace.reader import Trace

Numbers = npt.NDArray[np.integer[Any]]
_NO_LIBRARY = np.zeros(0, np.bool_)


def innermost(trace: Trace, pid: Numbers, tid: Numbers, ts: Numbers, library: Bools = _NO_LIBRARY) -> Answers:
    """The innermost call open on thread (pid, tid) at each moment ts, as Engine.ask() says; `library`: by func_id whether that is of a library.

    The moments are arrays of one length in any order. Memory is bounded by the moments, a segment and what is open.
    """
    if not len(ts):
        return Answers(*np.zeros((len(Answers._fields), 0), np.int64))
    sink = _Asked(trace, thread_keys(np.asarray(pid), np.asarray(tid)), np.asarray(ts).astype(np.int64), library)
    run(trace, sink)
    return Answers(*(np.maximum(column, NO_CALL) for column in sink.answers))


class _Asked(Sink):
    def __init__(self, trace: Trace, key: Ints, ts: Ints, library: Bools) -> None:
        super().__init__(trace)
        self._key, self._ts, self._library = key, ts, library

    def begin(self, engines: Shards, first: int, state: State | None) -> None:
        self._moments = Moments(engines, self._library)
        self._moments.ask(self._key, self._ts)

    def end(self) -> None:
        self.answers = self._moments.answers(self._key, self._ts)
