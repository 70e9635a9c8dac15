"""The Firefox Profiler's format (profiler.firefox.com): each thread's stacks, whose categories are what the thread did: on CPU, run queue, GIL wait, blocked.

Of few calls it has every change of a thread's stack and state at its time, each with how long that lasted; of more, and of samples, the time of every context
and state, one after the other. https://github.com/firefox-devtools/profiler/blob/main/docs-developer/processed-profile-format.md, version 48
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from pytrace_ebpf.analyze.samples.sampling import period_of
from pytrace_ebpf.derive.edges import ENDS, edges, numbers, paths
from pytrace_ebpf.derive.scheduling.trace_timeline import intervals
from pytrace_ebpf.printable import printable
from pytrace_ebpf.trace.states import NAMES, STATES
from pytrace_ebpf.view.export.contexts import Contexts, of_trace, places_of
from pytrace_ebpf.view.export.numbered import Strings, grouped
from pytrace_ebpf.view.export.pprof import Span

SUFFIX = ".firefox.json"
MOST = 500_000  # calls, and scheduling events, that are written one by one: a browser has to read them
_VERSION = 48  # of the format: the profiler brings it up to date
_UNKNOWN = len(NAMES) + 1
_COLOURS = {"on_cpu": "green", "runq_wait": "yellow", "gil_wait": "orange", "blocked": "blue"}  # of the few that it has
_OTHER = "purple"
_CATEGORIES = [
    *((state.label, _COLOURS.get(state.name, _OTHER)) for state in STATES), ("off CPU", "lightblue"), ("not recorded", "grey"),
]  # fmt: skip

Ints = npt.NDArray[np.int64]


class _Divided(NamedTuple):
    """A column of numbers, each divided by 10^decimals."""

    numbers: Ints
    decimals: int


@dataclass(frozen=True)
class _Thread:
    """Of a thread its paths (the caller's, -1 none; and the row in Contexts.places), and its samples: path, category, when and how long, ns."""

    pid: int
    tid: int
    name: str
    parent: Ints
    place: Ints
    path: Ints
    category: Ints
    at: Ints
    weight: Ints


def write(trace: Any, out: BinaryIO) -> bool:
    """Write `trace` or a window of it. Returns whether what happened stands there at its time. Memory is bounded by MOST and the rows of the tree."""
    switches = sum(segment["rows"].get("sched", 0) for segment in trace.segments)
    singly = period_of(trace) is None and switches <= MOST and int(trace.tree()["calls"].sum()) <= MOST
    span = Span.of(trace)
    if singly:
        places, threads = _changes(trace)
    else:
        contexts = of_trace(trace)
        places, threads = contexts.places, _sums(contexts)
    out.write(
        json.dumps({"meta": _meta(trace, span), "libs": [], "pages": [], "counters": [], "profilerOverhead": []}).encode()[:-1] + b', "threads": ['
    )
    columns = {name: places[name].to_numpy() for name in ("name", "file", "line", "first_line")}
    commands = trace.processes().drop_duplicates("pid", keep="last").set_index("pid")["command"].to_dict()
    for number, thread in enumerate(threads):
        described = _described(thread, columns, printable(str(commands.get(thread.pid, ""))), span)
        out.write(b",\n" if number else b"\n")
        out.writelines(_json(described))
    out.write(b"\n]}\n")
    return singly


def _meta(trace: Any, span: Span) -> dict[str, Any]:
    return {
        "version": 24, "preprocessedProfileVersion": _VERSION, "product": "pytrace-ebpf", "processType": 0, "debug": False, "symbolicated": True,
        "startTime": span.unix_ns / 1e6, "interval": span.period_ns / 1e6 or 1, "markerSchema": [], "pausedRanges": [],
        "extensions": {"length": 0, "baseURL": [], "id": [], "name": []}, "usesOnlyOneStackType": True, "doesNotUseFrameImplementation": True,
        "sourceCodeIsNotOnSearchfox": True, "sampleUnits": {"time": "ms", "eventDelay": "ms", "threadCPUDelta": "µs"},
        "oscpu": printable(str((trace.manifest.get("host") or {}).get("kernel", ""))),
        "categories": [{"name": name, "color": colour, "subcategories": ["Other"]} for name, colour in _CATEGORIES],
    }  # fmt: skip


def _changes(trace: Any) -> tuple[pd.DataFrame, Iterator[_Thread]]:
    """Every change of a thread's stack or state."""
    pieces = [piece.columns() for piece in edges(trace)]
    key, ts, func = (np.concatenate(own) for own in zip(*pieces, strict=True))
    states = pd.concat([pd.DataFrame({"pid": [], "tid": [], "start_ns": [], "end_ns": [], "state": []}), *intervals(trace)])
    state_of = states["state"].map({name: at for at, name in enumerate(NAMES)} | {"off_cpu": len(NAMES)}).fillna(_UNKNOWN).to_numpy(np.int64)
    whose = states["pid"].to_numpy(np.int64) << 32 | states["tid"].to_numpy(np.int64)
    begin, end = (states[name].to_numpy(np.int64) for name in ("start_ns", "end_ns"))
    known = trace.threads().drop_duplicates(["pid", "tid"], keep="last").set_index(["pid", "tid"])["name"].to_dict()
    places, place = places_of(np.where(func == ENDS, -1, func), trace.functions(), None)

    does, events, waits = np.where(func == ENDS, -1, place), np.argsort(key, kind="stable"), np.lexsort((begin, whose))

    def threads() -> Iterator[_Thread]:
        for one in np.unique(key).tolist():
            own, mine = (order[slice(*np.searchsorted(of, (one, one + 1), sorter=order))] for of, order in ((key, events), (whose, waits)))
            parent, where, after = paths(does[own])
            moments = np.unique(np.concatenate((ts[own], begin[mine], end[mine])))
            since, until = moments[:-1], moments[1:]
            path = np.append(-1, after)[np.searchsorted(ts[own], since, side="right")]
            at = np.searchsorted(begin[mine], since, side="right") - 1
            within = (at >= 0) & (np.append(end[mine], 0)[at] > since)
            category = np.where(within, np.append(state_of[mine], _UNKNOWN)[at], _UNKNOWN)
            called = path >= 0
            pid, tid = one >> 32, one & 0xFFFFFFFF
            when, weight, name = since[called] - trace.start_ns, (until - since)[called], known.get((pid, tid))
            yield _Thread(pid, tid, name if isinstance(name, str) else "", parent, where, path[called], category[called], when, weight)

    return places, threads()


def _sums(contexts: Contexts) -> Iterator[_Thread]:
    """The time of every context in every state, one after the other."""
    names = [name for name in contexts.values if name in (*NAMES, "off_cpu", "not_recorded")]
    categories = [(*NAMES, "off_cpu", "not_recorded").index(name) for name in names]
    if not names:
        names, categories = ["wall"], [_UNKNOWN]
    values = np.stack([contexts.values[name] for name in names], axis=1)
    of_row = np.full(len(contexts.parent) + 1, -1, np.int64)  # for all threads: a context's caller is of its thread
    threads = list(contexts.threads.itertuples(index=False))
    for number, rows in grouped(contexts.thread):
        thread = threads[number]
        of_row[rows] = np.arange(len(rows))
        at, which = np.nonzero(values[rows])
        weight = values[rows[at], which]
        if not len(at):
            continue
        yield _Thread(
            thread.pid, thread.tid, thread.name if isinstance(thread.name, str) else "", of_row[contexts.parent[rows]], contexts.place[rows],
            at, np.array(categories)[which], np.cumsum(weight) - weight, weight,
        )  # fmt: skip


def _described(thread: _Thread, places: dict[str, npt.NDArray[Any]], command: str, span: Span) -> dict[str, Any]:
    """Of each path there is a stack for its callees, and one for each category that it was in; of each place likewise a frame."""
    strings, own = Strings(), np.unique(thread.place)
    distinct, stack = np.unique(thread.path * len(_CATEGORIES) + thread.category, return_inverse=True)
    path, category = np.divmod(distinct, len(_CATEGORIES))
    func = np.searchsorted(own, thread.place)
    in_category, frame = np.unique(func[path] * len(_CATEGORIES) + category, return_inverse=True)
    func_of, category_of = (np.append(np.arange(len(own)), in_category // len(_CATEGORIES)), in_category % len(_CATEGORIES))
    prefix, count = np.concatenate((thread.parent, thread.parent[path])), len(thread.parent) + len(path)
    of = {name: column[own] for name, column in places.items()}
    names = [strings.number(printable(name)) for name in of["name"]]
    files = [strings.number(printable(file)) if file else None for file in of["file"]]
    nothing, zeros = np.full(len(func_of), -1), np.zeros(len(func_of), np.int64)
    lines, first = (np.where(of[name] > 0, of[name], -1) for name in ("line", "first_line"))
    return {
        "name": printable(thread.name) or f"thread {thread.tid}", "pid": str(thread.pid), "tid": thread.tid, "isMainThread": thread.pid == thread.tid,
        "processName": command, "processType": "default", "processStartupTime": 0, "processShutdownTime": None, "registerTime": 0,
        "unregisterTime": None, "pausedRanges": [],
        "frameTable": {
            "length": len(func_of), "address": [-1] * len(func_of), "inlineDepth": zeros, "category": np.append(np.full(len(own), _UNKNOWN), category_of), "subcategory": zeros,
            "func": func_of, "nativeSymbol": nothing, "innerWindowID": nothing, "implementation": nothing,
            "line": lines[func_of], "column": nothing,
        },
        "funcTable": {
            "length": len(own), "name": names, "isJS": [False] * len(own), "relevantForJS": [False] * len(own), "resource": [-1] * len(own),
            "fileName": files, "lineNumber": first, "columnNumber": [None] * len(own),
        },
        "stackTable": {
            "length": count, "prefix": prefix, "frame": np.append(func, len(own) + frame.reshape(-1)),
            "category": np.append(np.full(len(thread.parent), _UNKNOWN), category), "subcategory": np.zeros(count, np.int64),
        },
        "samples": {
            "length": len(thread.path), "stack": len(thread.parent) + stack.reshape(-1), "time": _Divided(thread.at, 6),
            "weight": _Divided(thread.weight, 6), "weightType": "tracing-ms",
            # CPU time since the sample before, in us.
            "threadCPUDelta": _Divided(np.append(0, np.where(thread.category == 0, thread.weight, 0))[:-1], 3),
        },
        "markers": {"length": 0, "category": [], "data": [], "endTime": [], "name": [], "phase": [], "startTime": []},
        "nativeSymbols": {"length": 0, "address": [], "functionSize": [], "libIndex": [], "name": []},
        "resourceTable": {"length": 0, "lib": [], "name": [], "host": [], "type": []},
        "stringArray": list(strings),
    }  # fmt: skip


def _json(value: Any) -> Iterator[bytes | memoryview]:
    """As json.dumps(), of dictionaries that may hold columns of numbers, in which null is -1."""
    if isinstance(value, dict):
        for number, (key, of) in enumerate(value.items()):
            yield (b"," if number else b"{") + json.dumps(key).encode() + b":"
            yield from _json(of)
        yield b"}" if value else b"{}"
    elif isinstance(value, _Divided | np.ndarray):
        yield b"["
        yield numbers(value.numbers, value.decimals) if isinstance(value, _Divided) else numbers(value)
        yield b"]"
    else:
        yield json.dumps(value, separators=(",", ":")).encode()
