"""Writes closed segments as Parquet parts, in its own thread; each is then listed, and the manifest replaced atomically."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import numpy as np

from pytrace_ebpf.errors import HostError, UsageError
from pytrace_ebpf.lazy_imports import pa
from pytrace_ebpf.record.options import Keep
from pytrace_ebpf.record.output.directory import Handed, Output
from pytrace_ebpf.record.output.events_part import write_events
from pytrace_ebpf.record.output.journal import Journal
from pytrace_ebpf.record.output.merging import SmallParts
from pytrace_ebpf.record.output.retention import Group, Groups
from pytrace_ebpf.record.rights.user import become_caller
from pytrace_ebpf.trace import schema
from pytrace_ebpf.trace.sealed import Summed, sealed_manifest
from pytrace_ebpf.trace.segments import merged_line, part_name, put_merged
from pytrace_ebpf.trace.writing import write

if TYPE_CHECKING:
    from pytrace_ebpf.record.output.horizon import Horizon

_PENDING = 4  # segments that may wait for the disk before the recording waits too
_LEAST_FREE = 256 << 20  # bytes, or a twentieth of a small disk, that stay free for others where no --max-size was given
_ROOM = 1 << 16  # bytes kept for the last manifest on a disk that fills up
_ENTERED = (schema.CallKind.ENTRY, schema.CallKind.RESUME, schema.CallKind.OPEN)
_FUNCTIONS = schema.FUNCTIONS.name
_MOST_LISTED = 4096  # a finished trace with at most so many segments lists them in its manifest too
_MOST_LEVELS = 4  # of parts that are merged: more segments than a trace ever has
_MANY = 1 << 12  # rows of a part that describes itself; of smaller ones the first of a table does, since it takes 1 to 4 kB
_FOLDERS = tuple(table.name for table in schema.TABLES.values() if not table.derived)


class Writer:
    """Owns a trace directory while it is recorded. `manifest` is the dictionary written after every segment.

    `full` is a sentence once no more should be recorded: the trace is as large as it may get, or could not be written.
    `failed`: it is the latter, and what came after the last whole segment is gone.
    """

    def __init__(
        self, path: Path | Handed | None, manifest: dict[str, Any], max_size: int | None = None, keep: Keep | None = None, another: bool = False
    ) -> None:
        """`path`: of the directory, None for a new one of today's name; `another`: one of a like name where that is taken.

        `max_size`: bytes; None for half of what is free. `keep`: drop older segments while it goes on. Raises UsageError where it cannot be written, HostError where the compiled
        library, which tracks open calls for `keep`, is missing.
        """
        self.manifest = manifest | {"ended": None}
        self.full: str | None = None
        self.failed = False
        self._asked, self._bytes = max_size, 0
        self._next, self._end_ns = 0, manifest["start_ns"]
        self._given_ns = self._end_ns
        self._listed: list[dict[str, Any]] = []  # the first segments
        self._groups, self._horizon = Groups(keep), _horizon() if keep else None
        # Any row of `functions` may be referred to by what is kept: they are never dropped, and merged again and again.
        self._small = SmallParts(lambda name: _MOST_LEVELS if name == _FUNCTIONS else 1 if keep else 2)
        self._functions: list[dict[str, Any]] = []  # their parts
        self._described: set[str] = set()  # tables of which a part has the description
        self._begun: set[tuple[str, str]] = set()  # the parts with which the trace begins, where segments were dropped
        self._thread = ThreadPoolExecutor(1, "writer")
        self._pending: list[Future[None]] = []
        try:
            self._output, self._journal = self._thread.submit(self._claim, path, another).result()
        except BaseException:
            self._thread.shutdown()
            raise

    @property
    def directory(self) -> Path:
        """Where the trace is, by the name that it has now."""
        return self._output.where()

    @property
    def size(self) -> int:
        """Bytes of its parts so far."""
        return self._bytes

    @property
    def segments(self) -> int:
        """How many are whole, where none was dropped."""
        return self._next

    @property
    def end_ns(self) -> int:
        """The end of what was handed over."""
        return self._given_ns

    def segment(self, start_ns: int, end_ns: int, tables: Mapping[str, pa.Table], news: dict[str, Any]) -> None:
        """Hand over one segment: its parts are written, then it is listed, and the manifest updated by `news`."""
        while self._pending and (self._pending[0].done() or len(self._pending) >= _PENDING):
            self._pending.pop(0).result()
        self._given_ns = end_ns
        some = {name: table for name, table in tables.items() if table.num_rows}
        self._pending.append(self._thread.submit(self._write, start_ns, end_ns, some, news))

    def abandon(self) -> None:
        """Remove the trace directory: nothing was recorded."""
        self._thread.submit(self._output.abandon, _FOLDERS, (schema.MANIFEST, schema.SEGMENTS)).result()
        self._thread.shutdown()
        self._journal.close()
        self._output.close()

    def close(self, news: dict[str, Any]) -> None:
        """Wait for all segments and write the last manifest."""
        try:
            for pending in self._pending:
                pending.result()
            self._thread.submit(self._finish, news).result()
        finally:
            self._thread.shutdown()
            self._journal.close()

    # What follows happens in the writer's own thread, with the rights of who called sudo.

    def _claim(self, path: Path | Handed | None, another: bool) -> tuple[Output, Journal]:
        try:
            become_caller()
        except OSError as error:
            raise HostError(
                f"cannot write with the rights of who called sudo ({error.strerror}); give this root CAP_SETUID and CAP_SETGID"
            ) from error
        self._output = output = Output(path, another=another)
        try:
            free, size = output.free()
            self._least = 0 if self._asked else min(_LEAST_FREE, size // 20)
            self._most = self._asked or free // 2
            if free < self._least:
                raise OSError(28, f"only {free / 1e6:.0f} MB are free")
            for name in _FOLDERS:
                output.make_folder(name)
            journal = Journal(output)
            self._write_manifest()
        except OSError as error:
            where = output.where()
            output.abandon(_FOLDERS, (schema.MANIFEST, f"{schema.MANIFEST}.new", schema.SEGMENTS))
            output.close()
            raise UsageError(f"cannot write to {where} ({error.strerror}); give another folder with --output") from error
        return output, journal

    def _write(self, start_ns: int, end_ns: int, tables: dict[str, pa.Table], news: dict[str, Any]) -> None:
        if self.failed:
            return
        before, listed = dict(self.manifest), self._journal.size
        part = part_name(self._next)
        line = _line(self._next, start_ns, end_ns, tables)
        parts = (
            tables if self._next else _empty() | tables
        )  # a table that stays empty has a part too, so that its folder opens with the right columns
        try:
            size, sums = self._write_parts(parts, part)
            line["sums"] = {name: sums[name] for name in line["rows"]}
            self._journal.add([line])
            self.manifest |= news
            self._write_manifest()
        except OSError as error:
            self._fail(error)
            with suppress(OSError):
                self._journal.take_back(listed)
            if self._journal.size > listed:  # nothing can be taken back there: whoever reads the list counts on the parts
                self._count(line, end_ns)
                return
            self.manifest |= before
            self._undo(parts, part)
            return
        self._count(line, end_ns)
        self._groups.open.add(line, parts, part, size)
        try:
            self._update_groups(line, tables)
        except OSError as error:
            self._fail(error)
        else:
            self._judge_size()

    def _count(self, line: dict[str, Any], end_ns: int) -> None:
        """A segment is written and listed."""
        self._next, self._end_ns = self._next + 1, end_ns
        self._listed += [line] if len(self._listed) < _MOST_LISTED else []

    def _write_parts(self, tables: Mapping[str, pa.Table], part: str) -> tuple[int, dict[str, int]]:
        """Write a part of each table; returns their bytes, and the checksum of each. Raises OSError, with none of them left."""
        size, made, sums = 0, list[str](), dict[str, int]()
        try:
            for name, table in tables.items():
                with self._output.create(name, part) as file:
                    made.append(name)
                    summed = Summed(file)
                    _write_part(cast(BinaryIO, summed), name, table, table.num_rows >= _MANY or name not in self._described)
                    self._described.add(name)
                    size += file.tell()
                    sums[name] = summed.sum
        except OSError:
            self._undo(made, part)
            raise
        self._bytes += size
        return size, sums

    def _undo(self, tables: Iterable[str], part: str) -> None:
        """Remove what is not listed, as far as it is still there: the owner of the directory may have put something else in its place."""
        for name in tables:
            with suppress(OSError):
                self._output.remove(name, part)

    def _update_groups(self, line: dict[str, Any], tables: dict[str, pa.Table]) -> None:
        """Merge the small parts of a group of segments that is whole, and drop groups that need not be kept. Raises OSError."""
        index = line["index"]
        self._small.add(index, tables)
        if _FUNCTIONS in tables:
            self._functions.append(merged_line(_FUNCTIONS, index, index, tables[_FUNCTIONS].num_rows) | {"sum": line["sums"][_FUNCTIONS]})
        if self._horizon is not None:
            self._horizon.take(tables)
            self._groups.meet(tables)
        if not self._groups.full:
            return
        group = self._groups.open
        for merge in self._small.close_group():
            size, sums = self._write_parts({merge.table: merge.rows}, merge.part)
            merged = merge.line | {"sum": sums[merge.table]}
            self._journal.add([merged])
            freed = self._remove({(merge.table, old) for old in merge.olds})
            if merge.table == _FUNCTIONS:
                put_merged(self._functions, merged)
            else:
                group.merge(merge, size - freed)
        if self._horizon is not None:
            group.beginning = self._horizon.beginning(group.end_ns)
        self._groups.close()
        if groups := self._groups.expired(self._end_ns, self._bytes):
            self._drop(groups)

    def _drop(self, groups: list[Group]) -> None:
        """Let the trace begin after these groups, the oldest: with what was open then. Raises OSError."""
        last, part = groups[-1], part_name(self._next)
        tables = {name: table for name, table in last.beginning.items() if table.num_rows}
        self._described.clear()
        beginning = _line(self._next, last.end_ns, last.end_ns, tables)
        _, sums = self._write_parts(_empty() | tables, part)
        beginning["sums"] = {name: sums[name] for name in beginning["rows"]}
        self._next += 1
        kept = [line for group in [*list(self._groups.closed)[len(groups) :], self._groups.open] for line in group.lines]
        self._journal.replace([*self._functions, beginning, *kept])
        self._groups.drop(groups)
        self._remove({each for group in groups for each in group.parts if each[0] != _FUNCTIONS} | self._begun)
        self._begun = {(name, part) for name in _FOLDERS}
        dropped = self.manifest.get("dropped") or {"segments": 0, "bytes": 0}
        self.manifest["dropped"] = {
            "segments": dropped["segments"] + sum(group.segments for group in groups),
            "bytes": dropped["bytes"] + sum(group.bytes for group in groups),
        }

    def _remove(self, parts: set[tuple[str, str]]) -> int:
        """Remove parts; returns their bytes."""
        freed = sum(self._output.remove(name, part) for name, part in parts)
        self._bytes -= freed
        return freed

    def _fail(self, error: OSError) -> None:
        self.failed = True
        self._output.release_space()
        self.full = f"the trace could not be written any further ({error.strerror or error})"

    def _judge_size(self) -> None:
        free, _ = self._output.free()
        if free < self._least:
            self.full = f"only {free / 1e6:,.1f} MB are left on the trace's disk"
        elif self._bytes >= self._most:
            asked = "--max-size" if self._asked else "half of what was free on its disk; --max-size allows more"
            self.full = f"the trace has reached {self._most / 1e6:,.1f} MB ({asked})"

    def _finish(self, news: dict[str, Any]) -> None:
        if self.failed:  # of what was counted since the last whole segment there is nothing
            news = news | {"end_ns": self._end_ns}
        self.manifest.update(news | {"ended": self.full})
        if len(self._listed) == self._next:  # for readers of the manifest alone
            self.manifest["segments"] = self._listed
        self._output.release_space()
        try:
            self._write_manifest(reserve_space=False)
        except OSError as error:  # the last whole segment's stands
            self._fail(error)

    def _write_manifest(self, reserve_space: bool = True) -> None:
        content = sealed_manifest(json.dumps(self.manifest, indent=1).encode())
        if reserve_space:
            self._output.reserve_space(2 * len(content) + _ROOM)
        self._output.replace(schema.MANIFEST, content)


def _horizon() -> Horizon:
    from pytrace_ebpf.record.output.horizon import Horizon  # it is seldom asked for, and takes long to import

    return Horizon()


def _empty() -> dict[str, pa.Table]:
    return {name: schema.TABLES[name].arrow.empty_table() for name in _FOLDERS}


def _line(index: int, start_ns: int, end_ns: int, tables: Mapping[str, pa.Table]) -> dict[str, Any]:
    """What the list of segments says of one."""
    rows = {name: table.num_rows for name, table in tables.items()}
    kinds = tables["events"]["kind"].chunks if "events" in tables else []
    calls = sum(int(np.count_nonzero(chunk.to_numpy() == np.int8(kind))) for chunk in kinds for kind in _ENTERED)
    return {"index": index, "start_ns": start_ns, "end_ns": end_ns, "rows": rows, "calls": calls}


# Columns that lz4 alone makes nearly as small as a dictionary would: half of the writer's time for a quarter more bytes.
_REPETITIVE = ("pid", "tid", "kind")


def _write_part(file: BinaryIO, name: str, table: pa.Table, describe: bool) -> None:
    if name == schema.EVENTS.name:
        write_events(file, table, describe)
        return
    integers = [field.name for field in table.schema if field.name in ("ts", "start_ns", "end_ns")]
    write(  # in lz4: a fifth less of the writer's CPU than zstd at level 1, for 4 % more bytes
        schema.TABLES[name],
        table,
        file,
        describe,
        use_dictionary=[name for name in table.column_names if name not in integers and name not in _REPETITIVE],
        column_encoding=dict.fromkeys(integers, "DELTA_BINARY_PACKED"),
    )
