"""Tables of Arrow as data frames of pandas: every number copied once at most, each null as null."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from pytrace_ebpf.trace.table import Table

_ROWS_A_SLICE = 64  # fewer than these, and copying them one by one is faster


def to_frame(table: pa.Table, spec: Table) -> pd.DataFrame:
    """Arrow to pandas: nullable integers become pandas' own (pd.NA, never a float), dictionaries Categorical."""
    nullable = {c.name for c in spec.columns if c.nullable}
    columns = {name: table[name] for name in table.column_names}
    del table  # so that each column's memory is free for the next
    return pd.DataFrame({name: _column(columns.pop(name), name in nullable) for name in list(columns)}, copy=False)


def plain_frame(table: pa.Table) -> pd.DataFrame:
    """The same of an answer that no schema describes; sums, which DuckDB makes wider than 64 bits, are of 64 where they fit."""
    columns = {name: _narrowed(column) for name, column in zip(table.column_names, table.columns, strict=True)}
    return pd.DataFrame({name: _column(column, column.null_count > 0) for name, column in columns.items()}, copy=False)


def _narrowed(values: pa.ChunkedArray) -> pa.ChunkedArray:
    if not pa.types.is_decimal(values.type):
        return values
    try:
        return values.cast(pa.int64())
    except pa.ArrowInvalid:
        return values.cast(pa.float64())


_NAMES = ("qualname", "module", "file", "first_line")


def named(rows: pd.DataFrame, functions: pd.DataFrame, columns: Sequence[str] | None) -> pd.DataFrame:
    """`columns` of rows (None: all), and what functions (func_id, ...) are called whose func_id they have: a byte or some a row, however long the names."""
    at = pd.Index(functions["func_id"]).get_indexer(rows["func_id"])
    names = {}
    for name in _NAMES:
        codes, values = pd.factorize(functions[name])
        names[name] = pd.Categorical.from_codes(np.where(at < 0, -1, codes[at]) if len(codes) else at, values)
    return (rows if columns is None else rows[list(columns)]).assign(**names)


def in_order(table: pa.Table, *columns: str) -> pa.Table:
    """The rows in the order of integer columns, the first of them first; of equals the one that came first stays first."""
    order = np.lexsort([table[column].to_numpy() for column in reversed(columns)])
    if not np.any(order[1:] < order[:-1]):
        return table
    begins = np.concatenate(([0], np.flatnonzero(np.diff(order) != 1) + 1))
    if len(begins) > len(order) // _ROWS_A_SLICE:
        return table.take(pa.array(order))
    lengths = np.diff(begins, append=len(order))
    return pa.concat_tables([table.slice(at, length) for at, length in zip(order[begins], lengths, strict=True)])


def _column(values: pa.ChunkedArray, nullable: bool) -> pd.Series | npt.NDArray[np.generic] | pd.arrays.IntegerArray:
    whole = values.combine_chunks() if len(values) else values
    del values
    if isinstance(whole, pa.ChunkedArray) or not pa.types.is_integer(whole.type):
        return whole.to_pandas(
            types_mapper={pa.int64(): pd.Int64Dtype(), pa.int32(): pd.Int32Dtype(), pa.int16(): pd.Int16Dtype()}.get if nullable else None
        )
    numbers = np.frombuffer(whole.buffers()[1], whole.type.to_pandas_dtype())[whole.offset : whole.offset + len(whole)]
    numbers = numbers if numbers.flags.writeable else numbers.copy()
    return pd.arrays.IntegerArray(numbers, pc.is_null(whole).to_numpy(zero_copy_only=False)) if nullable else numbers


def values_and_mask(column: "pd.Series[int]") -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """A nullable column as (int64 values with 0 for null, mask of the known ones)."""
    known = column.notna().to_numpy(dtype=bool)
    if known.all():
        return column.to_numpy(dtype=np.int64), known
    return column.fillna(0).to_numpy(dtype=np.int64), known
