"""The waits that rules are about, from the table of waits: those of some kinds that are too long, and of these what lies within the hold of a lock."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow.compute as pc

from pytrace_ebpf.derive.calls.primitives import PRIMITIVES, among
from pytrace_ebpf.rules.functions import Functions
from pytrace_ebpf.rules.rule import Rule
from pytrace_ebpf.trace.reader import Trace

_COLUMNS = ("pid", "tid", "call_id", "func_id", "start_ns", "blocked_until_ns", "end_ns", "kind")
_KEPT = ["pid", "tid", "start_ns", "until_ns", "call_id", "func_id", "ns"]
_OF_LOCKS = (
    "waker_pid", "waker_tid", "primitive_func_id", "caller_func_id", "own_func_id", "own_called_func_id", "waker_func_id", "waker_primitive_func_id",
)  # fmt: skip
_HOLD = ["waker_pid", "waker_tid", "start_ns", "until_ns"]
# Of the functions of threading and of C those through which a lock is taken and let go of: others wait for what another thread does.
_TAKE, _RELEASE = (rf"(?:_thread\.R?[Ll]ock|Condition)\.(?:{names})" for names in ("acquire(?:_lock)?|__enter__", "release(?:_lock)?|__exit__"))

Ints = npt.NDArray[np.int64]


def too_long(trace: Trace, rule: Rule, functions: Functions) -> pd.DataFrame:
    """call_id and func_id (-1 none, or unknown) and ns of the waits that the rule is about, one row of each. Their number bounds the memory."""
    found = [pd.DataFrame({name: pd.Series(dtype="int64") for name in _KEPT})]
    for waits in _by_part(trace, functions, _COLUMNS, rule.kinds):
        waits = waits.assign(ns=waits["until_ns"] - waits["start_ns"])
        found.append(waits.loc[waits["ns"] > rule.limit_ns, _KEPT].astype("int64"))
    return pd.concat(found).drop_duplicates(["pid", "tid", "start_ns"], ignore_index=True)  # a part may come twice


def under_lock(trace: Trace, rule: Rule, functions: Functions) -> pd.DataFrame:
    """Of the waits of too_long() those for longer than T while the thread had a lock that others waited for; ns: how long that was."""
    waits, holds = too_long(trace, rule, functions), _holds(trace, rule, functions)
    out = []
    held = dict(iter(holds.groupby(_HOLD[:2])))
    for key, own in waits.groupby(["pid", "tid"]) if len(holds) else ():
        if key in held:
            start, end = _union(*(held[key][name].to_numpy(np.int64) for name in ("start_ns", "until_ns")))
            ns = _within(start, end, own["start_ns"].to_numpy(np.int64), own["until_ns"].to_numpy(np.int64))
            out.append(own.assign(ns=ns)[ns > rule.limit_ns])
    return pd.concat(out, ignore_index=True) if out else waits[:0]


def _holds(trace: Trace, rule: Rule, functions: Functions) -> pd.DataFrame:
    """Since when (start_ns) and up to when (until_ns) a thread (waker_pid, waker_tid) had a lock at least: while another one waited for it, and until then. No earlier than
    it got one itself."""
    asked = functions.fitting(rule.others) if rule.others else ~functions.mask(())
    others = among(functions.table, PRIMITIVES) | ~functions.in_python[:-1]
    take, release = (functions.mask(np.flatnonzero(others)) & ~functions.named(names) for names in (_TAKE, _RELEASE))  # what is neither
    found = [pd.DataFrame({name: pd.Series(dtype="int64") for name in ("pid", "tid", *_HOLD, "is_held")})]
    for waits in _by_part(trace, functions, (*_COLUMNS, *_OF_LOCKS), ("lock",)):
        by = {name: waits[name].to_numpy(np.int64) for name in _OF_LOCKS}
        is_lock = (by["waker_tid"] > 0) & (by["waker_func_id"] >= 0) & ~release[by["waker_func_id"]] & ~release[by["waker_primitive_func_id"]]
        is_lock &= ~take[waits["func_id"].to_numpy(np.int64)] & ~take[by["primitive_func_id"]] & ~take[by["own_called_func_id"]]
        is_asked = np.logical_or.reduce([asked[waits[name].to_numpy(np.int64)] for name in ("func_id", "caller_func_id", "own_func_id")])
        columns = waits[["pid", "tid", *_HOLD]].fillna(-1).astype("int64")
        found.append(columns.assign(is_held=is_lock & is_asked)[is_lock])
    waits = pd.concat(found).drop_duplicates(["pid", "tid", "start_ns"], ignore_index=True).sort_values("until_ns", kind="stable", ignore_index=True)
    got = waits[["pid", "tid", "until_ns"]].set_axis(["waker_pid", "waker_tid", "got_ns"], axis=1)
    held = waits[waits["is_held"].astype(bool)]
    if not len(held):
        return held
    held = pd.merge_asof(held, got, left_on="until_ns", right_on="got_ns", by=_HOLD[:2], allow_exact_matches=False)
    return held.assign(start_ns=held[["start_ns", "got_ns"]].max(axis=1).astype("int64"))


def _by_part(trace: Trace, functions: Functions, columns: tuple[str, ...], kinds: tuple[str, ...]) -> Iterator[pd.DataFrame]:
    for waits in trace.waits_by_part(columns, pc.field("kind").isin(kinds)):
        until = waits["blocked_until_ns"].where(waits["kind"] != "preempted").fillna(waits["end_ns"])
        known = {name: waits[name].where(waits[name] < functions.count, -1) for name in columns if name.endswith("func_id")}  # a name may be lost
        waker = {name: waits[name].fillna(-1) for name in columns if name in ("waker_pid", "waker_tid")}
        yield waits.assign(until_ns=until.astype("int64"), **known, **waker)


def _union(start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Intervals as ones that do not overlap, in the order of time."""
    order = np.argsort(start, kind="stable")
    start, upto = start[order], np.maximum.accumulate(end[order])
    first = np.flatnonzero(np.append(True, start[1:] > upto[:-1]))
    return start[first], upto[np.append(first[1:], len(start)) - 1]


def _within(start: Ints, end: Ints, since: Ints, until: Ints) -> Ints:
    """How much of each [since, until) lies in intervals that do not overlap."""
    total = np.append(0, np.cumsum(end - start))

    def upto(moment: Ints) -> Ints:
        place = np.searchsorted(start, moment, "right")
        last = np.maximum(place - 1, 0)
        return np.where(place > 0, total[last] + np.minimum(moment, end[last]) - start[last], 0)

    return upto(until) - upto(since)
