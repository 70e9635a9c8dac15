"""Chrome's trace event format (JSON), for chrome://tracing, Perfetto, speedscope and what else reads it: every call of every thread.

Begins ("B") and ends ("E") in the order of each thread's stack, a piece of the trace at a time; µs since the start of the recording. It has no states
of threads: perfetto's own format has them. "Trace Event Format", https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

import json
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pandas as pd

from pytrace_ebpf.analyze.rebuilt.edges import ENDS, Edges, Stamped, edges
from pytrace_ebpf.printable import printable

SUFFIX = ".chrome.json"
_CHUNK = 1 << 18

Ints = npt.NDArray[np.int64]


def write(trace: Any, out: BinaryIO) -> None:
    """Write the calls of `trace` or of a window of it; memory is bounded by a segment."""
    texts = _Texts(trace.functions())
    origin = trace.whole.start_ns
    out.write(b'{"displayTimeUnit":"ns","otherData":{"recorder":"pytrace-ebpf"},"traceEvents":[\n')
    for piece in edges(trace):
        for at in range(0, len(piece.ts), _CHUNK):
            some = slice(at, at + _CHUNK)
            out.write(texts.rows(Edges(piece.key[some], piece.ts[some] - origin, piece.func_id[some])).data)
    out.write(",\n".join(_described(trace)).encode() + b"\n]}\n")


class _Texts:
    """What stands before the time of each event: of every function, and the end, of every thread."""

    def __init__(self, functions: pd.DataFrame) -> None:
        self._number = np.zeros(int(functions["func_id"].max()) + 3 if len(functions) else 2, np.int64)
        self._events = ['{"ph":"E"', '{"ph":"B","name":"(unknown)"']
        self._number[1] = 1
        for func_id, name, file, line, layer in functions[["func_id", "qualname", "file", "first_line", "function_layer"]].itertuples(index=False):
            place = f"{file}:{line}" if line > 0 else file
            said = json.dumps(printable(f"{name} ({place})" if place else name))
            self._number[func_id + 2] = len(self._events)
            self._events.append(f'{{"ph":"B","cat":{json.dumps(layer)},"name":{said}')

    def rows(self, piece: Edges) -> npt.NDArray[np.uint8]:
        """The events as they go into the file."""
        at = np.where(piece.func_id == ENDS, 0, np.where(piece.func_id < 0, 1, piece.func_id + 2))
        event = self._number[np.where(at < len(self._number), at, 1)]
        turns = np.flatnonzero(np.append(True, piece.key[1:] != piece.key[:-1]))  # of a thread: its events follow each other
        keys, thread = np.unique(piece.key[turns], return_inverse=True)
        pair = event * len(keys) + np.repeat(thread.reshape(-1), np.diff(np.append(turns, len(event))))
        pairs, which = _distinct(pair, len(self._events) * len(keys))
        whose = [f',"pid":{key >> 32},"tid":{key & 0xFFFFFFFF},"ts":' for key in keys.tolist()]
        texts = [self._events[pair // len(keys)] + whose[pair % len(keys)] for pair in pairs.tolist()]
        return Stamped(texts, "},\n").rows(which, piece.ts)


def _distinct(numbers: Ints, below: int) -> tuple[Ints, Ints]:
    """The different ones of `numbers`, all less than `below`, in order; and the place of each among them."""
    if below > _CHUNK:
        distinct, place = np.unique(numbers, return_inverse=True)
        return distinct, place.reshape(-1)
    there = np.zeros(below, np.int64)
    there[numbers] = 1
    return np.flatnonzero(there), (np.cumsum(there) - 1)[numbers]


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
