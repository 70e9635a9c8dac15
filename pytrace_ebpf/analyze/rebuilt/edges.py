"""Begins and ends of calls in the order in which they happened, a piece at a time: what pictures of all calls are made of."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pytrace_ebpf.analyze.rebuilt.read_ahead import PIECE
from pytrace_ebpf.analyze.rebuilt.sums import begun
from pytrace_ebpf.rebuild.engine import Engine
from pytrace_ebpf.rebuild.library import ENDS as ENDS
from pytrace_ebpf.rebuild.written import Stamped as Stamped
from pytrace_ebpf.rebuild.written import interleave as interleave
from pytrace_ebpf.trace.reader import Trace

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Edges:
    """Arrays of one length: `key` (pid << 32 | tid), `ts`, and `func_id`, ENDS where the thread's innermost call ends (-1 unknown)."""

    key: Ints
    ts: Ints
    func_id: Ints


def edges(trace: Trace) -> Iterator[Edges]:
    """Those of all calls of a trace or of a window of it, properly nested within each thread; memory is bounded by a segment."""
    engine, segments = begun(trace, rows=False)
    engine.want_edges()
    for events, end_ns in segments:
        for _ in engine.take(events, end_ns, PIECE):
            yield _edges(engine)
    engine.finish(trace.end_ns)
    yield _edges(engine)


def _edges(engine: Engine) -> Edges:
    found = engine.edges()
    return Edges(engine.keys()[found["thread"]], found["ts"].astype(np.int64), found["func_id"].astype(np.int64))
