"""What rebuilding the calls of a trace costs by itself, for the benchmarks of reading."""

import time
from typing import Any

from pytrace_ebpf.derive import feed
from pytrace_ebpf.derive.read_ahead import PIECE
from pytrace_ebpf.trace.reader import Trace


def compiled_pass(trace: Trace, **what: Any) -> float:
    """CPU seconds of the pass that gives `what` (feed.engine_of): the events of a segment are read beforehand."""
    engine, spent = feed.engine_of(trace, **what), 0.0
    for events, end_ns in feed.segments(trace, engine):
        batches = list(events)
        begin = time.process_time()
        for _ in engine.take(batches, end_ns, PIECE):
            pass
        spent += time.process_time() - begin
    engine.finish(trace.end_ns)
    return spent
