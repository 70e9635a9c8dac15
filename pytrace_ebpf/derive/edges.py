"""Begins and ends of calls in the order in which they happened, a piece at a time: what pictures of all calls are made of."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pytrace_ebpf.derive.read_ahead import PIECE
from pytrace_ebpf.derive.sums import begun
from pytrace_ebpf.rebuild.library import ENDS as ENDS
from pytrace_ebpf.rebuild.paths import paths as paths
from pytrace_ebpf.rebuild.written import Written as Written
from pytrace_ebpf.rebuild.written import numbers as numbers
from pytrace_ebpf.trace.reader import Trace

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Edges:
    """Begins and ends: `rows` (rebuild.library.EDGE), there until the next piece is asked for, and `keys`, pid << 32 | tid of the threads by their numbers."""

    rows: npt.NDArray[np.void]
    keys: Ints

    def columns(self) -> tuple[Ints, Ints, Ints]:
        """Arrays of one length, copies: the thread's key, when, and the func_id, ENDS where the thread's innermost call ends (-1 unknown)."""
        return self.keys[self.rows["thread"]], self.rows["ts"].astype(np.int64), self.rows["func_id"].astype(np.int64)


def edges(trace: Trace) -> Iterator[Edges]:
    """Those of all calls of a trace or of a window of it, properly nested within each thread; memory is bounded by a segment."""
    engine, segments = begun(trace, rows=False)
    engine.want_edges()
    for events, end_ns in segments:
        for _ in engine.take(events, end_ns, PIECE):
            yield Edges(engine.edges(), engine.keys())
    engine.finish(trace.end_ns)
    yield Edges(engine.edges(), engine.keys())
