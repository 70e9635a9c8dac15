"""Why the calls of one function did not run: what they waited for themselves, and which functions were at the other end."""

from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from pytrace_ebpf.analyze.waits.resources import labels, named
from pytrace_ebpf.derive.added import Added

WAIT_COLUMNS = (
    "func_id", "start_ns", "blocked_until_ns", "end_ns", "kind", "syscall", "resource_id",
    "waker_pid", "waker_tid", "holder_tid", "holder_func_id", "waker_func_id",
)  # fmt: skip
UNKNOWN, NOBODY = -1, -2

Part: TypeAlias = dict[str, Any]
_BY = {"gil": ["func_id"], "blocked": ["kind", "syscall", "resource", "func_id"], "runq": ["func_id"]}


def reasons(trace: Any, func_id: int) -> dict[str, list[Part]]:
    """What the function's own waits (not those of the calls below it) in a pytrace_ebpf Trace were for.

    Out: lists of {ns, ...}, most time first:
    gil: by func_id of the holder, NOBODY where it was free;
    blocked: by kind, syscall (None for none), resource (as resources.labels has it, None for none) and func_id of who ended it, NOBODY where that is no traced thread;
    runq: of the times that the core was taken from it, by func_id of who got it, NOBODY as before.
    func_id is UNKNOWN where that thread was in no call, or is not known.
    """
    sums = {name: Added(by, {"ns": "sum"}) for name, by in _BY.items()}
    pids, called = trace.processes()["pid"], labels(trace.resources())
    for part in trace.waits_by_part(WAIT_COLUMNS):
        for name, rows in _parts(part[part["func_id"] == func_id].reset_index(drop=True), pids, called).items():
            sums[name].add(rows)
    return {name: _rows(each.table) for name, each in sums.items()}


def _parts(waits: pd.DataFrame, pids: "pd.Series[int]", called: "pd.Series[Any]") -> dict[str, pd.DataFrame]:
    kind, start = waits["kind"].astype("object"), waits["start_ns"]
    until = waits["blocked_until_ns"].fillna(waits["end_ns"]).astype(np.int64)
    gil, preempted = kind == "gil", kind == "preempted"
    waits["ns"] = (until - start).where(~preempted, waits["end_ns"] - start)
    ended = ~gil & waits["waker_tid"].fillna(0).ne(0) & waits["waker_pid"].isin(pids)
    held = gil & (waits["holder_tid"] != 0)
    waits["func_id"] = waits["holder_func_id"].where(held, waits["waker_func_id"].where(ended, NOBODY))
    waits["kind"], waits["syscall"], waits["resource"] = kind, waits["syscall"].astype("object"), named(waits, called)
    return {"gil": waits[gil], "blocked": waits[~gil & ~preempted], "runq": waits[preempted]}


def _rows(sums: pd.DataFrame) -> list[Part]:
    rows = sums.sort_values("ns", ascending=False).astype(object)
    return [dict(row) for row in rows.where(rows.notna(), None).to_dict("records")]
