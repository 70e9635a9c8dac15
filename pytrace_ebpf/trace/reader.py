"""A trace directory, opened: every table as a pandas.DataFrame, reading only what is asked for."""

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from pytrace_ebpf.trace import sql
from pytrace_ebpf.trace.asked import Asked
from pytrace_ebpf.trace.conditions import Wanted, all_of, began, between, bounds_of, equal, overlap, overlapping
from pytrace_ebpf.trace.deriving import Maker
from pytrace_ebpf.trace.frames import in_order, named, to_frame
from pytrace_ebpf.trace.index import Bounds, Index
from pytrace_ebpf.trace.levels import Levels
from pytrace_ebpf.trace.logs import Logs
from pytrace_ebpf.trace.manifest import open_directory, read_manifest
from pytrace_ebpf.trace.parts import Part, batches, read, sizes, together
from pytrace_ebpf.trace.schema import (
    CALL_SITES,
    CALLS,
    LINES,
    MEMORY,
    OPERATORS,
    RIVALS,
    STATEMENTS,
    TABLES,
    TASKS,
    THREAD_TIMES,
    TREE,
    VALUES,
    WAITS,
    Table,
)
from pytrace_ebpf.trace.segments import parts_of

_AT_ONCE = 1 << 17  # rows that a query is given, and of waits that come together
_SOUGHT = ("call_id", "pid", "tid", "depth", "start_ns", "end_ns", "queued_ns")  # columns by whose bounds row groups are found


class Trace(Logs, Asked):
    """One trace. `manifest` is its manifest (see trace/manifest.py), `written_at` when that was written (s since 1970), `directory` where it lies.

    Times in arguments are nanoseconds of CLOCK_MONOTONIC; a window is start_ns <= t < end_ns.
    Every reading method raises TraceError when a part of the trace does not open.
    """

    def __init__(self, directory: Path, maker: Maker) -> None:
        """Open `directory`; `maker` makes its derived tables. Raises TraceError."""
        self.directory = directory
        self._files = open_directory(directory)
        self.manifest, self.written_at = read_manifest(self._files)
        self._start_deriving(maker)
        self._indexes: dict[str, Index] = {}
        self._held: dict[str, pd.DataFrame] = {}
        self._by_index: dict[int, dict[str, Any]] = {}
        self.request_patterns = tuple(self.manifest["options"].get("requests") or ())
        self.step_patterns = ()
        self.progress: Callable[[str, float | None], None] = lambda _what, _share: None  # called while tables are derived

    def __repr__(self) -> str:
        command, lost = (self.manifest["target"].get("command") or "?")[:60], sum(self.manifest["lost"].values())
        events = sum(segment["rows"].get("events", 0) for segment in self.segments)
        seconds = (self.end_ns - self.start_ns) / 1e9
        return f"<Trace {str(self.directory)!r} of {command!r}: {seconds:.1f} s, {events:,} call events, {f'{lost:,}' if lost else 'none'} lost>"

    @property
    def whole(self) -> "Trace":
        """The trace itself; of a window of one that trace."""
        return self

    def window(self, start_ns: int | None = None, end_ns: int | None = None, pid: int | None = None, tid: Wanted = None) -> "Trace":
        """This trace as if only [start_ns, end_ns) had been recorded, and of these threads, `tid` one or a tuple of several: calls and waits that cross an edge are cut there.

        None: no such limit. Nothing that is derived for it is kept, but it begins at the states that are kept between segments.
        """
        from pytrace_ebpf.trace.window import Window  # a Trace itself

        tid = tuple(int(each) for each in tid) if isinstance(tid, tuple) else tid
        start_ns, end_ns, pid = (None if each is None else int(each) for each in (start_ns, end_ns, pid))  # NumPy's integers are no JSON
        return Window(self, start_ns, end_ns, pid, tid if tid is None or isinstance(tid, tuple) else int(tid))

    @property
    def start_ns(self) -> int:
        """When recording began."""
        return int(self.manifest["start_ns"])

    @property
    def end_ns(self) -> int:
        """When recording ended; of a recording that was cut, the end of its last whole segment."""
        return int(self.manifest["end_ns"])

    @property
    def segments(self) -> list[dict[str, Any]]:
        """The whole segments in the order of time: index, start_ns, end_ns, rows."""
        return list(self.manifest["segments"])

    def calls(
        self,
        columns: Sequence[str] | None = None,
        pid: int | None = None,
        tid: Wanted = None,
        start_ns: int | None = None,
        end_ns: int | None = None,
        depth: int | None = None,
        ids: tuple[int, int] | None = None,
    ) -> pd.DataFrame:
        """One row per call that overlaps the window, in the order of call_id; columns as in schema.CALLS.

        `ids`: only from the first to the last of these call_ids, both included; what lies elsewhere is not read.
        The first use rebuilds the calls from the events and keeps them in the trace directory.
        """
        where = all_of([*equal(pid=pid, tid=tid, depth=depth), *overlap(start_ns, end_ns), *between(ids)])
        bounds = {"call_id": ids or (None, None), "depth": (depth, depth), "pid": (pid, pid), "tid": bounds_of(tid)}
        return self._indexed(CALLS, columns, where, bounds | overlapping(start_ns, end_ns), ("call_id",))

    def named_calls(self, columns: Sequence[str] | None = None, **window: Any) -> pd.DataFrame:
        """What calls() gives (`window`: its other arguments), and of each call's function qualname, module, file and first_line: Categorical; null = unknown."""
        wanted = None if columns is None else list(dict.fromkeys([*columns, "func_id"]))
        return named(self.calls(wanted, **window), self.functions(), columns)

    def iter_calls(
        self,
        columns: Sequence[str] | None = None,
        pid: int | None = None,
        tid: Wanted = None,
        start_ns: int | None = None,
        end_ns: int | None = None,
        depth: int | None = None,
        rows: int = 1 << 18,
    ) -> Iterator[pd.DataFrame]:
        """The rows of calls() in frames of at most `rows`, in bounded memory however many there are.

        In the order of the segments in which calls ended, there by thread and call_id: a call may come after those it made.
        """
        names, where = CALLS.known(columns), all_of([*equal(pid=pid, tid=tid, depth=depth), *overlap(start_ns, end_ns)])
        return (to_frame(table, CALLS) for part in self._derived_parts(CALLS) for table in batches(CALLS, part, rows, names, where))

    def sql(self, query: str) -> pd.DataFrame:
        """The answer of DuckDB to a query over the tables of the format (docs/format.md), by their names.

        Derived tables are built where the query needs them; of each only the columns and, by their statistics, the rows that it
        needs are read, in bounded memory. A query sees no file, and no table but these and its own. Raises HostError where
        DuckDB is missing (pip install 'pytrace-ebpf[sql]'), and duckdb.Error for a query that it does not understand.
        """
        return sql.query(query, {spec: functools.partial(self._rows, spec) for spec in TABLES.values()})

    def tree(
        self,
        columns: Sequence[str] | None = None,
        pid: int | None = None,
        tid: Wanted = None,
        start_ns: int | None = None,
        end_ns: int | None = None,
    ) -> pd.DataFrame:
        """The calling-context tree, a caller before its callees; columns as in schema.TREE.

        The first use derives it in one pass over the events and keeps it in the trace directory; no rows of calls are made. That of
        a window [start_ns, end_ns) begins at what is kept between segments; of calls that cross its edges it has what lies within.
        """
        if start_ns is not None or end_ns is not None:
            return self.window(start_ns, end_ns, pid, tid).tree(columns)
        return self._derived_rows(TREE, columns, equal(pid=pid, tid=tid))

    def call_sites(self) -> pd.DataFrame:
        """One row per place that a function was called from; columns as in schema.CALL_SITES. Derived by the same pass as the tree."""
        return self._derived_rows(CALL_SITES)

    def lines(self) -> pd.DataFrame:
        """One row per function and line that it came to (`--lines exact`); columns as in schema.LINES. Derived by a pass of its own."""
        return self._derived_rows(LINES)

    def thread_times(self) -> pd.DataFrame:
        """One row per thread, where its time went; columns as in schema.THREAD_TIMES. Derived by the same pass as the tree."""
        return self._derived_rows(THREAD_TIMES)

    def memory(self) -> pd.DataFrame:
        """One row per function, what memory its calls used; columns as in schema.MEMORY. Derived in one pass over the events."""
        return self._derived_rows(MEMORY)

    def waits(
        self,
        columns: Sequence[str] | None = None,
        pid: int | None = None,
        tid: Wanted = None,
        start_ns: int | None = None,
        end_ns: int | None = None,
    ) -> pd.DataFrame:
        """One row per interval off the core that overlaps the window, in the order of start_ns; columns as in schema.WAITS.

        The first use derives them and keeps them in the trace directory, as with the calls.
        """
        where, bounds = all_of([*equal(pid=pid, tid=tid), *overlap(start_ns, end_ns)]), {"pid": (pid, pid), "tid": bounds_of(tid)}
        return self._indexed(WAITS, columns, where, bounds | overlapping(start_ns, end_ns), ("start_ns", "pid", "tid"))

    def waits_by_part(self, columns: Sequence[str], where: pc.Expression | None = None) -> Iterator[pd.DataFrame]:
        """The rows of waits(), some at a time, at least once: in bounded memory. Those that come together ended at about the same time."""
        return self._derived_by_part(WAITS, columns, where)

    def rivals(self, pid: int | None = None, tid: Wanted = None, start_ns: int | None = None, end_ns: int | None = None) -> pd.DataFrame:
        """Who had the core while a thread waited for it, of waits for a core that began in the window; columns as in schema.RIVALS.

        The first use derives them and keeps them in the trace directory, as with the calls.
        """
        bounds = {"pid": (pid, pid), "tid": bounds_of(tid), "queued_ns": (start_ns, None if end_ns is None else end_ns - 1)}
        where = all_of([*equal(pid=pid, tid=tid), *began("queued_ns", start_ns, end_ns)])
        return self._indexed(RIVALS, None, where, bounds, ("queued_ns", "pid", "tid"))

    def rivals_by_part(self, where: pc.Expression | None = None) -> Iterator[pd.DataFrame]:
        """The rows of rivals(), some at a time, at least once: in bounded memory."""
        return self._derived_by_part(RIVALS, None, where)

    def tasks(
        self,
        columns: Sequence[str] | None = None,
        pid: int | None = None,
        tid: Wanted = None,
        start_ns: int | None = None,
        end_ns: int | None = None,
    ) -> pd.DataFrame:
        """One row per coroutine that overlaps the window, in the order of coroutine_id; columns as in schema.TASKS.

        The first use derives them and keeps them in the trace directory, as with the calls.
        """
        return self._derived_rows(TASKS, columns, [*equal(pid=pid, tid=tid), *overlap(start_ns, end_ns)])

    def operators(
        self,
        columns: Sequence[str] | None = None,
        pid: int | None = None,
        tid: Wanted = None,
        start_ns: int | None = None,
        end_ns: int | None = None,
        layer: str | None = None,
    ) -> pd.DataFrame:
        """One row per native call that overlaps the window, in the order of call_id; columns as in schema.OPERATORS, layer operator, blas or cuda.

        The first use derives them and keeps them in the trace directory, as with the calls. Shapes are lists of arrays (int64; None
        for an undefined tensor), dtypes arrays of str.
        """
        where = [*equal(pid=pid, tid=tid, layer=layer), *overlap(start_ns, end_ns)]
        return self._by_number(OPERATORS, columns, where)

    def values(self, columns: Sequence[str] | None = None, what: str | None = None) -> pd.DataFrame:
        """What observed calls (`--args`) were given and returned, in the order of call_id; columns as in schema.VALUES, `what` as there.

        The first use derives them and keeps them in the trace directory, as with the calls.
        """
        return self._by_number(VALUES, columns, equal(what=what))

    def statements(self, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """What client libraries were asked for (`--clients`), in the order of call_id; columns as in schema.STATEMENTS.

        The first use derives them and keeps them in the trace directory, as with the calls.
        """
        return self._by_number(STATEMENTS, columns, [])

    def findings(self) -> pd.DataFrame:
        """What the time of the threads that were at work goes to, the most time first: rule, share and ns, of and of_share, a sentence, function, file and line of the program's
        own code, resource, other, command, confidence and error_ns; the last row, of rule idle, what threads without work waited. docs/diagnosis.md has the rules.

        None of calls whose scheduling was not recorded.
        """
        found: pd.DataFrame = self._maker.findings(self)
        return found

    def critical_path(self, request_ids: Sequence[int] | None = None, function: str | None = None) -> pd.DataFrame:
        """What determined how long these requests took (None: all; without any the whole run), or calls of `function`, a pattern as of `report --request`.

        One row per piece, in the order of item and time; those of an item are as long as it, to the ns. docs/critical-path.md has the columns.
        Raises HostError where switches were not recorded by eBPF.
        """
        return self._maker.critical_path(self, request_ids, function)

    def calls_by_part(
        self, columns: Sequence[str], functions: Sequence[int], latest_first: bool = False, only: str | None = None
    ) -> Iterator[pd.DataFrame]:
        """The calls of some functions (func_id), a part at a time: those that ended in a segment, in the order of time. `only`: of the part of that name."""
        names, where = CALLS.known(columns), [pc.field("func_id").isin(functions)]
        for part in self._derived_parts(CALLS)[:: -1 if latest_first else 1]:
            if only in (None, part.name):
                yield to_frame(self._load(CALLS, [part], names, where), CALLS)

    def operators_by_part(self, columns: Sequence[str], latest_first: bool = False) -> Iterator[pd.DataFrame]:
        """The rows of operators(), those of calls_by_part() at a time, but for parts without any."""
        names = OPERATORS.known(columns)
        for part in self._derived_parts(OPERATORS)[:: -1 if latest_first else 1]:
            yield to_frame(self._load(OPERATORS, [part], names, []), OPERATORS)

    def layers(self, tid: int) -> Levels:
        """The thread's layered call sequence, level by level: one DataFrame per depth, each read when it is asked for."""
        deepest = self._index(CALLS).largest("depth", pc.field("tid") == tid, {"tid": (tid, tid)})
        return Levels(self, tid, 0 if deepest is None else deepest + 1)

    def part(self, name: str, index: int, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows of table `name` in segment `index`, as Arrow; empty where it has none."""
        return self._load(TABLES[name], self._parts(name, self._segment(index)), TABLES[name].known(columns), [])

    def parts(self, name: str, segments: Sequence[dict[str, Any]], columns: Sequence[str] | None = None) -> list[pa.Table]:
        """part() of some `segments`, read at once: of short ones that takes half as long."""
        each = [self._parts(name, [segment]) for segment in segments]
        whole = self._load(TABLES[name], list(chain.from_iterable(each)), TABLES[name].known(columns), [])
        rows = [sum(part.rows or 0 for part in own) for own in each]
        return [whole.slice(end - count, count) for end, count in zip(accumulate(rows), rows, strict=True)]

    def batches(self, name: str, index: int, rows: int) -> Iterator[pa.Table]:
        """The rows of table `name` in segment `index`, at most `rows` at a time: what was read before need not be kept."""
        for part in self._parts(name, self._segment(index)):
            yield from batches(TABLES[name], part, rows)

    def _segment(self, index: int) -> list[dict[str, Any]]:
        if not self._by_index:
            self._by_index = {segment["index"]: segment for segment in self.manifest["segments"]}
        return [self._by_index[index]] if index in self._by_index else []

    def _parts(self, name: str, segments: Iterable[dict[str, Any]] | None = None) -> list[Part]:
        """Parts of the segments that are listed, None: of all: what a killed tracer left half-written is not ours."""
        listed = self.manifest["segments"] if segments is None else segments
        parts = parts_of(name, listed, self.manifest["merged"].get(name, []), whole=segments is None)
        fleeting = self.manifest["state"] == "recording" and bool(self.manifest.get("dropped"))
        return [Part(self._files, name, part, rows, fleeting, sum_) for part, rows, sum_ in parts]

    def _log(self, name: str, columns: Sequence[str] | None, start_ns: int | None, end_ns: int | None, where: list[pc.Expression]) -> pd.DataFrame:
        spec, segments = TABLES[name], self.manifest["segments"]
        if start_ns is not None:
            segments = [s for s in segments if s["end_ns"] > start_ns]
            where.append(pc.field("ts") >= start_ns)
        if end_ns is not None:
            # What a thread stamps it may hand over in a later segment; of a part that has nothing of the window the end is read.
            if name in ("sched", "usage"):
                segments = [s for s in segments if s["start_ns"] < end_ns]
            where.append(pc.field("ts") < end_ns)
        parts = self._parts(name, None if segments is self.manifest["segments"] else segments)
        return to_frame(self._load(spec, parts, spec.known(columns), where), spec)

    def _derived_rows(self, spec: Table, columns: Sequence[str] | None = None, where: Sequence[pc.Expression] = ()) -> pd.DataFrame:
        """Rows of a derived table, in the order in which it was written."""
        return to_frame(self._load(spec, self._derived_parts(spec), spec.known(columns), list(where)), spec)

    def _derived_by_part(self, spec: Table, columns: Sequence[str] | None, where: pc.Expression | None) -> Iterator[pd.DataFrame]:
        """Small parts come together: what is done with some rows takes as long as with few."""
        names, conditions = spec.known(columns), [] if where is None else [where]
        parts, held = self._derived_parts(spec), list[pa.Table]()
        for place, part in enumerate(parts):
            held.append(self._load(spec, [part], names, conditions))
            if sum(map(len, held)) >= _AT_ONCE or place == len(parts) - 1:
                yield to_frame(together(held), spec)
                held = []
        if not parts:
            yield to_frame(self._load(spec, [], names, conditions), spec)

    def _indexed(self, spec: Table, columns: Sequence[str] | None, where: pc.Expression | None, bounds: Bounds, key: Sequence[str]) -> pd.DataFrame:
        """Rows of a derived table that `where` selects, none of which is out of `bounds`, in the order of `key`: only what can hold them is read."""
        if where is None:
            return self._by_number(spec, columns, [], key)
        names = spec.known(columns)
        found = self._index(spec).read(list(dict.fromkeys([*names, *key])), where, bounds)
        return to_frame(in_order(found, *key).select(names), spec)

    def _index(self, spec: Table) -> Index:
        if spec.name not in self._indexes:
            self._indexes[spec.name] = Index(spec, self._derived_parts(spec), [name for name in _SOUGHT if name in spec.arrow.names])
        return self._indexes[spec.name]

    def _by_number(self, spec: Table, columns: Sequence[str] | None, where: list[pc.Expression], key: Sequence[str] = ("call_id",)) -> pd.DataFrame:
        """Rows of a derived table, in the order of `key`."""
        names = spec.known(columns)
        with_key = list(dict.fromkeys([*names, *key]))
        return to_frame(in_order(self._load(spec, self._derived_parts(spec), with_key, where), *key).select(names), spec)

    def _rows(self, spec: Table, columns: list[str], where: pc.Expression | None) -> Iterator[pa.Table]:
        """The rows of a table that `where` selects, some at a time."""
        if spec.key:
            yield from self._rows_of_frame(spec, columns, where)
            return
        filled = any(column.absent is not None for column in spec.columns)  # what that is stands in no file
        for part in self._derived_parts(spec) if spec.derived else self._parts(spec.name):
            for table in batches(spec, part, _AT_ONCE, None if filled else columns, None if filled else where):
                yield (table.filter(where) if filled and where is not None else table).select(columns)

    def _rows_of_frame(self, spec: Table, columns: list[str], where: pc.Expression | None) -> Iterator[pa.Table]:
        rows = pa.Table.from_pandas(getattr(self, spec.name)(), spec.arrow, preserve_index=False)
        yield (rows if where is None else rows.filter(where)).select(columns)

    def _load(self, spec: Table, parts: list[Part], columns: list[str], where: list[pc.Expression]) -> pa.Table:
        if not parts:
            return spec.arrow.empty_table().select(columns)
        return read(spec, parts, columns, all_of(where))

    def sizes(self, name: str) -> list[tuple[int, int]]:
        """(rows, bytes) of each part of a table; none of a derived one that is not kept in the trace."""
        spec = TABLES[name]
        return list(sizes(self._kept(spec) if spec.derived else self._parts(name)))
