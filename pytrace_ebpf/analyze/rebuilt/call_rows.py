"""Rows of calls as the library makes them, as the Arrow table of schema.CALLS, and how it is encoded in a file.

Encodings are the smallest of those that read fast: 11.4 bytes a call in the trace of scripts/bench/read.py, of which the six times are 8.4. Brotli for
the three ids that link calls would save 0.4 of these and take twice as long to write, row groups of 128 Ki 0.1.
DuckDB reads BYTE_STREAM_SPLIT of integers from 2.0 on.
"""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from pytrace_ebpf.trace.schema import CALLS, LAYERS, STATUSES
from pytrace_ebpf.trace.states import STATES

_Array = npt.NDArray[Any]

ROW_GROUP = 1 << 16
_RISING = ("call_id", "last_descendant_id", "start_ns")  # ascending within a thread
# Numbers whose low bytes are as good as random.
_RANDOM = ("parent_id", "end_ns", "wall_ns", "on_cpu_ns", "self_wall_ns", "self_on_cpu_ns")
_PLAIN = ("next_sibling_id",)  # -1 or one more than last_descendant_id: whole numbers that come again, which splitting them would hide
_SMALL = ("depth", "pid", "tid", "func_id", "migrations", "preemptions", "waits", "line", "call_line")  # takes a third of a dictionary's time
_SOUGHT = ("call_id", "start_ns", "end_ns", "depth", "pid", "tid", "func_id")

# Of rebuild.h.
_HAS_COUNTS, _OF_SELF = 8, 4
_RESUMED, _YIELDED = 32, 64

_KNOWN = {
    **{f"{state.name}_ns": state.known for state in STATES},
    **{f"self_{state.name}_ns": state.known << _OF_SELF for state in STATES},
    **dict.fromkeys(("migrations", "preemptions", "waits"), _HAS_COUNTS),
}  # fmt: skip
_NULL_BELOW_0 = ("first_cpu", "last_cpu", "call_line")
_NAMES = {"layer": LAYERS, "status": STATUSES}
_FLAGS = {"resumed": _RESUMED, "yielded": _YIELDED}


def table(rows: dict[str, _Array]) -> pa.Table:
    """`rows` (rebuild.engine.Engine.rows) as schema.CALLS without worker_on_cpu_ns, in the same memory."""
    bits: dict[int, pa.Buffer | None] = {}

    def known(bit: int) -> pa.Buffer | None:
        if bit not in bits:
            bits[bit] = _bitmap(rows["known"] & bit)
        return bits[bit]

    def column(name: str, type_: pa.DataType) -> pa.Array:
        count = len(rows["known"])
        if name == "worker_on_cpu_ns":  # filled in by analyze/rebuilt/workers.py
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


def writer(path: Path) -> pq.ParquetWriter:
    """Of tables of schema.CALLS, to be written ROW_GROUP rows at a time."""
    names = CALLS.arrow.names
    split = dict.fromkeys(_RANDOM + _SMALL, "BYTE_STREAM_SPLIT")
    numbers = dict.fromkeys(_RISING, "DELTA_BINARY_PACKED") | dict.fromkeys(_PLAIN, "PLAIN") | split
    return pq.ParquetWriter(
        path,
        CALLS.arrow,
        compression=dict.fromkeys(names, "lz4") | dict.fromkeys(numbers, "zstd"),
        compression_level=dict.fromkeys(numbers, 3),
        use_dictionary=[name for name in names if name not in numbers],
        column_encoding=numbers,
        write_statistics=list(_SOUGHT),
    )
