"""Where the rows of a table lie, by the statistics of its row groups, read once: a look-up opens only what can hold its answer.

What it has decoded for that is held: who walks from row to row mostly stays in a row group, and decoding that is most of what a step takes.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from pytrace_ebpf.trace.parts import Part, checked, opened, reading
from pytrace_ebpf.trace.table import Table

_MOST_OPEN = 16  # parts; the next look-up is often in one of the last
_MOST_HELD = 4  # row groups; of calls 20 MB each
_ANY = (-(1 << 63), (1 << 63) - 1)  # of a row group without statistics

Bounds = Mapping[str, tuple[int | None, int | None]]
"""Of a column the least value that a row may have, and the largest; None for no bound."""


class Index:
    """The row groups of a table's parts, with the least and the largest value of some columns."""

    def __init__(self, spec: Table, parts: Sequence[Part], columns: Sequence[str]) -> None:
        """`columns`: of integers. Raises TraceError."""
        self._spec, self._parts, self._columns = spec, parts, tuple(columns)
        self._open: OrderedDict[int, tuple[ds.ParquetFileFragment, ExitStack]] = OrderedDict()
        self._held: OrderedDict[tuple[int, tuple[str, ...]], pa.Table] = OrderedDict()
        rows: list[tuple[int, int, list[tuple[int, int]]]] = []
        for number, part in enumerate(parts):
            with reading(part), ExitStack() as stack:
                for group in opened(part, stack).row_groups:
                    found = group.statistics or {}
                    rows.append((number, group.id, [_extremes(found.get(name)) for name in self._columns]))
        self._part, self._group = (np.array([row[k] for row in rows], np.int64) for k in (0, 1))
        self._extremes: npt.NDArray[np.int64] = np.array([row[2] for row in rows], np.int64).reshape(len(rows), len(self._columns), 2)

    def read(self, columns: Sequence[str], where: pc.Expression, bounds: Bounds) -> pa.Table:
        """The rows that `where`, of the index's columns, selects, none of which is out of `bounds`, as parts.read() gives them. Raises TraceError."""
        chosen = self._within(bounds)
        groups = np.flatnonzero(chosen).tolist()
        if len(groups) > _MOST_HELD:
            return self._read(chosen, columns, where)
        names = tuple(dict.fromkeys([*columns, *self._columns]))
        tables = [_within(self._whole(group, names), bounds).filter(where).select(list(columns)) for group in groups]
        return checked(self._spec, tables, columns, [self._parts[number] for number in np.unique(self._part[chosen])])

    def _whole(self, group: int, columns: tuple[str, ...]) -> pa.Table:
        """All rows of a row group."""
        if (group, columns) not in self._held:
            part = int(self._part[group])
            with reading(self._parts[part]):
                fragment = self._fragment(part).subset(row_group_ids=[int(self._group[group])])
                table = ds.FileSystemDataset([fragment], self._spec.arrow, fragment.format).to_table(columns=list(columns))
                table.validate(full=True)
            self._held[group, columns] = table.combine_chunks()
            if len(self._held) > _MOST_HELD:
                self._held.popitem(last=False)
        self._held.move_to_end((group, columns))
        return self._held[group, columns]

    def largest(self, column: str, where: pc.Expression, bounds: Bounds) -> int | None:
        """The largest value of `column` in the rows within `bounds`, which `where` selects; None for no row. What statistics tell is not read."""
        high, best = self._extremes[:, self._columns.index(column), 1], None
        told = self._within(bounds, wholly=True) & (high < _ANY[1])
        for group in sorted(np.flatnonzero(self._within(bounds)).tolist(), key=lambda each: -int(high[each])):
            if best is not None and high[group] <= best:
                break
            if told[group]:
                return int(high[group])
            found = pc.max(self._read(np.arange(len(high)) == group, [column], where)[column]).as_py()
            best = found if best is None else max(best, found or best)
        return best

    def _read(self, chosen: npt.NDArray[np.bool_], columns: Sequence[str], where: pc.Expression) -> pa.Table:
        tables = []
        numbers = np.unique(self._part[chosen]).tolist()
        for number in numbers:
            with reading(self._parts[number]):
                fragment = self._fragment(number).subset(row_group_ids=self._group[chosen & (self._part == number)].tolist())
                table = ds.FileSystemDataset([fragment], self._spec.arrow, fragment.format).to_table(columns=list(columns), filter=where)
                table.validate(full=True)
            tables.append(table)
        return checked(self._spec, tables, columns, [self._parts[number] for number in numbers])

    def _within(self, bounds: Bounds, wholly: bool = False) -> npt.NDArray[np.bool_]:
        """Which row groups may have rows within `bounds`; `wholly`: which have no others."""
        chosen = np.ones(len(self._part), bool)
        for name, (least, most) in bounds.items():
            low, high = self._extremes[:, self._columns.index(name)].T[:: -1 if wholly else 1]
            chosen &= (high >= (high if least is None else least)) & (low <= (low if most is None else most))
        return chosen

    def _fragment(self, number: int) -> ds.ParquetFileFragment:
        if number not in self._open:
            with ExitStack() as stack:
                self._open[number] = opened(self._parts[number], stack), stack.pop_all()
            if len(self._open) > _MOST_OPEN:
                self._open.popitem(last=False)[1][1].close()
        self._open.move_to_end(number)
        return self._open[number][0]

    def __del__(self) -> None:
        for _, stack in self._open.values():
            stack.close()


def _within(table: pa.Table, bounds: Bounds) -> pa.Table:
    """The rows within `bounds`, mostly a few: what else is to hold is asked of these alone."""
    rows = np.arange(len(table))
    for name, (least, most) in bounds.items():
        for bound, holds in ((least, np.greater_equal), (most, np.less_equal)):
            if bound is not None:
                rows = rows[holds(table[name].to_numpy()[rows], bound)]
    return table.take(pa.array(rows))


def _extremes(found: Mapping[str, int] | None) -> tuple[int, int]:
    return (found["min"], found["max"]) if found else _ANY
