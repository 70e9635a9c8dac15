"""Write the Parquet parts of a table: each describes itself, can be skipped by any of its columns, and has a checksum for every page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, BinaryIO

from pytrace_ebpf.lazy_imports import pa, pq
from pytrace_ebpf.trace.table import Table

_FREE_TEXT = ("value", "text")  # the least and the largest of it are of no use to anybody


def description(spec: Table) -> dict[str, str]:
    """A table in the metadata of its parts: its name, what a row is, its key, and of each column the unit and the meaning, as JSON."""
    columns = {column.name: {"unit": column.unit, "meaning": column.meaning} for column in spec.columns}
    return {
        "pytrace_ebpf.table": spec.name,
        "pytrace_ebpf.meaning": spec.meaning,
        "pytrace_ebpf.key": json.dumps(spec.key),
        "pytrace_ebpf.columns": json.dumps(columns),
    }


def described(spec: Table) -> pa.Schema:
    """The Arrow schema of a table with its description()."""
    return spec.arrow.with_metadata(description(spec))


def write(spec: Table, rows: pa.Table, where: Path | BinaryIO, describe: bool = True, **options: Any) -> None:
    """Write a part: `rows` as the table's schema has them, `options` as pyarrow's write_table takes them. Raises OSError."""
    rows = rows.replace_schema_metadata(description(spec) if describe else None)
    pq.write_table(rows, where, **(_options(rows.schema) | options))


def stream(spec: Table, path: Path, **options: Any) -> pq.ParquetWriter:
    """A part that is written piece by piece, otherwise as by write(). Raises OSError."""
    return pq.ParquetWriter(path, described(spec), **(_options(spec.arrow) | options))


def _leaf(name: str, type_: pa.DataType) -> str:
    """What Parquet calls a column's values."""
    return _leaf(f"{name}.list.element", type_.value_type) if pa.types.is_list(type_) else name


def _options(schema: pa.Schema) -> dict[str, Any]:
    return {
        "compression": "lz4",
        "write_statistics": [_leaf(field.name, field.type) for field in schema if field.name not in _FREE_TEXT],
        "write_page_checksum": True,
        "write_page_index": True,
    }
