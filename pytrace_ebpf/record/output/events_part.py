"""Writes a part of `events` as Parquet: packed by the compiled library, since Arrow's own writer takes twice as long for more bytes.

Any Parquet reader opens it. The format: parquet.thrift and Encodings.md of apache/parquet-format.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO, TypeAlias

import numpy as np

from pytrace_ebpf.lazy_imports import pa
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
_KINDS = np.arange(16, dtype=np.int32)  # the dictionary of `kind`

_BOOL, _FALSE = 1, b"\2"  # a list's element, in thrift's compact protocol
_Bounds: TypeAlias = "tuple[np.integer[Any], np.integer[Any]]"


def write_events(file: BinaryIO, table: pa.Table, describe: bool = True) -> None:
    """Write a table of schema.EVENTS to a file at its start; `describe`: with what its columns mean."""
    if table.num_rows < _SHORT * table["ts"].num_chunks:
        table = table.combine_chunks()
    packer = Packer()
    file.write(_MAGIC)
    groups = [_RowGroup(file, table.slice(at, _ROW_GROUP), packer) for at in range(0, table.num_rows, _ROW_GROUP)]
    chunks = [chunk for group in groups for chunk in group.columns]
    for chunk in chunks:
        chunk.write_bounds(file)
    for chunk in chunks:
        chunk.write_places(file)
    by_type = struct({1: struct({})})  # the order by which minimum and maximum are defined
    metadata = {
        1: i32(2),
        2: listed([struct({4: binary(b"schema"), 5: i32(len(schema.EVENTS.columns))}), *map(_element, schema.EVENTS.columns)]),
        3: i64(table.num_rows),
        4: listed([group.described() for group in groups]),
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


class _RowGroup:
    """Written to the file by its making."""

    def __init__(self, file: BinaryIO, table: pa.Table, packer: Packer) -> None:
        start, self._rows = file.tell(), table.num_rows
        self.columns = [_Column(file, name, table[name], packer) for name in table.column_names]
        self._size = file.tell() - start

    def described(self) -> Value:
        """As the metadata has it."""
        return struct({1: listed([column.described() for column in self.columns]), 2: i64(self._size), 3: i64(self._rows)})


class _Pages:
    """The pages of a column as they will lie in the file; `offset` is where."""

    def __init__(self, offset: int, compressed: bool) -> None:
        self.offset, self.size, self.unpacked = offset, 0, 0
        self.codec = pa.Codec("lz4_raw") if compressed else None
        self.places: list[tuple[int, int]] = []  # of each data page: where it begins behind the dictionary, and its bytes
        self._parts: list[Any] = []

    def data(self, rows: int, encoding: int, content: np.ndarray) -> None:
        """Append a page."""
        before = self.size
        self._put(_DATA_PAGE, {5: struct({1: i32(rows), 2: i32(encoding), 3: i32(_RLE), 4: i32(_RLE)})}, content)
        self.places.append((before, self.size - before))

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


class _Column:
    """The values of one column in a row group, written to the file by its making; after all of them come their least and largest values, and places."""

    def __init__(self, file: BinaryIO, name: str, values: pa.ChunkedArray, packer: Packer) -> None:
        pages, encodings = _Pages(file.tell(), name not in _NOT_COMPRESSED), {_PLAIN, _RLE}
        self._pages = pages
        self._rows: list[int] = []
        self._bounds: list[_Bounds | None] = []
        self._index: dict[int, Value] = {}
        packer.begin()
        for page in _pages_of(values):
            encoding, encoded, bounds = _encoded(name, page, packer)
            pages.data(len(page), encoding, encoded)
            encodings.add(encoding)
            self._rows.append(len(page))
            self._bounds.append(bounds)
        metadata = {
            1: i32(_TYPES[str(values.type)]),
            3: listed([binary(name.encode())]),
            4: i32(_LZ4_RAW if pages.codec else _UNCOMPRESSED),
            5: i64(len(values)),
            9: i64(pages.offset),
        }
        self._begin = pages.offset
        if _RLE_DICTIONARY in encodings:
            known = _KINDS if name == "kind" else packer.dictionary().astype(values.type.to_pandas_dtype())
            self._begin = pages.dictionary(known)
            metadata |= {9: i64(self._begin), 11: i64(pages.offset)}
            if name != "kind":  # of a page that is made of its numbers: to look for its own bounds would take longer than to write it
                self._bounds = [own or (known.min(), known.max()) for own in self._bounds]
        pages.write(file)
        metadata |= {2: listed([i32(each) for each in sorted(encodings)]), 6: i64(pages.unpacked), 7: i64(pages.size)}
        least, most = min(each[0] for each in self._bounds if each), max(each[1] for each in self._bounds if each)
        metadata[12] = struct({3: i64(0), 5: binary(_plain(most)), 6: binary(_plain(least))})
        self._metadata = struct(metadata)

    def described(self) -> Value:
        """As the metadata has it."""
        return struct({2: i64(self._pages.offset), 3: self._metadata, **self._index})

    def write_bounds(self, file: BinaryIO) -> None:
        """Of each page the least and the largest value, or less and more: the page index's first half."""
        bounds = [each for each in self._bounds if each]
        ascends = all(before[0] <= after[0] and before[1] <= after[1] for before, after in zip(bounds, bounds[1:], strict=False))
        no_nulls = listed([(_BOOL, _FALSE)] * len(bounds))
        index = {1: no_nulls, **{2 + of: listed([binary(_plain(each[of])) for each in bounds]) for of in (0, 1)}, 4: i32(int(ascends))}
        self._put(file, 6, index)

    def write_places(self, file: BinaryIO) -> None:
        """Of each page where it is, and its first row: the second half."""
        firsts = np.cumsum([0, *self._rows]).tolist()
        places = [
            struct({1: i64(self._begin + at), 2: i32(size), 3: i64(first)}) for (at, size), first in zip(self._pages.places, firsts, strict=False)
        ]
        self._put(file, 4, {1: listed(places)})

    def _put(self, file: BinaryIO, field: int, index: dict[int, Value]) -> None:
        content = struct(index)[1]
        self._index |= {field: i64(file.tell()), field + 1: i32(len(content))}
        file.write(content)


def _encoded(name: str, page: np.ndarray, packer: Packer) -> tuple[int, np.ndarray, _Bounds | None]:
    """A page's encoding and content, and its least and largest value: of most columns numbers of a dictionary, as far as there is room in it, whose bounds are the page's."""
    if name == "kind":
        return _RLE_DICTIONARY, packer.small(page), (page.min(), page.max())
    if name != "ts" and (numbered := packer.numbered(page)) is not None:
        return _RLE_DICTIONARY, numbered, None
    if page.itemsize == 4:
        return _PLAIN, page, (page.min(), page.max())
    encoded, ascending = packer.deltas(page)
    return _DELTA_BINARY_PACKED, encoded, (page[0], page[-1]) if ascending else (page.min(), page.max())


def _plain(number: np.integer[Any]) -> bytes:
    """As bounds have it: int8 is stored as int32."""
    return (np.int32(number) if number.itemsize < 4 else number).tobytes()


def _pages_of(values: pa.ChunkedArray) -> Iterator[np.ndarray[Any, Any]]:
    for chunk in values.chunks:
        column = chunk.to_numpy(zero_copy_only=True)
        for at in range(0, len(column), _PAGE):
            yield column[at : at + _PAGE]
