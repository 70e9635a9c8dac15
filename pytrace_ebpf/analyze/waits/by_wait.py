"""What the threads waited for, all together: by what the program called to wait, by lock, else by kind and system call; in which function, for whom."""

import numpy as np
import pandas as pd

WAITS = (
    "pid", "tid", "func_id", "start_ns", "blocked_until_ns", "end_ns", "kind", "syscall", "lock_address",
    "waker_pid", "waker_tid", "holder_tid", "holder_func_id", "waker_caller_func_id", "waker_primitive_func_id",
    "primitive_func_id", "caller_func_id",
)  # fmt: skip
AGENT = "pytrace-agent"  # our own thread in the program, as probes/agent/session.c names it
_KEY = ["kind", "syscall", "lock_pid", "lock_address", "primitive_func_id", "named_func_id"]


def by_wait(waits: pd.DataFrame, threads: pd.DataFrame, neighbours: pd.DataFrame) -> pd.DataFrame:
    """One row per function of analyze.waits.primitives and its caller, per lock, else per kind and system call; longest total first.

    The agent's own thread is left out.

    `waits` needs WAITS, the others schema.THREADS and NEIGHBOURS.
    Out: kind, primitive_func_id (Queue.get; -1 none), syscall (null where that is known), lock_pid and lock_address (null but for locks without), waits (their number),
    total_ns, queued_ns (of it, runnable
    but without a core; null where not recorded), longest_ns, threads (how many waited); func_id (-1 no call) and func_ns, the function
    in which most of it was waited, that called primitive_func_id where there is one; partner_pid, partner_tid (0 nobody, -1 not known), partner_name
    (null not known) and partner_ns, the thread that most of it was waited for: that held the GIL, took the core, or ended the wait (released the lock); partner_func_id and
    partner_func_ns, the function in which such threads were for most of it (-1 no call, or not known), and partner_primitive_func_id,
    what it called (Queue.put; -1 none).
    """
    rows = waits[~waits["tid"].isin(threads.loc[threads["name"] == AGENT, "tid"])].astype({"kind": "object", "syscall": "object"})
    rows["ns"] = rows["end_ns"] - rows["start_ns"]
    rows["queued"] = rows["end_ns"] - rows["blocked_until_ns"]
    gil, named = rows["kind"] == "gil", (rows["primitive_func_id"] >= 0) & ~rows["kind"].isin(("gil", "preempted"))
    lock = (rows["kind"] == "lock") & ~named
    rows["primitive_func_id"] = rows["primitive_func_id"].where(named, -1)
    rows["named_func_id"] = rows["caller_func_id"].where(named, -1)
    rows["syscall"] = rows["syscall"].mask(named, None)
    rows["func_id"] = rows["caller_func_id"].where(named, rows["func_id"])
    rows["lock_pid"], rows["lock_address"] = rows["pid"].where(lock).astype("Int64"), rows["lock_address"].where(lock)
    rows["partner_tid"] = rows["waker_tid"].fillna(-1).where(~gil, rows["holder_tid"]).astype(np.int64)
    rows["partner_pid"] = rows["waker_pid"].fillna(-1).where(~gil, rows["pid"]).astype(np.int64)
    rows["partner_func_id"] = rows["waker_caller_func_id"].where(~gil, rows["holder_func_id"])
    rows["partner_primitive_func_id"] = rows["waker_primitive_func_id"].where(~gil, -1)
    grouped = rows.groupby(_KEY, dropna=False)
    table = grouped.agg(waits=("ns", "size"), total_ns=("ns", "sum"), longest_ns=("ns", "max"))
    table["queued_ns"] = grouped["queued"].sum(min_count=1)
    table["threads"] = rows.drop_duplicates([*_KEY, "tid"]).groupby(_KEY, dropna=False).size()
    table = table.reset_index()
    for name, columns in (
        ("func_ns", ["func_id"]),
        ("partner_ns", ["partner_tid", "partner_pid"]),
        ("partner_func_ns", ["partner_func_id", "partner_primitive_func_id"]),
    ):
        table = table.merge(_main(rows, columns, name), how="left", on=_KEY)
    # By tid alone: which process took a core is recorded only of traced ones.
    names = pd.concat([threads[["tid", "name"]], neighbours[["tid", "name"]]]).drop_duplicates("tid")
    table = table.merge(names.rename(columns={"tid": "partner_tid", "name": "partner_name"}), how="left", on="partner_tid")
    return table.drop(columns="named_func_id").sort_values("total_ns", ascending=False, kind="stable", ignore_index=True)


def _main(rows: pd.DataFrame, columns: list[str], name: str) -> pd.DataFrame:
    """Per _KEY the values of `columns` with the most time, and that time as `name`."""
    sums = rows.groupby([*_KEY, *columns], dropna=False)["ns"].sum().rename(name).reset_index()
    return sums.sort_values(name, ascending=False, kind="stable").drop_duplicates(_KEY)
