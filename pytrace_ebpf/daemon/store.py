"""Writes what is always sampled: each window as a segment of the trace of its hour."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pytrace_ebpf.daemon.retention import Retention, name_of
from pytrace_ebpf.errors import PytraceError
from pytrace_ebpf.lazy_imports import pa, pc
from pytrace_ebpf.record.live.sink import Closed
from pytrace_ebpf.record.output.description import clock_anchor, new_manifest
from pytrace_ebpf.record.output.writer import Writer
from pytrace_ebpf.trace.schema import FUNCTIONS, PROCESSES, THREADS

ALL_THREADS = "all threads"
_COMBINED = 64  # batches of new functions, after which they become one
_FACTS = ("scheduling", "sources", "target", "targets", "sampling", "left_alone")
_PLENTY = 1 << 62


class Store:
    """The traces of a daemon's directory while it samples. Memory is bounded by the functions and processes that are known, and one window."""

    def __init__(self, hours: Retention, argv: list[str], options: Mapping[str, Any], window_s: float) -> None:
        self._hours, self._argv, self._options, self._window_s = hours, argv, dict(options), window_s
        self._functions = FUNCTIONS.arrow.empty_table()
        self._processes: dict[int, dict[str, Any]] = {}
        self._writer: Writer | None = None
        self._hour = ""
        self._written: set[int] = set()  # functions in the open trace
        self._fresh: set[int] = set()  # processes that changed since they were written
        self._clock: list[dict[str, int]] = []
        self._counts, self._lost = Counter[str](), Counter[str]()
        self.windows = self.not_written = self._handed = 0  # _handed: to the open trace
        self.why_not: str | None = None

    def write(self, closed: Closed, profile: pa.Table, waits: pa.Table) -> None:
        """Write a window: `profile` (schema.PROFILE), `waits` (PROFILE_WAITS), and what they refer to. What cannot be written is counted, and the next one tried."""
        self._learn(closed.tables)
        profile, waits = self._known_only(profile, "func_id"), self._known_only(waits, "func_id", "primitive_func_id")
        if not len(profile) and not self._writer:
            return
        tables = self._tables(profile, waits, closed)
        if not self._hours.is_there():
            self._fail("its directory is gone")
        elif not self._hours.has_room(sum(table.nbytes for table in tables.values())):
            self._fail("less than a twentieth of its disk would stay free")
        else:
            try:
                self._segment(closed, tables)
            except (PytraceError, OSError) as error:
                self._fail(str(error))
        self._forget(closed)
        self._forget_functions(closed.metadata.get("forgotten", ()))

    def _segment(self, closed: Closed, tables: dict[str, pa.Table]) -> None:
        hour = name_of(time.time())
        if self._writer is None or hour != self._hour:
            self._close_hour()
            self._begin_hour(hour, closed)
            tables |= self._referred(tables["profile"], tables["profile_waits"], closed)
        assert self._writer is not None
        for name, table in tables.items():
            if name == "losses":
                for row in table.to_pylist():
                    self._lost[row["class"]] += row["count"]
        profile = tables["profile"]
        self._counts.update(
            sample=int(profile["samples"].to_numpy().sum() + profile["off_samples"].to_numpy().sum()), function=len(tables["functions"])
        )
        self._writer.segment(closed.start_ns, closed.end_ns, tables, self._news(closed.metadata))
        self._handed, self.windows, self.why_not = self._handed + 1, self.windows + 1, None
        if self._writer.failed:
            self._close_hour()
            return
        self._written |= set(tables["functions"]["func_id"].to_pylist())
        self._fresh -= set(tables["processes"]["pid"].to_pylist())
        self._hours.tidy({self._writer.directory.name}, self._writer.size)

    def _begin_hour(self, hour: str, closed: Closed) -> None:
        manifest = new_manifest(closed.start_ns, closed.metadata["target"], self._argv, self._options)
        self._clock, self._counts, self._lost, self._written = manifest["clock"], Counter(), Counter(), set()
        self._fresh = set(self._processes)
        self._writer = Writer(self._hours.path / hour, manifest | self._news(closed.metadata), _PLENTY, another=True)
        self._hour = hour
        self._hours.forget_sizes()

    def _close_hour(self) -> None:
        if self._writer is None:
            return
        writer, self._writer = self._writer, None
        writer.close({"state": "complete", "end_ns": writer.end_ns, "clock": [*self._clock, clock_anchor()]})
        lost = self._handed - writer.segments
        self.windows, self.not_written, self._handed = self.windows - lost, self.not_written + lost, 0
        if lost:
            self.why_not = writer.full

    def _fail(self, why: str) -> None:
        self.not_written += 1
        self.why_not = why

    def _news(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        sampling = dict(facts["sampling"]) | {"summed_ns": int(self._window_s * 1e9)}
        chosen = {name: facts[name] for name in _FACTS if name in facts}
        return {"events": dict(self._counts), "lost": dict(self._lost), "cost": {}} | chosen | {"sampling": sampling}

    # -- what the rows refer to --------------------------------------------------------

    def _learn(self, tables: Mapping[str, pa.Table]) -> None:
        if "functions" in tables:
            self._functions = pa.concat_tables([self._functions, tables["functions"]])
            if self._functions["func_id"].num_chunks > _COMBINED:
                self._functions = self._functions.combine_chunks()
        for row in tables["processes"].to_pylist() if "processes" in tables else []:
            self._processes[row["pid"]] = row
            self._fresh.add(row["pid"])

    def _tables(self, profile: pa.Table, waits: pa.Table, closed: Closed) -> dict[str, pa.Table]:
        summed = {"profile": profile, "profile_waits": waits}
        return summed | self._referred(profile, waits, closed) | {name: closed.tables[name] for name in ("losses",) if name in closed.tables}

    def _referred(self, profile: pa.Table, waits: pa.Table, closed: Closed) -> dict[str, pa.Table]:
        """The functions and processes of a window that the open trace does not have yet."""
        used = np.unique(np.concatenate([profile["func_id"], waits["func_id"], waits["primitive_func_id"]]))
        new = np.array([number for number in used.tolist() if number >= 0 and number not in self._written], np.int64)
        ids = self._functions["func_id"].to_numpy()
        order = np.argsort(ids)
        functions = self._functions.take(pa.array(order[np.searchsorted(ids, new, sorter=order)])) if len(new) else FUNCTIONS.arrow.empty_table()
        pids = np.unique(profile["pid"].to_numpy()).tolist()
        rows = [dict(self._processes[pid]) for pid in pids if pid in self._processes and pid in self._fresh]
        begun = self._clock[0]["monotonic_ns"] if self._clock else closed.start_ns
        for row in rows:
            row["start_ns"] = max(row["start_ns"], min(begun, closed.start_ns))
        threads = [
            {name: row.get(name, "") for name in ("pid", "start_ns", "end_ns", "comm")} | {"tid": row["pid"], "name": ALL_THREADS, "interpreters": ""}
            for row in rows
        ]
        return {
            "functions": functions,
            "processes": pa.Table.from_pylist(rows, PROCESSES.arrow),
            "threads": pa.Table.from_pylist(threads, THREADS.arrow),
        }

    def _known_only(self, rows: pa.Table, *columns: str) -> pa.Table:
        """The same, where functions that were forgotten by now are unknown ones."""
        for name in columns:
            ids = rows[name].to_numpy()
            missing = ~np.isin(ids, self._functions["func_id"].to_numpy()) & (ids >= 0)
            if missing.any():
                rows = rows.set_column(rows.schema.get_field_index(name), name, pa.array(np.where(missing, -1, ids), rows[name].type))
        return rows

    def functions_of(self, profile: pa.Table) -> pa.Table:
        """The functions (schema.FUNCTIONS) that rows of a window refer to."""
        return self._functions.filter(pa.array(np.isin(self._functions["func_id"].to_numpy(), profile["func_id"].to_numpy())))

    @property
    def processes(self) -> Mapping[int, Mapping[str, Any]]:
        """Those that are known, by pid; rows of schema.PROCESSES."""
        return self._processes

    def _forget_functions(self, forgotten: Collection[int]) -> None:
        """Let go of functions that nothing refers to any more."""
        if forgotten:
            self._functions = self._functions.filter(pc.invert(pc.is_in(self._functions["func_id"], pa.array(forgotten, pa.int32()))))
            self._written -= set(forgotten)

    def _forget(self, closed: Closed) -> None:
        """Let go of processes that ended well before this window."""
        for pid in [pid for pid, row in self._processes.items() if row["end_ns"] is not None and row["end_ns"] < closed.start_ns]:
            del self._processes[pid]
            self._fresh.discard(pid)

    @property
    def trace(self) -> Path | None:
        """That which is being written."""
        return self._writer.directory if self._writer else None

    def close(self) -> None:
        """Write what is left."""
        self._close_hour()
