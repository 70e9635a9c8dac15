"""Native calls, those of a part at a time, with what they lie in: memory is bounded by how many ended in a segment or crossed its end."""

from collections.abc import Iterator, Sequence
from itertools import accumulate

import numpy as np
import pandas as pd

from pytrace_ebpf.derive.native.tensors import Ints
from pytrace_ebpf.trace.frames import to_frame
from pytrace_ebpf.trace.layers import NATIVE_NAMES
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.trace.schema import CALLS, OPERATORS

_NESTING = ("call_id", "last_descendant_id", "pid", "tid", "start_ns")


def joined(operators: pd.DataFrame, calls: pd.DataFrame) -> pd.DataFrame:
    """`operators` with the columns of `calls`, both in the order of call_id, as native_by_part() gives them; `calls` may have others."""
    at = np.searchsorted(calls["call_id"].to_numpy(np.int64), operators["call_id"].to_numpy(np.int64))
    of_calls = calls.iloc[at].reset_index(drop=True)
    rest = operators[[name for name in operators if name not in of_calls]].reset_index(drop=True)
    rows = pd.concat([of_calls, rest], axis=1)
    texts = [name for name in rows if isinstance(rows[name].dtype, pd.CategoricalDtype)]
    return rows.astype(dict.fromkeys(texts, object)).assign(own=True)


def native_by_part(trace: Trace, columns: Sequence[str]) -> Iterator[pd.DataFrame]:
    """Native calls, those that ended in a segment at a time, the last first: `columns` of schema.OPERATORS and of schema.CALLS, and _NESTING.

    In the order of call_id; where there are none an empty one. `own`: whether it is one of that part, each of which comes once; the others are what these lie in.
    """
    ends = list(accumulate((int(part["end_ns"].max()) for part in trace.operators_by_part(["end_ns"])), max))
    native = _native(trace)
    of_calls = list(dict.fromkeys([*_NESTING, *(name for name in columns if name in CALLS.arrow.names)]))
    of_operators = ["call_id", *(name for name in columns if name not in of_calls)]
    if not ends:
        yield joined(*(to_frame(table.arrow.empty_table().select(names), table) for table, names in ((OPERATORS, of_operators), (CALLS, of_calls))))
        return
    parts = filter(len, trace.calls_by_part(of_calls, native, latest_first=True))
    around = None
    for before, operators, calls in zip([*ends[-2::-1], -1], trace.operators_by_part(of_operators, latest_first=True), parts, strict=True):
        rows = joined(operators.sort_values("call_id"), calls.sort_values("call_id"))
        if around is not None and len(around):
            rows = pd.concat([rows, around]).sort_values("call_id", ignore_index=True)
        yield rows
        around = rows[rows["start_ns"] <= before].assign(own=False)


def _native(trace: Trace) -> list[int]:
    functions = trace.functions()
    return list(functions.loc[functions["function_layer"].isin(NATIVE_NAMES), "func_id"])


def calls_within(trace: Trace, columns: Sequence[str]) -> pd.DataFrame:
    """`columns` (call_id among them) of the native calls and of all that lie in them, in the order of call_id.

    Read some at a time: memory is bounded by how many these are.
    """
    native, found = _native(trace), [to_frame(CALLS.arrow.empty_table().select(columns), CALLS)]
    spans = [part.to_numpy(np.int64) for part in trace.calls_by_part(["call_id", "last_descendant_id"], native)] if native else []
    first, last = np.concatenate([np.zeros((0, 2), np.int64), *spans]).T
    order = np.argsort(first)
    first, last = first[order], np.maximum.accumulate(last[order])
    for calls in trace.iter_calls(columns) if len(first) else ():
        ids = calls["call_id"].to_numpy(np.int64)
        within = np.searchsorted(first, ids, side="right") - 1
        found.append(calls[(within >= 0) & (ids <= last[within])])
    return pd.concat(found[1:] or found).sort_values("call_id", ignore_index=True)


def calls_around(trace: Trace, columns: Sequence[str], ids: Ints) -> pd.DataFrame:
    """`columns`, call_id and last_descendant_id of the calls `ids` and of all that they lie in, in the order of call_id.

    Read some at a time: memory is bounded by how many these are.
    """
    names = list(dict.fromkeys(["call_id", "last_descendant_id", *columns]))
    ids = np.sort(ids)
    found = [to_frame(CALLS.arrow.empty_table().select(names), CALLS)]
    for calls in trace.iter_calls(names) if len(ids) else ():
        first = np.searchsorted(ids, calls["call_id"].to_numpy(np.int64))
        last = np.searchsorted(ids, calls["last_descendant_id"].to_numpy(np.int64), side="right")
        found.append(calls[last > first])
    return pd.concat(found[1:] or found).sort_values("call_id", ignore_index=True)
