"""Rebuild calls from function and scheduling events: one pass over the segments by the compiled library (rebuild/).

Memory is bounded by one segment and the calls that are open; in addition, by how often threads without calls got a core
(analyze/rebuilt/workers.py).
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from pytrace_ebpf.analyze.rebuilt import call_rows
from pytrace_ebpf.analyze.rebuilt.incremental import Growth
from pytrace_ebpf.analyze.rebuilt.passes import engine_of, segments
from pytrace_ebpf.analyze.rebuilt.read_ahead import PIECE
from pytrace_ebpf.analyze.rebuilt.sums import begun, within
from pytrace_ebpf.analyze.rebuilt.workers import Workers
from pytrace_ebpf.rebuild.engine import Engine
from pytrace_ebpf.rebuild.shards import Shards
from pytrace_ebpf.trace.derived import Settled
from pytrace_ebpf.trace.frames import to_frame
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.trace.schema import CALLS
from pytrace_ebpf.trace.segments import part_name

_NO_FUNCTIONS = np.zeros(0, np.int64)


def derive(trace: Trace, into: Path) -> Settled | None:
    """Write the calls of `trace` as Parquet parts into the folder `into`: one for the calls that ended in each segment.

    One piece is written while the next is rebuilt.
    """
    growth = Growth(trace, CALLS, into, partial(engine_of, trace.whole, rows=True))
    try:
        workers = Workers(trace, growth.first, growth.state)
    except (KeyError, ValueError):
        growth.refuse()
        workers = Workers(trace)
    with ThreadPoolExecutor(1, "writer") as aside:
        for number, pieces in enumerate(rebuild(trace, growth), growth.first):
            if _write(pieces, into / part_name(number), workers, aside):
                growth.parts.append(part_name(number))
            if growth.due(number + 1):
                growth.settle(growth.parts, workers.state())
    return growth.settled


def _write(pieces: Iterator[pa.Table], path: Path, workers: Workers, aside: ThreadPoolExecutor) -> bool:
    """Write a part; returns whether there was anything to be written."""
    writer, written = None, None
    for piece in pieces:
        writer = writer or call_rows.Writer(path)
        filled = workers.fill(piece)
        if written:
            written.result()
        written = aside.submit(writer.write, filled)
    if writer and written:
        written.result()
        writer.close()
    return writer is not None


def rebuild(trace: Trace, growth: Growth[Engine] | None = None) -> Iterator[Iterator[pa.Table]]:
    """For each segment, and for what was open at the end, the calls that ended in it: tables of schema.CALLS without worker_on_cpu_ns.

    A call that is its thread's last so far comes with a later segment. A table is there until the next but one is asked for. `growth`: of
    a whole trace, from where that begins.
    """
    if growth is not None and trace.whole is trace:
        engine, parts = growth.engines, segments(trace, growth.engines, growth.first)
    else:
        engine, parts = begun(trace, rows=True)
    for events, end_ns in parts:
        yield (call_rows.table(engine.rows()) for count in engine.take(events, end_ns, PIECE) if count)
    yield (call_rows.table(engine.rows()) for count in [engine.finish(trace.end_ns)] if count)


def calls_of(
    trace: Trace,
    functions: npt.NDArray[np.integer[Any]],
    columns: Sequence[str],
    growth: Growth[Shards] | None = None,
    taken: Callable[[int, Shards], None] = lambda *_: None,
    suspended: bool = False,
    never: npt.NDArray[np.integer[Any]] = _NO_FUNCTIONS,
) -> Iterator[pd.DataFrame]:
    """`columns` of the calls of some functions (func_id), those that ended in a segment at a time: no others are kept. In no order.

    `growth`: of a whole trace, from where that begins. `taken` is called with how many segments have been taken, after each, and what took them.
    `suspended`: those of other functions, too, that yielded or were resumed, but for those of the functions `never`.
    """
    if not suspended and not len(functions):
        return
    if growth is not None and trace.whole is trace:
        engines, first, last = growth.engines, growth.first, None
    else:
        engine, first, last = within(trace, rows=True)
        engines = Shards([engine])
    engines.want_rows_of(functions, suspended, never)
    wanted, unwanted, own = pa.array(functions), pa.array(never), {engine: list[pa.Table]() for engine in engines.engines}

    def made(engine: Engine) -> None:
        piece = call_rows.table(engine.rows())
        mask = pc.is_in(piece["func_id"], wanted)
        if suspended:
            other = pc.or_(piece["resumed"], piece["yielded"])
            mask = pc.or_(mask, pc.and_not(other, pc.is_in(piece["func_id"], unwanted)) if len(unwanted) else other)
        own[engine].append(piece.select(columns).filter(mask))

    def found() -> Iterator[pd.DataFrame]:
        parts = list(chain.from_iterable(own.values()))
        if parts:
            yield to_frame(pa.concat_tables(parts), CALLS)
        for each in own.values():
            each.clear()

    for count, (events, end_ns) in enumerate(segments(trace.whole, engines, first, last), first + 1):
        engines.take(events, end_ns, PIECE, made)
        yield from found()
        taken(count, engines)
    engines.finish(trace.end_ns, made)
    yield from found()
