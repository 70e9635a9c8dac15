"""What lies in a trace directory: rows and bytes of every table, and bytes per call."""

from typing import Any

import pyarrow.dataset as ds

from pytrace_ebpf.trace import schema
from pytrace_ebpf.view.summary import summary


def contents(trace: Any) -> dict[str, Any]:
    """view.summary's facts of a pytrace_ebpf Trace with segments, tables, calls, bytes, bytes_per_call, cost and options.

    tables: name -> {rows, bytes, parts}; of a table that is derived and not yet built, all 0. calls: entries
    and open frames in `events`, so that nothing need be rebuilt to know it. bytes leaves out derived tables.
    """
    manifest = trace.manifest
    tables = {name: _table(trace, name) for name in schema.TABLES}
    kinds = ds.dataset([str(p) for p in _parts(trace, "events")], schema=schema.EVENTS.arrow, format="parquet")
    entered = ds.field("kind").isin([int(kind) for kind in (schema.CallKind.ENTRY, schema.CallKind.RESUME, schema.CallKind.OPEN)])
    calls = kinds.count_rows(filter=entered) if tables["events"]["parts"] else 0
    return {
        **summary(trace),
        "argv": manifest["argv"],
        "options": manifest["options"],
        "clock": manifest["clock"],
        "cost": manifest["cost"],
        "calls": calls,
        "tables": tables,
        "bytes": sum(t["bytes"] for name, t in tables.items() if not schema.TABLES[name].derived),
        "bytes_per_call": tables["events"]["bytes"] / calls if calls else None,
        "segments": trace.segments,
    }


def _parts(trace: Any, name: str) -> list[Any]:
    """Parts that count: of a log those that the manifest lists, not what a killed tracer left half-written."""
    listed = {f"part-{s['index']:05d}.parquet" for s in trace.segments if s["rows"].get(name)}
    found = sorted((trace.directory / name).glob("part-*.parquet"))
    return [p for p in found if p.name in listed or schema.TABLES[name].derived]


def _table(trace: Any, name: str) -> dict[str, int]:
    parts = _parts(trace, name)
    rows = ds.dataset([str(p) for p in parts], format="parquet").count_rows() if parts else 0
    return {"rows": rows, "bytes": sum(p.stat().st_size for p in parts), "parts": len(parts)}
