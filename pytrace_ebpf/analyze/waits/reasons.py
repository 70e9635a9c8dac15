"""Why the calls of one function did not run: what they waited for themselves, and which functions were at the other end."""

from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from pytrace_ebpf.analyze.waits.resources import labels, named
from pytrace_ebpf.analyze.waits.rivals import of_waits
from pytrace_ebpf.analyze.waits.whole import whole_waits
from pytrace_ebpf.derive.added import Added

WAIT_COLUMNS = (
    "pid", "tid", "func_id", "slices", "start_ns", "blocked_until_ns", "end_ns", "kind", "syscall", "resource_id",
    "waker_pid", "waker_tid", "holder_tid", "holder_func_id", "waker_func_id", "throttled_ns",
)  # fmt: skip
UNKNOWN, NOBODY, QUOTA = -1, -2, -3

Part: TypeAlias = dict[str, Any]
_BY = {"gil": ["func_id"], "blocked": ["kind", "syscall", "resource", "func_id"], "runq": ["func_id", "who"]}


def reasons(trace: Any, func_id: int) -> dict[str, list[Part]]:
    """What the function's own waits (not those of the calls below it) in a pytrace_ebpf Trace were for.

    Out: lists of {ns, ...}, most time first:
    gil: by func_id of the holder, NOBODY where it was free;
    blocked: by kind, syscall (None for none), resource (as resources.labels has it, None for none) and func_id of who ended it, NOBODY where that is no traced thread;
    runq: by func_id of who had the core meanwhile, NOBODY as before, with `who`, its name (None where that is not known), and QUOTA where its control group had no CPU quota left;
    where others' switches were not recorded, of the times that the core was taken from it, by who got it.
    func_id is UNKNOWN where that thread was in no call, or is not known.
    """
    sums = {name: Added(by, {"ns": "sum"}) for name, by in _BY.items()}
    pids, called = trace.processes()["pid"], labels(trace.resources())
    names = trace.neighbours().drop_duplicates("tid").set_index("tid")["name"]
    for part in whole_waits(trace.waits_by_part(WAIT_COLUMNS)):
        waits = part[part["func_id"] == func_id].reset_index(drop=True)
        runq = _queued(waits, of_waits(trace, waits), pids, names) if trace.rivals_known else None
        parts = _parts(waits, pids, called) | ({} if runq is None else {"runq": runq})
        for name, rows in parts.items():
            sums[name].add(rows)
    return {name: _rows(each.table) for name, each in sums.items()}


def _queued(waits: pd.DataFrame, had: pd.DataFrame, pids: "pd.Series[int]", names: "pd.Series[Any]") -> pd.DataFrame:
    """By who had the core (`had`: rivals.of_waits): func_id, who, ns; and for how long there was no quota. `pids`: of the program; `names`: of others, by tid."""
    rows = waits[["tid", "blocked_until_ns", "waker_tid", "waker_func_id"]].merge(had, on=["tid", "blocked_until_ns"])
    own = rows["rival_pid"].isin(pids)
    took = own & (rows["waker_tid"] == rows["rival_tid"]).fillna(False)
    rows["func_id"] = np.where(took, rows["waker_func_id"], np.where(own, UNKNOWN, NOBODY))
    rows["who"] = rows["rival_tid"].map(names).astype("object").mask(own, None)
    quota = waits["throttled_ns"].fillna(0).astype(np.int64)
    none_left = pd.DataFrame({"func_id": QUOTA, "who": None, "ns": quota[quota > 0]})
    return pd.concat([rows[["func_id", "who", "ns"]], none_left.astype({"who": "object"})], ignore_index=True)


def _parts(waits: pd.DataFrame, pids: "pd.Series[int]", called: "pd.Series[Any]") -> dict[str, pd.DataFrame]:
    kind, start = waits["kind"].astype("object"), waits["start_ns"]
    until = waits["blocked_until_ns"].fillna(waits["end_ns"]).astype(np.int64)
    gil, preempted = kind == "gil", kind == "preempted"
    waits["ns"] = (until - start).where(~preempted, waits["end_ns"] - start)
    ended = ~gil & waits["waker_tid"].fillna(0).ne(0) & waits["waker_pid"].isin(pids)
    held = gil & (waits["holder_tid"] != 0)
    waits["func_id"] = waits["holder_func_id"].where(held, waits["waker_func_id"].where(ended, NOBODY))
    waits["kind"], waits["syscall"], waits["resource"] = kind, waits["syscall"].astype("object"), named(waits, called)
    return {"gil": waits[gil], "blocked": waits[~gil & ~preempted], "runq": waits[preempted].assign(who=None)}


def _rows(sums: pd.DataFrame) -> list[Part]:
    rows = sums.sort_values("ns", ascending=False).astype(object)
    return [dict(row) for row in rows.where(rows.notna(), None).to_dict("records")]
