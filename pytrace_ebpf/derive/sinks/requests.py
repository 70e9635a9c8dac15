"""Requests: the outermost calls of the functions that answer them, each with the function of the program that it led to.

One pass reads the calls of these functions only; their number bounds the memory.
"""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from pytrace_ebpf.derive.arrow_table import from_frame
from pytrace_ebpf.derive.calls import entry_points, own_code, trace_contexts
from pytrace_ebpf.derive.calls.nesting import above, levels
from pytrace_ebpf.derive.sink import RowsOf, RowsSink
from pytrace_ebpf.derive.sinks.tasks import ASYNC_GENERATOR, COROUTINE
from pytrace_ebpf.derive.store import State, checked_rows
from pytrace_ebpf.rebuild.shards import Shards
from pytrace_ebpf.trace.frames import to_frame
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.trace.schema import CALLS, REQUESTS
from pytrace_ebpf.trace.segments import part_name
from pytrace_ebpf.trace.states import SPLIT
from pytrace_ebpf.trace.writing import write

_COLUMNS = (
    "call_id",
    "last_descendant_id",
    "pid",
    "tid",
    "func_id",
    "start_ns",
    "end_ns",
    "wall_ns",
    *SPLIT,
    "frame",
    "resumed",
    "yielded",
    "status",
)
_SCHEMA = pa.schema([CALLS.arrow.field(name).with_type(pa.string()) if name == "status" else CALLS.arrow.field(name) for name in _COLUMNS])
_TASK = ("coroutine_id", "pid", "tid", "func_id", "start_ns", "end_ns", *SPLIT, "awaited_ns", "status")

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


class Requests(RowsSink):
    """Writes schema.REQUESTS, sorted by request_id."""

    table = REQUESTS
    columns = _COLUMNS

    def __init__(self, trace: Trace, into: Path | None = None) -> None:
        super().__init__(trace, into)
        functions = trace.functions()
        self._kinds, self._asked = entry_points.kinds(functions), entry_points.asked(functions, trace.request_patterns)
        self._entries = self._kinds.index.union(self._asked.index).to_numpy(np.int64)
        if self.idle:
            return
        own = functions["func_id"][own_code.own(functions)].to_numpy(np.int64)
        self._namers = entry_points.namers(functions, self._entries, own)
        tree = trace.tree(["parent_id", "depth", "func_id"])
        self._named = np.unique(tree["func_id"].to_numpy(np.int64)[entry_points.endpoints(tree, self._namers, own)])
        self._others = np.union1d(self._entries, self._namers)

    @property
    def idle(self) -> bool:
        return not len(self._entries)

    def rows_of(self) -> RowsOf:
        return RowsOf(np.union1d(self._others, self._named))

    def begin(self, engines: Shards, first: int, state: State | None) -> None:
        super().begin(engines, first, state)
        self._parts = [] if state is None else [_resumed(state, self._others, self._named)]

    def state(self) -> State:
        most = int(self.trace.functions()["func_id"].max())
        return {"others": self._others, "named": self._named, "most": np.array([most]), "calls": _packed(self._parts)}

    def part(self, calls: pd.DataFrame) -> None:
        """Calls of functions that are only named and lie right below another one are left out."""
        calls = calls.sort_values("call_id", ignore_index=True)
        is_other = np.isin(calls["func_id"], self._others)
        outer = above(calls)[0]
        self._parts.append(calls[is_other | (outer < 0) | is_other[outer]])

    def end(self) -> None:
        super().end()
        joined = pd.concat(self._parts) if self._parts else REQUESTS.arrow.empty_table().to_pandas().reindex(columns=list(_COLUMNS))
        calls = joined.sort_values("call_id", ignore_index=True)
        tasks = _tasks(self.trace, self.trace.functions(), calls, self._entries)
        contexts = trace_contexts.of_trace(self.trace)
        found = [_requests(calls, tasks, of, self._namers, self._named, contexts) for of in (self._kinds, self._asked)]
        rows = pd.concat(found).sort_values(["request_id", "kind"], ignore_index=True)
        if len(rows):
            write(REQUESTS, from_frame(REQUESTS, rows), self.into / part_name(0))


def _packed(parts: list[pd.DataFrame]) -> npt.NDArray[np.uint8]:
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, _SCHEMA) as stream:
        for part in parts:
            stream.write_table(pa.Table.from_pandas(part.astype({"status": object}), _SCHEMA, preserve_index=False))
    return np.frombuffer(out.getvalue(), np.uint8)


def _resumed(state: State, others: Ints, named: Ints) -> pd.DataFrame:
    """The calls that were found before. Raises KeyError, ValueError and pa.ArrowException where that is no such state, or other functions' are
    wanted by now that may have had calls then."""
    most = int(checked_rows(state["most"], np.dtype(np.int64))[0])
    for name, wanted in (("others", others), ("named", named)):
        if not np.array_equal(state[name], wanted[wanted <= most]):
            raise ValueError("other functions")
    table = pa.ipc.open_stream(state["calls"].tobytes()).read_all()
    table.validate(full=True)
    if table.schema != _SCHEMA:
        raise ValueError("other columns")
    return to_frame(table, CALLS)


def _tasks(trace: Trace, functions: pd.DataFrame, calls: pd.DataFrame, entries: Ints) -> pd.DataFrame:
    """The coroutines (_TASK) of those of `entries` that are coroutine functions, or of which a call yielded, as greenlets do."""
    flags = functions.set_index("func_id")["flags"].reindex(entries)
    asynchronous = flags.index[(flags & (COROUTINE | ASYNC_GENERATOR)) != 0].union(calls["func_id"][calls["resumed"] | calls["yielded"]])
    asynchronous = asynchronous.intersection(entries)
    if not len(asynchronous):
        return pd.DataFrame(columns=list(_TASK))
    rows = trace.tasks(columns=list(_TASK))
    return rows[rows["func_id"].isin(asynchronous)]


def _requests(calls: pd.DataFrame, tasks: pd.DataFrame, kinds: "pd.Series[str]", namers: Ints, named: Ints, contexts: pd.DataFrame) -> pd.DataFrame:
    """The requests that are calls of the functions in `kinds` (by func_id), with those of `contexts` (schema.TRACE_CONTEXTS) that are within them."""
    function = calls["func_id"].to_numpy(np.int64)
    outer, nesting = above(calls)
    is_namer, entry = np.isin(function, namers), np.where(np.isin(function, kinds.index), np.arange(len(calls)), -1)
    depth = np.zeros(len(calls), np.int64)  # counts enclosing functions of `namers`
    for here in levels(nesting):
        depth[here] = depth[outer[here]] + is_namer[outer[here]]
        entry[here] = np.where(entry[outer[here]] >= 0, entry[outer[here]], entry[here])
    outermost = calls[entry == np.arange(len(calls))]
    suspended = outermost["call_id"].isin(tasks["coroutine_id"])
    whole = outermost[~suspended & ~outermost["resumed"]].rename(columns={"call_id": "request_id"}).assign(awaited_ns=0)
    joined = tasks[tasks["coroutine_id"].isin(outermost["call_id"])].rename(columns={"coroutine_id": "request_id"})
    joined = joined.assign(wall_ns=joined["end_ns"] - joined["start_ns"])
    rows = pd.concat([part.astype({"status": object}) for part in (whole, joined) if len(part)] or [whole.astype({"status": object})])
    continued = _continued(outermost, rows["request_id"])
    ids = trace_contexts.of_requests(contexts, outermost, continued.reindex(outermost.index).to_numpy(np.int64))
    request = continued.reindex(np.arange(len(calls)), fill_value=-1).to_numpy(np.int64)
    names = np.isin(function, named) & (outer >= 0) & is_namer[outer] & (entry >= 0)
    endpoints = pd.DataFrame(
        {"request_id": request[entry[names]], "endpoint": function[names], "depth": depth[names], "wall_ns": calls["wall_ns"][names]}
    )
    endpoint = endpoints.sort_values(["depth", "wall_ns"], kind="stable").groupby("request_id")["endpoint"].last()
    answered = rows["request_id"].map(endpoint).where(rows["func_id"].isin(namers)).fillna(rows["func_id"]).astype(np.int64)
    rows = rows.assign(endpoint_func_id=answered, kind=rows["func_id"].map(kinds), **{name: rows["request_id"].map(ids[name]) for name in ids})
    return rows[REQUESTS.arrow.names]


def _continued(calls: pd.DataFrame, begun: "pd.Series[int]") -> "pd.Series[int]":
    """The request that each of `calls` is or resumes, by position; -1 if none. `begun` has the call_ids of those that begin one."""
    is_first = calls["call_id"].isin(begun)
    frames = calls.assign(request_id=calls["call_id"].astype("Int64").where(is_first)).sort_values(["pid", "frame", "start_ns", "call_id"])
    resumed = frames.groupby(["pid", "frame"])["request_id"].ffill().where(frames["frame"] != 0, frames["request_id"])
    return resumed.fillna(-1).astype(np.int64)
