"""Chrome's trace event format (JSON), for chrome://tracing, Perfetto, speedscope and what else reads it: every call of every thread.

Begins ("B") and ends ("E") in the order of each thread's stack, a piece of the trace at a time; µs since the start of the recording. It has no states
of threads: perfetto's own format has them. "Trace Event Format", https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

import json
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from pytrace_ebpf.analyze.rebuilt.edges import ENDS, Edges, edges
from pytrace_ebpf.printable import printable
from pytrace_ebpf.view.export.column_text import written

SUFFIX = ".chrome.json"
_CHUNK = 1 << 18
_FRACTIONS = pa.array([f".{ns:03d}}},\n" for ns in range(1000)])

Ints = npt.NDArray[np.int64]


def write(trace: Any, out: BinaryIO) -> None:
    """Write the calls of `trace` or of a window of it; memory is bounded by a segment."""
    names = _Names(trace.functions())
    origin = trace.whole.start_ns
    out.write(b'{"displayTimeUnit":"ns","otherData":{"recorder":"pytrace-ebpf"},"traceEvents":[\n')
    for piece in edges(trace):
        for at in range(0, len(piece.ts), _CHUNK):
            some = slice(at, at + _CHUNK)
            _write(Edges(piece.key[some], piece.ts[some] - origin, piece.func_id[some]), names, out)
    out.write(",\n".join(_described(trace)).encode() + b"\n]}\n")


def _write(piece: Edges, names: "_Names", out: BinaryIO) -> None:
    keys, thread = np.unique(piece.key, return_inverse=True)
    whose = pa.array([f',"pid":{key >> 32},"tid":{key & 0xFFFFFFFF},"ts":' for key in keys.tolist()])
    us, ns = np.divmod(piece.ts, 1000)
    columns = names.of(piece.func_id), whose.take(pa.array(thread.reshape(-1))), pa.array(us).cast(pa.string()), _FRACTIONS.take(pa.array(ns))
    written(pc.binary_join_element_wise(*columns, ""), out)


class _Names:
    """The first part of every event: of an end, of a call that is not known, and of each function's calls."""

    def __init__(self, functions: pd.DataFrame) -> None:
        self._number = np.zeros(int(functions["func_id"].max()) + 3 if len(functions) else 2, np.int64)
        texts = ['{"ph":"E"', '{"ph":"B","name":"(unknown)"']
        self._number[1] = 1
        for func_id, name, file, line, layer in functions[["func_id", "qualname", "file", "first_line", "function_layer"]].itertuples(index=False):
            place = f"{file}:{line}" if line > 0 else file
            said = json.dumps(printable(f"{name} ({place})" if place else name))
            self._number[func_id + 2] = len(texts)
            texts.append(f'{{"ph":"B","cat":{json.dumps(layer)},"name":{said}')
        self._texts = pa.array(texts)

    def of(self, func_id: Ints) -> pa.Array:
        """Of edges, by their func_id: ENDS, -1 for one that is not known."""
        at = np.where(func_id == ENDS, 0, np.where(func_id < 0, 1, func_id + 2))
        return self._texts.take(pa.array(self._number[np.where(at < len(self._number), at, 1)]))


def _described(trace: Any) -> list[str]:
    """Events that name the processes and threads."""
    commands = trace.processes().drop_duplicates("pid", keep="last")[["pid", "command"]].itertuples(index=False)
    threads = trace.threads().drop_duplicates(["pid", "tid"], keep="last")[["pid", "tid", "name"]].itertuples(index=False)
    rows = [("process_name", pid, pid, command) for pid, command in commands]
    rows += [("thread_name", pid, tid, name) for pid, tid, name in threads]
    return [
        json.dumps({"ph": "M", "name": what, "pid": int(pid), "tid": int(tid), "args": {"name": printable(str(name))}})
        for what, pid, tid, name in rows
    ] or ['{"ph":"M","name":"trace","pid":0,"tid":0}']
