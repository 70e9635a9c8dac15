"""Calls as they are rebuilt, a piece at a time, for who takes them in turn and keeps none: exports, the page, a single request."""

import hashlib
from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
import pyarrow as pa

from pytrace_ebpf.derive.calls import rows as call_rows
from pytrace_ebpf.derive.checkpoints import segment_keys
from pytrace_ebpf.derive.one_pass import run
from pytrace_ebpf.derive.read_ahead import PIECE
from pytrace_ebpf.derive.sink import RowsOf, RowsSink
from pytrace_ebpf.derive.sums import begun
from pytrace_ebpf.rebuild.engine import Ids
from pytrace_ebpf.trace.frames import to_frame
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.trace.schema import CALLS

FOLDER = "calls_of"  # what kept_calls_of() keeps
_MOST_BYTES = 1 << 28


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


def kept_calls_of(trace: Trace, functions: Ids, columns: Sequence[str]) -> pd.DataFrame:
    """calls_of(), for which a complete trace is gone over once: they are kept beside its tables."""
    if trace.whole is not trace or trace.manifest["state"] != "complete":
        return calls_of(trace, functions, columns)
    key = hashlib.sha256(repr([*list(segment_keys(trace))[-1:], *columns]).encode())
    key.update(np.sort(np.asarray(functions, np.int64)).tobytes())
    pieces, name = trace.pieces(FOLDER), key.hexdigest()[:24]
    schema = pa.schema([CALLS.arrow.field(column) for column in columns])
    try:
        rows = pa.ipc.open_stream(pieces.read(name, _MOST_BYTES) or b"").read_all()
        rows.validate(full=True)
        if rows.schema == schema:
            return to_frame(rows, CALLS)
    except pa.ArrowException:  # there is none, or it is damaged
        pass
    found = calls_of(trace, functions, columns)
    rows = pa.Table.from_pandas(found, schema, preserve_index=False)
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as stream:
        stream.write_table(rows.unify_dictionaries())
    if out.tell() <= _MOST_BYTES:
        pieces.keep(name, bytes(out.getvalue()))
    return found
