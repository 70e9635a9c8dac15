"""Read the Parquet parts of a table: values that no recorder writes are found here, so that analyses never meet them."""

import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from pytrace_ebpf.errors import DroppedError, TraceError
from pytrace_ebpf.trace.files import Files
from pytrace_ebpf.trace.limits import limits
from pytrace_ebpf.trace.schema import TABLES, Table

_AT_ONCE = 64  # open files
_AHEAD = 2  # batches that are read while another is at work
# Rows that a byte can stand for. No table of ours has more than one: every row has a moment, or a name.
_ROWS_A_BYTE = 64
_PARQUET = ds.ParquetFileFormat()
_CHECKED = ds.ParquetFileFormat(default_fragment_scan_options=ds.ParquetFragmentScanOptions(page_checksum_verification=True))
_FEW_ROWS = 1 << 16  # threads that share the columns of so many cost more than they save


@dataclass(frozen=True)
class Part:
    """One file: `rows`: how many it has by the list of segments; None where that does not list it. `fleeting`: it may be dropped while it is read."""

    files: Files
    folder: str
    name: str
    rows: int | None = None
    fleeting: bool = False
    sum: int | None = None  # its checksum by that list; None where it has none

    def __str__(self) -> str:
        return str(self.files.directory / self.folder / self.name)


def read(spec: Table, parts: Sequence[Part], columns: Sequence[str], where: pc.Expression | None) -> pa.Table:
    """The rows of `parts` that `where` selects, columns of `spec`; what a trace was written too early to have is filled in.

    Raises TraceError for a part that is not there, is no regular file, does not open or holds an impossible value.
    """
    tables: list[pa.Table] = []
    for at in range(0, len(parts), _AT_ONCE):
        some = parts[at : at + _AT_ONCE]
        try:
            tables.append(_read(spec, some, columns, where))
        except (pa.ArrowException, OSError, ValueError) as error:
            raise _does_not_open(_broken(spec, some)) from error
    return checked(spec, tables, columns, parts)


def batches(spec: Table, part: Part, rows: int, columns: Sequence[str] | None = None, where: pc.Expression | None = None) -> Iterator[pa.Table]:
    """What read() gives of a part, at most `rows` at a time, checked as there; None for all columns. Raises TraceError."""
    names = spec.arrow.names if columns is None else list(columns)
    if where is None and part.rows is not None and part.rows <= rows:
        table = read(spec, [part], names, None)
        if len(table):
            yield table
        return
    with reading(part), ExitStack() as stack:
        whole = None if where is not None else _whole(spec, part, stack)
        if whole is not None:  # what a data set does beside takes half as long again
            schema = pa.schema([spec.arrow.field(name) for name in names])
            for batch in whole.iter_batches(rows, columns=names, use_threads=True):
                table = pa.Table.from_arrays([batch.column(name) for name in names], schema=schema)
                table.validate(full=True)
                yield checked(spec, [table], names, [part])
            return
        dataset = ds.FileSystemDataset([opened(part, stack)], spec.arrow, _PARQUET)
        for batch in dataset.to_batches(columns=names, filter=where, batch_size=rows, batch_readahead=_AHEAD):
            if len(batch):
                table = pa.Table.from_batches([batch])
                table.validate(full=True)
                yield checked(spec, [table], names, [part])


def checked(spec: Table, tables: Sequence[pa.Table], columns: Sequence[str], parts: Sequence[Part]) -> pa.Table:
    """What was read of `parts` as one table, filled in; none for no rows. Raises TraceError for an impossible value."""
    table = together(tables) if tables else spec.arrow.empty_table().select(columns)
    table = _filled(spec, table)
    _check(spec, table, parts)
    return table


def together(tables: Sequence[pa.Table]) -> pa.Table:
    """The rows of tables of one schema, at least one, with one dictionary for each column that has some."""
    return pa.concat_tables(tables).unify_dictionaries()


@contextmanager
def reading(part: Part) -> Iterator[None]:
    """Whatever does not open or decode in here is a TraceError of `part`."""
    try:
        yield
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _does_not_open(part) from error


def _does_not_open(part: Part) -> TraceError:
    try:
        part.files.folder(part.folder).size(part.name)
    except FileNotFoundError:
        if part.fleeting:
            return DroppedError(f"{part} was dropped meanwhile by the running recording (--retain): try again.")
    except OSError:
        pass
    if TABLES[part.folder].derived:
        return TraceError(f"{part} is damaged. It is derived: remove {part.files.directory / part.folder}, and it is made again.")
    return TraceError(f"{part} does not open: the trace is damaged; record it again.")


def sizes(parts: Sequence[Part]) -> Iterator[tuple[int, int]]:
    """(rows, bytes) of each part of one table; only one whose number of rows is not listed is opened. Raises TraceError."""
    folder = None
    for part in parts:
        with reading(part):
            folder = folder or part.files.folder(part.folder)
            rows, size = part.rows, folder.size(part.name)
            if rows is None:
                with ExitStack() as stack:
                    rows = opened(part, stack).count_rows()
            if rows > _ROWS_A_BYTE * size:
                raise pa.ArrowInvalid(f"{rows} rows")
            yield rows, size


def _read(spec: Table, parts: Sequence[Part], columns: Sequence[str], where: pc.Expression | None) -> pa.Table:
    if where is None:
        whole = [_read_whole(spec, part, columns) for part in parts]
        if None not in whole:
            return pa.concat_tables(whole)
    with ExitStack() as stack:
        fragments = [opened(part, stack) for part in parts]
        dataset = ds.FileSystemDataset(fragments, spec.arrow, _PARQUET)
        table = dataset.to_table(columns=list(columns), filter=where)
        table.validate(full=True)  # texts that are no UTF-8, dictionary indices out of range
    return table


def _read_whole(spec: Table, part: Part, columns: Sequence[str]) -> pa.Table | None:
    """All rows of a part, in a third of the time that a data set takes for a small one; None where its columns are not those of `spec`."""
    schema = pa.schema([spec.arrow.field(name) for name in columns])
    with ExitStack() as stack:
        file = _whole(spec, part, stack)
        if file is None:
            return None
        table = file.read(list(columns), use_threads=file.metadata.num_rows > _FEW_ROWS)
    table = pa.Table.from_arrays(table.select(list(columns)).columns, schema=schema)
    table.validate(full=True)
    return table


def _whole(spec: Table, part: Part, stack: ExitStack) -> pq.ParquetFile | None:
    """A part whose columns are those of `spec`; None for others. Raises as opened()."""
    descriptor, source = _source(part, stack)
    file = pq.ParquetFile(source, page_checksum_verification=part.sum is None)  # else all of it has been compared
    _check_rows(part, file.metadata.num_rows, descriptor)
    there = file.schema_arrow
    return file if there.names == spec.arrow.names and there.types == spec.arrow.types else None


def opened(part: Part, stack: ExitStack) -> ds.ParquetFileFragment:
    """A part as Arrow reads it. Raises OSError, and pa.ArrowInvalid where its number of rows is impossible for its size."""
    descriptor, source = _source(part, stack)
    fragment = (_CHECKED if part.sum is None else _PARQUET).make_fragment(source)
    _check_rows(part, fragment.metadata.num_rows, descriptor)
    return fragment


def _source(part: Part, stack: ExitStack) -> tuple[int, pa.NativeFile]:
    descriptor = part.files.folder(part.folder).open(part.name)
    stack.callback(os.close, descriptor)
    if part.sum is not None:
        _check_sum(part.sum, descriptor)
    pinned = Path(f"/proc/self/fd/{descriptor}")
    # By this path Arrow reads the very file that was opened, without Python.
    file = pa.OSFile(str(pinned)) if pinned.exists() else pa.PythonFile(stack.enter_context(os.fdopen(os.dup(descriptor), "rb")))
    return descriptor, stack.enter_context(file)


def _check_rows(part: Part, rows: int, descriptor: int) -> None:
    if not 0 <= rows <= _ROWS_A_BYTE * os.fstat(descriptor).st_size or part.rows not in (None, rows):
        raise pa.ArrowInvalid(f"{rows} rows")


_CHUNK = 1 << 20
_MOST_KNOWN = 1 << 16
_BLOCK, _NO_HOLES = 512, 64 << 20
_known: dict[tuple[int, ...], int] = {}  # files of which the checksum is known, as they were then


def _check_sum(expected: int, descriptor: int) -> None:
    """Read it once, which it is about to be anyway. Raises pa.ArrowInvalid where its bytes are not those that were written."""
    status = os.fstat(descriptor)
    key = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    if key not in _known:
        if status.st_size > _NO_HOLES and getattr(status, "st_blocks", status.st_size) * _BLOCK < status.st_size // 8:
            raise pa.ArrowInvalid("it is nearly nothing but holes")  # of which somebody may make terabytes
        sum_, left = 0, status.st_size
        while left > 0 and (content := os.read(descriptor, min(_CHUNK, left))):
            sum_, left = zlib.crc32(content, sum_), left - len(content)
        os.lseek(descriptor, 0, os.SEEK_SET)
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        _known[key] = sum_
    if _known[key] != expected:
        raise pa.ArrowInvalid("its checksum is another")


def _filled(spec: Table, table: pa.Table) -> pa.Table:
    """What a trace was written too early to have is filled in."""
    for place, name in enumerate(table.column_names):
        absent = spec.column(name).absent
        if absent is not None and table[name].null_count:
            table = table.set_column(place, spec.arrow.field(name), table[name].fill_null(absent))
    return table


def _broken(spec: Table, parts: Sequence[Part]) -> Part:
    for part in parts:
        try:
            _read(spec, [part], [column.name for column in spec.columns], None)
        except (pa.ArrowException, OSError, ValueError):
            return part
    return parts[0]


def _check(spec: Table, table: pa.Table, parts: Sequence[Part]) -> None:
    """Raise TraceError for a null where none may be, and for a value that no recorder writes."""
    for name, values in zip(table.column_names, table.columns, strict=True):
        column = spec.column(name)
        says = None
        if not column.nullable and values.null_count:
            says = "is missing or null"
        elif not limits(spec.name, column.name).hold(values):
            says = "has an impossible value"
        if says:
            where = Path(str(parts[0])).parent if len(parts) > 1 else parts[0]
            raise TraceError(f"{where} is damaged: its {column.name} {says}; record the trace again.")
