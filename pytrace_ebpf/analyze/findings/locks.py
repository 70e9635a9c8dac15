"""What a thread waits for while it has a lock that others wait for: the last hold before each release, and how much of it the thread was off its core."""

import numpy as np
import numpy.typing as npt
import pandas as pd

_COLUMNS = ["pid", "tid", "waker_pid", "waker_tid", "start_ns", "until_ns", "own_func_id", "waker_own_func_id", "kind", "syscall", "resource", "ns"]
_LEAST_NS = 20_000  # what is shorter is of no account
_MOST = 1 << 19  # waits that are kept of each kind, the longest
_ELSE = ("preempted", "gil", "lock", "stop-the-world", "object-lock")
TABLE = ["own_func_id", "other_func_id", "held_ns", "off_ns", "kind", "syscall", "resource"]

Ints = npt.NDArray[np.int64]


class Locks:
    """Takes waits a part at a time."""

    def __init__(self) -> None:
        self._locks, self._others = list[pd.DataFrame](), list[pd.DataFrame]()

    def add(self, waits: pd.DataFrame) -> None:
        """Further waits, as of waited._named()."""
        rows = waits.loc[waits["ns"] >= _LEAST_NS, _COLUMNS]
        lock = rows["kind"] == "lock"
        self._locks = _kept([*self._locks, rows[lock]])
        self._others = _kept([*self._others, rows[~rows["kind"].isin(_ELSE)]])

    def table(self) -> pd.DataFrame:
        """By own_func_id of who waits for a lock and other_func_id of who releases it: held_ns, how long that one had had it, and off_ns, how much of that it
        was blocked by something else; kind, syscall and resource of what took most of that, by the longest of each hold. Columns TABLE."""
        locks, others = (_kept(pieces)[0] if pieces else pd.DataFrame(columns=_COLUMNS) for pieces in (self._locks, self._others))
        waits = locks[(locks["own_func_id"] >= 0) & (locks["waker_own_func_id"] >= 0) & (locks["waker_tid"] > 0)]
        if not len(waits) or not len(others):
            return pd.DataFrame(columns=TABLE)
        mine, theirs, whose = _key(locks, ""), _key(others, ""), _key(waits, "waker_")
        until = waits["until_ns"].to_numpy(np.int64)
        before = _last(mine, locks["until_ns"].to_numpy(np.int64), whose, until)  # when the one that released it had got a lock itself
        since = np.maximum(waits["start_ns"].to_numpy(np.int64), before)
        off, longest = _within(theirs, others, whose, since, until)
        chosen = others.iloc[longest][["kind", "syscall", "resource"]].reset_index(drop=True)
        rows = pd.DataFrame(
            {
                "own_func_id": waits["own_func_id"].to_numpy(),
                "other_func_id": waits["waker_own_func_id"].to_numpy(),
                "held_ns": until - since,
                "off_ns": off,
            }
        )
        rows = pd.concat([rows, chosen.where(pd.Series(longest >= 0), axis=0)], axis=1)
        sums = rows.groupby(TABLE[:2], as_index=False)[["held_ns", "off_ns"]].sum()
        by_what = rows.groupby([*TABLE[:2], *TABLE[4:]], as_index=False, dropna=False)["off_ns"].sum()
        most = by_what.sort_values("off_ns", ascending=False, kind="stable").drop_duplicates(TABLE[:2])
        return sums.merge(most[[*TABLE[:2], *TABLE[4:]]], on=TABLE[:2])[TABLE]


def _kept(pieces: list[pd.DataFrame]) -> list[pd.DataFrame]:
    """One piece of the longest rows."""
    whole = pd.concat(pieces, ignore_index=True) if len(pieces) > 1 else pieces[0]
    return [whole if len(whole) <= _MOST else whole.nlargest(_MOST, "ns").reset_index(drop=True)]


def _key(rows: pd.DataFrame, whose: str) -> Ints:
    return (rows[f"{whose}pid"].to_numpy(np.int64) << 32) | rows[f"{whose}tid"].to_numpy(np.int64)


def _place(key: Ints, ts: Ints, of: Ints, at: Ints) -> tuple[Ints, Ints]:
    """The order of (key, ts), and for each (of, at) the place in it of the last one of the same key not after it; -1 for none."""
    order = np.lexsort((ts, key))
    both_key, both_ts = np.concatenate((key[order], of)), np.concatenate((ts[order], at))
    ranks = np.lexsort((np.arange(len(both_key)), both_ts, both_key))
    seen = np.maximum.accumulate(np.where(ranks < len(order), ranks, -1))
    found = np.empty(len(both_key), np.int64)
    found[ranks] = seen
    place = found[len(order) :]
    return order, np.where((place >= 0) & (key[order][place] == of), place, -1)


def _last(key: Ints, ts: Ints, of: Ints, before: Ints) -> Ints:
    """The last of the moments ts of a thread before another; 0 for none."""
    order, place = _place(key, ts, of, before - 1)
    return np.where(place >= 0, ts[order][place], 0)


def _within(key: Ints, rows: pd.DataFrame, of: Ints, since: Ints, until: Ints) -> tuple[Ints, Ints]:
    """How much of [since, until) the thread `of` was in `rows`, which do not overlap on a thread; and the longest of them in it, -1 for none."""
    start, end = rows["start_ns"].to_numpy(np.int64), rows["until_ns"].to_numpy(np.int64)
    order, first = _place(key, start, of, since)
    _, last = _place(key, start, of, until - 1)
    total = np.append(0, np.cumsum((end - start)[order]))
    of_others = total[np.searchsorted(key[order], of)]

    def upto(place: Ints, moment: Ints) -> Ints:
        """The time in rows before a moment."""
        here = order[place]
        return np.where(place >= 0, total[place] + np.minimum(end[here], moment) - start[here], of_others)

    within = (last >= 0) & (end[order[last]] > since)
    begin = np.where(first >= 0, first + 1, np.searchsorted(key[order], of))  # of those that began in it
    longest = np.where(within, last, -1)
    several = np.flatnonzero(within & (last > begin))
    longest[several] = _longest((end - start)[order], begin[several], last[several] + 1)
    crosses = within & (first >= 0)  # its beginning
    crosses[crosses] = (end[order[first]] - since)[crosses] > np.where(last > first, (end - start)[order][longest], 0)[crosses]
    longest = np.where(crosses, first, longest)
    return np.where(within, upto(last, until) - upto(first, since), 0), np.where(within, order[longest], -1)


def _longest(ns: Ints, begin: Ints, end: Ints) -> Ints:
    """Where the largest of ns[begin:end] stands, of each begin < end."""
    by_size = np.argsort(ns, kind="stable")
    rank = np.full(len(ns) + 1, -1)
    rank[by_size] = np.arange(len(ns))
    pairs, which = np.unique(begin * (len(ns) + 1) + end, return_inverse=True)
    most = np.maximum.reduceat(rank, np.stack(np.divmod(pairs, len(ns) + 1), axis=1).ravel())[::2] if len(pairs) else pairs
    return by_size[most][which]
