"""Rebuild calls from function and scheduling events: one pass over the segments by the compiled library (rebuild/).

Memory is bounded by one segment and the calls that are open; in addition, analyze/rebuilt/workers.py reads the scheduling of the threads
without calls whole.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from pytrace_ebpf.analyze.rebuilt import call_rows
from pytrace_ebpf.analyze.rebuilt.read_ahead import PIECE
from pytrace_ebpf.analyze.rebuilt.sums import begun
from pytrace_ebpf.analyze.rebuilt.workers import Workers
from pytrace_ebpf.trace.frames import to_frame
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.trace.schema import CALLS


def derive(trace: Trace, into: Path) -> None:
    """Write the calls of `trace` as Parquet parts into the folder `into`: one for the calls that ended in each segment.

    One piece is written while the next is rebuilt.
    """
    workers = Workers(trace)
    with ThreadPoolExecutor(1, "writer") as aside:
        for number, pieces in enumerate(rebuild(trace)):
            writer, written = None, None
            for piece in pieces:
                writer = writer or call_rows.writer(into / f"part-{number:05d}.parquet")
                filled = workers.fill(piece)
                if written:
                    written.result()
                written = aside.submit(writer.write_table, filled, call_rows.ROW_GROUP)
            if writer and written:
                written.result()
                writer.close()


def rebuild(trace: Trace) -> Iterator[Iterator[pa.Table]]:
    """For each segment, and for what was open at the end, the calls that ended in it: tables of schema.CALLS without worker_on_cpu_ns.

    A call that is its thread's last so far comes with a later segment. A table is there until the next but one is asked for.
    """
    engine, segments = begun(trace, rows=True)
    for events, end_ns in segments:
        yield (call_rows.table(engine.rows()) for count in engine.take(events, end_ns, PIECE) if count)
    yield (call_rows.table(engine.rows()) for count in [engine.finish(trace.end_ns)] if count)


def calls_of(trace: Trace, functions: npt.NDArray[np.integer[Any]], columns: Sequence[str]) -> Iterator[pd.DataFrame]:
    """`columns` of the calls of some functions (func_id), those that ended in a segment at a time: no others are kept."""
    wanted = pa.array(functions)
    for pieces in rebuild(trace) if len(functions) else ():
        own = [piece.select(columns).filter(pc.is_in(piece["func_id"], wanted)) for piece in pieces]
        if own:
            yield to_frame(pa.concat_tables(own), CALLS)
