"""Rows of calls as the library makes them, as the Arrow table of schema.CALLS, and how it is encoded in a file.

Six times are nearly all of a row: split by bytes, zstd finds the high bytes of a page side by side and codes each by its frequency. It does so in
blocks of 128 KiB, and takes one code for each: so a page has as many rows, and a block holds one byte of all of them. Measured on recordings, CPython
3.11: 4.5 bytes a call of fib, 5.4 of a web service, 10.3 of tokenize, ast and json; with pages of Arrow's 20,000 rows 6.4, 6.7 and 11.1. Level 6 would save 0.3
and take twice as long to write. DuckDB reads BYTE_STREAM_SPLIT of integers from 2.0 on.
"""

import inspect
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from pytrace_ebpf.trace.index import SPANS
from pytrace_ebpf.trace.schema import CALLS, LAYERS, STATUSES
from pytrace_ebpf.trace.states import STATES
from pytrace_ebpf.trace.writing import stream

_Array = npt.NDArray[Any]

ROW_GROUP = 1 << 17
_PAGE = (
    {"max_rows_per_page": ROW_GROUP} if "max_rows_per_page" in inspect.signature(pq.ParquetWriter).parameters else {}
)  # before, only its bytes were limited
_RISING = ("call_id", "start_ns")  # ascending within a thread
_SPLIT = (
    "parent_id", "last_descendant_id", "next_sibling_id", "depth", "pid", "tid", "func_id", "end_ns", "wall_ns", "on_cpu_ns", "self_wall_ns", "self_on_cpu_ns",
    "migrations", "preemptions", "waits", "line", "call_line",
)  # fmt: skip
# Columns that have their bounds: those of all would take 40 ns a call.
SOUGHT = ("call_id", "start_ns", "end_ns", "depth", "pid", "tid", "func_id")

_MOST_SPANS = 64  # threads of a row group

# Of rebuild/timeline.h.
THREAD_BITS = 40  # of a call_id, below its thread's number
_HAS_COUNTS, _OF_SELF = 8, 4
_RESUMED, _YIELDED = 32, 64

_KNOWN = {
    **{f"{state.name}_ns": state.known for state in STATES},
    **{f"self_{state.name}_ns": state.known << _OF_SELF for state in STATES},
    "throttled_ns": next(state.known for state in STATES if state.name == "runq_wait"),
    **dict.fromkeys(("migrations", "preemptions", "waits"), _HAS_COUNTS),
}  # fmt: skip
_NULL_BELOW_0 = ("first_cpu", "last_cpu", "call_line")
_NAMES = {"layer": LAYERS, "status": STATUSES}
_FLAGS = {"resumed": _RESUMED, "yielded": _YIELDED}


def table(rows: dict[str, _Array], throttling: bool) -> pa.Table:
    """`rows` (rebuild.engine.Engine.rows) as schema.CALLS without worker_on_cpu_ns, in the same memory; throttled_ns is null without `throttling`."""
    bits: dict[int, pa.Buffer | None] = {}

    def known(bit: int) -> pa.Buffer | None:
        if bit not in bits:
            bits[bit] = _bitmap(rows["known"] & bit)
        return bits[bit]

    def column(name: str, type_: pa.DataType) -> pa.Array:
        count = len(rows["known"])
        if name == "throttled_ns" and not throttling:
            return pa.nulls(count, type_)
        if name == "worker_on_cpu_ns":  # filled in by derive/calls/workers.py
            return pa.nulls(count, type_)
        if name in _NAMES:
            return pa.DictionaryArray.from_arrays(pa.array(rows[name]), list(_NAMES[name]))
        if name in _FLAGS:
            return pa.Array.from_buffers(type_, count, [None, _bits(rows["flags"] & _FLAGS[name])])
        if name == "outermost":
            return pa.Array.from_buffers(type_, count, [None, _bits(rows[name])])
        valid = known(_KNOWN[name]) if name in _KNOWN else _bitmap(rows[name] >= 0) if name in _NULL_BELOW_0 else None
        return pa.Array.from_buffers(type_, count, [valid, pa.py_buffer(rows[name])])

    schema = CALLS.arrow
    return pa.table([column(field.name, field.type) for field in schema], schema=schema)


def _bits(values: _Array) -> pa.Buffer:
    return pa.py_buffer(np.packbits(values != 0, bitorder="little"))


def _bitmap(values: _Array) -> pa.Buffer | None:
    """Which are not 0, as Arrow has it; None for all."""
    return None if values.all() else _bits(values)


class Writer:
    """Writes tables of schema.CALLS to a file, ROW_GROUP rows to a row group, and which calls are in each (trace.index.SPANS)."""

    def __init__(self, path: Path) -> None:
        numbers = dict.fromkeys(_RISING, "DELTA_BINARY_PACKED") | dict.fromkeys(_SPLIT, "BYTE_STREAM_SPLIT")
        self._writer = stream(
            CALLS,
            path,
            compression="zstd",
            compression_level=3,
            use_dictionary=[name for name in CALLS.arrow.names if name not in numbers],
            column_encoding=numbers,
            write_statistics=list(SOUGHT),
            **_PAGE,
        )
        self._spans: list[list[list[int]] | None] = []

    def write(self, table: pa.Table) -> None:
        """Write some rows."""
        self._writer.write_table(table, ROW_GROUP)
        ids = table["call_id"].to_numpy()
        self._spans += [_spans(ids[at : at + ROW_GROUP]) for at in range(0, len(ids), ROW_GROUP)]

    def close(self) -> None:
        """End the file."""
        if hasattr(self._writer, "add_key_value_metadata"):
            self._writer.add_key_value_metadata({SPANS: json.dumps(self._spans)})
        self._writer.close()


def _spans(ids: _Array) -> list[list[int]] | None:
    """The least and the largest of `ids` of each thread; None of too many threads."""
    begins = np.flatnonzero(np.append(True, ids[1:] >> THREAD_BITS != ids[:-1] >> THREAD_BITS))
    low, high = np.minimum.reduceat(ids, begins), np.maximum.reduceat(ids, begins)
    order = np.argsort(low)
    low, high = low[order], high[order]
    begins = np.flatnonzero(np.append(True, low[1:] >> THREAD_BITS != low[:-1] >> THREAD_BITS))
    return np.stack((low[begins], np.maximum.reduceat(high, begins)), 1).tolist() if len(begins) <= _MOST_SPANS else None
