"""What own code computes, where it has no core, and how often it calls what it waits in: what the tree alone tells."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pandas as pd

from pytrace_ebpf.analyze.findings.contexts import Contexts, Ints
from pytrace_ebpf.analyze.functions.own_code import NONE
from pytrace_ebpf.trace.frames import values_and_mask

OF_IMPORTS = ("importlib._bootstrap", "<frozen importlib._bootstrap>", "importlib", "<import>", "_frozen_importlib")
_GENERATES = 0x20 | 0x80 | 0x200  # co_flags of what is resumed: its calls are no calls of its caller's
_LEVELS = 3


class Many(NamedTuple):
    """`caller` calls `callee` `each` times in each of its calls, `made` times in all; `share`: of the time that is waited there."""

    caller: int
    callee: int
    each: float
    made: int
    share: float


def computed(at: Contexts, endpoint: Ints) -> pd.DataFrame:
    """One row per function of own code, what it called (called_func_id, -1 itself) and endpoint (by row of the tree): on_cpu_ns, runq_ns, on_loop."""
    rows = pd.DataFrame(
        {
            "own_func_id": at.own_function,
            "called_func_id": at.called,
            "endpoint": endpoint,
            "on_loop": at.on_loop,
            "on_cpu_ns": values_and_mask(at.tree["self_on_cpu_ns"])[0],
            "runq_ns": values_and_mask(at.tree["self_runq_wait_ns"])[0],
        }
    )
    rows = rows[(rows["own_func_id"] >= 0) & (at.tree["depth"].to_numpy() >= 0)]
    return rows.groupby(["own_func_id", "called_func_id", "endpoint"], as_index=False).agg({"on_loop": "max", "on_cpu_ns": "sum", "runq_ns": "sum"})


def at_work_ns(at: Contexts) -> int:
    """The time of all threads in calls."""
    return int(at.tree.loc[at.tree["depth"] == -1, "total_ns"].sum())


def many_calls(at: Contexts, own: int, called: int, least: float) -> Many | None:
    """Who calls what how often, where `own`, which waits in `called` (-1: itself), does so in a call that each call above it makes `least` times or more.

    None where there is no such, and where that was called once: the loop of a whole program is no small one.
    """
    calls = at.tree["calls"].to_numpy(np.int64)
    for caller, callee, rows, callers in _upwards(at, own, called):
        made, of = int(calls[rows].sum()), int(calls[callers].sum())
        if of > 1 and made >= least * of:
            return Many(caller, callee, made / of, made, _share_below(at, own, called, callers))
    return None


def _share_below(at: Contexts, own: int, called: int, callers: Ints) -> float:
    """Which share of the time in which `own` is blocked in `called` that is which it is below `callers`."""
    blocked = values_and_mask(at.tree["self_blocked_ns"])[0] * (at.own_function == own) * ((at.called == called) | (called < 0))
    below, here = np.zeros(len(blocked), np.bool_), at.own
    for _ in range(_LEVELS + 1):
        below |= np.isin(here, callers)
        here = np.where(here >= 0, at.above[here], NONE)
    return float(blocked[below].sum() / blocked.sum()) if blocked.sum() else 0.0


def _upwards(at: Contexts, own: int, called: int) -> Iterator[tuple[int, int, Ints, Ints]]:
    """Caller, callee, the rows of that below it, and its own: what `own` called, then who of own code called `own`, and so on."""
    parent = at.tree["parent_id"].to_numpy(np.int64)
    resumed = set(at.functions.loc[(at.functions["flags"] & _GENERATES) != 0, "func_id"])
    if called >= 0 and called not in resumed:
        rows = np.flatnonzero((at.function == called) & (parent >= 0))
        rows = rows[at.function[parent[rows]] == own]
        if len(rows):
            yield own, called, rows, np.unique(parent[rows])
    for _ in range(_LEVELS):
        rows = np.flatnonzero((at.function == own) & (at.above >= 0))
        if not len(rows) or own in resumed:
            return
        callers = at.function[at.above[rows]]
        calls = pd.Series(at.tree["calls"].to_numpy(np.int64)[rows]).groupby(callers).sum()
        caller = int(calls.idxmax())
        yield caller, own, rows[callers == caller], np.unique(at.above[rows[callers == caller]])
        if caller == own:
            return
        own = caller
