"""A trace as a copy that says less, which is there for as long as somebody has it; and one with some processes alone."""

import json
import shutil
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pytrace_ebpf.trace.parts import Part, read
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.trace.schema import FORMAT_VERSION, MANIFEST, SEGMENTS, TABLES, Table
from pytrace_ebpf.trace.segments import merged_line, part_name
from pytrace_ebpf.trace.writing import write


class Copying:
    """What a copy has: that of the trace, but for this."""

    left_out: tuple[str, ...] = ()
    """Tables of which there is nothing."""

    def changes(self, spec: Table) -> bool:
        """Whether rows of a table are others in the copy."""
        raise NotImplementedError

    def rows(self, spec: Table, table: pa.Table) -> pa.Table:
        """What some rows of such a table are there."""
        raise NotImplementedError

    def manifest(self, of: Mapping[str, Any]) -> dict[str, Any]:
        """What the manifest is there."""
        raise NotImplementedError


class Copied(Trace):
    """The copy. What is derived of it is derived anew."""

    def __init__(self, trace: Trace, how: Copying) -> None:
        """Raises TraceError."""
        self._place = tempfile.TemporaryDirectory(prefix="pytrace-ebpf-copy-")
        _copy(trace, how, Path(self._place.name))
        super().__init__(Path(self._place.name), trace._maker)
        self.directory, self.written_at, self.progress = trace.directory, trace.written_at, trace.progress


class OfProcesses(Copying):
    """As if these processes alone had been recorded."""

    _FILTERED = frozenset(TABLES) - {"external_switches", "neighbours", "resources", "usage", "losses"}  # which are of the host, or about others

    def __init__(self, pids: Collection[int]) -> None:
        self._pids = pids

    def changes(self, spec: Table) -> bool:
        """Whether it has a process."""
        return spec.name in self._FILTERED and "pid" in spec.arrow.names

    def rows(self, spec: Table, table: pa.Table) -> pa.Table:
        """Those of the processes."""
        return table.filter(pc.is_in(table["pid"], pa.array(list(self._pids), pa.int32())))

    def manifest(self, of: Mapping[str, Any]) -> dict[str, Any]:
        """With the targets among them."""
        targets = [each for each in of.get("targets") or [of["target"]] if each["pid"] in self._pids]
        others = [{"pid": pid, "command": None} for pid in self._pids][:1]
        target = of["target"] if of["target"]["pid"] in self._pids else {**of["target"], **(targets or others)[0]}
        return {
            **of,
            "target": target,
            "targets": targets or others,
            "sources": [each for each in of["sources"] if each.get("pid") in (None, *self._pids)],
        }


def _copy(trace: Trace, how: Copying, into: Path) -> None:
    count: dict[tuple[str, str], int] = {}
    for spec in TABLES.values():
        if not spec.derived and spec.name not in how.left_out:
            (into / spec.name).mkdir()
            for part in trace._parts(spec.name):
                if (rows := _part(spec, part, how, into / spec.name / part.name)) is not None:
                    count[spec.name, part.name] = rows
    lines = []
    for segment in trace.segments:
        rows_of = {name: count.get((name, part_name(segment["index"])), rows) for name, rows in segment["rows"].items() if name not in how.left_out}
        lines.append({name: value for name, value in segment.items() if name != "sums"} | {"rows": rows_of})
    for name, ranges in trace.manifest["merged"].items():
        for each in ranges if name not in how.left_out else ():
            rows = count.get((name, part_name(each["first"], each["last"])), each["rows"])
            lines.append(merged_line(name, each["first"], each["last"], rows))
    manifest = {name: value for name, value in how.manifest(trace.manifest).items() if name not in ("segments", "merged")}
    if manifest.get("dropped"):
        manifest["dropped"] = {name: value for name, value in manifest["dropped"].items() if name != "wall_ns"}  # which is found anew
    (into / SEGMENTS).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    (into / MANIFEST).write_text(json.dumps(manifest | {"format_version": FORMAT_VERSION}))


def _part(spec: Table, part: Part, how: Copying, place: Path) -> int | None:
    """Write a part; how many rows it has, where it is another one."""
    if how.changes(spec):
        table = how.rows(spec, read(spec, [part], spec.arrow.names, None))
        write(spec, table, place)
        return len(table)
    with open(part.files.folder(part.folder).open(part.name), "rb") as file, place.open("wb") as out:  # noqa: PTH123 - a descriptor
        shutil.copyfileobj(file, out, 1 << 20)
    return None
