"""A daemon's directory, the traces of many hours, as one trace: functions have one number each, and all moments are of one clock."""

import json
import os
import re
import stat
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from pytrace_ebpf.errors import TraceError
from pytrace_ebpf.trace.deriving import Maker
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.trace.schema import FUNCTIONS, LOSSES, MANIFEST, PROCESSES, PROFILE, PROFILE_WAITS, SEGMENTS, THREADS, Table
from pytrace_ebpf.trace.segments import part_name
from pytrace_ebpf.trace.writing import write

HOUR = re.compile(r"\d{8}-\d{2}(-\d{1,3})?", re.ASCII)
"""What the trace of an hour is called, UTC, and a second one of the same hour."""
_MOST_NAMED = 100
_MOMENTS = ("start_ns", "end_ns")
_SAME = ("file", "qualname", "first_line", "name", "module", "flags", "function_layer")


def hours(directory: Path) -> list[str]:
    """The names of its traces, oldest first; none of what is no daemon's directory. A link is none."""
    try:
        found = [entry.name for entry in os.scandir(directory) if HOUR.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False)]
        is_trace = stat.S_ISREG(os.stat(directory / MANIFEST, follow_symlinks=False).st_mode)  # noqa: PTH116 - by no link
    except FileNotFoundError:
        is_trace = False
        found = found if directory.is_dir() else []
    except OSError:
        return []
    return [] if is_trace else sorted(found, key=lambda name: (name[:11], len(name), name))


class Joined(Trace):
    """What lies in a daemon's directory when it is opened, copied into one trace that is there for as long as this lives.

    Times are those of the real clock (ns since 1970) as each hour's trace anchors it, so that hours before and after a reboot follow each other.
    """

    def __init__(self, directory: Path, names: list[str], maker: Maker) -> None:
        """Raises TraceError where one of its traces does not open; not for one that is removed meanwhile."""
        self._place = tempfile.TemporaryDirectory(prefix="pytrace-ebpf-joined-")
        _Joining(Path(self._place.name)).join(directory, names, maker)
        super().__init__(Path(self._place.name), maker)
        self.directory = directory


class _Joining:
    def __init__(self, into: Path) -> None:
        self._into = into
        self._numbers: dict[tuple[Any, ...], int] = {}
        self._functions: list[dict[str, Any]] = []
        self._processes: dict[int, dict[str, Any]] = {}
        self._threads: dict[int, dict[str, Any]] = {}
        self._losses: list[dict[str, Any]] = []
        self._segments: list[dict[str, Any]] = []
        self._lost, self._events = Counter[str](), Counter[str]()
        self._sources: dict[tuple[Any, ...], dict[str, Any]] = {}

    def join(self, directory: Path, names: list[str], maker: Maker) -> None:
        """Write the trace. Raises TraceError."""
        last = None
        for name in names:
            try:
                trace = Trace(directory / name, maker)
                self._take(trace)
            except TraceError:
                if not (directory / name).exists():  # it was too old just now
                    continue
                raise
            last = trace
        if last is None or not self._segments:
            raise TraceError(f"{directory} has no hour that was sampled: nothing fitted the daemon's policy, or it has just begun.")
        self._finish(last)

    def _take(self, trace: Trace) -> None:
        shift = _shift(trace)
        rows = trace.functions().to_dict("records")
        numbers = np.full(max((int(row["func_id"]) for row in rows), default=0) + 2, -1, np.int64)
        for row in rows:
            number = self._numbers.setdefault(tuple(row[name] for name in _SAME), len(self._functions))
            if number == len(self._functions):
                self._functions.append(row | {"func_id": number})
            numbers[row["func_id"]] = number
        for table in trace.profile_by_part():
            self._take_part(PROFILE, table, numbers, shift)
        self._take_part(PROFILE_WAITS, pa.Table.from_pandas(trace.profile_waits(), PROFILE_WAITS.arrow, preserve_index=False), numbers, shift)
        for rows_of, kept in ((trace.processes(), self._processes), (trace.threads(), self._threads)):
            for row in rows_of.to_dict("records"):
                known = kept.get(row["pid"])
                moments = {name: None if _is_null(row[name]) else int(row[name]) + shift for name in _MOMENTS}
                moments["start_ns"] = min(moments["start_ns"] or 0, known["start_ns"]) if known else moments["start_ns"]
                kept[row["pid"]] = {key: None if _is_null(value) else value for key, value in row.items()} | moments
        self._losses += [row | {name: int(row[name]) + shift for name in _MOMENTS} for row in trace.losses().to_dict("records")]
        self._lost.update(trace.manifest["lost"])
        self._events.update(trace.manifest["events"])
        for each in trace.manifest["sources"]:
            self._sources[each.get("pid"), each["source"], each["why"]] = each

    def _take_part(self, spec: Table, table: pa.Table, numbers: "np.ndarray[Any, np.dtype[np.int64]]", shift: int) -> None:
        """Rows with _MOMENTS, their functions by the numbers that they have now, as a segment of its own."""
        if not len(table):
            return
        fresh = {name: table[name].to_numpy() + shift for name in _MOMENTS}
        for name in ("func_id", "primitive_func_id"):
            if name in table.column_names:
                func_id = table[name].to_numpy()
                inside = (func_id >= 0) & (func_id < len(numbers))
                fresh[name] = np.where(inside, numbers[np.where(inside, func_id, 0)], -1)
        columns = [pa.array(fresh[name]) if name in fresh else table[name] for name in spec.arrow.names]
        table = pa.table(columns, names=spec.arrow.names).cast(spec.arrow)
        first, last = int(fresh["start_ns"].min()), int(fresh["end_ns"].max())
        _write(self._into, spec, len(self._segments), table)
        self._segments.append({"index": len(self._segments), "start_ns": first, "end_ns": last, "rows": {spec.name: len(table)}})

    def _finish(self, last: Trace) -> None:
        small = {FUNCTIONS: self._functions, PROCESSES: list(self._processes.values()), THREADS: list(self._threads.values()), LOSSES: self._losses}
        for spec, rows in small.items():
            _write(self._into, spec, 0, pa.Table.from_pylist(rows, spec.arrow))
            self._segments[0]["rows"][spec.name] = len(rows)
        self._segments.sort(key=lambda segment: segment["start_ns"])
        start, end = self._segments[0]["start_ns"], max(segment["end_ns"] for segment in self._segments)
        targets = [{"pid": pid, "command": row["command"]} for pid, row in self._processes.items()]
        manifest = last.manifest | {
            "state": "complete", "start_ns": start, "end_ns": end, "clock": [{"monotonic_ns": end, "realtime_ns": end}],
            "target": {name: row[name] for row in list(self._processes.values())[:1] for name in ("pid", "command", "executable", "python_version")} or {"pid": 0},
            "targets": targets[:_MOST_NAMED], "lost": dict(self._lost), "events": dict(self._events), "sources": list(self._sources.values()),
        }  # fmt: skip
        for name in ("segments", "merged", "dropped", "ended"):
            manifest.pop(name, None)
        (self._into / SEGMENTS).write_text("".join(json.dumps(segment) + "\n" for segment in self._segments))
        (self._into / MANIFEST).write_text(json.dumps(manifest))


def _shift(trace: Trace) -> int:
    """From a trace's clock to the real one."""
    anchor = next((each for each in trace.manifest["clock"] if each.get("realtime_ns")), None)
    if anchor is None:
        raise TraceError(f"{trace.directory} is damaged: its clock has no anchor.")
    return int(anchor["realtime_ns"]) - int(anchor["monotonic_ns"])


def _is_null(value: Any) -> bool:
    return value is None or value is np.nan or str(value) == "<NA>"


def _write(into: Path, spec: Table, index: int, table: pa.Table) -> None:
    folder = into / spec.name
    folder.mkdir(exist_ok=True)
    write(spec, table, folder / part_name(index))
