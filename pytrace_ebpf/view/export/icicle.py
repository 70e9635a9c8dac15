"""A layered timeline (icicle) of one thread as an HTML page that needs nothing else: one row per layer, width is wall time."""

import json
from typing import Any, BinaryIO

import numpy as np
import pandas as pd

from pytrace_ebpf.analyze.named_layers import ORDER, modules
from pytrace_ebpf.analyze.split import timeline
from pytrace_ebpf.errors import UsageError
from pytrace_ebpf.view.export import icicle_blocks
from pytrace_ebpf.view.export.icicle_blocks import PARTS, blocks
from pytrace_ebpf.view.export.icicle_page import HOLE, PAGE
from pytrace_ebpf.view.text import clean

SUFFIX = ".html"
_COLUMNS = ("call_id", "parent_id", "layer", *icicle_blocks.COLUMNS)
# About 40 bytes a box: the page stays below 2 MB.
_MOST_BOXES = 30_000
_MOST_STATES = 8_000


def write(trace: Any, tid: int | None, out: BinaryIO) -> None:
    """Write the page of thread `tid`, by default of the one that was longest on a core. Raises UsageError where it has no calls."""
    pid, tid = _thread(trace, tid)
    calls, functions = trace.calls(columns=list(_COLUMNS), pid=pid, tid=tid), trace.functions()
    origin = int(calls["start_ns"].min())
    boxes, states = blocks(calls, _MOST_BOXES), blocks(_states(trace, pid, tid, calls), _MOST_STATES)
    used, number = np.unique(boxes["func_id"], return_inverse=True)
    page = {
        "title": str((trace.manifest.get("target") or {}).get("command", "")),
        "thread": _name(trace, pid, tid),
        "calls": len(calls),
        "from_ns": origin - trace.start_ns,
        "wall_ns": int(calls["end_ns"].max()) - origin,
        "parts": list(PARTS),
        "layers": list(ORDER),
        "functions": _functions(functions, used, calls),
        "rows": _rows(boxes.assign(func_id=number), origin),
        "states": _rows(states, origin),
    }
    text = json.dumps(page, separators=(",", ":")).replace("<", "\\u003c")  # nothing in it may end the script
    out.write(PAGE.replace(HOLE, text).encode())


def _thread(trace: Any, tid: int | None) -> tuple[int, int]:
    """(pid, tid) of the thread to show: of several processes' of that tid, too, the one with the most time on a core in calls."""
    outer = trace.calls(columns=["pid", "tid", "wall_ns", "on_cpu_ns"], depth=0)
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


def _functions(functions: pd.DataFrame, used: Any, calls: pd.DataFrame) -> list[list[Any]]:
    """[name, place, number in ORDER] of the functions `used` (func_id); a module's forward is told from other Python."""
    of_modules = set(calls.loc[modules(calls, functions), "func_id"].unique().tolist())
    table = functions.set_index("func_id").reindex(used)
    shown = []
    for func_id, name, file, line, layer in table[["qualname", "file", "first_line", "function_layer"]].itertuples():
        place = f"{clean(file)}:{int(line)}" if isinstance(file, str) and file and line > 0 else clean(file) if isinstance(file, str) else ""
        layer = "module" if func_id in of_modules else layer if layer in ORDER else "python"
        shown.append([clean(name) if isinstance(name, str) else "(unknown)", place, ORDER.index(layer)])
    return shown


def _states(trace: Any, pid: int, tid: int, calls: pd.DataFrame) -> pd.DataFrame:
    """The thread's own states while it was in calls, as rows that blocks() takes; none where no switches were recorded."""
    rows = timeline(trace.sched(pid=pid, tid=tid), trace.processes(), trace.end_ns, trace.losses())
    first, last = int(calls["start_ns"].min()), int(calls["end_ns"].max())
    start, end = rows["start_ns"].clip(lower=first), rows["end_ns"].clip(upper=last)
    rows = rows.assign(start_ns=start, end_ns=end, wall_ns=end - start, depth=0, func_id=-1, worker_on_cpu_ns=0)
    # perf does not tell when a thread that had left its core by itself was woken: such a wait is no part of the four.
    untold = rows["state"].isin(["gil_wait", "blocked"]) & (trace.scheduling["source"] != "bpf")
    for part in PARTS[:4]:
        amount = rows["wall_ns"].where(rows["state"] == part, 0).astype("Int64")
        rows[f"{part}_ns"] = amount.mask(rows["state"].isna() | (untold & (part != "on_cpu")))
    return rows[rows["wall_ns"] > 0]


def _rows(boxes: pd.DataFrame, origin: int) -> list[list[list[int]]]:
    """Per layer the columns of its boxes: start (since the end of the box before), length, function, calls, wall less the length, PARTS but on_cpu, workers."""
    out = []
    for _, layer in boxes.groupby("depth"):
        start, end, wall = (layer[c].to_numpy(np.int64) for c in ("start_ns", "end_ns", "wall_ns"))
        columns = [start - np.append(origin, end[:-1]), end - start, layer["func_id"], layer["calls"]]
        columns += [wall - (end - start), *(layer[part] for part in PARTS[1:]), layer["workers"]]
        out.append([np.asarray(column, np.int64).tolist() for column in columns])
    return out
