"""What was drained and not yet written: cut into segments by time, with the losses in each."""

import time
from typing import Any

import pyarrow as pa

from pytrace_ebpf.record import tables
from pytrace_ebpf.record.native.tensors import arguments_table
from pytrace_ebpf.trace import schema
from pytrace_ebpf.trace.schema import LOSS_CLASSES

# A probe stamps its event before it has a place in the ring: what is younger than this at a cut waits for the next.
_SETTLING_NS = 5_000_000


class Collector:
    """Batches of function and scheduling events, rows of small tables, and counts."""

    def __init__(self, start_ns: int) -> None:
        self._calls: list[tables.Columns] = []
        self._scheduling: dict[str, list[tables.Columns]] = {"sched": [], "cputime": []}
        self._native: dict[str, list[tables.Columns]] = {"arguments": [], "errors": []}
        self.usage: list[dict[str, Any]] = []
        self.counts = {"call": 0, "sched": 0, "function": 0}
        self.lost = dict.fromkeys(LOSS_CLASSES, 0)
        self.native = False  # whether native layers are recorded
        self.waiting = 0  # function events that are not in a segment yet
        self._losses: list[dict[str, Any]] = []
        self.drained_ns = start_ns  # the rings hold nothing older
        self._looked_ns = self._start_ns = start_ns

    def add_calls(self, columns: tables.Columns) -> None:
        """Take in columns of `events`."""
        if len(columns["ts"]):
            self._calls.append(columns)
            self.waiting += len(columns["ts"])
            self.counts["call"] += len(columns["ts"])

    def add_scheduling(self, columns: dict[str, tables.Columns]) -> None:
        """Take in columns of `sched` and of `cputime`."""
        for name, rows in columns.items():
            if len(rows["ts"]):
                self._scheduling[name].append(rows)
                self.counts["sched"] += len(rows["ts"])

    def add_native(self, arguments: tables.Columns, errors: tables.Columns) -> None:
        """Take in columns of `arguments` and `errors`, as NativeLayers.drain gives them."""
        for name, rows in (("arguments", arguments), ("errors", errors)):
            if len(rows["ts"]):
                self._native[name].append(rows)

    def lose(self, cumulative: dict[str, int]) -> None:
        """Take in the cumulative loss counters: what was added since the last look lies between the two looks."""
        now = time.monotonic_ns()
        for name, count in cumulative.items():
            if count > self.lost[name]:
                self._losses.append(
                    {"class": name, "start_ns": self._looked_ns, "end_ns": now, "count": count - self.lost[name]}
                )
                self.lost[name] = count
        self._looked_ns = now

    def cut(self, final: bool = False) -> tuple[int, int, dict[str, pa.Table]]:
        """Close a segment: (start_ns, end_ns, tables). Everything drained so far, but for the youngest unless `final`."""
        start, end = self._start_ns, time.monotonic_ns() if final else self.drained_ns - _SETTLING_NS
        calls, self._calls = tables.cut_at(self._calls, end)
        self.waiting = sum(len(batch["ts"]) for batch in self._calls)
        cut: dict[str, pa.Table] = {}
        if calls is not None:
            cut["events"] = tables.events_table(calls, self.native)
        for name, batches in self._scheduling.items():
            rows, self._scheduling[name] = tables.cut_at(batches, end)
            if rows is not None:
                cut[name] = tables.by_time(schema.TABLES[name], rows)
        for name, make in (("arguments", arguments_table), ("errors", tables.errors_table)):
            rows, self._native[name] = tables.cut_at(self._native[name], end)
            if rows is not None:
                cut[name] = make(rows)
        for name, few in (("usage", self.usage), ("losses", self._losses)):
            if few:
                cut[name] = tables.rows_table(schema.TABLES[name], few)
        self.usage, self._losses = [], []
        self._start_ns = end
        return start, end, cut
