"""Calls of native code with the tensors they were given and returned, what these cost, and the error that left them."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from pytrace_ebpf.derive.calls.preorder import outermost, preorder
from pytrace_ebpf.derive.feed import engine_of
from pytrace_ebpf.derive.native import flops
from pytrace_ebpf.derive.native.tensors import KEY, UNREAD, Ints, Tensors
from pytrace_ebpf.derive.store import NO_STATE, Growth
from pytrace_ebpf.rebuild.shards import Shards
from pytrace_ebpf.trace.derived import Settled
from pytrace_ebpf.trace.layers import NATIVE_NAMES
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.trace.schema import CALLS, OPERATORS
from pytrace_ebpf.trace.segments import part_name
from pytrace_ebpf.trace.writing import write

_OF_CALLS = [c.name for c in OPERATORS.columns if c.name in {c.name for c in CALLS.columns}]


def derive(trace: Trace, into: Path) -> Settled | None:
    """Write the native calls of `trace` as Parquet parts into the folder `into`, one for those that ended in each segment: of the table of all calls.

    Of a whole trace that has grown since, those of the new segments.
    """
    functions = trace.functions()
    native = functions[functions["function_layer"].isin(NATIVE_NAMES)]
    if not len(native):
        return None
    stream, of_native = Operators(native, trace.errors()), native["func_id"].tolist()
    if trace.whole is trace:
        return _by_segment(trace, into, stream, of_native)
    for segment in trace.segments:  # what rebuilds a window may begin before it
        stream.tensors.add(trace.part("arguments", segment["index"]))
    for number, calls in enumerate(trace.calls_by_part(_OF_CALLS, of_native)):
        if len(calls):
            write(OPERATORS, stream.part(calls), into / part_name(number))
    return None


def _by_segment(trace: Trace, into: Path, stream: "Operators", native: list[int]) -> Settled | None:
    trace.derive(CALLS.name)
    parts = list[str]()
    growth, engines = Growth(trace, OPERATORS, into, parts), Shards([engine_of(trace, rows=False)])  # which say how threads are numbered
    try:
        if growth.first:
            stream.tensors.resume(growth.resume(engines))
    except NO_STATE:
        growth.refuse()
    segments = trace.segments
    for number in range(growth.first, len(segments) + 1):  # the last part is of what was open at the end
        for segment in segments[number : number + 1]:
            stream.tensors.add(trace.part("arguments", segment["index"]))
        for calls in trace.calls_by_part(_OF_CALLS, native, only=part_name(number)):
            if len(calls):
                write(OPERATORS, stream.part(calls), into / part_name(number))
                parts.append(part_name(number))
        if growth.due(number + 1):
            growth.settle_with(CALLS, engines, stream.tensors.state())
    return growth.settled


class Operators:
    """Rows of schema.OPERATORS, a part of the calls at a time; `tensors` are to have what was recorded up to their ends before."""

    def __init__(self, functions: pd.DataFrame, errors: pd.DataFrame) -> None:
        """The rows of schema.FUNCTIONS of native code, and the table schema.ERRORS."""
        self.tensors = Tensors()
        self._functions = functions.set_index("func_id")
        pairs = zip(functions["name"], functions["qualname"], strict=True)
        self._functions["overload"] = [full.removeprefix(f"{name}.") if full.startswith(f"{name}.") else "" for name, full in pairs]
        self._errors = errors.sort_values(["pid", "tid", "ts"], kind="stable", ignore_index=True)
        self._costs: dict[tuple[int, ...], tuple[int | None, int | None]] = {}

    def part(self, calls: pd.DataFrame) -> pa.Table:
        """Native calls (their columns of schema.CALLS) as rows of schema.OPERATORS."""
        names = self._functions.loc[calls["func_id"]]
        given = self.tensors.given(calls.rename(columns={"start_ns": "ts"})[KEY], result=False)
        returned = self.tensors.given(calls.rename(columns={"end_ns": "ts"})[KEY], result=True)
        failed = (calls["status"].astype("object") == "unwound").to_numpy()
        cost = self._cost(calls["func_id"].to_numpy(np.int64), *given, *returned, failed)
        columns: dict[str, Any] = {
            "name": pa.array(names["name"], pa.string()).dictionary_encode(),
            "overload": pa.array(names["overload"], pa.string()).dictionary_encode(),
            "library": pa.array(names["module"].where(names["function_layer"] != "operator", None), pa.string()).dictionary_encode(),
            "shapes": self.tensors.shapes_of(given[0]),
            "dtypes": self.tensors.dtypes_of(given[1]),
            "result_shapes": self.tensors.shapes_of(returned[0]),
            "result_dtypes": self.tensors.dtypes_of(returned[1]),
            "flops": cost[0],
            "bytes": cost[1],
            "error": pa.array(self._messages(calls, failed), pa.string()),
        }
        for column in OPERATORS.columns:
            if column.name not in columns:
                columns[column.name] = pa.array(calls[column.name].astype("category") if pa.types.is_dictionary(column.arrow) else calls[column.name])
        return pa.table([columns[n].cast(OPERATORS.arrow.field(n).type) for n in OPERATORS.arrow.names], schema=OPERATORS.arrow)

    def _cost(self, *keys: npt.NDArray[Any]) -> tuple[pa.Array, pa.Array]:
        """flops and bytes; `keys`: func_id, shapes and dtypes given and returned, and whether the call failed. Each different key once."""
        rows = pd.DataFrame(dict(enumerate(keys)))
        group = rows.groupby(list(rows.columns), sort=False).ngroup().to_numpy()
        distinct = rows.drop_duplicates().itertuples(index=False, name=None)
        costs = [self._cost_of(tuple(int(number) for number in key)) for key in distinct]
        flops_of, bytes_of = (pa.array([cost[i] for cost in costs], pa.int64()) for i in (0, 1))
        return flops_of.take(pa.array(group)), bytes_of.take(pa.array(group))

    def _cost_of(self, key: tuple[int, ...]) -> tuple[int | None, int | None]:
        if key not in self._costs:
            func_id, shapes, dtypes, result_shapes, result_dtypes, failed = key
            function = self._functions.loc[func_id]
            known, self._costs[key] = self.tensors, (None, None)
            if shapes != UNREAD and not failed:
                self._costs[key] = flops.cost(
                    function["function_layer"], function["name"],
                    known.shapes[shapes], () if dtypes == UNREAD else known.dtypes[dtypes],
                    None if result_shapes == UNREAD else known.shapes[result_shapes], () if result_dtypes == UNREAD else known.dtypes[result_dtypes],
                )  # fmt: skip
        return self._costs[key]

    def _messages(self, calls: pd.DataFrame, failed: npt.NDArray[np.bool_]) -> npt.NDArray[np.object_]:
        """Of each call that failed the last error raised on its thread while it was open, which is the one that left it; else None."""
        messages = np.full(len(calls), None, object)
        errors = self._errors
        for row in np.flatnonzero(failed) if len(errors) else ():
            call = calls.iloc[row]
            of_thread = errors[(errors["pid"] == call["pid"]) & (errors["tid"] == call["tid"])]
            meanwhile = of_thread[of_thread["ts"].between(call["start_ns"], call["end_ns"])]
            if len(meanwhile):
                messages[row] = meanwhile["text"].iloc[-1]
        return messages


def counted(rows: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Mask of the rows (around.native_by_part) whose flops may be added up, so that each operation is counted once.

    That is, of each layer by itself, the outermost that are known to have any: what a call's shapes give is all
    that happens below it (aten::linear has the operations of the aten::addmm that it calls).
    """
    has = (rows["flops"].fillna(0) > 0).to_numpy(bool)
    layer: Ints = rows["layer"].map({name: i for i, name in enumerate(NATIVE_NAMES)}).to_numpy(np.int64)
    mask = np.zeros(len(rows), bool)
    mask[has] = outermost(rows[has], layer[has])
    return mask


def nearest(rows: pd.DataFrame, among: npt.NDArray[np.bool_]) -> Ints:
    """The row of the innermost call that each of `rows` lies in, of those that the mask `among` selects; -1 where there is none.

    Needs call_id, last_descendant_id, pid, tid.
    """
    order, below = preorder(rows)
    end = np.arange(len(rows)) + below
    chosen = np.flatnonzero(among[order])
    if not len(chosen):
        return np.full(len(rows), -1, np.int64)

    def up(start: Ints, place: Ints) -> Ints:
        """From the chosen call before each place on outwards, until one contains it."""
        while len(further := np.flatnonzero((start >= 0) & (end[chosen[start]] < place))):
            start[further] = above[start[further]]
        return start

    above = np.arange(len(chosen)) - 1
    above = up(above, chosen)  # from which it reads itself meanwhile: what does not contain one is passed sooner
    found = up(np.searchsorted(chosen, np.arange(len(rows))) - 1, np.arange(len(rows)))
    out = np.empty(len(rows), np.int64)
    out[order] = np.where(found >= 0, order[chosen[found]], -1)
    return out


def enclosing(calls: pd.DataFrame, ids: Ints, among: npt.NDArray[np.bool_]) -> Ints:
    """The nearest call of those that the mask `among` selects of `calls`, that each of the calls `ids` lies in; -1 where there is none.

    `calls` has call_id and parent_id, in the order of call_id, and with the calls `ids` all that is looked for between them and those they lie in.
    """
    known, parent = (calls[name].to_numpy(np.int64) for name in ("call_id", "parent_id"))
    out = parent[np.searchsorted(known, ids)]
    while len(out):
        at = np.minimum(np.searchsorted(known, out), len(known) - 1)
        out = np.where(known[at] == out, out, -1)
        further = (out >= 0) & ~among[at]
        if not further.any():
            break
        out = np.where(further, parent[at], out)
    return out
