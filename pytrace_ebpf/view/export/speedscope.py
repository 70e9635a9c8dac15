"""A speedscope file (https://www.speedscope.app/file-format-schema.json): one profile per thread, in nanoseconds.

Of few calls it holds each with its begin and end ("evented"); of many the self time of every path ("sampled"), from the tree.
"""

import json
from typing import Any, BinaryIO

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from pytrace_ebpf.analyze.samples.sampling import period_of
from pytrace_ebpf.analyze.time.preorder import begin_end
from pytrace_ebpf.view.export.paths import NO_CONTEXT, paths

SUFFIX = ".speedscope.json"
COLUMNS = ("call_id", "last_descendant_id", "depth", "pid", "tid", "func_id", "start_ns", "end_ns")
_CHUNK = 1 << 20
MOST_CALLS = 1_000_000  # that are written one by one: 70 bytes each, and a browser has to read them


def write(trace: Any, out: BinaryIO) -> bool:
    """Write the calls of `trace` to `out`; times count from the start of the recording. Returns whether they stand there one by one."""
    functions, tree = trace.functions(), trace.tree()
    singly = int(tree["calls"].sum()) <= MOST_CALLS and period_of(trace) is None
    origin = int(trace.manifest["start_ns"])
    frames = [{"name": "(unknown)"}]
    places = functions[["qualname", "file", "first_line"]].itertuples(index=False)
    frames += [{"name": n, "file": f} | ({"line": int(line)} if line > 0 else {}) for n, f, line in places]
    frames += [{"name": "(further contexts)"}]
    frame_of = pd.Series(np.arange(1, len(frames)), index=[*functions["func_id"], NO_CONTEXT])
    names = {(t.pid, t.tid): t.name for t in trace.threads()[["pid", "tid", "name"]].itertuples(index=False)}
    start = {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "exporter": "pytrace-ebpf",
        "name": str((trace.manifest.get("target") or {}).get("command", "")),
        "shared": {"frames": frames},
    }
    out.write(json.dumps(start).encode()[:-1] + b', "profiles": [')
    calls = trace.calls(columns=list(COLUMNS)) if singly else tree
    for i, ((pid, tid), of_thread) in enumerate(calls.groupby(["pid", "tid"])):
        profile = {
            "type": "evented" if singly else "sampled",
            "name": f"{names.get((pid, tid), 'thread')} (pid {pid}, tid {tid})" if pid >= 0 else "further contexts",
        }
        if singly:
            whole = {"startValue": int(of_thread["start_ns"].min()) - origin, "endValue": int(of_thread["end_ns"].max()) - origin}
        else:
            whole = {"startValue": 0, "endValue": int(of_thread["self_ns"][of_thread["depth"] >= 0].sum())}
        out.write((b",\n" if i else b"\n") + json.dumps({**profile, "unit": "nanoseconds", **whole}).encode()[:-1])
        (_events if singly else _samples)(of_thread, frame_of, origin, out)
    out.write(b"\n]}\n")
    return singly


def _samples(tree: pd.DataFrame, frame_of: "pd.Series[int]", _origin: int, out: BinaryIO) -> None:
    """The paths of one thread and the self time of each."""
    frames = frame_of.to_dict()
    weights: list[int] = []
    for path, total in paths(tree, tree["self_ns"].to_numpy(np.int64)):
        stack = ",".join(str(frames.get(func, 0)) for func in path)
        out.write(b"%s[%s]" % (b",\n" if weights else b', "samples": [', stack.encode()))
        weights.append(total)
    out.write((b'], "weights": ' if weights else b', "samples": [], "weights": ') + json.dumps(weights).encode() + b"}")


def _events(calls: pd.DataFrame, frame_of: "pd.Series[int]", origin: int, out: BinaryIO) -> None:
    """The begins and ends of one thread's calls, as JSON text made column by column."""
    out.write(b', "events": [')
    row, is_end = begin_end(calls)
    frame = calls["func_id"].map(frame_of).fillna(0).to_numpy(np.int64)
    start, end = (calls[c].to_numpy(np.int64) - origin for c in ("start_ns", "end_ns"))
    for at in range(0, len(row), _CHUNK):
        rows, ends = row[at : at + _CHUNK], is_end[at : at + _CHUNK]
        kind = pc.if_else(pa.array(ends), ',\n{"type":"C","frame":', ',\n{"type":"O","frame":')
        frames = pa.array(frame[rows]).cast(pa.string())
        times = pa.array(np.where(ends, end[rows], start[rows])).cast(pa.string())
        text = pc.binary_join_element_wise(kind, frames, ',"at":', times, "}", "")
        # An Arrow string column is one run of bytes: it is the file's text, but for the first comma.
        _, offsets, characters = text.buffers()
        out.write(characters[0 if at else 1 : int(np.frombuffer(offsets, np.int32)[len(text)])])
    out.write(b"]}")
