"""Coroutines by function: how many, how long they ran and were suspended, and how long one kept the event loop from the others."""

import pandas as pd

from pytrace_ebpf.analyze.functions.by_function import unknown
from pytrace_ebpf.trace.states import SPLIT

COLUMNS = ("coroutine_id", "task_id", "func_id", "start_ns", "end_ns", "resumes", "run_ns", *SPLIT, "awaited_ns", "longest_ns", "longest_call_id")
_NEARLY = 0.9


def by_task(tasks: pd.DataFrame) -> pd.DataFrame:
    """Aggregate `tasks` (COLUMNS of schema.TASKS) per function, the largest run_ns first; int64/Int64 nanoseconds.

    One row each: func_id; coroutines; tasks, those that nothing awaits; resumes; run_ns, its SPLIT (null where that of
    a coroutine is) and unknown_ns, the part of run_ns whose split is null; awaited_ns; longest_ns, of a whole
    coroutine; held_ns, of a single resume, and held_call_id, that call.
    """
    tasks = tasks.assign(
        whole_ns=tasks["end_ns"] - tasks["start_ns"],
        is_task=tasks["task_id"] == tasks["coroutine_id"],
        unknown_ns=unknown(tasks, "run_ns"),
    )
    groups = tasks.groupby("func_id")
    table = groups.agg(
        coroutines=("coroutine_id", "size"),
        tasks=("is_task", "sum"),
        resumes=("resumes", "sum"),
        run_ns=("run_ns", "sum"),
        unknown_ns=("unknown_ns", "sum"),
        awaited_ns=("awaited_ns", "sum"),
        longest_ns=("whole_ns", "max"),
        held_ns=("longest_ns", "max"),
    )
    for name in SPLIT:
        table[name] = groups[name].sum(min_count=1)
    table["held_call_id"] = tasks.loc[groups["longest_ns"].idxmax()].set_index("func_id")["longest_call_id"]
    return table.sort_values("run_ns", ascending=False, kind="stable").reset_index()


def longest_hold(tasks: pd.DataFrame) -> tuple[int, int] | None:
    """(func_id, ns) of the longest resume in `tasks` (COLUMNS): of nested coroutines the innermost that was there most of the time."""
    if not len(tasks):
        return None
    longest = tasks.loc[tasks["longest_ns"].idxmax()]
    same = tasks[(tasks["task_id"] == longest["task_id"]) & (tasks["longest_ns"] >= _NEARLY * longest["longest_ns"])]
    innermost = same.loc[same["longest_call_id"].idxmax()]
    return int(innermost["func_id"]), int(innermost["longest_ns"])
