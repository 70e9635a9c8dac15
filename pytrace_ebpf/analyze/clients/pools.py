"""How many of a pool's connections were out while somebody waited for one, and which functions had them: from what was taken and given back, and when."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from pytrace_ebpf.derive import streams
from pytrace_ebpf.derive.calls.nesting import above
from pytrace_ebpf.trace.client_functions import FUNCTIONS
from pytrace_ebpf.trace.reader import Trace

GIVES_BACK = frozenset((each.library, each.qualname) for each in FUNCTIONS if each.gives_back)
COLUMNS = ["own_func_id", "own_line", "library", "count", "total_ns", "size", "out", "had_func_id", "had_line", "had_share"]
_CALL = ("call_id", "last_descendant_id", "pid", "tid", "end_ns", "status", "yielded")
_POOL = ["pid", "pool"]
_HOLDERS = 64  # of a pool, those that have it longest
_IN_VAIN = ("unwound", "open_at_end")  # nothing was taken

Ints = npt.NDArray[np.int64]


def gives_back(rows: pd.DataFrame) -> "pd.Series[bool]":
    """Which statements (library, statement) give something back to a pool."""
    return pd.Series([pair in GIVES_BACK for pair in zip(rows["library"], rows["statement"], strict=True)], rows.index, bool)


def whole(trace: Trace, found: pd.DataFrame) -> pd.DataFrame:
    """`found` (call_id, end_ns, status, yielded of calls), with end_ns and status of all of a coroutine where a call is only its first resume."""
    if not found["yielded"].any():
        return found
    tasks = trace.tasks(["coroutine_id", "end_ns", "status"]).set_index("coroutine_id").astype({"status": "object"})
    return found.assign(**{name: found["call_id"].map(tasks[name]).fillna(found[name]) for name in tasks}).astype({"end_ns": "int64"})


def pools(trace: Trace) -> pd.DataFrame:
    """One row per line of own code that took something from pools, and library, the most time first. Columns COLUMNS:

    own_func_id, own_line (-1 not known), library; count; total_ns, how long it took to get; size, how many were out at once at most, of the pool of most of the
    time; out (float), how many were on average while it waited; had_func_id and had_line (-1 not known), who had them then for most of that time, and
    had_share (float, of the time that all had them). None where pools were not recorded.
    """
    rows = trace.statements(["ts", "pid", "tid", "call_id", "func_id", "own_func_id", "own_line", "library", "statement", "pool"])
    rows = rows[rows["pool"].notna()].astype({"library": "object", "statement": "object", "pool": "int64"})
    given = gives_back(rows)
    takes, before = _takes(trace, rows[~given])
    if not len(takes):
        return pd.DataFrame(columns=COLUMNS)
    holds = _holds(takes[~takes["status"].isin(_IN_VAIN)], rows[given], before, trace.start_ns, trace.end_ns)
    of_pool = dict(list(holds.groupby(_POOL)))
    had = [_had(waits, of_pool[key]).assign(**dict(zip(_POOL, key, strict=True))) for key, waits in takes.groupby(_POOL) if key in of_pool]
    return _summed(pd.concat(had, ignore_index=True)) if had else pd.DataFrame(columns=COLUMNS)


def _takes(trace: Trace, rows: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Those of `rows` that are within no other, with end_ns and status of their calls, of a coroutine of all of it; and pid, tid and end_ns of those calls
    that had begun before the recording, of which no arguments were read."""
    if not len(rows):
        return rows, rows
    calls = streams.kept_calls_of(trace, np.unique(rows["func_id"].to_numpy(np.int64)), _CALL).sort_values("call_id", ignore_index=True)
    calls = calls[above(calls)[0] < 0].astype({"status": "object"})
    return whole(trace, rows.merge(calls.drop(columns=["pid", "tid"]), on="call_id")), calls.loc[
        calls["status"] == "open_at_start", ["pid", "tid", "end_ns"]
    ]


def _holds(takes: pd.DataFrame, gives: pd.DataFrame, before: pd.DataFrame, start_ns: int, end_ns: int) -> pd.DataFrame:
    """One row per thing that was out: _POOL, own_func_id and own_line of who took it, start_ns and end_ns. Who gives back is the function that took, else
    the thread, else anybody; what was out before is that of who gives it back, since
    the end of what its thread had begun before the recording."""
    columns = [*_POOL, "own_func_id", "own_line", "start_ns", "end_ns"]
    takes, gives, done = takes.assign(start_ns=takes["end_ns"]), gives.assign(end_ns=gives["ts"]), []
    for by in ([*_POOL, "tid", "own_func_id"], [*_POOL, "tid"], _POOL):
        pairs = _pairs(takes, gives, by)
        done.append(takes.loc[pairs["take"], columns[:-1]].assign(end_ns=gives.loc[pairs["give"], "end_ns"].to_numpy()))
        takes, gives = takes.drop(pairs["take"]), gives.drop(pairs["give"])
    since = gives[["pid", "tid"]].merge(before.groupby(["pid", "tid"])["end_ns"].min().reset_index(name="since"), how="left")["since"]
    start = np.minimum(since.fillna(start_ns).to_numpy(np.int64), gives["end_ns"].to_numpy(np.int64))
    gives = gives.assign(start_ns=start, own_line=-1)
    return pd.concat([*done, takes.assign(end_ns=end_ns)[columns], gives[columns]], ignore_index=True)


def _pairs(takes: pd.DataFrame, gives: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Which take was ended by which give of the same `by`, in their order: their labels in `take` and `give`."""
    whole = pd.concat(
        [takes[by].assign(at=takes["start_ns"], more=1, label=takes.index), gives[by].assign(at=gives["end_ns"], more=-1, label=gives.index)],
        ignore_index=True,
    ).sort_values(["at", "more"], ignore_index=True)
    group = whole.groupby(by, sort=False).ngroup()
    taken = whole["more"].groupby(group).cumsum()
    least = taken.groupby(group).cummin()
    before = least.groupby(group).shift(fill_value=0).clip(upper=0)
    kept = whole.assign(group=group)[(whole["more"] > 0) | (taken >= before)]  # others give back what was out before
    kept["rank"] = kept.groupby(["group", "more"]).cumcount()
    take, give = (kept[kept["more"] == more].set_index(["group", "rank"])["label"] for more in (1, -1))
    return pd.concat([take.rename("take"), give.rename("give")], axis=1, join="inner").astype("int64")


def _had(waits: pd.DataFrame, holds: pd.DataFrame) -> pd.DataFrame:
    """Of one pool one row per line that took from it, library and who had it meanwhile: total_ns, count, size, had_ns (how long each had one, added up)."""
    key = ["own_func_id", "own_line", "library"]
    rows = waits[key].assign(total_ns=waits["end_ns"] - waits["ts"], count=1)
    sums = rows.groupby(key, as_index=False)[["total_ns", "count"]].sum().assign(size=_most(holds))
    who = holds.assign(ns=holds["end_ns"] - holds["start_ns"]).groupby(["own_func_id", "own_line"])["ns"].sum().nlargest(_HOLDERS)
    out = []
    for func_id, line in who.index:
        some = holds[(holds["own_func_id"] == func_id) & (holds["own_line"] == line)]
        had = _held(some, waits["end_ns"].to_numpy(np.int64)) - _held(some, waits["ts"].to_numpy(np.int64))
        out.append(rows.assign(had_ns=had).groupby(key, as_index=False)["had_ns"].sum().assign(had_func_id=func_id, had_line=line))
    return sums.merge(pd.concat(out), on=key)


def _held(holds: pd.DataFrame, until: Ints) -> Ints:
    """How long each of `holds` was until a moment, added up."""

    def since(moments: Ints) -> Ints:
        moments = np.sort(moments) - first
        count = np.searchsorted(moments, until - first)
        return count * (until - first) - np.append(0, np.cumsum(moments))[count]

    first = int(holds["start_ns"].min())

    return since(holds["start_ns"].to_numpy(np.int64)) - since(holds["end_ns"].to_numpy(np.int64))


def _most(holds: pd.DataFrame) -> int:
    """How many of them were at once."""
    at = np.concatenate((holds["end_ns"], holds["start_ns"]))
    more = np.repeat([-1, 1], len(holds))
    return int(more[np.argsort(at, kind="stable")].cumsum().max(initial=0))


def _summed(had: pd.DataFrame) -> pd.DataFrame:
    """pools() of the pieces of several pools."""
    key: list[Any] = ["own_func_id", "own_line", "library"]
    of_pools = had.drop_duplicates([*key, *_POOL])
    sums = of_pools.groupby(key, as_index=False).agg({"count": "sum", "total_ns": "sum"})
    size = of_pools.sort_values("total_ns", kind="stable").groupby(key, as_index=False)["size"].last()
    by_holder = had.groupby([*key, "had_func_id", "had_line"], as_index=False)["had_ns"].sum()
    all_had = by_holder.groupby(key, as_index=False)["had_ns"].sum().rename(columns={"had_ns": "all_ns"})
    main = by_holder.sort_values("had_ns", kind="stable").groupby(key, as_index=False).last()
    table = sums.merge(size, on=key).merge(main, on=key).merge(all_had, on=key)
    table["out"] = table["all_ns"] / table["total_ns"].clip(lower=1)
    table["had_share"] = table["had_ns"] / table["all_ns"].clip(lower=1)
    return table.sort_values("total_ns", ascending=False, kind="stable", ignore_index=True)[COLUMNS]
