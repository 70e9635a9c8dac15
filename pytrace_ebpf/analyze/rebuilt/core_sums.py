"""How a trace used its cores, kept next to its tables: a second report by core reads neither events nor switches, one of a trace that grew the new segments."""

import zipfile
from weakref import WeakKeyDictionary

import numpy as np
import pandas as pd

from pytrace_ebpf.analyze.rebuilt.checkpoints import segment_keys
from pytrace_ebpf.analyze.rebuilt.incremental import State, checked_rows, load, packed, saved, unpacked
from pytrace_ebpf.analyze.rebuilt.on_cores import CoreSums, OnCores
from pytrace_ebpf.analyze.rebuilt.pass_observers import observing
from pytrace_ebpf.analyze.rebuilt.passes import shards_of
from pytrace_ebpf.analyze.rebuilt.sums import within
from pytrace_ebpf.analyze.time.core_times import AT_A_TIME, THREADS
from pytrace_ebpf.errors import TraceError
from pytrace_ebpf.rebuild.shards import Shards
from pytrace_ebpf.trace.derived import Pieces
from pytrace_ebpf.trace.reader import Trace

FOLDER = "cores"
_SINCE = "since"  # of a state that goes on
_MOST_BYTES = 1 << 30
_DTYPES = {
    "threads_found": THREADS,
    "at_a_time_found": AT_A_TIME,
    "functions_found": np.dtype([("func_id", "i8"), ("cpu", "i8"), ("self_on_cpu_ns", "i8"), ("busy_cores", "f8")]),
}
_NO_STATE = (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, TraceError)
_HELD: WeakKeyDictionary[Trace, CoreSums] = WeakKeyDictionary()


def core_sums(trace: Trace) -> CoreSums:
    """Those of a trace, which are kept, or of a window of it. Where switches were not recorded nobody had a core."""
    if trace not in _HELD:
        _HELD[trace] = _kept(trace) if trace.whole is trace else sums_of(trace)
    return _HELD[trace]


def sums_of(trace: Trace) -> CoreSums:
    """The same, of what nothing is kept of. Where the waits of a whole trace are not derived yet, they are, in the same pass."""
    finds = OnCores(trace)
    if not _known(trace):
        return finds.sums()
    if trace.whole is trace:
        with observing(trace, finds):
            next(trace.waits_by_part(["kind"]), None)
    if finds.found:
        return finds.found
    if trace.whole is trace:
        return finds.pass_over(shards_of(trace), 0, None)
    engine, first, last = within(trace, rows=False)
    return finds.pass_over(Shards([engine]), first, last)


def _known(trace: Trace) -> bool:
    return trace.scheduling["source"] in ("bpf", "perf")


def _kept(trace: Trace) -> CoreSums:
    pieces, keys = trace.pieces(FOLDER), list(segment_keys(trace))
    complete, names = trace.manifest["state"] == "complete", set(pieces.names())
    last = next((place for place in reversed(range(len(keys))) if keys[place] in names), None)
    state = None if last is None else _read(pieces, keys[last])
    if state is not None and last == len(keys) - 1 and (_SINCE in state) != complete:
        return _sums(state)
    kept: State = {}
    if (state is not None and last is not None) or (_known(trace) and not complete):
        found = _grown(trace, state or {}, (last or 0) + 1, kept)
    else:
        found = sums_of(trace)
    if keys and (complete or kept):
        for name in names:
            pieces.drop(name)
        pieces.keep(keys[-1], packed(kept | _packed(found)))
    return found


def _grown(trace: Trace, state: State, first: int, kept: State) -> CoreSums:
    """Go on from a state of the `first` segments, where it is one; `kept` gets that of all of a trace that still grows."""
    engines, finds = shards_of(trace), OnCores(trace)
    try:
        load(engines, state)
        finds.resume(state)
    except _NO_STATE:
        first, engines, finds = 0, shards_of(trace), OnCores(trace)

    def settle() -> None:
        if trace.manifest["state"] != "complete" and not engines.met_unknown:  # a name may come late
            kept.update(finds.state(engines) | saved(engines))

    return finds.pass_over(engines, first, None, settle)


def _read(pieces: Pieces, name: str) -> State | None:
    """None of what is damaged."""
    try:
        state = unpacked(pieces.read(name, _MOST_BYTES) or b"")
        for rows in (checked_rows(state[name], dtype) for name, dtype in _DTYPES.items()):
            if any((rows[column] < -1).any() for column in rows.dtype.names or ()):
                return None
    except _NO_STATE:
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
