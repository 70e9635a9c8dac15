"""A trace directory, opened: every table as a pandas.DataFrame, reading only what is asked for."""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from pytrace_ebpf.errors import TraceError
from pytrace_ebpf.trace.manifest import read_manifest
from pytrace_ebpf.trace.schema import CALLS, OPERATORS, TABLES, TASKS, WAITS, Table

_DERIVATION = 2  # one more with each change of what analyze/ makes of a trace
_KEY_FILE = "derived.json"
_BEFORE_ALL = -(1 << 62)
_NULLABLE = {pa.int64(): pd.Int64Dtype(), pa.int32(): pd.Int32Dtype(), pa.int16(): pd.Int16Dtype()}


def to_frame(table: pa.Table, spec: Table) -> pd.DataFrame:
    """Arrow to pandas: nullable integers become pandas' own (pd.NA, never a float), dictionaries Categorical."""
    nullable = {c.name for c in spec.columns if c.nullable}
    columns = {
        name: table[name].to_pandas(types_mapper=_NULLABLE.get if name in nullable else None) for name in table.column_names
    }
    return pd.DataFrame(columns, copy=False)


class Trace:
    """One trace. `manifest` is its manifest (see trace/manifest.py), `directory` where it lies.

    Times in arguments are nanoseconds of CLOCK_MONOTONIC; a window is start_ns <= t < end_ns.
    Every reading method raises TraceError when a part of the trace does not open.
    """

    def __init__(self, directory: Path, derive: Mapping[str, Callable[["Trace", Path], None]]) -> None:
        """Open `directory`; `derive[name](trace, into)` rebuilds the derived table `name` into a folder. Raises TraceError."""
        self.directory = directory
        self.manifest: dict[str, Any] = read_manifest(directory)
        self._derive = derive
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._derived: dict[str, list[Path]] = {}

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

    @property
    def scheduling(self) -> dict[str, str | None]:
        """Where scheduling came from: `source` ("bpf", "perf", "cputime" or None for nowhere) and `why`, a sentence."""
        return {"source": "bpf", "why": ""} | (self.manifest.get("scheduling") or {})

    def calls(
        self,
        columns: Sequence[str] | None = None,
        pid: int | None = None,
        tid: int | None = None,
        start_ns: int | None = None,
        end_ns: int | None = None,
        depth: int | None = None,
        ids: tuple[int, int] | None = None,
    ) -> pd.DataFrame:
        """One row per call that overlaps the window, in the order of call_id; columns as in schema.CALLS.

        `ids`: only from the first to the last of these call_ids, both included; what lies elsewhere is not read.
        The first use rebuilds the calls from the events and keeps them in the trace directory.
        """
        where = [*_equal(pid=pid, tid=tid, depth=depth), *_overlap(start_ns, end_ns), *_between(ids)]
        return self._by_call_id(CALLS, columns, where)

    def waits(
        self,
        columns: Sequence[str] | None = None,
        pid: int | None = None,
        tid: int | None = None,
        start_ns: int | None = None,
        end_ns: int | None = None,
    ) -> pd.DataFrame:
        """One row per interval off the core that overlaps the window, in the order of start_ns; columns as in schema.WAITS.

        The first use derives them and keeps them in the trace directory, as with the calls.
        """
        where = [*_equal(pid=pid, tid=tid), *_overlap(start_ns, end_ns)]
        return to_frame(self._load(WAITS, self._derived_parts(WAITS), _known(WAITS, columns), where), WAITS)

    def tasks(
        self,
        columns: Sequence[str] | None = None,
        pid: int | None = None,
        tid: int | None = None,
        start_ns: int | None = None,
        end_ns: int | None = None,
    ) -> pd.DataFrame:
        """One row per coroutine that overlaps the window, in the order of coroutine_id; columns as in schema.TASKS.

        The first use derives them and keeps them in the trace directory, as with the calls.
        """
        where = [*_equal(pid=pid, tid=tid), *_overlap(start_ns, end_ns)]
        return to_frame(self._load(TASKS, self._derived_parts(TASKS), _known(TASKS, columns), where), TASKS)

    def operators(
        self,
        columns: Sequence[str] | None = None,
        pid: int | None = None,
        tid: int | None = None,
        start_ns: int | None = None,
        end_ns: int | None = None,
        layer: str | None = None,
    ) -> pd.DataFrame:
        """One row per native call that overlaps the window, in the order of call_id; columns as in schema.OPERATORS, layer operator, blas or cuda.

        The first use derives them and keeps them in the trace directory, as with the calls. Shapes are lists of arrays (int64; None
        for an undefined tensor), dtypes arrays of str.
        """
        where = [*_equal(pid=pid, tid=tid, layer=layer), *_overlap(start_ns, end_ns)]
        return self._by_call_id(OPERATORS, columns, where)

    def calls_by_part(self, columns: Sequence[str], functions: Sequence[int]) -> Iterator[pd.DataFrame]:
        """The calls of some functions (func_id), a part at a time: those that ended in a segment, in the order of time."""
        names, where = _known(CALLS, columns), [pc.field("func_id").isin(functions)]
        for part in self._derived_parts(CALLS):
            yield to_frame(self._load(CALLS, [part], names, where), CALLS)

    def calls_backwards(self, columns: Sequence[str]) -> Iterator[tuple[pd.DataFrame, int]]:
        """The calls a part at a time, the last to end first, each with the time by which all calls of the parts to come had ended.

        With a call come, in its part or one before, all those that it lies in.
        """
        parts = self._derived_parts(CALLS)
        ends: list[int] = []
        for part in parts:
            latest = self._load(CALLS, [part], ["end_ns"], [])["end_ns"].to_numpy().max()
            ends.append(max([int(latest), *ends[-1:]]))
        names = _known(CALLS, columns)
        for part, earlier in zip(reversed(parts), [*reversed(ends[:-1]), _BEFORE_ALL], strict=False):
            yield to_frame(self._load(CALLS, [part], names, []), CALLS), earlier

    def layers(self, tid: int) -> "Layers":
        """The thread's layered call sequence: one DataFrame per depth, each read when it is asked for."""
        return Layers(self, tid)

    def events(
        self,
        columns: Sequence[str] | None = None,
        pid: int | None = None,
        tid: int | None = None,
        start_ns: int | None = None,
        end_ns: int | None = None,
    ) -> pd.DataFrame:
        """Function events in the window; columns as in schema.EVENTS, in each thread's own order."""
        return self._log("events", columns, start_ns, end_ns, _equal(pid=pid, tid=tid))

    def sched(
        self,
        columns: Sequence[str] | None = None,
        pid: int | None = None,
        tid: int | None = None,
        start_ns: int | None = None,
        end_ns: int | None = None,
    ) -> pd.DataFrame:
        """Scheduling events in the window, in the order of time; columns as in schema.SCHED."""
        return self._log("sched", columns, start_ns, end_ns, _equal(pid=pid, tid=tid))

    def cputime(self) -> pd.DataFrame:
        """Samples of CPU time, where there are no scheduling events; columns as in schema.CPUTIME."""
        return self._log("cputime", None, None, None, [])

    def usage(self) -> pd.DataFrame:
        """psutil samples; columns as in schema.USAGE."""
        return self._log("usage", None, None, None, [])

    def arguments(
        self,
        columns: Sequence[str] | None = None,
        pid: int | None = None,
        tid: int | None = None,
        start_ns: int | None = None,
        end_ns: int | None = None,
    ) -> pd.DataFrame:
        """Tensors that native calls were given and returned, in the window; columns as in schema.ARGUMENTS."""
        return self._log("arguments", columns, start_ns, end_ns, _equal(pid=pid, tid=tid))

    def errors(self) -> pd.DataFrame:
        """Errors raised by native code; columns as in schema.ERRORS."""
        return self._log("errors", None, None, None, [])

    def losses(self) -> pd.DataFrame:
        """Windows in which events were lost; columns as in schema.LOSSES."""
        return self._log("losses", None, None, None, [])

    def functions(self) -> pd.DataFrame:
        """One row per function, in the order of func_id; columns as in schema.FUNCTIONS."""
        return self._keyed("functions")

    def threads(self) -> pd.DataFrame:
        """One row per thread, in the order of (pid, tid); columns as in schema.THREADS."""
        return self._keyed("threads")

    def processes(self) -> pd.DataFrame:
        """One row per process, in the order of pid; columns as in schema.PROCESSES."""
        return self._keyed("processes")

    def neighbours(self) -> pd.DataFrame:
        """One row per thread of other processes that was met, in the order of tid; columns as in schema.NEIGHBOURS."""
        return self._keyed("neighbours")

    def part(self, name: str, index: int, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows of table `name` in segment `index`, as Arrow; empty where it has none."""
        return self._load(TABLES[name], self._parts(name, [s for s in self.segments if s["index"] == index]), _known(TABLES[name], columns), [])

    def _parts(self, name: str, segments: Iterable[dict[str, Any]]) -> list[Path]:
        """Parts of the segments that the manifest lists: what a killed tracer left half-written is not ours."""
        return [self.directory / name / f"part-{s['index']:05d}.parquet" for s in segments if s["rows"].get(name, 0)]

    def _log(self, name: str, columns: Sequence[str] | None, start_ns: int | None, end_ns: int | None, where: list[pc.Expression]) -> pd.DataFrame:
        spec, segments = TABLES[name], self.segments
        if start_ns is not None:
            segments = [s for s in segments if s["end_ns"] > start_ns]
            where.append(pc.field("ts") >= start_ns)
        if end_ns is not None:
            # What a thread stamps it may hand over in a later segment; of a part that has nothing of the window the end is read.
            if name in ("sched", "usage"):
                segments = [s for s in segments if s["start_ns"] < end_ns]
            where.append(pc.field("ts") < end_ns)
        return to_frame(self._load(spec, self._parts(name, segments), _known(spec, columns), where), spec)

    def _by_call_id(self, spec: Table, columns: Sequence[str] | None, where: list[pc.Expression]) -> pd.DataFrame:
        """Rows of a derived table, in the order of call_id."""
        names = _known(spec, columns)
        table = self._load(spec, self._derived_parts(spec), list(dict.fromkeys([*names, "call_id"])), where)
        ids = table["call_id"].to_numpy()
        if np.any(ids[1:] < ids[:-1]):
            table = table.take(pa.array(np.argsort(ids, kind="stable")))
        return to_frame(table.select(names), spec)

    def _keyed(self, name: str) -> pd.DataFrame:
        spec = TABLES[name]
        frame = to_frame(self._load(spec, self._parts(name, self.segments), _known(spec, None), []), spec)
        return frame.drop_duplicates(list(spec.key), keep="last").sort_values(list(spec.key), ignore_index=True)

    def _load(self, spec: Table, parts: list[Path], columns: list[str], where: list[pc.Expression]) -> pa.Table:
        if not parts:
            return spec.arrow.empty_table().select(columns)
        condition = None
        for term in where:
            condition = term if condition is None else condition & term
        try:
            dataset = ds.dataset([str(p) for p in parts], schema=spec.arrow, format="parquet")
            table = dataset.to_table(columns=columns, filter=condition).unify_dictionaries()
        except (pa.ArrowException, OSError) as error:
            broken = next((p for p in parts if not _opens(p)), parts[0])
            raise TraceError(f"{broken} does not open: the trace is damaged; record it again.") from error
        for column in spec.columns:
            if column.absent is not None and column.name in columns and table[column.name].null_count:
                table = table.set_column(columns.index(column.name), column.name, table[column.name].fill_null(column.absent))
        return table

    def _derived_parts(self, spec: Table) -> list[Path]:
        if spec.name not in self._derived:
            kept = self.directory / spec.name
            if not _is_fresh(kept, self._derived_key(spec)):
                kept = self._rebuild(spec, kept)
            self._derived[spec.name] = sorted(kept.glob("part-*.parquet"))
        return self._derived[spec.name]

    def _derived_key(self, spec: Table) -> str:
        """What a derived table depends on: how it is derived, the schema, and which segments there are."""
        source = [_DERIVATION, spec.arrow.to_string(), self.manifest["segments"], self.start_ns, self.end_ns]
        return hashlib.sha256(json.dumps(source, sort_keys=True).encode()).hexdigest()

    def _rebuild(self, spec: Table, kept: Path) -> Path:
        """Build the table beside `kept` and move it there whole; where we may not write, keep it elsewhere."""
        try:
            fresh = Path(tempfile.mkdtemp(prefix=f".{kept.name}-", dir=self.directory))
        except OSError:
            self._temporary = self._temporary or tempfile.TemporaryDirectory(prefix="pytrace-ebpf-")
            kept, fresh = Path(self._temporary.name) / kept.name, Path(self._temporary.name) / f"fresh-{kept.name}"
            fresh.mkdir()
        try:
            self._derive[spec.name](self, fresh)
            (fresh / _KEY_FILE).write_text(json.dumps({"key": self._derived_key(spec)}))
            fresh.chmod(0o755)
            shutil.rmtree(kept, ignore_errors=True)
            try:
                fresh.rename(kept)
            except OSError:  # another reader was faster; its rows are as good
                if not _is_fresh(kept, self._derived_key(spec)):
                    raise
        except OSError as error:
            raise TraceError(f"{kept} cannot be written: {error.strerror}.") from error
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
        return kept


class Layers(Sequence[pd.DataFrame]):
    """The layers of one thread: layers[d] holds its calls of depth d, in the order of call_id."""

    def __init__(self, trace: Trace, tid: int) -> None:
        self._trace, self._tid = trace, tid
        depths = trace.calls(columns=["depth"], tid=tid)["depth"]
        self._count = int(depths.max()) + 1 if len(depths) else 0

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, depth: Any) -> Any:
        if isinstance(depth, slice):
            return [self[d] for d in range(*depth.indices(self._count))]
        if not -self._count <= depth < self._count:
            raise IndexError(f"thread {self._tid} has {self._count} layers")
        return self._trace.calls(tid=self._tid, depth=depth % self._count)

    def __iter__(self) -> Iterator[pd.DataFrame]:
        return (self[depth] for depth in range(self._count))


def _equal(**wanted: int | str | None) -> list[pc.Expression]:
    return [pc.field(name) == value for name, value in wanted.items() if value is not None]


def _overlap(start_ns: int | None, end_ns: int | None) -> list[pc.Expression]:
    after = [] if start_ns is None else [(pc.field("end_ns") > start_ns) | (pc.field("start_ns") >= start_ns)]
    return after if end_ns is None else [*after, pc.field("start_ns") < end_ns]


def _between(ids: tuple[int, int] | None) -> list[pc.Expression]:
    return [] if ids is None else [pc.field("call_id") >= ids[0], pc.field("call_id") <= ids[1]]


def _known(spec: Table, columns: Sequence[str] | None) -> list[str]:
    known = [c.name for c in spec.columns]
    for name in columns or ():
        if name not in known:
            raise KeyError(f"{spec.name} has no column {name}; it has {', '.join(known)}")
    return known if columns is None else list(columns)


def _opens(path: Path) -> bool:
    try:
        ds.dataset(str(path), format="parquet").count_rows()
    except (pa.ArrowException, OSError):
        return False
    return True


def _is_fresh(kept: Path, key: str) -> bool:
    try:
        return bool(json.loads((kept / _KEY_FILE).read_text())["key"] == key)
    except (OSError, ValueError, KeyError):
        return False
