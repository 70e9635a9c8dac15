"""Every part of every table says of each column what is least and most in it, and has a page index: a reader skips what it does not look for."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pytrace_ebpf.derive.calls.rows import SOUGHT, Writer
from pytrace_ebpf.record.output.writer import _write_part
from pytrace_ebpf.trace.schema import CALLS, EVENTS, TABLES, Table
from pytrace_ebpf.trace.writing import _FREE_TEXT, write


def values(type_: pa.DataType, rows: int) -> pa.Array:
    if pa.types.is_list(type_):
        return pa.ListArray.from_arrays(pa.array(np.arange(rows + 1, dtype=np.int32)), values(type_.value_type, rows))
    if pa.types.is_dictionary(type_):
        return pa.array([f"name {k % 7}" for k in range(rows)]).dictionary_encode().cast(type_)
    if pa.types.is_string(type_):
        return pa.array([f"text {k:06d}" for k in range(rows)])
    if pa.types.is_boolean(type_):
        return pa.array(np.arange(rows) % 2 == 1)
    return pa.array(np.arange(rows) % 100).cast(type_)


def written(spec: Table, path: Path, rows: int = 100) -> Path:
    """As a recorder writes it, or what derives it."""
    table = pa.table([values(field.type, rows) for field in spec.arrow], schema=spec.arrow)
    if spec is CALLS:
        writer = Writer(path)
        writer.write(table)
        writer.close()
    elif spec.derived:
        write(spec, table, path)
    else:
        with path.open("wb") as file:
            _write_part(file, spec.name, table, True)
    return path


@pytest.mark.parametrize("spec", TABLES.values(), ids=lambda spec: spec.name)
def test_of_every_column_there_are_bounds_and_a_page_index(spec: Table, tmp_path: Path) -> None:
    """But of free texts, which nobody seeks by their order, and in `calls` of columns whose bounds would take longer than they save."""
    group = pq.ParquetFile(written(spec, tmp_path / "part.parquet")).metadata.row_group(0)
    without = set(_FREE_TEXT) | (set(CALLS.arrow.names) - set(SOUGHT) if spec is CALLS else set())
    for column in map(group.column, range(group.num_columns)):
        assert column.has_offset_index, column.path_in_schema
        if column.path_in_schema.split(".")[0] not in without:
            assert column.has_column_index and column.statistics.has_min_max, column.path_in_schema


def varint(at: Iterator[int]) -> int:
    number = shift = 0
    for byte in at:
        number |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return number
    raise EOFError


def whole(at: Iterator[int]) -> int:
    number = varint(at)
    return number >> 1 ^ -(number & 1)


def thrift(at: Iterator[int], kind: int = 12) -> Any:
    """A value in Thrift's compact protocol; a struct by the numbers of its fields."""
    if kind in (1, 2):
        return next(at) == 1
    if kind in (4, 5, 6):
        return whole(at)
    if kind == 8:
        return bytes(next(at) for _ in range(varint(at)))
    if kind == 9:
        head = next(at)
        return [thrift(at, head & 15) for _ in range(head >> 4 if head >> 4 < 15 else varint(at))]
    found, number = {}, 0
    while head := next(at):
        number = number + (head >> 4) if head >> 4 else whole(at)
        found[number] = head & 15 == 1 if head & 15 in (1, 2) else thrift(at, head & 15)
    return found


def test_an_events_page_is_found_by_its_time(tmp_path: Path) -> None:
    """By the page index alone, as engines do: a page's bytes begin where it says, and nothing of a time is on a page that does not have it."""
    rows = 600_000
    ts = np.sort(np.random.default_rng(1).integers(0, 1 << 40, rows))
    table = pa.table([pa.array(ts) if field.name == "ts" else values(field.type, rows) for field in EVENTS.arrow], schema=EVENTS.arrow)
    path = tmp_path / "part.parquet"
    with path.open("wb") as file:
        _write_part(file, "events", table, True)
    content = path.read_bytes()
    length = int.from_bytes(content[-8:-4], "little")
    (group,) = thrift(iter(content[-8 - length : -8]))[4]
    for number, name in enumerate(EVENTS.arrow.names):
        chunk, column = group[1][number], table[name].to_numpy()
        places = thrift(iter(content[chunk[4] : chunk[4] + chunk[5]]))[1]
        bounds = thrift(iter(content[chunk[6] : chunk[6] + chunk[7]]))
        firsts = [place[3] for place in places] + [rows]
        assert len(places) > 1 and firsts[0] == 0 and bounds[1] == [False] * len(places)
        for k, place in enumerate(places):
            head = thrift(iter(content[place[1] : place[1] + place[2]]))
            own = column[firsts[k] : firsts[k + 1]]
            assert head[5][1] == len(own)
            least, most = (int.from_bytes(bounds[of][k], "little", signed=True) for of in (2, 3))
            assert least <= own.min() and own.max() <= most
            if name == "ts":
                assert (least, most, bounds[4]) == (own[0], own[-1], 1)
