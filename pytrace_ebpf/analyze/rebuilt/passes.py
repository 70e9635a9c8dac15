"""One pass of the compiled engine (rebuild/) over the segments of a trace."""

import os
import queue
import threading
from collections.abc import Generator, Iterator
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from pytrace_ebpf.analyze.time.windows import windows_of
from pytrace_ebpf.rebuild.engine import Engine
from pytrace_ebpf.rebuild.shards import Shards
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.trace.schema import CALL_LOSSES, CALLER, LAYERS, SCHED_LOSSES

PIECE = 1 << 18  # events that are read and rebuilt at once
_AHEAD = 4  # batches that are read while another is rebuilt
_MOST_SHARDS = 8


def engine_of(trace: Trace, *, rows: bool, nodes: int = 0) -> Engine:
    """An engine that knows the threads, processes, functions and losses of `trace`; `rows`, `nodes`: as of Engine."""
    engine = Engine(trace.start_ns, by_cputime=has_only_cputime(trace), rows=rows, nodes=nodes)
    losses, processes, functions = trace.losses(), trace.processes(), trace.functions()
    engine.losses(windows_of(losses, CALL_LOSSES), windows_of(losses, SCHED_LOSSES))
    layer, module = np.zeros((2, int(functions["func_id"].max()) + 1 if len(functions) else 0), np.int32)
    layer[functions["func_id"]] = functions["function_layer"].map(LAYERS.index)
    module[functions["func_id"]] = functions["module"].astype("category").cat.codes
    engine.functions(layer, module)
    if trace.manifest.get("entry_line") == CALLER:
        engine.has_call_lines()
    engine.processes(*(processes[name] for name in ("pid", "start_ns", "gil_start", "gil_end")))
    threads = trace.threads()
    engine.threads(threads["pid"], threads["tid"], threads["start_ns"], threads["end_ns"].fillna(-1))
    return engine


def shards_of(trace: Trace, nodes: int = 0, most: int = _MOST_SHARDS) -> Shards:
    """As engine_of(), one for each core, if there are as many threads, and at most `most`."""
    count = min(_cores(), most, max(1, len(trace.threads())))
    return Shards([engine_of(trace, rows=False, nodes=nodes) for _ in range(count)])


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def segments(trace: Trace, engine: Engine | Shards, first: int = 0, last: int | None = None) -> Iterator[tuple[Iterator[pa.Table], int]]:
    """The events of each segment from the `first` on, up to before the `last`, in turn, and its end; `engine` has taken its scheduling."""
    by_cputime, chosen = has_only_cputime(trace), trace.segments[first:last]
    done, whole = 0, max(1, sum(segment["rows"].get("events", 0) for segment in chosen))
    stream = ahead(_stream(trace, chosen, trace.segments[first + 1 :], "cputime" if by_cputime else "sched"))

    def with_progress() -> Iterator[pa.Table]:
        nonlocal done
        for batch in iter(partial(next, stream), None):
            trace.progress("Rebuilding calls", done / whole)
            yield batch
            done += len(batch)

    try:
        for segment in chosen:
            if by_cputime:
                engine.cputimes(next(stream), segment["start_ns"], segment["end_ns"])
            else:
                engine.switches(next(stream), segment["end_ns"])
            yield with_progress(), segment["end_ns"]
    finally:
        stream.close()


def _stream(trace: Trace, chosen: list[Any], following: list[Any], scheduling: str) -> Iterator[pa.Table | None]:
    """Of each segment its scheduling, the batches of its events, and None."""
    for segment, next_ in zip(chosen, [*following, None], strict=False):
        # A curve needs the sample that follows.
        parts = [trace.part(scheduling, s["index"]) for s in ((segment, next_) if scheduling == "cputime" else (segment,)) if s]
        yield from chain([pa.concat_tables(parts)], trace.batches("events", segment["index"], PIECE), [None])


def has_only_cputime(trace: Trace) -> bool:
    """Whether all that is known of its scheduling is CPU time, sampled."""
    return trace.scheduling["source"] == "cputime"


def ahead(items: Iterator[pa.Table | None]) -> Generator[pa.Table | None, None, None]:
    """The same, read and checked by another thread meanwhile: where there is a second core, it is used."""
    waiting: queue.Queue[pa.Table | BaseException | object | None] = queue.Queue(_AHEAD)
    left, end = threading.Event(), object()

    def put(item: pa.Table | BaseException | object | None) -> bool:
        while not left.is_set():
            with suppress(queue.Full):
                waiting.put(item, timeout=0.1)
                return True
        return False

    def read() -> None:
        try:
            if all(map(put, items)):
                put(end)
        except BaseException as error:  # raised where the batches are taken
            put(error)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        while (item := waiting.get()) is not end:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        left.set()
        reader.join()
