"""Why the calls of one function did not run: what they waited for themselves, and which functions were at the other end."""

from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from pytrace_ebpf.analyze.innermost import functions_of, innermost_in

WAIT_COLUMNS = ("call_id", "start_ns", "blocked_until_ns", "end_ns", "kind", "syscall", "waker_pid", "waker_tid", "holder_tid", "holder_call_id")  # fmt: skip
UNKNOWN, NOBODY = -1, -2

Part: TypeAlias = dict[str, Any]


def reasons(trace: Any, calls: pd.DataFrame, func_id: int) -> dict[str, list[Part]]:
    """What the function's own waits (not those of the calls below it) in a pytrace_ebpf Trace were for.

    `calls` needs call_id and func_id, in the order of call_id. Out: lists of {ns, ...}, most time first:
    gil: by func_id of the holder, NOBODY where it was free;
    blocked: by kind, syscall (None for none) and func_id of who ended it, NOBODY where that is no traced thread;
    runq: of the times that the core was taken from it, by func_id of who got it, NOBODY as before.
    func_id is UNKNOWN where that thread was in no call, or is not known.
    """
    mine = calls.loc[calls["func_id"] == func_id, "call_id"].to_numpy()
    waits = trace.waits(columns=WAIT_COLUMNS)
    waits = waits[np.isin(waits["call_id"].to_numpy(), mine)].reset_index(drop=True)
    kind, start = waits["kind"].astype("object"), waits["start_ns"]
    until = waits["blocked_until_ns"].fillna(waits["end_ns"]).astype(np.int64)
    gil, preempted = kind == "gil", kind == "preempted"
    waits["ns"] = (until - start).where(~preempted, waits["end_ns"] - start)
    waits["func_id"] = NOBODY
    ended = ~gil & waits["waker_tid"].fillna(0).ne(0) & waits["waker_pid"].isin(trace.processes()["pid"])
    pid, tid = (waits.loc[ended, name].to_numpy(np.int64) for name in ("waker_pid", "waker_tid"))
    moments = until.where(~preempted, start)[ended].to_numpy()
    waits.loc[ended, "func_id"] = functions_of(calls, innermost_in(trace, pid, tid, moments))
    held = gil & (waits["holder_tid"] != 0)
    waits.loc[held, "func_id"] = functions_of(calls, waits.loc[held, "holder_call_id"].to_numpy())
    waits["kind"], waits["syscall"] = kind, waits["syscall"].astype("object")
    return {
        "gil": _sums(waits[gil], ["func_id"]),
        "blocked": _sums(waits[~gil & ~preempted], ["kind", "syscall", "func_id"]),
        "runq": _sums(waits[preempted], ["func_id"]),
    }


def _sums(rows: pd.DataFrame, by: list[str]) -> list[Part]:
    sums = rows.groupby(by, dropna=False)["ns"].sum().sort_values(ascending=False).reset_index().astype(object)
    return [dict(row) for row in sums.where(sums.notna(), None).to_dict("records")]
