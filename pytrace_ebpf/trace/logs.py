"""Tables of a trace that are read whole, as pandas.DataFrame."""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from pytrace_ebpf.trace.conditions import Wanted, equal, overlap
from pytrace_ebpf.trace.declared import STREAMS
from pytrace_ebpf.trace.frames import to_frame
from pytrace_ebpf.trace.parts import Part
from pytrace_ebpf.trace.schema import PROFILE, PROFILE_WAITS, STACKS, TABLES, Table

_FEW = 1 << 16  # rows of a table that is asked for again and again


class Logs:
    """What a Trace has of these; of a window of one the rows within."""

    manifest: dict[str, Any]
    _held: dict[str, pd.DataFrame]  # those with a key, by name

    @abstractmethod
    def _log(self, name: str, columns: Sequence[str] | None, start_ns: int | None, end_ns: int | None, where: list[pc.Expression]) -> pd.DataFrame:
        """Rows of a table that have a moment."""

    @abstractmethod
    def _parts(self, name: str) -> list[Part]:
        """Parts of a table."""

    @abstractmethod
    def _load(self, spec: Table, parts: list[Part], columns: list[str], where: list[pc.Expression]) -> pa.Table:
        """Rows of parts."""

    @property
    def throttling(self) -> bool:
        """Whether waits for a CPU quota were told apart from others for a core."""
        return bool(self.scheduling.get("throttling"))

    @property
    def rivals_known(self) -> bool:
        """Whether it was recorded who had the cores that threads waited for."""
        return bool(self.scheduling.get("external_switches"))

    @property
    def scheduling(self) -> dict[str, Any]:
        """Where scheduling came from: `source` ("bpf", "perf", "cputime" or None for nowhere) and `why`, a sentence."""
        return {"source": "bpf", "why": ""} | (self.manifest.get("scheduling") or {})

    def events(
        self,
        columns: Sequence[str] | None = None,
        pid: int | None = None,
        tid: Wanted = None,
        start_ns: int | None = None,
        end_ns: int | None = None,
    ) -> pd.DataFrame:
        """Function events in the window; columns as in schema.EVENTS, in each thread's own order."""
        return self._log("events", columns, start_ns, end_ns, equal(pid=pid, tid=tid))

    def sched(
        self,
        columns: Sequence[str] | None = None,
        pid: int | None = None,
        tid: Wanted = None,
        start_ns: int | None = None,
        end_ns: int | None = None,
    ) -> pd.DataFrame:
        """Scheduling events in the window, in the order of time; columns as in schema.SCHED."""
        return self._log("sched", columns, start_ns, end_ns, equal(pid=pid, tid=tid))

    def left_out(self) -> pd.DataFrame:
        """Functions that were not recorded for a time, in the order of (func_id, from_ns); columns as in schema.LEFT_OUT."""
        return self._keyed("left_out")

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

    def external_switches(self) -> pd.DataFrame:
        """One row each time a thread of another process left a core that a traced one waited for; columns as in schema.EXTERNAL_SWITCHES."""
        return self._log("external_switches", None, None, None, [])

    def resources(self) -> pd.DataFrame:
        """One row per file, socket or the like that was waited for, in the order of resource_id; columns as in schema.RESOURCES."""
        return self._keyed("resources")

    def cputime(self) -> pd.DataFrame:
        """Samples of CPU time, where there are no scheduling events; columns as in schema.CPUTIME."""
        return self._log("cputime", None, None, None, [])

    def usage(self) -> pd.DataFrame:
        """psutil samples; columns as in schema.USAGE."""
        return self._log("usage", None, None, None, [])

    def errors(self) -> pd.DataFrame:
        """Errors raised by native code; columns as in schema.ERRORS."""
        return self._log("errors", None, None, None, [])

    def samples(self) -> pd.DataFrame:
        """Samples of threads that had a core; columns as in schema.SAMPLES."""
        return self._log("samples", None, None, None, [])

    def stacks(self) -> pd.DataFrame:
        """The stacks that samples name, of all segments that the window touches; columns as in schema.STACKS."""
        return to_frame(self._load(STACKS, self._parts("stacks"), STACKS.known(None), []), STACKS)

    def profile(
        self, columns: Sequence[str] | None = None, pid: int | None = None, start_ns: int | None = None, end_ns: int | None = None
    ) -> pd.DataFrame:
        """What a daemon summed of samples, of the windows that overlap [start_ns, end_ns); columns as in schema.PROFILE."""
        found = list(self.profile_by_part(columns, pid, start_ns, end_ns))
        return to_frame(pa.concat_tables(found) if found else PROFILE.arrow.empty_table().select(PROFILE.known(columns)), PROFILE)

    def profile_by_part(
        self, columns: Sequence[str] | None = None, pid: int | None = None, start_ns: int | None = None, end_ns: int | None = None
    ) -> Iterator[pa.Table]:
        """The rows of profile(), some whole windows at a time: in bounded memory."""
        for part in self._parts("profile"):
            yield self._load(PROFILE, [part], PROFILE.known(columns), [*equal(pid=pid), *overlap(start_ns, end_ns)])

    def profile_waits(self, pid: int | None = None, start_ns: int | None = None, end_ns: int | None = None) -> pd.DataFrame:
        """What threads waited for, as a daemon summed it, of the windows that overlap [start_ns, end_ns); columns as in schema.PROFILE_WAITS."""
        rows = self._load(PROFILE_WAITS, self._parts("profile_waits"), PROFILE_WAITS.known(None), [*equal(pid=pid), *overlap(start_ns, end_ns)])
        return to_frame(rows, PROFILE_WAITS)

    def losses(self) -> pd.DataFrame:
        """Windows in which events were lost; columns as in schema.LOSSES."""
        return self._log("losses", None, None, None, [])

    def _keyed(self, name: str) -> pd.DataFrame:
        if name not in self._held:
            spec = TABLES[name]
            frame = to_frame(self._load(spec, self._parts(name), spec.known(None), []), spec)
            frame = frame.drop_duplicates(list(spec.key), keep="last").sort_values(list(spec.key), ignore_index=True)
            if len(frame) > _FEW:
                pa.default_memory_pool().release_unused()  # what it was unpacked in is as large as it is
                return frame
            self._held[name] = frame
        return self._held[name].copy()


def _reader(table: Table) -> Callable[..., pd.DataFrame]:
    def rows(
        self: Logs,
        columns: Sequence[str] | None = None,
        pid: int | None = None,
        tid: Wanted = None,
        start_ns: int | None = None,
        end_ns: int | None = None,
    ) -> pd.DataFrame:
        return self._log(table.name, columns, start_ns, end_ns, equal(pid=pid, tid=tid))

    def keyed(self: Logs) -> pd.DataFrame:
        return self._keyed(table.name)

    made: Callable[..., pd.DataFrame] = keyed if table.key else rows
    made.__name__, made.__doc__ = table.name, table.meaning
    return made


for _table in (table for stream in STREAMS for table in stream.tables):
    if not hasattr(Logs, _table.name):
        setattr(Logs, _table.name, _reader(_table))
