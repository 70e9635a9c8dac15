"""Calls as they are rebuilt, a piece at a time, for who takes them in turn and keeps none: exports, the page, a single request."""

from collections.abc import Iterator, Sequence

import pandas as pd
import pyarrow as pa

from pytrace_ebpf.derive.calls import rows as call_rows
from pytrace_ebpf.derive.one_pass import run
from pytrace_ebpf.derive.read_ahead import PIECE
from pytrace_ebpf.derive.sink import RowsOf, RowsSink
from pytrace_ebpf.derive.sums import begun
from pytrace_ebpf.rebuild.engine import Ids
from pytrace_ebpf.trace.frames import to_frame
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.trace.schema import CALLS


def calls(trace: Trace) -> Iterator[Iterator[pa.Table]]:
    """For each segment, and for what was open at the end, the calls that ended in it: tables of schema.CALLS without worker_on_cpu_ns.

    A call that is its thread's last so far comes with a later segment. A table is there until the next but one is asked for.
    """
    engine, parts = begun(trace, rows=True)
    throttling = trace.throttling
    for events, end_ns in parts:
        yield (call_rows.table(engine.rows(), throttling) for count in engine.take(events, end_ns, PIECE) if count)
    yield (call_rows.table(engine.rows(), throttling) for count in [engine.finish(trace.end_ns)] if count)


class _Calls(RowsSink):
    def __init__(self, trace: Trace, functions: Ids, columns: Sequence[str]) -> None:
        super().__init__(trace)
        self._functions, self.columns = functions, columns
        self.found = list[pd.DataFrame]()

    def rows_of(self) -> RowsOf:
        return RowsOf(self._functions)

    def part(self, calls: pd.DataFrame) -> None:
        self.found.append(calls)


def calls_of(trace: Trace, functions: Ids, columns: Sequence[str]) -> pd.DataFrame:
    """The calls of some functions (func_id), with these columns, in no order: no others are kept."""
    sink = _Calls(trace, functions, columns)
    run(trace, sink)
    return pd.concat(sink.found) if sink.found else to_frame(CALLS.arrow.empty_table().select(list(columns)), CALLS)
