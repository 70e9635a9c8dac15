"""What a table of the trace format is: its name, its meaning and its columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from pytrace_ebpf.lazy_imports import pa


@dataclass(frozen=True)
class Column:
    """One column: type in Arrow's words, unit ("" for none) and one sentence of meaning."""

    name: str
    type: str  # "int64", "list of string", "dictionary of string"
    unit: str
    meaning: str
    nullable: bool = False
    absent: int | str | None = None  # what stands for it where a trace was written before there was this column

    @property
    def arrow(self) -> pa.DataType:
        """Its type as Arrow's."""
        return _arrow_type(self.type)


@dataclass(frozen=True)
class Table:
    """One folder of Parquet parts.

    derived  computed from the others when it is read, not recorded
    counted  what its rows are called in the manifest's `events`; "" where they are not counted there
    weight   the memory of a row before it is written, in rows of `events`
    timed    a row belongs to the segment of its `ts`; else to the one in which it was drained
    """

    name: str
    meaning: str
    key: tuple[str, ...]  # of a table whose later rows replace earlier ones; () for a log
    columns: tuple[Column, ...]
    derived: bool = False
    counted: str = ""
    weight: int = 1
    timed: bool = True

    def column(self, name: str) -> Column:
        """One of its columns."""
        return next(column for column in self.columns if column.name == name)

    def known(self, names: Sequence[str] | None) -> list[str]:
        """`names` as a list, None: those of all columns. Raises KeyError for one that it does not have."""
        columns = [column.name for column in self.columns]
        for name in names or ():
            if name not in columns:
                raise KeyError(f"{self.name} has no column {name}; it has {', '.join(columns)}")
        return columns if names is None else list(names)

    @cached_property
    def arrow(self) -> pa.Schema:
        """The Arrow schema of the table's parts."""
        return pa.schema([pa.field(c.name, c.arrow, nullable=c.nullable) for c in self.columns])


def _arrow_type(words: str) -> pa.DataType:
    outer, of, inner = words.partition(" of ")
    if not of:
        return pa.type_for_alias(words)
    return pa.list_(_arrow_type(inner)) if outer == "list" else pa.dictionary(pa.int32(), _arrow_type(inner))


PID = Column("pid", "int32", "", "process id, as the host sees it")
TID = Column("tid", "int32", "", "thread id, as the host sees it")
