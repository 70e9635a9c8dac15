"""What the program's functions asked client libraries for: by line, library and statement, with the server, file or child that was waited for."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from pytrace_ebpf.analyze.clients.pools import gives_back, whole
from pytrace_ebpf.analyze.waits.resources import labels
from pytrace_ebpf.derive import streams
from pytrace_ebpf.derive.added import added
from pytrace_ebpf.derive.calls.nesting import above
from pytrace_ebpf.trace.libraries import in_library
from pytrace_ebpf.trace.reader import Trace

_CALL = ("call_id", "last_descendant_id", "func_id", "start_ns", "end_ns", "status", "resumed", "yielded")
_WAIT = ("call_id", "start_ns", "end_ns", "resource_id")
CONNECTS = ("create_connection", "connect_tcp", "open_connection", "sock_connect")  # what a connection is made by
_FAILED = "unwound"
_KEY = ["own_func_id", "own_line", "library", "statement"]

Ints = npt.NDArray[np.int64]


def by_client(trace: Trace, within: pd.DataFrame | None = None) -> pd.DataFrame:
    """One row per line of the program, library and statement, the most time first.

    own_func_id and own_line (-1: called by none of the program's, or from a line that is not known), library, statement (null where it could not be
    read); resource, what most of the waiting was for, as resources.labels() has it (null for nothing); count; total_ns, of a coroutine from its first
    resume to its end; each_ns, longest_ns; waited_ns, of the total, waiting for the resource; failed, how many an exception left, and unconnected, of these
    those within which no connection could be made. What a library asks of another within a call is not counted again, nor what is given back to a pool.
    `within`: only what was asked in these calls, none of which is within another (call_id, in its order, and last_descendant_id).
    """
    asked = _outermost(trace)
    if within is not None and len(asked):
        at = np.searchsorted(within["call_id"], asked["call_id"], "right") - 1
        asked = asked[(at >= 0) & (asked["call_id"] <= within["last_descendant_id"].to_numpy()[at])].reset_index(drop=True)
    if len(asked):
        _resources(trace, asked)
    groups = asked.groupby(_KEY, dropna=False, sort=False)
    table = groups.agg(
        resource=("resource", "first"),
        count=("total_ns", "size"),
        total_ns=("total_ns", "sum"),
        longest_ns=("total_ns", "max"),
        waited_ns=("waited_ns", "sum"),
        failed=("failed", "sum"),
        unconnected=("unconnected", "sum"),
    ).reset_index()
    table.insert(table.columns.get_loc("total_ns") + 1, "each_ns", table["total_ns"] // table["count"].clip(lower=1))
    return table.sort_values(["total_ns", "count"], ascending=False, kind="stable", ignore_index=True)


def _outermost(trace: Trace) -> pd.DataFrame:
    """Of statements those whose call is within no other such call: _KEY, call_id, last_descendant_id, total_ns, failed and unconnected, in the order of
    call_id; and resource and waited_ns, empty."""
    rows = trace.statements(["call_id", "func_id", *_KEY])
    rows = rows.astype({"library": "object", "statement": "object"})
    rows = rows[~gives_back(rows)].assign(resource=None, waited_ns=0).astype({"resource": "object"})
    if not len(rows):
        return rows.assign(last_descendant_id=0, total_ns=0, failed=0, unconnected=0)
    functions = trace.functions()
    connects = functions.loc[functions["name"].isin(CONNECTS), "func_id"].to_numpy(np.int64)
    asks = np.unique(rows["func_id"].to_numpy(np.int64))
    both = streams.kept_calls_of(trace, np.union1d(asks, connects), _CALL).sort_values("call_id", ignore_index=True).astype({"status": "object"})
    calls = both[both["func_id"].isin(asks)].reset_index(drop=True)
    calls = calls[above(calls)[0] < 0]
    in_vain = both.loc[both["func_id"].isin(connects) & (both["status"] == _FAILED), "call_id"].to_numpy(np.int64)
    found = whole(trace, rows.drop(columns="func_id").merge(calls, on="call_id"))
    first, end = (np.searchsorted(in_vain, found[name].to_numpy(np.int64), "right") for name in ("call_id", "last_descendant_id"))
    failed = (found["status"] == _FAILED).astype(np.int64)
    return found.assign(total_ns=found["end_ns"] - found["start_ns"], failed=failed, unconnected=failed * (end > first))


def _resources(trace: Trace, asked: pd.DataFrame) -> None:
    """Fill in `resource`, one for all calls of a key, and `waited_ns` of each call."""
    called = labels(trace.resources()).dropna()
    called = called[~called.map(in_library)]  # files that are read as the library imports what it needs
    ids, last = (asked[name].to_numpy(np.int64) for name in ("call_id", "last_descendant_id"))

    def waits() -> Iterator[pd.DataFrame]:
        for part in trace.waits_by_part(_WAIT):
            part = part[part["resource_id"].isin(called.index)]
            place = np.searchsorted(ids, part["call_id"].to_numpy(np.int64), "right") - 1
            within = (place >= 0) & (part["call_id"].to_numpy(np.int64) <= last[place])
            yield part[within].assign(place=place[within], ns=(part["end_ns"] - part["start_ns"])[within])

    sums = added(waits(), ["place", "resource_id"], {"ns": "sum"})
    if not len(sums):
        return
    key = asked.groupby(_KEY, dropna=False, sort=False).ngroup().to_numpy()
    sums["key"], sums["resource"] = key[sums["place"]], sums["resource_id"].map(called)
    most: Any = sums.groupby(["key", "resource"])["ns"].sum().reset_index().sort_values("ns", kind="stable").groupby("key")["resource"].last()
    asked["resource"] = pd.Series(key, asked.index).map(most).astype("object")
    own = sums[sums["resource"] == sums["key"].map(most)].groupby("place")["ns"].sum()
    asked.iloc[own.index.to_numpy(), asked.columns.get_loc("waited_ns")] = own.to_numpy()
