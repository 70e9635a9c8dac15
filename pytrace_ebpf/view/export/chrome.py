"""Chrome's trace event format (JSON), for chrome://tracing, Perfetto and what else reads it: every call of every thread.

Begins ("B") and ends ("E") in the order of each thread's stack, a piece of the trace at a time; µs since the start of the recording. It has no states
of threads: perfetto's own format has them. "Trace Event Format", https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

import json
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pandas as pd

from pytrace_ebpf.derive.edges import Written, edges
from pytrace_ebpf.printable import printable

SUFFIX = ".chrome.json"

Ints = npt.NDArray[np.int64]


def write(trace: Any, out: BinaryIO) -> None:
    """Write the calls of `trace` or of a window of it; memory is bounded by a segment."""
    written = Written(_events(trace.functions()), _of_threads, origin=trace.whole.start_ns, end=b"},\n")
    out.write(b'{"displayTimeUnit":"ns","otherData":{"recorder":"pytrace-ebpf"},"traceEvents":[\n')
    for piece in edges(trace):
        out.writelines(written.pieces(piece.rows, piece.keys))
    out.write(",\n".join(_described(trace)).encode() + b"\n]}\n")


def _events(functions: pd.DataFrame) -> list[bytes]:
    """What stands before an event's thread and time: of an end, of an unknown function, and of each by func_id."""
    unknown = '{"ph":"B","name":"(unknown)"'
    events = ['{"ph":"E"', unknown, *[unknown] * (int(functions["func_id"].max()) + 1 if len(functions) else 0)]
    for func_id, name, file, line, layer in functions[["func_id", "qualname", "file", "first_line", "function_layer"]].itertuples(index=False):
        place = f"{file}:{line}" if line > 0 else file
        said = json.dumps(printable(f"{name} ({place})" if place else name))
        events[func_id + 2] = f'{{"ph":"B","cat":{json.dumps(layer)},"name":{said}'
    return [event.encode() for event in events]


def _of_threads(keys: Ints) -> list[bytes]:
    return [f',"pid":{key >> 32},"tid":{key & 0xFFFFFFFF},"ts":'.encode() for key in keys.tolist()]


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
