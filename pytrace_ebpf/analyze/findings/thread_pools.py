"""Pools of threads (concurrent.futures) in which work waits until a thread has time for it."""

from dataclasses import dataclass

import numpy as np

from pytrace_ebpf.analyze.findings.contexts import Contexts
from pytrace_ebpf.analyze.findings.waited import Waited
from pytrace_ebpf.analyze.functions.own_code import NONE

RESULTS = ("Future.result",)  # what a program waits in for work that it gave to a pool
_POOLS, _ITEM = "concurrent.futures.thread", "_WorkItem.run"
_NEARLY_ALL = 0.9
_IDLE = 0.1  # waits for work for each piece of it, at most, of a pool that has none too few: one that is given a piece at a time waits once for each


@dataclass(frozen=True)
class FullPool:
    """A pool of so many threads that are hardly ever without work, and what they mostly are in (func_id, NONE for none of the program's own)."""

    threads: int
    own: int


def full_pool(at: Contexts, waits: Waited, pid: int, own: int, primitive: int) -> FullPool | None:
    """The pool whose threads end nearly all waits of process `pid` in function `own` for results of `primitive` (func_ids); None where they often have nothing to do."""
    ended = waits.enders[(waits.enders["pid"] == pid) & (waits.enders["own_func_id"] == own) & (waits.enders["primitive_func_id"] == primitive)]
    of_pools = at.functions.loc[(at.functions["module"] == _POOLS) & (at.functions["qualname"] == _ITEM), "func_id"]
    items = at.tree[(at.tree["pid"] == pid) & at.tree["func_id"].isin(of_pools) & at.tree["tid"].isin(ended["waker_tid"])]
    threads = items["tid"].unique()
    if not len(threads) or ended.loc[ended["waker_tid"].isin(threads), "ns"].sum() < _NEARLY_ALL * ended["ns"].sum():
        return None
    idle = waits.idle[(waits.idle["pid"] == pid) & waits.idle["tid"].isin(threads)]
    if idle["waits"].sum() > _IDLE * items["calls"].sum():
        return None
    here = ((at.tree["pid"] == pid) & at.tree["tid"].isin(threads)).to_numpy() & (at.own_function >= 0)
    by_own = np.bincount(at.own_function[here], at.tree["self_ns"].to_numpy(np.int64)[here]) if here.any() else np.zeros(0)
    return FullPool(len(threads), int(by_own.argmax()) if len(by_own) else NONE)
