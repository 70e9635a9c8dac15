"""Why the calls of one function did not run: what they waited for themselves, and which functions were at the other end."""

from typing import Any, TypeAlias

import numpy as np
import pandas as pd

WAIT_COLUMNS = ("func_id", "start_ns", "blocked_until_ns", "end_ns", "kind", "syscall", "waker_pid", "waker_tid", "holder_tid", "holder_func_id", "waker_func_id")  # fmt: skip
UNKNOWN, NOBODY = -1, -2

Part: TypeAlias = dict[str, Any]


def reasons(trace: Any, func_id: int) -> dict[str, list[Part]]:
    """What the function's own waits (not those of the calls below it) in a pytrace_ebpf Trace were for.

    Out: lists of {ns, ...}, most time first:
    gil: by func_id of the holder, NOBODY where it was free;
    blocked: by kind, syscall (None for none) and func_id of who ended it, NOBODY where that is no traced thread;
    runq: of the times that the core was taken from it, by func_id of who got it, NOBODY as before.
    func_id is UNKNOWN where that thread was in no call, or is not known.
    """
    waits = trace.waits(columns=WAIT_COLUMNS)
    waits = waits[waits["func_id"] == func_id].reset_index(drop=True)
    kind, start = waits["kind"].astype("object"), waits["start_ns"]
    until = waits["blocked_until_ns"].fillna(waits["end_ns"]).astype(np.int64)
    gil, preempted = kind == "gil", kind == "preempted"
    waits["ns"] = (until - start).where(~preempted, waits["end_ns"] - start)
    ended = ~gil & waits["waker_tid"].fillna(0).ne(0) & waits["waker_pid"].isin(trace.processes()["pid"])
    held = gil & (waits["holder_tid"] != 0)
    waits["func_id"] = waits["holder_func_id"].where(held, waits["waker_func_id"].where(ended, NOBODY))
    waits["kind"], waits["syscall"] = kind, waits["syscall"].astype("object")
    return {
        "gil": _sums(waits[gil], ["func_id"]),
        "blocked": _sums(waits[~gil & ~preempted], ["kind", "syscall", "func_id"]),
        "runq": _sums(waits[preempted], ["func_id"]),
    }


def _sums(rows: pd.DataFrame, by: list[str]) -> list[Part]:
    sums = rows.groupby(by, dropna=False)["ns"].sum().sort_values(ascending=False).reset_index().astype(object)
    return [dict(row) for row in sums.where(sums.notna(), None).to_dict("records")]
