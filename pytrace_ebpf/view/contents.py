"""What lies in a trace directory: rows and bytes of every table, and bytes per call."""

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pytrace_ebpf.trace import schema
from pytrace_ebpf.view.summary import summary


def contents(trace: Any) -> dict[str, Any]:
    """view.summary's facts of a pytrace_ebpf Trace with segments, tables, calls, bytes, derived_bytes, bytes_per_call, cost and options.

    tables: name -> {rows, bytes, parts}; of a table that is derived and not yet built, all 0. calls: entries
    and open frames in `events`, so that nothing need be rebuilt to know it. bytes leaves out what was derived, which
    is in derived_bytes: tables, and what is kept next to them.
    """
    manifest = trace.manifest
    tables = {name: _table(trace, name) for name in schema.TABLES}
    calls = sum(_calls(trace, segment) for segment in trace.segments)
    return {
        **summary(trace),
        "argv": manifest["argv"],
        "options": manifest["options"],
        "clock": manifest["clock"],
        "cost": manifest["cost"],
        "calls": calls,
        "tables": tables,
        "bytes": sum(t["bytes"] for name, t in tables.items() if not schema.TABLES[name].derived),
        "derived_bytes": _derived_bytes(trace.directory),
        "bytes_per_call": tables["events"]["bytes"] / calls if calls else None,
        "segments": trace.segments,
    }


def _derived_bytes(directory: Path) -> int:
    recorded = {name for name, table in schema.TABLES.items() if not table.derived}
    folders = (entry for entry in os.scandir(directory) if entry.is_dir(follow_symlinks=False) and entry.name not in recorded)
    return sum(_size(file) for folder in folders for file in _listed(folder))


def _listed(folder: os.DirEntry[str]) -> list[os.DirEntry[str]]:
    """What is in a folder, nothing where it is gone: what is derived may be made anew meanwhile."""
    try:
        return list(os.scandir(folder))
    except OSError:
        return []


def _size(file: os.DirEntry[str]) -> int:
    try:
        return file.stat(follow_symlinks=False).st_size
    except OSError:
        return 0


def _calls(trace: Any, segment: dict[str, Any]) -> int:
    """As the recorder counted them; else, of a trace of version 1, the events are read."""
    if "calls" in segment:
        return int(segment["calls"])
    return _entered(trace.part("events", segment["index"], ["kind"]))


def _entered(events: pa.Table) -> int:
    return int(pc.sum(pc.is_in(events["kind"], pa.array(schema.BEGINNINGS, pa.int8()))).as_py() or 0)


def _table(trace: Any, name: str) -> dict[str, int]:
    parts = trace.sizes(name)
    return {"rows": sum(rows for rows, _ in parts), "bytes": sum(size for _, size in parts), "parts": len(parts)}
