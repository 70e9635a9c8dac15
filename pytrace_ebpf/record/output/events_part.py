"""Writes a part of `events` as Parquet: packed by the compiled library, since Arrow's own writer takes twice as long for more bytes.

Any Parquet reader opens it. The format: parquet.thrift and Encodings.md of apache/parquet-format.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np

from pytrace_ebpf.late import pa
from pytrace_ebpf.rebuild.pages import Packer
from pytrace_ebpf.record.output.thrift import Value, binary, i32, i64, listed, struct
from pytrace_ebpf.trace import schema
from pytrace_ebpf.trace.writing import description

_MAGIC = b"PAR1"
_ROW_GROUP, _PAGE = 1 << 20, 1 << 18  # rows
_SHORT = 1 << 13  # rows of a page: where they would be fewer, they are copied side by side first

# enums of parquet.thrift
_INT32, _INT64 = 1, 2
_REQUIRED, _INT_8 = 0, 15
_DATA_PAGE, _DICTIONARY_PAGE = 0, 2
_PLAIN, _RLE, _DELTA_BINARY_PACKED, _RLE_DICTIONARY = 0, 3, 5, 8
_UNCOMPRESSED, _LZ4_RAW = 0, 7

_TYPES = {"int64": _INT64, "int32": _INT32, "int8": _INT32}
_NOT_COMPRESSED = ("ts",)  # lz4 finds one byte of a hundred in it
_WITH_BOUNDS = ("ts", "pid", "tid")
_KINDS = np.arange(16, dtype=np.int32)  # the dictionary of `kind`


def write_events(file: BinaryIO, table: pa.Table, describe: bool = True) -> None:
    """Write a table of schema.EVENTS to a file at its start; `describe`: with what its columns mean."""
    if table.num_rows < _SHORT * table["ts"].num_chunks:
        table = table.combine_chunks()
    packer = Packer()
    file.write(_MAGIC)
    groups = [_row_group(file, table.slice(at, _ROW_GROUP), packer) for at in range(0, table.num_rows, _ROW_GROUP)]
    by_type = struct({1: struct({})})  # the order by which minimum and maximum are defined
    metadata = {
        1: i32(2),
        2: listed([struct({4: binary(b"schema"), 5: i32(len(schema.EVENTS.columns))}), *map(_element, schema.EVENTS.columns)]),
        3: i64(table.num_rows),
        4: listed(groups),
        6: binary(b"pytrace-ebpf"),
        7: listed([by_type] * len(schema.EVENTS.columns)),
    }
    if describe:
        says = description(schema.EVENTS).items()
        metadata[5] = listed([struct({1: binary(key.encode()), 2: binary(value.encode())}) for key, value in says])
    footer = struct(metadata)[1]
    file.write(footer + len(footer).to_bytes(4, "little") + _MAGIC)


def _element(column: schema.Column) -> Value:
    narrower = {6: i32(_INT_8)} if column.type == "int8" else {}
    return struct({1: i32(_TYPES[column.type]), 3: i32(_REQUIRED), 4: binary(column.name.encode()), **narrower})


def _row_group(file: BinaryIO, table: pa.Table, packer: Packer) -> Value:
    start = file.tell()
    columns = [_column(file, name, table[name], packer) for name in table.column_names]
    return struct({1: listed(columns), 2: i64(file.tell() - start), 3: i64(table.num_rows)})


class _Pages:
    """The pages of a column as they will lie in the file; `offset` is where."""

    def __init__(self, offset: int, compressed: bool) -> None:
        self.offset, self.size, self.unpacked = offset, 0, 0
        self.codec = pa.Codec("lz4_raw") if compressed else None
        self._parts: list[Any] = []

    def data(self, rows: int, encoding: int, content: np.ndarray) -> None:
        """Append a page."""
        self._put(_DATA_PAGE, {5: struct({1: i32(rows), 2: i32(encoding), 3: i32(_RLE), 4: i32(_RLE)})}, content)

    def dictionary(self, values: np.ndarray) -> int:
        """Put a page before all others; returns where those begin then."""
        pages, self._parts, before = self._parts, [], self.size
        self._put(_DICTIONARY_PAGE, {7: struct({1: i32(len(values)), 2: i32(_PLAIN)})}, values)
        self._parts += pages
        return self.offset + self.size - before

    def _put(self, kind: int, header: dict[int, Value], content: np.ndarray) -> None:
        packed = self.codec.compress(pa.py_buffer(content)) if self.codec else content.tobytes()
        check = int.from_bytes(zlib.crc32(packed).to_bytes(4), signed=True)
        head = struct({1: i32(kind), 2: i32(content.nbytes), 3: i32(len(packed)), 4: i32(check), **header})[1]
        self._parts += [head, packed]
        self.size += len(head) + len(packed)
        self.unpacked += len(head) + content.nbytes

    def write(self, file: BinaryIO) -> None:
        """Write them."""
        file.writelines(self._parts)


def _column(file: BinaryIO, name: str, values: pa.ChunkedArray, packer: Packer) -> Value:
    pages, encodings, bounds = _Pages(file.tell(), name not in _NOT_COMPRESSED), {_PLAIN, _RLE}, []
    packer.begin()
    for page in _pages(values):
        encoding, encoded, ends = _encoded(name, page, packer)
        pages.data(len(page), encoding, encoded)
        encodings.add(encoding)
        bounds += ends
    metadata = {
        1: i32(_TYPES[str(values.type)]),
        3: listed([binary(name.encode())]),
        4: i32(_LZ4_RAW if pages.codec else _UNCOMPRESSED),
        5: i64(len(values)),
        9: i64(pages.offset),
    }
    if _RLE_DICTIONARY in encodings:
        known = _KINDS if name == "kind" else packer.dictionary().astype(values.type.to_pandas_dtype())
        metadata |= {9: i64(pages.dictionary(known)), 11: i64(pages.offset)}
        bounds += [known.min(), known.max()]
    pages.write(file)
    metadata |= {2: listed([i32(each) for each in sorted(encodings)]), 6: i64(pages.unpacked), 7: i64(pages.size)}
    if name in _WITH_BOUNDS and bounds:
        metadata[12] = struct({3: i64(0), 5: binary(max(bounds).tobytes()), 6: binary(min(bounds).tobytes())})
    return struct({2: i64(pages.offset), 3: struct(metadata)})


def _encoded(name: str, page: np.ndarray, packer: Packer) -> tuple[int, np.ndarray, list[np.integer]]:
    """A page's encoding and content: of most columns numbers of a dictionary, as far as there is room in it; else its least and largest value too."""
    if name == "kind":
        return _RLE_DICTIONARY, packer.small(page), []
    if name != "ts" and (numbered := packer.numbered(page)) is not None:
        return _RLE_DICTIONARY, numbered, []
    if page.itemsize == 4:
        return _PLAIN, page, [page.min(), page.max()]
    encoded, ascending = packer.deltas(page)
    return _DELTA_BINARY_PACKED, encoded, [page[0], page[-1]] if ascending else [page.min(), page.max()]


def _pages(values: pa.ChunkedArray) -> Iterator[np.ndarray[Any, Any]]:
    for chunk in values.chunks:
        column = chunk.to_numpy(zero_copy_only=True)
        for at in range(0, len(column), _PAGE):
            yield column[at : at + _PAGE]
