"""How a trace used its cores, kept next to its tables: a second report by core reads neither events nor switches, one of a trace that grew the new segments."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from pytrace_ebpf.derive.checkpoints import segment_keys
from pytrace_ebpf.derive.one_pass import run, run_grown
from pytrace_ebpf.derive.scheduling.core_times import AT_A_TIME, THREADS
from pytrace_ebpf.derive.sinks.on_cores import CoreSums, OnCores, nothing
from pytrace_ebpf.derive.store import NO_STATE, State, checked_rows, load, packed, saved, unpacked
from pytrace_ebpf.rebuild.shards import Shards
from pytrace_ebpf.trace.derived import Pieces
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
        self._trace, self._state = trace, state

    def resume(self, engines: Shards) -> State:
        load(engines, self._state)
        return self._state

    def refuse(self) -> None:
        self.first = 0

    def due(self, segments: int) -> bool:
        return segments == len(self._trace.segments) and self._trace.manifest["state"] != "complete"

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
