"""How a trace used its cores, as sums: kept next to its tables, so that a second report by core reads neither events nor switches."""

import json
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import pandas as pd

from pytrace_ebpf.analyze.rebuilt.checkpoints import segment_keys
from pytrace_ebpf.analyze.rebuilt.on_cores import functions_on_cores
from pytrace_ebpf.analyze.time.by_core import by_core
from pytrace_ebpf.analyze.time.cores import parallelism
from pytrace_ebpf.analyze.time.split import on_cores
from pytrace_ebpf.analyze.time.trace_timeline import intervals
from pytrace_ebpf.trace.reader import Trace

FOLDER = "cores"
_MOST_BYTES = 1 << 28
_SLICES = ["pid", "tid", "start_ns", "end_ns", "state", "cpu"]  # of a timeline, where a thread had a core
_DTYPES = {
    "threads": np.dtype([(name, "<i8") for name in ("cpu", "pid", "tid", "busy_ns", "slices")]),
    "at_a_time": np.dtype([("cores", "<i8"), ("ns", "<i8")]),
    "functions": np.dtype([("func_id", "<i8"), ("cpu", "<i8"), ("self_on_cpu_ns", "<i8"), ("busy_cores", "<f8")]),
}


@dataclass(frozen=True)
class CoreSums:
    """`threads`: by_core.by_core's rows without names; `at_a_time`: cores.parallelism's; `functions`: on_cores.functions_on_cores's, none
    where no switches were recorded."""

    threads: pd.DataFrame
    at_a_time: pd.DataFrame
    functions: pd.DataFrame

    def packed(self) -> bytes:
        """As bytes."""
        columns = {name: _rows(getattr(self, name), dtype) for name, dtype in _DTYPES.items()}
        return json.dumps({name: len(rows) for name, rows in columns.items()}).encode() + b"\n" + b"".join(r.tobytes() for r in columns.values())

    @classmethod
    def unpacked(cls, content: bytes) -> "CoreSums | None":
        """None of what is damaged."""
        try:
            header, _, body = content.partition(b"\n")
            lengths, at, found = json.loads(header), 0, {}
            for name, dtype in _DTYPES.items():
                size = int(lengths[name]) * dtype.itemsize
                found[name] = pd.DataFrame(np.frombuffer(body[at : at + size], dtype, int(lengths[name])))
                at += size
        except (ValueError, KeyError, TypeError, RecursionError):
            return None
        negative = any((frame < -1).any(axis=None) for frame in found.values())
        return None if negative or at != len(body) else cls(**found)


_HELD: WeakKeyDictionary[Trace, CoreSums] = WeakKeyDictionary()


def core_sums(trace: Trace) -> CoreSums:
    """Those of a trace, which are kept once it is complete, or of a window of it."""
    if trace not in _HELD:
        _HELD[trace] = _kept(trace)
    return _HELD[trace]


def _kept(trace: Trace) -> CoreSums:
    pieces, key = trace.pieces(FOLDER), ""
    if trace.whole is trace and trace.manifest["state"] == "complete":
        *_, key = "", *segment_keys(trace)
    kept = pieces.read(key, _MOST_BYTES) if key else None
    found = CoreSums.unpacked(kept) if kept is not None else None
    if found is None:
        found = _summed(trace)
        if key:
            for name in pieces.names():
                pieces.drop(name)
            pieces.keep(key, found.packed())
    return found


def _summed(trace: Trace) -> CoreSums:
    timeline = pd.concat([on_cores(rows)[_SLICES] for rows in intervals(trace)], ignore_index=True)
    known = trace.scheduling["source"] in ("bpf", "perf")
    functions = functions_on_cores(trace, timeline) if known else pd.DataFrame(np.zeros(0, _DTYPES["functions"]))
    frames = (by_core(timeline, trace.threads()), parallelism(timeline, trace.start_ns, trace.end_ns), functions)
    return CoreSums(*(pd.DataFrame(_rows(frame, dtype)) for frame, dtype in zip(frames, _DTYPES.values(), strict=True)))


def _rows(frame: pd.DataFrame, dtype: "np.dtype[np.void]") -> npt.NDArray[np.void]:
    rows = np.zeros(len(frame), dtype)
    for name in dtype.names or ():
        rows[name] = frame[name].to_numpy()
    return rows
