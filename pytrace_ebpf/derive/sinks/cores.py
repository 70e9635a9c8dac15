"""How a program used its cores: which thread and which function was on which, how many at once; no rows of calls, no timeline of all of it.

That is kept next to the trace's tables: a second report by core reads neither events nor switches, one of a trace that grew the new segments.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from pytrace_ebpf.derive.checkpoints import segment_keys
from pytrace_ebpf.derive.one_pass import run, run_grown
from pytrace_ebpf.derive.scheduling.core_times import AT_A_TIME, THREADS, CoreTimes, summed
from pytrace_ebpf.derive.scheduling.split import Timeline
from pytrace_ebpf.derive.scheduling.split import on_cores as having_a_core
from pytrace_ebpf.derive.scheduling.trace_timeline import before
from pytrace_ebpf.derive.sink import Needs, Sink
from pytrace_ebpf.derive.store import NO_STATE, State, checked_rows, load, packed, saved, unpacked
from pytrace_ebpf.rebuild.shards import Shards
from pytrace_ebpf.trace.conditions import are
from pytrace_ebpf.trace.derived import Pieces
from pytrace_ebpf.trace.manifest import machine_of
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.trace.schema import WAITS

FOLDER = "cores"
_SINCE = "since"  # of a state that goes on
_MOST_BYTES = 1 << 30
_DTYPES = {
    "threads_found": THREADS,
    "at_a_time_found": AT_A_TIME,
    "functions_found": np.dtype([("func_id", "i8"), ("cpu", "i8"), ("self_on_cpu_ns", "i8"), ("busy_cores", "f8")]),
}
_NEVER = 1 << 62
_CELL = np.dtype([("func_id", "i8"), ("cpu", "i8"), ("ns", "i8")])
_MEANWHILE = np.dtype([("func_id", "i8"), ("wall", "i8"), ("busy", "i8")])

Rows = npt.NDArray[np.void]


@dataclass(frozen=True)
class CoreSums:
    """`threads`: cpu, pid, tid, busy_ns, slices (times it got the core), by core, the busiest thread first; `at_a_time`: cores (from 0), ns that so
    many were busy at once; `functions`: func_id, cpu, self_on_cpu_ns (without the calls below), most first, and busy_cores (float, the same in a
    function's rows): mean cores that its process had within its outermost calls, null of an unknown function."""

    threads: pd.DataFrame
    at_a_time: pd.DataFrame
    functions: pd.DataFrame


class OnCores(Sink):
    """Finds all that. Memory is bounded by some segments, what is open, threads, functions and cores."""

    def __init__(self, trace: Trace) -> None:
        super().__init__(trace)
        self.found: CoreSums | None = None
        self._end_ns = trace.end_ns if trace.whole is not trace or trace.manifest["state"] == "complete" else _NEVER

    def needs(self) -> Needs:
        return Needs(switches=True)

    def begin(self, engines: Shards, first: int, state: State | None) -> None:
        trace = self.trace
        self._timeline = Timeline(trace.whole.processes(), trace.whole.losses(), before(trace)[1], machine_of(trace.manifest))
        self._times, self._earlier, self._engines = CoreTimes(trace.start_ns), _Cells(), engines
        if state is not None:
            self._earlier = _Cells(checked_rows(state["cells"], _CELL), checked_rows(state["meanwhile"], _MEANWHILE))
            self._timeline.resume(state)
            self._times.resume(state)
        for engine in engines.engines:
            engine.want_cores({})

    def state(self) -> State:
        cells = self._earlier.added(self._engines)
        return {**self._timeline.state(), **self._times.state(), "cells": cells.on, "meanwhile": cells.meanwhile}

    def scheduled(self, first: int, switches: Sequence[pa.Table], ends_ns: Sequence[int]) -> None:
        rows = self._timeline.take(pa.concat_tables(switches), np.repeat(np.arange(len(switches)), [len(own) for own in switches]), ends_ns)
        self._times.take(self._cut(having_a_core(rows)))
        curves = {pid: (curve.when, curve.total, curve.slope) for pid, curve in self._times.curves().items()}
        for engine in self._engines.engines:
            engine.want_cores(curves)

    def _cut(self, rows: pd.DataFrame) -> pd.DataFrame:
        """At the edges, and of the window's threads alone."""
        trace = self.trace
        rows = rows.assign(**{name: rows[name].clip(trace.start_ns, self._end_ns) for name in ("start_ns", "end_ns", "began_ns")})
        ends_here = ~rows["goes_on"] & (rows["start_ns"] > rows["began_ns"]) & (rows["start_ns"] < self._end_ns)
        rows = rows[(rows["end_ns"] > rows["start_ns"]) | ends_here]
        for name in ("pid", "tid"):
            rows = rows[are(rows[name], getattr(trace, name, None))]
        return rows

    def grouped(self, place: int) -> None:
        start_ns = self.segments[place]["start_ns"]
        self._times.settle(min(start_ns, self.trace.end_ns))  # a thread hands over an event one segment later at most

    def end(self) -> None:
        self._earlier = self._earlier.added(self._engines)
        self.found = self.sums()

    def sums(self) -> CoreSums:
        """What was found."""
        self._times.settle(self.trace.end_ns)
        return CoreSums(pd.DataFrame(self._times.threads()), pd.DataFrame(self._times.at_a_time()), self._earlier.table())


def nothing(trace: Trace) -> CoreSums:
    """That nobody had a core."""
    times = CoreTimes(trace.start_ns)
    times.settle(trace.end_ns)
    return CoreSums(pd.DataFrame(times.threads()), pd.DataFrame(times.at_a_time()), _Cells().table())


@dataclass(frozen=True)
class _Cells:
    """Of calls that have ended: by function and core their own CPU time, and by function what its outermost took, and their process had of the cores."""

    on: Rows = field(default_factory=lambda: np.zeros(0, _CELL))
    meanwhile: Rows = field(default_factory=lambda: np.zeros(0, _MEANWHILE))

    def added(self, engines: Shards) -> "_Cells":
        """With those that the engines found."""
        on, meanwhile = [self.on], [self.meanwhile]
        for engine in engines.engines:
            cells, by_function = engine.cores()
            on.append(cells[list(_CELL.names or ())].astype(_CELL))
            there = np.flatnonzero((by_function["wall"] != 0) | (by_function["busy"] != 0))
            rows = np.zeros(len(there), _MEANWHILE)
            rows["func_id"], rows["wall"], rows["busy"] = there, by_function["wall"][there], by_function["busy"][there]
            meanwhile.append(rows)
        return _Cells(summed(np.concatenate(on), ["func_id", "cpu"]), summed(np.concatenate(meanwhile), ["func_id"]))

    def table(self) -> pd.DataFrame:
        """CoreSums.functions."""
        table = pd.DataFrame(self.on).rename(columns={"ns": "self_on_cpu_ns"})
        of = self.meanwhile
        rate = pd.Series(np.divide(of["busy"], of["wall"], out=np.full(len(of), np.nan), where=of["wall"] > 0), of["func_id"])
        table["busy_cores"] = rate.reindex(table["func_id"]).to_numpy()
        table = table[table["self_on_cpu_ns"] != 0]
        return table.sort_values("self_on_cpu_ns", ascending=False, kind="stable", ignore_index=True)


def core_sums(trace: Trace) -> CoreSums:
    """Those of a trace, which are kept, or of a window of it. Where switches were not recorded nobody had a core."""
    return _kept(trace) if trace.whole is trace else sums_of(trace)


def sums_of(trace: Trace) -> CoreSums:
    """The same, of what nothing is kept of. Where the waits of a whole trace are not derived yet, they are, in the same pass."""
    if not _known(trace):
        return nothing(trace)
    sink = OnCores(trace)
    if trace.whole is trace:
        trace.derive(WAITS.name, beside=[sink])
    if sink.found is None:
        run(trace, sink)
    assert sink.found is not None
    return sink.found


def _known(trace: Trace) -> bool:
    return trace.scheduling["source"] in ("bpf", "perf")


def _kept(trace: Trace) -> CoreSums:
    pieces, keys = trace.pieces(FOLDER), list(segment_keys(trace))
    complete, names = trace.manifest["state"] == "complete", set(pieces.names())
    last = next((place for place in reversed(range(len(keys))) if keys[place] in names), None)
    state = None if last is None else _read(pieces, keys[last])
    if state is not None and last == len(keys) - 1 and (_SINCE in state) != complete:
        return _sums(state)
    growth = _Growth(trace, 0 if state is None or last is None else last + 1, state or {})
    if growth.first or (_known(trace) and not complete):
        sink = OnCores(trace)
        run_grown(trace, sink, growth)
        assert sink.found is not None
        found = sink.found
    else:
        found = sums_of(trace)
    if keys and (complete or growth.kept):
        for name in names:
            pieces.drop(name)
        pieces.keep(keys[-1], packed(growth.kept | _packed(found)))
    return found


class _Growth:
    """From a state of the `first` segments; `kept`: that of all of a trace that still grows."""

    def __init__(self, trace: Trace, first: int, state: State) -> None:
        self.first, self.kept = first, State()
        self._segments, self._complete = len(trace.segments), trace.manifest["state"] == "complete"
        self._state = state

    def resume(self, engines: Shards) -> State:
        load(engines, self._state)
        return self._state

    def refuse(self) -> None:
        self.first = 0

    def due(self, segments: int) -> bool:
        return segments == self._segments and not self._complete

    def settle(self, engines: Shards, state: Mapping[str, npt.NDArray[Any]]) -> None:
        if not engines.met_unknown:  # a name may come late
            self.kept = {**state, **saved(engines)}


def _read(pieces: Pieces, name: str) -> State | None:
    """None of what is damaged."""
    try:
        state = unpacked(pieces.read(name, _MOST_BYTES) or b"")
        for rows in (checked_rows(state[name], dtype) for name, dtype in _DTYPES.items()):
            if any((rows[column] < -1).any() for column in rows.dtype.names or ()):
                return None
    except NO_STATE:
        return None
    return state


def _sums(state: State) -> CoreSums:
    return CoreSums(*(pd.DataFrame(state[name]) for name in _DTYPES))


def _packed(found: CoreSums) -> State:
    out = {}
    for (name, dtype), frame in zip(_DTYPES.items(), (found.threads, found.at_a_time, found.functions), strict=True):
        out[name] = np.zeros(len(frame), dtype)
        for column in dtype.names or ():
            out[name][column] = frame[column].to_numpy()
    return out
