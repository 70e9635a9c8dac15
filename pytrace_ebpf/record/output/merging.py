"""Small parts become fewer: of tables with a few rows in every segment, the parts of many segments are merged into one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pytrace_ebpf.lazy_imports import pa
from pytrace_ebpf.trace.schema import MERGED_TABLES, TABLES
from pytrace_ebpf.trace.segments import merged_line, part_name

GROUP = 64  # parts that become one
_LARGE = 1 << 17  # rows of a part that is merged no further: what is not merged yet is kept in memory


@dataclass
class _Run:
    """The part of the segments from `first` to `last`."""

    first: int
    last: int
    rows: pa.Table

    @property
    def part(self) -> str:
        return part_name(self.first, self.last)


@dataclass(frozen=True)
class Merge:
    """A new part, and the names of those that it takes the place of."""

    table: str
    first: int
    last: int
    rows: pa.Table
    olds: tuple[str, ...]

    @property
    def line(self) -> dict[str, Any]:
        """What the list of segments says of it."""
        return merged_line(self.table, self.first, self.last, self.rows.num_rows)

    @property
    def part(self) -> str:
        """The new part."""
        return part_name(self.first, self.last)


class SmallParts:
    """The parts of the small tables that may still be merged: those of single segments, and those of groups of these.

    They are kept in memory and not read again: the owner of the directory may have changed the files.
    """

    def __init__(self, levels: Callable[[str], int]) -> None:
        """`levels`: by table, how many times its rows are merged at most."""
        self._levels: dict[str, list[list[_Run]]] = {name: [[] for _ in range(levels(name))] for name in MERGED_TABLES}

    def add(self, index: int, tables: Mapping[str, pa.Table]) -> None:
        """What was written of segment `index`."""
        for name, levels in self._levels.items():
            if name in tables and tables[name].num_rows:
                levels[0].append(_Run(index, index, tables[name]))

    def close_group(self) -> list[Merge]:
        """Merge what came since the last group, and groups where there are enough of them; the caller writes what this yields."""
        return [merge for name, levels in self._levels.items() for merge in _close(name, levels)]


def _close(name: str, levels: list[list[_Run]]) -> Iterator[Merge]:
    for level, runs in enumerate(levels):
        if not runs or (level and len(runs) < GROUP and sum(run.rows.num_rows for run in runs) < _LARGE):
            return
        first, last, rows = runs[0].first, runs[-1].last, _merged(name, runs)
        if len(runs) > 1:
            yield Merge(name, first, last, rows, tuple(run.part for run in runs))
        runs.clear()
        if rows.num_rows >= _LARGE:  # nothing is merged across it
            for above in levels[level + 1 :]:
                above.clear()
        elif level + 1 < len(levels):
            levels[level + 1].append(_Run(first, last, rows))


def _merged(name: str, runs: list[_Run]) -> pa.Table:
    """Their rows; of a keyed table the last of each key."""
    rows = pa.concat_tables([run.rows for run in runs]).unify_dictionaries().combine_chunks()
    if not (key := TABLES[name].key):
        return rows
    of_key = dict(zip(zip(*(rows[column].to_pylist() for column in key), strict=True), range(len(rows)), strict=True))
    return rows.take(pa.array(np.array(sorted(of_key.values()), np.int64)))
