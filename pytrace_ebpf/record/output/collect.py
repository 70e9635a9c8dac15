"""What was drained and not yet written: cut into segments by time, with the losses in each."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypeAlias

import numpy as np

from pytrace_ebpf.lazy_imports import pa
from pytrace_ebpf.record.native.tensors import arguments_table
from pytrace_ebpf.record.output import tables
from pytrace_ebpf.record.output.missing import Missing
from pytrace_ebpf.record.output.observed_rows import observed_table
from pytrace_ebpf.record.output.statement_rows import client_calls_table, trace_contexts_table
from pytrace_ebpf.record.output.tables import Columns
from pytrace_ebpf.record.recorder import Rows
from pytrace_ebpf.trace import schema
from pytrace_ebpf.trace.schema import LOSS_CLASSES

# A probe takes the time before it reserves a place in the ring: rows younger than this at a cut go to the next segment.
_SETTLING_NS = 5_000_000


Make: TypeAlias = Callable[
    [schema.Table, list[Columns], bool], "pa.Table"
]  # of batches of a segment's rows, and whether several recorders yielded them


def _joined(make: Callable[[schema.Table, Columns], pa.Table]) -> Make:
    return lambda table, batches, _: make(table, tables.joined(batches))


# How rows become a table, where they are not taken as they come.
_MAKE: Mapping[str, Make] = {
    "events": lambda _, batches, several: tables.events_table(batches, several),
    "sched": _joined(tables.by_time),
    "cputime": _joined(tables.by_time),
    "samples": _joined(tables.by_time),
    "arguments": _joined(lambda _, columns: arguments_table(columns)),
    "observed": _joined(observed_table),
    "client_calls": _joined(client_calls_table),
    "trace_contexts": _joined(trace_contexts_table),
}
_AS_THEY_COME = _joined(tables.as_they_come)


def _timed(table: schema.Table) -> bool:
    """Whether rows that are younger than the end of a segment wait for the next one."""
    return table.timed and not table.key and any(column.name == "ts" for column in table.columns)


def counted(table: str, rows: int) -> dict[str, int]:
    """What so many rows of a table are in the manifest's `events`."""
    name = schema.TABLES[table].counted
    return {name: rows} if name else {}


class Collector:
    """Batches of rows by table, the tables being those of schema.TABLES, and counts."""

    def __init__(self, start_ns: int) -> None:
        self._batches: dict[str, list[Columns]] = defaultdict(list)
        self._of: dict[str, set[Hashable]] = defaultdict(set)
        self.counts = dict.fromkeys((table.counted for table in schema.TABLES.values() if table.counted), 0)
        self.lost = dict.fromkeys(LOSS_CLASSES, 0)
        self.waiting = 0  # rows that are not in a segment yet, by their memory as rows of events
        self.drained_ns = start_ns  # nothing that is older was left where it came from
        self.end_ns: int | None = None  # of the recording: what has its moment later does not belong to it
        self._looked_ns = self._start_ns = start_ns
        self._missing = Missing()

    def add(self, rows: Rows, of: Hashable = None) -> None:
        """Take in what a recorder, `of`, yielded."""
        for name, batches in rows.items():
            for columns in batches:
                if count := tables.length(columns):
                    self._batches[name].append(columns)
                    self._of[name].add(of)
                    self.waiting += count * schema.TABLES[name].weight
                    for kind, number in counted(name, count).items():
                        self.counts[kind] += number

    def lose(self, cumulative: np.ndarray) -> None:
        """Take in the loss counters, by class: what was added since the last look lies between the two looks."""
        now = time.monotonic_ns()
        losses: list[dict[str, Any]] = []
        for name, count in zip(LOSS_CLASSES, cumulative.tolist(), strict=True):
            if count > self.lost[name]:
                losses.append({"class": name, "start_ns": self._looked_ns, "end_ns": now, "count": count - self.lost[name], "pid": None, "tid": None})
                self.lost[name] = count
        self.add({"losses": [tables.columns_of(losses)]})
        self._looked_ns = now

    @property
    def can_cut(self) -> bool:
        """Whether a segment that is closed now has any length."""
        return self.drained_ns - _SETTLING_NS > self._start_ns

    def cut(self, final: bool = False) -> tuple[int, int, Mapping[str, pa.Table]]:
        """Close a segment: (start_ns, end_ns, tables). Everything drained so far, but for the youngest unless `final`."""
        start, end = self._start_ns, self.drained_ns - _SETTLING_NS
        if final:
            end = time.monotonic_ns() if self.end_ns is None else self.end_ns
        drained, self._batches, cut = self._batches, defaultdict(list), {}
        for name, batches in drained.items():
            table = schema.TABLES[name]
            rows, left = tables.cut_at(batches, end) if _timed(table) else (batches, [])
            if rows:
                cut[name] = _MAKE.get(name, _AS_THEY_COME)(table, rows, len(self._of[name]) > 1)
            if left:
                self._batches[name] = left
            else:
                del self._of[name]
        self.waiting = sum(tables.length(batch) * schema.TABLES[name].weight for name, batches in self._batches.items() for batch in batches)
        self._start_ns = end
        if "sched" in cut:
            self._not_reported(cut)
        return start, end, cut

    def _not_reported(self, cut: dict[str, pa.Table]) -> None:
        losses = self._missing.found(cut["sched"], cut.get("losses"))
        for name in losses["class"].to_pylist():
            self.lost[name] += 1
        if len(losses):
            cut["losses"] = pa.concat_tables([*([cut["losses"]] if "losses" in cut else []), losses]).unify_dictionaries()
