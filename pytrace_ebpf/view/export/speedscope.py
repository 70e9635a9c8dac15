"""A speedscope file (https://www.speedscope.app/file-format-schema.json): one profile per thread, in nanoseconds.

Of few calls it holds each with its begin and end ("evented"); of many the self time of every path ("sampled"), from the tree.
"""

import json
from collections.abc import Iterator
from typing import Any, BinaryIO, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from pytrace_ebpf.analyze.samples.sampling import period_of
from pytrace_ebpf.derive.calls.preorder import begin_end
from pytrace_ebpf.view.export.call_paths import NO_CONTEXT, paths

SUFFIX = ".speedscope.json"
COLUMNS = ("call_id", "last_descendant_id", "depth", "pid", "tid", "func_id", "start_ns", "end_ns")
_CHUNK = 1 << 20
MOST_CALLS = 1_000_000  # that are written one by one: 70 bytes each, and a browser has to read them

Ints = npt.NDArray[np.int64]
_Thread: TypeAlias = tuple[tuple[int, int], dict[str, int], Iterator[bytes | pa.Buffer]]
"""pid and tid; begin and end; the rest of its profile."""


def write(trace: Any, out: BinaryIO) -> bool:
    """Write the calls of `trace` to `out`; times count from the start of the recording. Returns whether they stand there one by one."""
    functions, tree = trace.functions(), trace.tree()
    singly = int(tree["calls"].sum()) <= MOST_CALLS and period_of(trace) is None
    origin = int(trace.manifest["start_ns"])
    frame_of = pd.Series(np.arange(1, len(functions) + 2), index=np.append(functions["func_id"].to_numpy(np.int64), NO_CONTEXT))
    names = {(t.pid, t.tid): t.name for t in trace.threads()[["pid", "tid", "name"]].itertuples(index=False)}
    start = {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "exporter": "pytrace-ebpf",
        "name": str((trace.manifest.get("target") or {}).get("command", "")),
    }
    out.write(json.dumps(start).encode()[:-1] + b', "shared": {"frames": [')
    out.writelines(_frames(functions))
    out.write(b']}, "profiles": [')
    threads = _evented(trace.calls(columns=list(COLUMNS)), frame_of, origin) if singly else _sampled(tree, frame_of)
    for i, ((pid, tid), whole, pieces) in enumerate(threads):
        profile = {
            "type": "evented" if singly else "sampled",
            "name": f"{names.get((pid, tid), 'thread')} (pid {pid}, tid {tid})" if pid >= 0 else "further contexts",
        }
        out.write((b",\n" if i else b"\n") + json.dumps({**profile, "unit": "nanoseconds", **whole}).encode()[:-1])
        out.writelines(pieces)
    out.write(b"\n]}\n")
    return singly


def _frames(functions: pd.DataFrame) -> Iterator[bytes]:
    yield b'{"name": "(unknown)"}'
    for name, file, line in functions[["qualname", "file", "first_line"]].itertuples(index=False):
        yield b", " + json.dumps({"name": name, "file": file} | ({"line": int(line)} if line > 0 else {})).encode()
    yield b', {"name": "(further contexts)"}'


def _sampled(tree: pd.DataFrame, frame_of: "pd.Series[int]") -> Iterator[_Thread]:
    """The paths of each thread and the self time of each."""
    frames = {int(func): str(frame) for func, frame in frame_of.items()}  # once for all threads: there may be as many functions as calls
    for key, of_thread in tree.groupby(["pid", "tid"]):
        own = of_thread["self_ns"].to_numpy(np.int64)
        yield key, {"startValue": 0, "endValue": int(own[of_thread["depth"].to_numpy() >= 0].sum())}, _samples(of_thread, own, frames)


def _samples(tree: pd.DataFrame, own: Ints, frames: dict[int, str]) -> Iterator[bytes]:
    weights: list[int] = []
    for path, total in paths(tree, own):
        stack = ",".join(frames.get(func, "0") for func in path)
        yield b"%s[%s]" % (b",\n" if weights else b', "samples": [', stack.encode())
        weights.append(total)
    yield (b'], "weights": ' if weights else b', "samples": [], "weights": ') + json.dumps(weights).encode() + b"}"


def _evented(calls: pd.DataFrame, frame_of: "pd.Series[int]", origin: int) -> Iterator[_Thread]:
    """The begins and ends of each thread's calls. In order for all threads at once: what pandas takes for one thread is a millisecond, and there may be 100,000."""
    calls = calls.sort_values(["pid", "tid"], kind="stable", ignore_index=True)
    row, is_end = begin_end(calls)
    frame = calls["func_id"].map(frame_of).fillna(0).to_numpy(np.int64)
    start, end = (calls[name].to_numpy(np.int64) - origin for name in ("start_ns", "end_ns"))
    pid, tid = (calls[name].to_numpy(np.int64) for name in ("pid", "tid"))
    firsts = np.flatnonzero(np.append(True, (np.diff(pid) != 0) | (np.diff(tid) != 0))[: len(calls)])
    for first, last in zip(firsts.tolist(), [*firsts[1:].tolist(), len(calls)], strict=True):
        whole = {"startValue": int(start[first:last].min()), "endValue": int(end[first:last].max())}
        rows, ends = row[2 * first : 2 * last], is_end[2 * first : 2 * last]
        yield (int(pid[first]), int(tid[first])), whole, _events(frame[rows], np.where(ends, end[rows], start[rows]), ends)


def _events(frame: Ints, at: Ints, is_end: npt.NDArray[np.bool_]) -> Iterator[bytes | pa.Buffer]:
    """JSON text that is made column by column."""
    yield b', "events": ['
    for first in range(0, len(at), _CHUNK):
        piece = slice(first, first + _CHUNK)
        kind = pc.if_else(pa.array(is_end[piece]), ',\n{"type":"C","frame":', ',\n{"type":"O","frame":')
        text = pc.binary_join_element_wise(kind, pa.array(frame[piece]).cast(pa.string()), ',"at":', pa.array(at[piece]).cast(pa.string()), "}", "")
        # An Arrow string column is one run of bytes: it is the file's text, but for the first comma.
        _, offsets, characters = text.buffers()
        yield characters[0 if first else 1 : int(np.frombuffer(offsets, np.int32)[len(text)])]
    yield b"]}"
