"""Where the time of one request went: its calling-context tree and its waits."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from pytrace_ebpf.analyze.clients.by_client import by_client
from pytrace_ebpf.analyze.waits.resources import labels
from pytrace_ebpf.analyze.waits.resources import named as resource_of
from pytrace_ebpf.derive import streams
from pytrace_ebpf.derive.calls.nesting import above, levels
from pytrace_ebpf.derive.calls.own_code import own
from pytrace_ebpf.errors import UsageError
from pytrace_ebpf.trace.frames import to_frame
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.trace.schema import CALLS, OF_THE_INTERPRETER
from pytrace_ebpf.trace.states import BY_NAME, SPLIT

TIMES = ("total_ns", *SPLIT, "self_ns", *(f"self_{name}" for name in SPLIT))
_CALL = ("call_id", "parent_id", "func_id", "depth", "wall_ns", *SPLIT, "self_wall_ns", *(f"self_{name}" for name in SPLIT))
_WAIT = ("func_id", "kind", "syscall", "resource_id", "primitive_func_id", "start_ns", "blocked_until_ns", "end_ns")
HELD = ("func_id", "ns", "on_cpu_ns")
_HELD_CALL = ("call_id", "last_descendant_id", "func_id", "start_ns", "end_ns", "on_cpu_ns")
_HELD_NS = 1_000_000  # of a call: a shorter one holds nobody up
RUN_QUEUE = BY_NAME["runq_wait"].label  # the kind of a wait for a core
_NEARLY = 0.9
_TRACE_DIGITS = 32

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class OneRequest:
    """One request.

    tree: node_id, parent_id, depth (0 for the request's own call), func_id, calls and TIMES; a caller precedes its callees.
    waits: func_id (Queue.get, not what that waits in), kind (as in schema.WAITS, or RUN_QUEUE), syscall and resource (as resources.labels() has it), None if
    none, and ns, longest first.
    awaited: the func_ids of the chain of coroutines that it was suspended in longest, outermost first, and that time in ns.
    asked: what it asked of client libraries, as clients.by_client() has it.
    held: of a coroutine which functions of the program's own held its event loop meanwhile, in other tasks and callbacks: func_id, ns without that of other
    such functions that they called, on_cpu_ns of these calls; the most time first.
    """

    tree: pd.DataFrame
    waits: pd.DataFrame
    awaited: tuple[list[int], int]
    asked: pd.DataFrame
    held: pd.DataFrame


def of_id(requests: pd.DataFrame, wanted: str) -> pd.DataFrame:
    """Those of `requests` (schema.REQUESTS) that have this trace_id, or this request_id. Raises UsageError where none has."""
    is_number = wanted.isdecimal() and len(wanted) < _TRACE_DIGITS
    found = requests[requests["request_id"] == int(wanted) if is_number else requests["trace_id"] == wanted.lower()]
    if len(found):
        return found
    some = requests["trace_id"].notna().sum()
    known = f"{some:,} of {len(requests):,} requests have one" if some else "no request has one (docs/trace-ids.md)"
    what = f"request {wanted}" if is_number else f"trace id {wanted}"
    raise UsageError(f"No request of this trace is {what}" + ("." if is_number else f"; {known}."))


def one_request(trace: Trace, request: dict[str, Any]) -> OneRequest:
    """Look into `request`, a row of schema.REQUESTS of `trace`. Memory is bounded by its tree or, for a coroutine, by its calls."""
    window = trace.window(request["start_ns"], request["end_ns"], request["pid"], request["tid"])
    tasks = trace.tasks(["coroutine_id", "task_id", "func_id", "start_ns", "end_ns", "awaited_ns"]) if request["awaited_ns"] else None
    if tasks is None:
        return OneRequest(
            _subtree(window, request), _waits(window, None), ([], 0), by_client(window), pd.DataFrame(dict.fromkeys(HELD, np.zeros(0, np.int64)))
        )
    resumes = _resumes(window, request)
    awaited = _awaited(tasks, request)
    asked = by_client(window, resumes)
    return OneRequest(_summed(_calls(window, resumes)), _waits(window, resumes), awaited, asked, held(window, resumes, request))


def _subtree(window: Trace, request: dict[str, Any]) -> pd.DataFrame:
    """The part of the window's tree below the request's call."""
    tree = window.tree(["node_id", "parent_id", "depth", "func_id", "calls", *TIMES])
    own = tree[tree["func_id"] == request["func_id"]]
    if not len(own):
        return own
    root = int(own["total_ns"].astype(np.int64).idxmax())
    inside, parent, depth = np.zeros(len(tree), bool), tree["parent_id"].to_numpy(np.int64), tree["depth"].to_numpy(np.int64)
    inside[root] = True
    for here in levels(depth):
        inside[here] |= inside[parent[here]] & (parent[here] >= 0)
    found = tree[inside]
    places = pd.Series(np.arange(len(found)), found["node_id"])
    return found.assign(
        node_id=places.to_numpy(),
        parent_id=found["parent_id"].map(places).fillna(-1).astype(np.int64),
        depth=found["depth"] - depth[root],
    ).reset_index(drop=True)


def _resumes(window: Trace, request: dict[str, Any]) -> pd.DataFrame:
    """The calls that a coroutine consists of: call_id, last_descendant_id, start_ns and end_ns."""
    columns = ("call_id", "last_descendant_id", "func_id", "start_ns", "end_ns", "frame")
    rows = streams.calls_of(window, np.array([request["func_id"]]), columns).sort_values("call_id", ignore_index=True)
    first = rows["frame"][rows["start_ns"] == request["start_ns"]]
    return rows[rows["frame"].isin(first) & (rows["frame"] != 0) | (rows["start_ns"] == request["start_ns"])].reset_index(drop=True)


def held(window: Trace, resumes: pd.DataFrame, request: dict[str, Any]) -> pd.DataFrame:
    """OneRequest.held: the own code that ran on the thread between the `resumes` of a coroutine."""
    functions = window.functions()
    ids = functions["func_id"].to_numpy(np.int64)[own(functions)]
    rows = streams.calls_of(window, ids, _HELD_CALL).sort_values("call_id", ignore_index=True)
    start = rows["start_ns"].clip(lower=request["start_ns"]).to_numpy(np.int64)
    end = rows["end_ns"].clip(upper=request["end_ns"]).to_numpy(np.int64)
    first, last = (resumes[name].to_numpy(np.int64) for name in ("call_id", "last_descendant_id"))
    call = rows["call_id"].to_numpy(np.int64)
    at = np.searchsorted(first, call, side="right") - 1
    is_own = (at >= 0) & (call <= last[at]) if len(first) else np.zeros(len(rows), bool)
    around = (rows["start_ns"] <= request["start_ns"]).to_numpy() & (rows["end_ns"] >= request["end_ns"]).to_numpy()  # what runs the loop
    kept = ~is_own & ~around & (end - start >= _HELD_NS)
    rows, ns = rows[kept].reset_index(drop=True), (end - start)[kept]
    outer, _ = above(rows)
    inner = np.zeros(len(rows), np.int64)
    np.add.at(inner, outer[outer >= 0], ns[outer >= 0])
    table = pd.DataFrame({"func_id": rows["func_id"], "ns": ns - inner, "on_cpu_ns": rows["on_cpu_ns"].fillna(0).astype(np.int64)})
    return table.groupby("func_id", as_index=False)[list(HELD[1:])].sum().sort_values("ns", ascending=False, kind="stable", ignore_index=True)


def _calls(window: Trace, resumes: pd.DataFrame) -> pd.DataFrame:
    """All calls (_CALL) within `resumes`, sorted by call_id."""

    def own() -> Iterator[pa.Table]:
        first, last = (resumes[name].to_numpy(np.int64) for name in ("call_id", "last_descendant_id"))
        for piece in (piece for pieces in streams.calls(window) for piece in pieces):
            ids = piece["call_id"].to_numpy()
            at = np.searchsorted(first, ids, side="right") - 1
            yield piece.select(_CALL).filter(pa.array((at >= 0) & (ids <= last[at])))

    return to_frame(pa.concat_tables(own()), CALLS).sort_values("call_id", ignore_index=True)


def _summed(calls: pd.DataFrame) -> pd.DataFrame:
    """Sum calls by call path."""
    ids, parent, function, depth = (calls[name].to_numpy(np.int64) for name in ("call_id", "parent_id", "func_id", "depth"))
    outer = np.searchsorted(ids, parent).clip(max=max(0, len(ids) - 1))
    is_root = ids[outer] != parent
    depth = depth - depth[is_root][np.cumsum(is_root) - 1]
    node, nodes, count = np.zeros(len(ids), np.int64), [], 0
    for level, here in enumerate((np.flatnonzero(is_root), *levels(depth))):
        pairs = np.stack((node[outer[here]] if level else np.full(len(here), -1), function[here]))
        unique, which = np.unique(pairs, axis=1, return_inverse=True)
        node[here] = count + which.ravel()
        nodes.append(np.vstack((unique, np.full(unique.shape[1], level))))
        count += unique.shape[1]
    parent_id, func_id, level_of = np.concatenate(nodes, axis=1)
    times = calls.rename(columns={"wall_ns": "total_ns", "self_wall_ns": "self_ns"})[list(TIMES)].astype("Int64")
    sums = times.groupby(node).agg(lambda column: column.sum(skipna=False))
    return pd.DataFrame(
        {"node_id": np.arange(count), "parent_id": parent_id, "depth": level_of, "func_id": func_id, "calls": np.bincount(node, minlength=count)}
    ).join(sums)


def _waits(window: Trace, resumes: pd.DataFrame | None) -> pd.DataFrame:
    """The waits in the window or, given `resumes`, within these."""
    rows = window.waits(list(_WAIT)).sort_values("start_ns", ignore_index=True)
    if resumes is not None:
        start, end = (resumes[name].to_numpy(np.int64) for name in ("start_ns", "end_ns"))
        at = np.searchsorted(start, rows["start_ns"].to_numpy(np.int64), side="right") - 1
        rows = rows[(at >= 0) & (rows["start_ns"].to_numpy(np.int64) < end[at])]
    in_primitive = (rows["primitive_func_id"] >= 0) & ~rows["kind"].isin((*OF_THE_INTERPRETER, "preempted"))
    rows["func_id"] = rows["func_id"].mask(in_primitive, rows["primitive_func_id"])
    until = rows["blocked_until_ns"].fillna(rows["end_ns"]).astype(np.int64)
    blocked = rows.assign(
        ns=until - rows["start_ns"],
        kind=rows["kind"].astype(object),
        syscall=rows["syscall"].astype(object),
        resource=resource_of(rows, labels(window.resources())),
    )
    rows = pd.concat([blocked, rows.assign(ns=rows["end_ns"] - until, kind=RUN_QUEUE, syscall=None, resource=None)])
    rows = rows[rows["ns"] > 0]
    sums = rows.groupby(["func_id", "kind", "syscall", "resource"], dropna=False)["ns"].sum().reset_index()
    return sums.sort_values("ns", ascending=False, kind="stable", ignore_index=True)


def _awaited(tasks: pd.DataFrame, request: dict[str, Any]) -> tuple[list[int], int]:
    """The coroutines it awaited that were suspended nearly as long as the longest one."""
    task = tasks["task_id"][tasks["coroutine_id"] == request["request_id"]]
    within = (tasks["start_ns"] >= request["start_ns"]) & (tasks["end_ns"] <= request["end_ns"])
    same = tasks[tasks["task_id"].isin(task) & within & (tasks["coroutine_id"] != request["request_id"])]
    most = int(same["awaited_ns"].max()) if len(same) else 0
    nearly = same[same["awaited_ns"] >= max(1, _NEARLY * most)]
    return nearly.sort_values("coroutine_id")["func_id"].astype(int).tolist(), most
