"""Time on a core by call: pieces of threads cut where the innermost call changes, some of the trace at a time."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from pytrace_ebpf.analyze.critical_path.timelines import NOBODY
from pytrace_ebpf.derive.calls.nesting import levels
from pytrace_ebpf.derive.calls.own_code import foreign
from pytrace_ebpf.derive.scheduling.last_at import last_at
from pytrace_ebpf.derive.scheduling.split import thread_keys
from pytrace_ebpf.rebuild.answers import EVENT_LOOP

Ints = npt.NDArray[np.int64]
_CALL = ("call_id", "parent_id", "last_descendant_id", "depth", "pid", "tid", "func_id", "call_line", "start_ns", "end_ns")
_AT_ONCE = 1 << 18  # events of segments that are taken together
_NEVER = np.iinfo(np.int64).max
BY_CALL = ("call_id", "func_id", "own_func_id", "own_line")


def by_call(trace: Any, pieces: pd.DataFrame, keys: Ints) -> Iterator[pd.DataFrame]:
    """`pieces` (thread, start, end and any others) cut where calls begin and end, some at a time, with BY_CALL of the innermost: -1 none.

    `keys`: pid << 32 | tid of each thread. own_func_id and own_line as in schema.WAITS, but -1 where the line is not known. Memory is bounded by the
    calls of 260,000 events, and those around them, and by the pieces in them.
    """
    what = np.append(foreign(trace.functions()), 0)
    start, end = (pieces[name].to_numpy(np.int64) for name in ("start", "end"))
    for since, until in _windows(trace):
        here = np.flatnonzero((start < until) & (end > since))
        if not len(here):
            continue
        part = pieces.iloc[here].assign(start=np.maximum(start[here], since), end=np.minimum(end[here], until))
        bounds = int(part["start"].min()), int(part["end"].max())
        calls = trace.calls(list(_CALL), start_ns=bounds[0], end_ns=bounds[1])
        calls = calls[np.isin(thread_keys(calls["pid"].to_numpy(), calls["tid"].to_numpy()), keys[part["thread"].unique()])].reset_index(drop=True)
        yield _cut(part, calls, keys, what)


def _windows(trace: Any) -> Iterator[tuple[int, int]]:
    """Times that have about _AT_ONCE events each: some segments, or a part of a large one."""
    since, events = -_NEVER, 0
    for segment in trace.segments:
        own, start, end = segment["rows"].get("events", 0), segment["start_ns"], segment["end_ns"]
        events += own
        if events >= _AT_ONCE:
            parts = max(1, own // _AT_ONCE)
            for place in range(1, parts + 1):
                until = start + (end - start) * place // parts
                yield since, until
                since = until
            events = 0
    yield since, _NEVER


def _cut(pieces: pd.DataFrame, calls: pd.DataFrame, keys: Ints, what: npt.NDArray[np.uint8]) -> pd.DataFrame:
    thread, when, call = _changes(calls, keys, pieces["thread"].unique().astype(np.int64))
    of, start, end = (pieces[name].to_numpy(np.int64) for name in ("thread", "start", "end"))
    first, last = last_at(thread, when, of, start), last_at(thread, when, of, end - 1)
    count = last - first + 1
    which = np.repeat(np.arange(len(pieces)), count)
    at = np.arange(len(which)) - np.repeat(np.cumsum(count) - count, count) + first[which]
    follows = np.append(when[1:], _NEVER)
    out = pieces.iloc[which].assign(
        start=np.maximum(start[which], when[at]), end=np.minimum(end[which], np.where(at == last[which], _NEVER, follows[at]))
    )
    own, line = _own(calls, what)
    columns = (calls["call_id"], calls["func_id"], own, line)
    out = out.assign(**{name: np.append(np.asarray(values, np.int64), NOBODY)[call[at]] for name, values in zip(BY_CALL, columns, strict=True)})
    return out[out["end"] > out["start"]].reset_index(drop=True)


def _changes(calls: pd.DataFrame, keys: Ints, threads: Ints) -> tuple[Ints, Ints, Ints]:
    """When the innermost call of a thread changes, by thread and time: thread, when, and the place of the call in `calls` (sorted by call_id), -1 none.

    Each of `threads` has one that comes before all.
    """
    ids, depth, last, parent = (calls[name].to_numpy(np.int64) for name in ("call_id", "depth", "last_descendant_id", "parent_id"))
    of = np.searchsorted(keys, thread_keys(calls["pid"].to_numpy(), calls["tid"].to_numpy()))
    # By a walk around the tree: a call comes after those before it have begun, and all of them but those around it have ended.
    enters = 2 * ids - depth
    order_of = np.concatenate((np.full(len(threads), -_NEVER), enters, enters + 2 * (last - ids) + 1))
    thread = np.concatenate((threads, of, of))
    when = np.concatenate((np.full(len(threads), -1), calls["start_ns"].to_numpy(np.int64), calls["end_ns"].to_numpy(np.int64)))
    call = np.concatenate((np.full(len(threads), NOBODY), np.arange(len(ids)), _place(ids, parent)))
    order = np.lexsort((order_of, when, thread))
    return thread[order], when[order], call[order]


def _place(ids: Ints, wanted: Ints) -> Ints:
    if not len(ids):
        return np.zeros(0, np.int64)
    at = np.searchsorted(ids, wanted).clip(max=len(ids) - 1)
    return np.where(ids[at] == wanted, at, NOBODY)


def _own(calls: pd.DataFrame, what: npt.NDArray[np.uint8]) -> tuple[Ints, Ints]:
    """Of each call the innermost function of own code that it is of or was made through, and at which of its lines it called what is not; -1 none."""
    function, depth = (calls[name].to_numpy(np.int64) for name in ("func_id", "depth"))
    parent, call_line = (
        _place(calls["call_id"].to_numpy(np.int64), calls["parent_id"].to_numpy(np.int64)),
        calls["call_line"].fillna(-1).to_numpy(np.int64),
    )
    function = np.where(function < len(what) - 1, function, NOBODY)  # of some the name may be lost
    is_own, is_loop = (what[function] == 0) & (function >= 0), (what[function] & EVENT_LOOP) != 0
    own, line = np.where(is_own, function, NOBODY), np.full(len(calls), NOBODY)
    for here in levels(depth - (depth.min() if len(depth) else 0)):
        above = parent[here]
        inherits = ~is_own[here] & ~is_loop[here] & (above >= 0)
        own[here] = np.where(inherits, own[above], own[here])
        line[here] = np.where(inherits, np.where(is_own[above], call_line[here], line[above]), NOBODY)
    return own, line
