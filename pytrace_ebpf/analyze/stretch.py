"""From one stretch of paired rows: the calls that finished in it, and the open ones that go on."""

from typing import Any

import numpy as np
import numpy.typing as npt

from pytrace_ebpf.analyze import split
from pytrace_ebpf.analyze.finished import Finished
from pytrace_ebpf.analyze.pairing import IN_LOSS, Bools, Groups, Ints, Rows, Tree
from pytrace_ebpf.analyze.sampled import Sampled
from pytrace_ebpf.analyze.split import Scheduling, touches

THREAD_BITS = 40  # call_id = thread number << 40 | place in the thread's preorder

OPEN = np.dtype(
    [
        ("thread", "i8"), ("call_id", "i8"), ("start_ns", "i8"), ("func", "i4"), ("frame", "i8"), ("flags", "i1"),
        ("child_wall", "i8"), ("child_on_cpu", "i8"), ("child_unknown", "i8"), ("stamp", "i8", split.STAMP),
    ]
)  # fmt: skip
"""A call carried over: what is known at its entry, and its finished children's sums."""

Open = npt.NDArray[Any]


class Stretch:
    """Rows that levels pair, with their scheduling.

    `sequence`: per group, how many calls its thread had before. `carried`: the open calls (OPEN) that the
    groups begin with. `given`: stamps (n, split.STAMP) that rows refer to by Rows.given.
    """

    def __init__(
        self, rows: Rows, groups: Groups, tree: Tree, carried: Open, given: Ints, sequence: Ints, scheduling: Scheduling | Sampled
    ) -> None:
        self.rows, self.groups, self.tree, self.carried = rows, groups, tree, carried
        self._given, self._scheduling = given, scheduling
        self._at = scheduling.find(rows.thread, rows.ts)
        self._entry = rows.delta > 0
        self._old = np.flatnonzero(self._entry & (rows.given >= 0) & (rows.given < len(carried)))
        new = self._entry.copy()
        new[self._old] = False
        count = np.cumsum(new)
        before: Ints = count[groups.start] - new[groups.start]
        self.made: Ints = np.diff(before, append=count[-1])  # new calls per group
        # At an entry its own id, at a return the newest call's.
        self._ids: Ints = count + groups.spread((groups.thread << THREAD_BITS) + sequence - before - 1)
        self._ids[self._old] = carried["call_id"][rows.given[self._old]]

    def last_stamps(self) -> Ints:
        """Stamps of the groups' last rows."""
        return self._stamps(self.groups.start + self.groups.count - 1)

    def next_sibling_of_held(self) -> Ints:
        """Per group, the id of the call its first own row enters; -1 where that is a return."""
        own = np.bincount(np.searchsorted(self.groups.thread, self.carried["thread"]), minlength=len(self.groups.start))
        first = self.groups.start + own
        return np.where(self._entry[first], self._ids[first], -1)

    def finish(self, windows: Ints) -> tuple[Finished, Bools, Open]:
        """The finished calls, which of them are their group's last row, and the open calls.

        `windows`: when function events were lost, as from split.windows_of.
        """
        rows, tree = self.rows, self.tree
        entry = np.flatnonzero(tree.returned >= 0)
        leave = tree.returned[entry]
        parent = tree.parent[entry]
        times = self._split(entry, leave)
        children = self._children(parent, times)
        # The call after a return, where the thread goes on with one.
        follows = np.append(np.where(self._entry, self._ids, -1), -1)
        follows[self.groups.start] = -1
        ends = np.zeros(len(rows) + 1, bool)
        ends[self.groups.start] = True
        ends[-1] = True
        func = rows.func[entry]
        nameless = np.flatnonzero(func < 0)
        func[nameless] = rows.func[leave[nameless]]
        start, end = rows.ts[entry], rows.ts[leave]
        flags = rows.flags[entry] | rows.flags[leave]
        flags[touches(windows, start, end)] |= IN_LOSS
        own_unknown = children["child_unknown"][entry]
        finished = Finished(
            call_id=self._ids[entry],
            parent_id=np.where(parent >= 0, self._ids[parent], -1),
            last_descendant_id=np.maximum(self._ids[leave], self._ids[entry]),
            next_sibling_id=follows[leave + 1],
            depth=tree.depth[entry],
            thread=rows.thread[entry],
            func_id=func,
            start_ns=start,
            end_ns=end,
            self_wall_ns=times["wall_ns"] - children["child_wall"][entry],
            self_on_cpu_ns=times["on_cpu_ns"] - children["child_on_cpu"][entry],
            self_known=times["known"] & (own_unknown == 0),
            line=rows.line[leave],
            flags=flags,
            frame=np.where(rows.frame[entry] != 0, rows.frame[entry], rows.frame[leave]),
            **times,
        )
        return finished, ends[leave + 1], self._carry_on(children)

    def _split(self, entry: Ints, leave: Ints) -> dict[str, npt.NDArray[Any]]:
        """The split columns of the calls that rows `entry` began and rows `leave` ended."""
        rows, scheduling = self.rows, self._scheduling
        start, end = rows.ts[entry], rows.ts[leave]
        wall = end - start
        begin, stop = self._at[entry], self._at[leave]
        times = scheduling.within(begin, start, end)
        across = np.flatnonzero((begin != stop) | (rows.given[entry] >= 0) | (rows.given[leave] >= 0))
        if len(across):
            came, went = self._stamps(entry[across]), self._stamps(leave[across])
            for name, column in scheduling.between(came, went, wall[across]).items():
                times[name][across] = column
        return {"wall_ns": wall, **times}

    def _stamps(self, at: Ints) -> Ints:
        """Stamps of some rows."""
        out = self._scheduling.stamps(self._at[at], self.rows.ts[at])
        given = self.rows.given[at]
        out[given >= 0] = self._given[given[given >= 0]]
        return out

    def _children(self, parent: Ints, times: dict[str, npt.NDArray[Any]]) -> dict[str, Ints]:
        """Per row that is an entry, its finished children's sums (exact: float64 counts to 2**53 ns, 104 days)."""
        count = len(self.rows)
        has = parent >= 0
        whose = parent if has.all() else parent[has]
        values = {"child_wall": times["wall_ns"], "child_on_cpu": times["on_cpu_ns"], "child_unknown": ~times["known"]}
        sums = {}
        for name, value in values.items():
            if value.any():
                sums[name] = np.bincount(whose, value if has.all() else value[has], count).astype(np.int64)
            else:
                sums[name] = np.zeros(count, np.int64)
            sums[name][self._old] += self.carried[name][self.rows.given[self._old]]
        return sums

    def _carry_on(self, children: dict[str, Ints]) -> Open:
        rows = self.rows
        at = np.flatnonzero(self._entry & (self.tree.returned < 0))
        out = np.zeros(len(at), OPEN)
        out["thread"], out["call_id"], out["start_ns"] = rows.thread[at], self._ids[at], rows.ts[at]
        out["func"], out["frame"], out["flags"] = rows.func[at], rows.frame[at], rows.flags[at]
        for name, value in children.items():
            out[name] = value[at]
        out["stamp"] = self._stamps(at)
        return out
