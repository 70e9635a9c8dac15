"""A timeline (icicle) of one thread's calls as an HTML page that needs nothing else: one row per level, width is wall time."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pandas as pd

from pytrace_ebpf.analyze.functions.named_layers import ORDER, modules
from pytrace_ebpf.analyze.rebuilt.calls import rebuild
from pytrace_ebpf.analyze.rebuilt.workers import Workers
from pytrace_ebpf.analyze.samples.chart import chart
from pytrace_ebpf.analyze.samples.sampling import period_of
from pytrace_ebpf.analyze.time.trace_timeline import intervals
from pytrace_ebpf.errors import UsageError
from pytrace_ebpf.trace.frames import to_frame
from pytrace_ebpf.trace.layers import LAYERS
from pytrace_ebpf.trace.schema import CALLS
from pytrace_ebpf.trace.states import NAMES, STATES
from pytrace_ebpf.view import colours
from pytrace_ebpf.view.export import icicle_blocks
from pytrace_ebpf.view.export.icicle_blocks import PARTS, Boxes
from pytrace_ebpf.view.text import clean, duration

SUFFIX = ".html"
_PAGE = Path(__file__).with_name("icicle.html")  # markup, style and the script that draws the boxes
_HOLE = "{{trace}}"  # in it: where the data goes, as JSON
_COLOURS = {layer.name: layer.colour for layer in LAYERS} | {"module": "#c6a5ee"}
_COLUMNS = list(icicle_blocks.COLUMNS)
# About 40 bytes a box: the page stays below 2 MB.
_MOST_BOXES = 30_000
_MOST_STATES = 8_000
# Of each of PARTS: what to call it, and its colour. What is off the core looks as blocked.
_LOOKS = [*((state.label, state.colour) for state in STATES), ("off CPU", colours.BLOCKED), ("not recorded", colours.UNKNOWN)]


def write(trace: Any, tid: int | None, out: BinaryIO) -> None:
    """Write the page of thread `tid`, by default of the one that was longest on a core. Raises UsageError where it has no calls."""
    pid, tid = _thread(trace, tid)
    functions, own, workers = trace.functions(), trace.window(pid=pid, tid=tid), Workers(trace)
    picture, count, first, last = Boxes(_MOST_BOXES), 0, trace.end_ns, trace.start_ns
    for calls in chart(own, period) if (period := period_of(trace)) else _calls(own, workers):
        picture.add(calls)
        count, first, last = count + len(calls), min(first, int(calls["start_ns"].min())), max(last, int(calls["end_ns"].max()))
    origin = first
    boxes, states = picture.made(), Boxes(_MOST_STATES)
    for rows in intervals(trace):
        states.add(_states(trace, rows[(rows["pid"] == pid) & (rows["tid"] == tid)], first, last))
    used, number = np.unique(boxes["func_id"], return_inverse=True)
    page = {
        "title": str((trace.manifest.get("target") or {}).get("command", "")),
        "thread": _name(trace, pid, tid) + (f", sampled every {duration(period)}" if period else ""),
        "calls": count,
        "what": "sampled intervals" if period else "calls",
        "from_ns": origin - trace.start_ns,
        "wall_ns": last - origin,
        "parts": _LOOKS,
        "layers": [(name, _COLOURS[name]) for name in ORDER],
        "functions": _functions(functions, used, own.tree()),
        "rows": _rows(boxes.assign(func_id=number), origin),
        "states": _rows(states.made(), origin),
    }
    text = json.dumps(page, separators=(",", ":")).replace("<", "\\u003c")  # nothing in it may end the script
    out.write(_PAGE.read_text(encoding="utf-8").replace(_HOLE, text).encode())


def _calls(own: Any, workers: Workers) -> Iterator[pd.DataFrame]:
    """The calls of one thread, some at a time."""
    for pieces in rebuild(own):
        for piece in pieces:
            yield to_frame(workers.fill(piece).select(_COLUMNS), CALLS).sort_values(["depth", "start_ns"], kind="stable")


def _thread(trace: Any, tid: int | None) -> tuple[int, int]:
    """(pid, tid) of the thread to show: of several processes' of that tid, too, the one with the most time on a core in calls."""
    outer = trace.tree().query("depth < 0").rename(columns={"total_ns": "wall_ns"})
    if not len(outer):
        raise UsageError("This trace has no calls to show; record one with pytrace-ebpf run or attach.")
    time = outer.fillna({"on_cpu_ns": 0}).groupby(["pid", "tid"])[["on_cpu_ns", "wall_ns"]].sum()
    chosen = time if tid is None else time[time.index.get_level_values("tid") == tid]
    if not len(chosen):
        known = ", ".join(str(t) for t in time.sort_values("on_cpu_ns", ascending=False).index.get_level_values("tid")[:10])
        raise UsageError(f"Thread {tid} made no calls in this trace; name one that did with --tid: {known}.")
    pid, tid_ = chosen.sort_values(["on_cpu_ns", "wall_ns"]).index[-1]
    return int(pid), int(tid_)


def _name(trace: Any, pid: int, tid: int) -> str:
    threads = trace.threads()
    names = threads.loc[(threads["pid"] == pid) & (threads["tid"] == tid), "name"]
    return f"{clean(names.iloc[0]) if len(names) else 'thread'} (pid {pid}, tid {tid})"


def _functions(functions: pd.DataFrame, used: Any, tree: pd.DataFrame) -> list[list[Any]]:
    """[name, place, number in ORDER] of the functions `used` (func_id); a module's forward is distinguished from other Python."""
    contexts = tree.rename(columns={"node_id": "call_id"})
    of_modules = set(contexts.loc[modules(contexts, functions), "func_id"].unique().tolist())
    table = functions.set_index("func_id").reindex(used)
    shown = []
    for func_id, name, file, line, layer in table[["qualname", "file", "first_line", "function_layer"]].itertuples():
        place = f"{clean(file)}:{int(line)}" if isinstance(file, str) and file and line > 0 else clean(file) if isinstance(file, str) else ""
        layer = "module" if func_id in of_modules else layer if layer in ORDER else "python"
        shown.append([clean(name) if isinstance(name, str) else "(unknown)", place, ORDER.index(layer)])
    return shown


def _states(trace: Any, rows: pd.DataFrame, first: int, last: int) -> pd.DataFrame:
    """The thread's own states (rows of trace_timeline.intervals) while it was in calls, as Boxes takes them; none where no switches were recorded."""
    start, end = rows["start_ns"].clip(lower=first), rows["end_ns"].clip(upper=last)
    rows = rows.assign(start_ns=start, end_ns=end, wall_ns=end - start, depth=0, func_id=-1, worker_on_cpu_ns=0)
    # perf does not report when a thread that had left its core by itself was woken: such a wait is none of the four states.
    unsplit = rows["state"].isin(["gil_wait", "blocked"]) & (trace.scheduling["source"] != "bpf")
    for part in NAMES:
        amount = rows["wall_ns"].where(rows["state"] == part, 0).astype("Int64")
        rows[f"{part}_ns"] = amount.mask(rows["state"].isna() | (unsplit & (part != "on_cpu")))
    return rows[rows["wall_ns"] > 0]


def _rows(boxes: pd.DataFrame, origin: int) -> list[list[list[int]]]:
    """Per level the columns of its boxes: start (since the end of the box before), length, function, calls, wall less the length, PARTS but on_cpu, workers."""
    out = []
    for _, level in boxes.groupby("depth"):
        start, end, wall = (level[c].to_numpy(np.int64) for c in ("start_ns", "end_ns", "wall_ns"))
        columns = [start - np.append(origin, end[:-1]), end - start, level["func_id"], level["calls"]]
        columns += [wall - (end - start), *(level[part] for part in PARTS[1:]), level["workers"]]
        out.append([np.asarray(column, np.int64).tolist() for column in columns])
    return out
