"""What the program's coroutines waited for: what each awaited of a library, such as asyncio's locks and queues, how often and how long."""

import numpy as np
import numpy.typing as npt
import pandas as pd

from pytrace_ebpf.derive.calls.own_code import own
from pytrace_ebpf.derive.sinks.tasks import ASYNC_GENERATOR, look_up

COLUMNS = ("coroutine_id", "parent_id", "func_id", "resumes", "awaited_ns", "status")
DIRECTLY = -1
# They say less than what they await: Lock.acquire below `async with`.
_WRAPPERS = ("wait_for", "__aenter__", "__aexit__")

Ints = npt.NDArray[np.int64]


def awaited(tasks: pd.DataFrame, functions: pd.DataFrame, endpoints: "pd.Series[int] | None" = None) -> pd.DataFrame:
    """Time suspended by who awaited and what, the longest first; of coroutines below one of the program's own.

    `tasks` needs COLUMNS of schema.TASKS; `functions`: schema.FUNCTIONS. `endpoints`: by coroutine_id of requests the func_id of what answers
    each: then only what lies within these, and a column endpoint_func_id.
    Out: func_id, the program's coroutine function; awaited_func_id, the function of a library that it awaited, DIRECTLY where it awaited a future
    or another task itself; waits, the number of suspensions; awaited_ns. An asynchronous generator is suspended between its values, too, so
    what it awaits directly counts for who asks it for values.
    """
    tasks = tasks.sort_values("coroutine_id", ignore_index=True)
    about = functions.set_index("func_id")
    function = tasks["func_id"].to_numpy(np.int64)
    flags = about["flags"].reindex(function).to_numpy(np.int64)
    is_own = pd.Series(own(functions), about.index).reindex(function).to_numpy(bool)
    is_wrapper = about["name"].reindex(function).isin(_WRAPPERS).to_numpy(bool)
    ids, parents = (tasks[name].to_numpy(np.int64) for name in ("coroutine_id", "parent_id"))
    parent = look_up(ids, np.arange(len(ids)), parents)
    endpoint = np.full(len(ids), -1) if endpoints is None else endpoints.reindex(ids).fillna(-1).to_numpy(np.int64)
    who, what = np.where(is_own, function, -1), np.where(is_own, DIRECTLY, function)
    levels = _levels(parent)
    for here in levels[1:]:
        above = parent[here]
        endpoint[here] = np.where(endpoint[above] >= 0, endpoint[above], endpoint[here])
        who[here] = np.where(is_own[here], who[here], who[above])
        named = ~is_own[here] & (what[above] >= 0) & ~is_wrapper[above]
        what[here] = np.where(named, what[above], what[here])
    suspended = tasks["resumes"].to_numpy(np.int64) - 1 + tasks["status"].isin(("open_at_end", "abandoned")).to_numpy(np.int64)
    sums = {}
    for name, whole in (("waits", suspended), ("awaited_ns", tasks["awaited_ns"].to_numpy(np.int64, copy=True))):
        below = np.zeros(len(tasks), np.int64)
        for here in reversed(levels):
            whole[here] = np.where(flags[here] & ASYNC_GENERATOR, below[here], whole[here])
            inner = here[parent[here] >= 0]
            np.add.at(below, parent[inner], whole[inner])
        sums[name] = np.maximum(whole - below, 0)
    rows = pd.DataFrame({"func_id": who, "awaited_func_id": what, **({} if endpoints is None else {"endpoint_func_id": endpoint}), **sums})
    rows = rows[(who >= 0) & (rows["awaited_ns"] > 0) & ((endpoint >= 0) | (endpoints is None))]
    table = rows.groupby([name for name in rows if name not in sums], as_index=False).sum()
    return table.sort_values("awaited_ns", ascending=False, kind="stable", ignore_index=True)


def _levels(parent: Ints) -> list[Ints]:
    """The rows without a parent, those that have one among these, and so on."""
    levels, here = [], np.flatnonzero(parent < 0)
    left = parent >= 0
    while len(here):
        levels.append(here)
        reached = np.zeros(len(parent), bool)
        reached[here] = True
        here = np.flatnonzero(left & reached[parent])
    return levels
