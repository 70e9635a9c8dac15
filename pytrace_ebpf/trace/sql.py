"""SQL over the tables of a trace, by DuckDB: it gets what our reader has opened and checked, and no file by itself."""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from pytrace_ebpf.errors import HostError, PytraceError
from pytrace_ebpf.trace.frames import plain_frame
from pytrace_ebpf.trace.table import Table

# Without files a query reads and writes nothing but these tables and what it makes in memory; and it cannot change that.
_CONFINED: dict[str, Any] = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "python_enable_replacements": "false",
}
# Of what DuckDB holds; what is more goes into a directory that it alone uses. With what is read for it a join of 34 million calls stays below 1.5 GB.
_MEMORY = "640MiB"

_LESS = "add up in the query, filter by pid, tid or time, or ask a window of the trace"

Read = Callable[[list[str], pc.Expression | None], Iterator[pa.Table]]
"""Columns and a condition lead to the checked rows of a table, some at a time."""


def query(text: str, tables: Mapping[Table, Read]) -> pd.DataFrame:
    """The answer to a query over `tables`, each read when it is needed, and of it no more than that.

    Raises HostError where DuckDB is missing or needs too much memory, what a table's reading raises, and duckdb.Error for what DuckDB does not understand.
    """
    try:
        import duckdb
    except ImportError:
        raise HostError("trace.sql() needs DuckDB, which is not installed: pip install 'pytrace-ebpf[sql]'") from None
    views = {spec.name: _View(spec, read) for spec, read in tables.items()}
    with tempfile.TemporaryDirectory(prefix="pytrace-ebpf-derived-") as aside:  # for what does not fit into memory
        connection = duckdb.connect(":memory:", config=_CONFINED | {"temp_directory": aside, "memory_limit": _MEMORY})
        try:
            _silence(connection)
            connection.execute("SET lock_configuration = true")
            for name, view in views.items():
                connection.register(name, view)
            answer = connection.sql(text)
            rows = pa.table({}) if answer is None else answer.arrow()  # a statement without an answer has none
            return plain_frame(rows if isinstance(rows, pa.Table) else rows.read_all())
        except (duckdb.Error, pa.ArrowException, OSError) as error:
            failures: list[Exception] = [view.failure for view in views.values() if view.failure]
            if isinstance(error, duckdb.OutOfMemoryException):
                failures.append(HostError(f"this query needs more than {_MEMORY} of memory at once, or more than is free in {aside}: {_LESS}."))
            raise (failures[0] if failures else error) from None
        finally:
            connection.close()


def _silence(connection: Any) -> None:
    """Have a connection show no progress: a library does not print. In Jupyter without ipywidgets it shows none, and refuses the setting."""
    ((shows,),) = connection.execute("select current_setting('enable_progress_bar')").fetchall()
    if shows:
        connection.execute("SET enable_progress_bar = false")


class _View(ds.FileSystemDataset):  # type: ignore[misc]
    """A table as DuckDB asks for it: by a data set's schema and its scanner, as often as the query names it."""

    def __init__(self, spec: Table, read: Read) -> None:
        super().__init__([], spec.arrow, ds.ParquetFileFormat())
        self._read = read
        self.failure: PytraceError | None = None

    def scanner(self, columns: Sequence[str] | None = None, filter: pc.Expression | None = None, **_: Any) -> "_Scan":
        names = self.schema.names if columns is None else list(columns)
        return _Scan(self, pa.schema([self.schema.field(name) for name in names]), filter)

    def batches(self, names: list[str], where: pc.Expression | None) -> Iterator[pa.RecordBatch]:
        try:
            for table in self._read(names, where):
                yield from table.to_batches()
        except PytraceError as error:
            self.failure = error
            raise


class _Scan:
    """One reading of a view."""

    def __init__(self, view: _View, schema: pa.Schema, where: pc.Expression | None) -> None:
        self._view, self._schema, self._where = view, schema, where

    def to_reader(self) -> pa.RecordBatchReader:
        return pa.RecordBatchReader.from_batches(self._schema, self._view.batches(self._schema.names, self._where))
