"""Why the calls of one function did not run: what they waited for themselves, and which functions were at the other end."""

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from pytrace_ebpf.analyze.innermost import innermost_in
from pytrace_ebpf.trace.schema import WAIT_KINDS

COLUMNS = (
    "call_id",
    "start_ns",
    "blocked_until_ns",
    "end_ns",
    "kind",
    "syscall",
    "waker_pid",
    "waker_tid",
    "holder_tid",
    "holder_call_id",
)
Part: TypeAlias = dict[str, Any]
_BLOCKED = [kind for kind in WAIT_KINDS if kind not in ("gil", "preempted")]


def reasons(trace: Any, calls: pd.DataFrame, func_id: int) -> dict[str, list[Part]]:
    """What the function's own waits (not those of the calls below it) in a pytrace_ebpf Trace were for.

    `calls` needs call_id and func_id, in the order of call_id. Out: lists of {ns, ...}, most time first:
    gil: by func_id of the holder, -2 where nobody held it, -1 where that or its function is not known;
    blocked: by kind, syscall (None for none) and func_id of the thread that ended it, -1 where that is none of the traced ones;
    runq: of the times that the core was taken from it, by func_id of the thread that got it, -1 as before.
    """
    mine = calls.loc[calls["func_id"] == func_id, "call_id"].to_numpy()
    waits = trace.waits(columns=COLUMNS)
    waits = waits[np.isin(waits["call_id"].to_numpy(), mine)].reset_index(drop=True)
    kind, start = waits["kind"].astype("object"), waits["start_ns"]
    until = waits["blocked_until_ns"].fillna(waits["end_ns"]).astype(np.int64)
    function = _namer(calls)
    gil, preempted, blocked = kind == "gil", kind == "preempted", kind.isin(_BLOCKED)
    waits["ns"] = (until - start).where(~preempted, waits["end_ns"] - start)
    waits["other"] = -1
    waits.loc[gil, "other"] = function(waits.loc[gil, "holder_call_id"].to_numpy())
    waits.loc[gil & (waits["holder_tid"] == 0), "other"] = -2
    ended = (
        (preempted | blocked) & (waits["waker_tid"].fillna(0) != 0) & waits["waker_pid"].isin(trace.processes()["pid"])
    )
    moments = until.where(~preempted, start)[ended].to_numpy()
    pid, tid = (waits.loc[ended, name].to_numpy(np.int64) for name in ("waker_pid", "waker_tid"))
    waits.loc[ended, "other"] = function(innermost_in(trace, pid, tid, moments))
    waits["kind"], waits["syscall"] = kind, waits["syscall"].astype("object")
    return {
        "gil": _sums(waits[gil], ["other"]),
        "blocked": _sums(waits[blocked], ["kind", "syscall", "other"]),
        "runq": _sums(waits[preempted], ["other"]),
    }


def _namer(calls: pd.DataFrame) -> Callable[[Any], Any]:
    """A function from call_ids to func_ids; -1 for -1."""
    ids, functions = calls["call_id"].to_numpy(), calls["func_id"].to_numpy()

    def names(call_id: Any) -> Any:
        at = np.minimum(np.searchsorted(ids, np.maximum(call_id, 0)), max(len(ids) - 1, 0))
        return np.where(np.asarray(call_id) >= 0, functions[at], -1) if len(ids) else np.full(len(call_id), -1)

    return names


def _sums(rows: pd.DataFrame, by: list[str]) -> list[Part]:
    sums = rows.groupby(by, dropna=False, observed=True)["ns"].sum().sort_values(ascending=False).reset_index()
    sums = sums.rename(columns={"other": "func_id"}).astype(object)
    return [dict(row) for row in sums.where(sums.notna(), None).to_dict("records")]
