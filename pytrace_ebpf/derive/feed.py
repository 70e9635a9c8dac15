"""One pass of the compiled engine (rebuild/) over the segments of a trace."""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain

import numpy as np
import pandas as pd
import pyarrow as pa

from pytrace_ebpf.derive.read_ahead import ahead, bunches_of, cores
from pytrace_ebpf.derive.scheduling.windows import unseen_of, windows_of
from pytrace_ebpf.rebuild.engine import Engine
from pytrace_ebpf.rebuild.shards import Shards
from pytrace_ebpf.trace.manifest import machine_of
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.trace.schema import CALL_LOSSES, CALLER, LAYERS, SCHED_LOSSES

_MANY = 1 << 13  # events of a segment: to wake another engine's thread takes longer than to take fewer
_MOST_SHARDS = 8


def engine_of(trace: Trace, *, rows: bool, nodes: int = 0) -> Engine:
    """An engine that knows the threads, processes, functions and losses of `trace`; `rows`, `nodes`: as of Engine."""
    engine = Engine(trace.start_ns, by_cputime=has_only_cputime(trace), rows=rows, nodes=nodes, machine=machine_of(trace.manifest))
    losses, processes, functions = trace.losses(), trace.processes(), trace.functions()
    engine.losses(windows_of(losses, CALL_LOSSES), windows_of(losses, SCHED_LOSSES))
    engine.unseen(unseen_of(losses))
    layer, module = np.zeros((2, int(functions["func_id"].max()) + 1 if len(functions) else 0), np.int32)
    code, names = pd.factorize(functions["function_layer"])
    layer[functions["func_id"]] = np.array([LAYERS.index(name) for name in names], np.int32)[code]
    module[functions["func_id"]] = pd.factorize(functions["module"])[0]
    engine.functions(layer, module)
    if trace.manifest.get("entry_line") == CALLER:
        engine.has_call_lines()
    engine.processes(*(processes[name] for name in ("pid", "start_ns", "gil_start", "gil_end")))
    threads = trace.threads()
    engine.threads(threads["pid"], threads["tid"], threads["start_ns"], threads["end_ns"].fillna(-1))
    return engine


def shards_of(trace: Trace, nodes: int = 0, most: int = _MOST_SHARDS, rows: bool = False) -> Shards:
    """As engine_of(), one for each core, if there are as many threads, and at most `most`; but one alone for short segments.

    `rows`: some will be wanted (Shards.want_rows_of).
    """
    events = sum(segment["rows"].get("events", 0) for segment in trace.segments)
    count = min(cores(), most, max(1, len(trace.threads()))) if events >= _MANY * len(trace.segments) else 1
    return Shards([engine_of(trace, rows=rows, nodes=nodes) for _ in range(count)])


def segments(
    trace: Trace, engine: Engine | Shards, first: int = 0, last: int | None = None, sched: Sequence[pa.Table] | None = None
) -> Iterator[tuple[Iterator[pa.Table], int]]:
    """The events of each segment from the `first` on, up to before the `last`, in turn, and its end; `engine` has taken its scheduling.

    `sched`: the rows of schema.SCHED of each, where somebody has read them already.
    """
    by_cputime, chosen = has_only_cputime(trace), trace.segments[first:last]
    begin, whole = (0, len(chosen)) if sched is None else (first, len(trace.segments))
    bunches = ahead(bunches_of(trace, chosen, trace.segments[first + 1 :], by_cputime, sched))
    stream = chain.from_iterable(bunches)

    def with_progress(place: int, rows: int) -> Iterator[pa.Table]:
        done = 0
        for batch in iter(partial(next, stream), None):
            trace.progress("Rebuilding calls", (begin + place + done / max(1, rows)) / whole)
            yield batch
            done += len(batch)

    try:
        for place, segment in enumerate(chosen):
            if by_cputime:
                engine.cputimes(next(stream), segment["start_ns"], segment["end_ns"])
            else:
                engine.switches(next(stream), segment["end_ns"])
            yield with_progress(place, segment["rows"].get("events", 0)), segment["end_ns"]
    finally:
        bunches.close()


def has_only_cputime(trace: Trace) -> bool:
    """Whether all that is known of its scheduling is CPU time, sampled."""
    return trace.scheduling["source"] == "cputime"
