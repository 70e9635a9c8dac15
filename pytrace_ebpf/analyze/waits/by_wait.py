"""What the threads waited for, all together: by what the program called to wait, by lock, file or socket, else by kind and system call; in which function, for whom."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pandas as pd

from pytrace_ebpf.analyze.waits.resources import labels
from pytrace_ebpf.analyze.waits.resources import named as resource_of
from pytrace_ebpf.analyze.waits.rivals import throttled
from pytrace_ebpf.analyze.waits.whole import whole_waits
from pytrace_ebpf.derive.added import Added
from pytrace_ebpf.trace.schema import AGENT, OF_THE_INTERPRETER

WAITS = (
    "pid", "tid", "func_id", "start_ns", "blocked_until_ns", "end_ns", "kind", "syscall", "lock_address", "resource_id",
    "throttled_ns", "slices", "waker_pid", "waker_tid", "holder_tid", "holder_func_id", "waker_caller_func_id", "waker_primitive_func_id",
    "primitive_func_id", "caller_func_id",
)  # fmt: skip
QUOTA = "cpu quota"
_MAIN = {
    "func_ns": ["func_id"],
    "partner_ns": ["partner_tid", "partner_pid"],
    "partner_func_ns": ["partner_func_id", "partner_primitive_func_id"],
}
"""By the name of its time: what is to be found with the most of it."""
_KEY = ["kind", "syscall", "resource", "lock_pid", "lock_address", "primitive_func_id", "named_func_id"]
_FINEST = [*_KEY, "tid", *dict.fromkeys(column for columns in _MAIN.values() for column in columns)]
_SUMS = {"waits": "sum", "total_ns": "sum", "longest_ns": "max", "queued_ns": "sum", "queue_known": "max"}


def by_wait(
    parts: Iterable[pd.DataFrame],
    threads: pd.DataFrame,
    neighbours: pd.DataFrame,
    resources: pd.DataFrame,
    main_rivals: Callable[[pd.DataFrame], pd.DataFrame] | None = None,
) -> pd.DataFrame:
    """One row per function of derive.calls.primitives and its caller, per lock, else per kind, system call and resource; longest total first.

    The agent's own thread is left out.

    `parts` (Trace.waits_by_part) need WAITS, the others schema.THREADS, NEIGHBOURS and RESOURCES, and `main_rivals` gives waits.rivals.main_rivals of some
    waits, where these are known.
    Out: kind (of schema.WAIT_KINDS; QUOTA: preempted as the control group had no CPU quota left), primitive_func_id (Queue.get; -1 none), syscall (null
    where that is known), resource (what was behind the descriptor, in words, as resources.labels has it;
    null for none, and where the function is known), lock_pid and lock_address (null but for locks without), waits (their number),
    total_ns, queued_ns (of it, runnable
    but without a core; null where not recorded), longest_ns, threads (how many waited); func_id (-1 no call) and func_ns, the function
    in which most of it was waited, that called primitive_func_id where there is one; partner_pid, partner_tid (0 nobody, -1 not known), partner_name
    (null not known) and partner_ns, the thread that most of it was waited for: that held the GIL, had the core, or ended the wait (released the lock); partner_func_id and
    partner_func_ns, the function in which such threads were for most of it (-1 no call, or not known), and partner_primitive_func_id,
    what it called (Queue.put; -1 none).
    """
    whole = Added(_KEY, _SUMS)
    waiting, mains = Added([*_KEY, "tid"], {"waits": "sum"}), {name: Added([*_KEY, *columns], {name: "sum"}) for name, columns in _MAIN.items()}
    ours = threads.loc[threads["name"] == AGENT, "tid"]
    called = labels(resources)
    for part in whole_waits(parts):
        rows = _rows(part[~part["tid"].isin(ours)], called, main_rivals)
        # Rows are added up once, to what every sum below can still tell apart: mostly a few rows of very many.
        rows = (
            rows.groupby(_FINEST, dropna=False, as_index=False, observed=True)
            .agg(_SUMS)
            .astype({"kind": "object", "syscall": "object", "resource": "object"})
        )
        for name in _MAIN:
            rows[name] = rows["total_ns"]
        for sums in (whole, waiting, *mains.values()):
            sums.add(rows)
    table = whole.table
    table["queued_ns"] = table["queued_ns"].where(table.pop("queue_known"))
    table = table.merge(waiting.table.groupby(_KEY, dropna=False, as_index=False).agg(threads=("tid", "size")), how="left", on=_KEY)
    for name, sums in mains.items():
        table = table.merge(sums.table.sort_values(name, ascending=False, kind="stable").drop_duplicates(_KEY), how="left", on=_KEY)
    # By tid alone: which process took a core is recorded only of traced ones.
    names = pd.concat([threads[["tid", "name"]], neighbours[["tid", "name"]]]).drop_duplicates("tid")
    table = table.merge(names.rename(columns={"tid": "partner_tid", "name": "partner_name"}), how="left", on="partner_tid")
    return table.drop(columns="named_func_id").sort_values("total_ns", ascending=False, kind="stable", ignore_index=True)


def _rows(waits: pd.DataFrame, called: "pd.Series[Any]", main_rivals: Callable[[pd.DataFrame], pd.DataFrame] | None) -> pd.DataFrame:
    """`waits` with what is to be added, and by what; `called`: of resources.labels."""
    rows = waits.copy(deep=False)
    rows["kind"] = rows["kind"].astype("object").mask((rows["kind"] == "preempted") & throttled(rows), QUOTA)
    rows["total_ns"] = rows["longest_ns"] = rows["end_ns"] - rows["start_ns"]
    rows["queued_ns"], rows["queue_known"] = rows["end_ns"] - rows["blocked_until_ns"], rows["blocked_until_ns"].notna()
    rows["waits"] = 1
    gil, named = rows["kind"] == "gil", (rows["primitive_func_id"] >= 0) & ~rows["kind"].isin((*OF_THE_INTERPRETER, "preempted", QUOTA))
    lock = rows["kind"].isin(("lock", "object-lock")) & ~named
    rows["primitive_func_id"] = rows["primitive_func_id"].where(named, -1)
    rows["named_func_id"] = rows["caller_func_id"].where(named, -1)
    rows["syscall"] = rows["syscall"].mask(named, None)
    rows["resource"] = resource_of(waits, called).mask(named, None)
    rows["func_id"] = rows["caller_func_id"].where(named, rows["func_id"])
    rows["lock_pid"], rows["lock_address"] = rows["pid"].where(lock).astype("Int64"), rows["lock_address"].where(lock)
    rows["partner_tid"] = rows["waker_tid"].fillna(-1).where(~gil, rows["holder_tid"]).astype(np.int64)
    rows["partner_pid"] = rows["waker_pid"].fillna(-1).where(~gil, rows["pid"]).astype(np.int64)
    rows["partner_func_id"] = rows["waker_caller_func_id"].where(~gil, rows["holder_func_id"])
    rows["partner_primitive_func_id"] = rows["waker_primitive_func_id"].where(~gil, -1)
    _of_queue(rows, main_rivals)
    return rows


def _of_queue(rows: pd.DataFrame, main_rivals: Callable[[pd.DataFrame], pd.DataFrame] | None) -> None:
    """The partner of those that lost their core: of a quota nobody, else who had it longest, where that is not who took it."""
    quota = rows["kind"] == QUOTA
    for name, nobody in (("partner_tid", 0), ("partner_pid", 0), ("partner_func_id", -1), ("partner_primitive_func_id", -1)):
        rows.loc[quota, name] = nobody
    preempted = rows["kind"] == "preempted"
    if main_rivals is None or not preempted.any():
        return
    waits = rows.loc[preempted, ["tid", "blocked_until_ns"]]
    found = waits.merge(main_rivals(waits), how="left", on=["tid", "blocked_until_ns"]).set_axis(rows.index[preempted])
    others = found[found["rival_tid"].notna() & (found["rival_tid"] != rows["partner_tid"][preempted])]
    rows.loc[others.index, "partner_tid"] = others["rival_tid"].astype(np.int64)
    rows.loc[others.index, "partner_pid"] = others["rival_pid"].astype(np.int64)
    rows.loc[others.index, ["partner_func_id", "partner_primitive_func_id"]] = -1
