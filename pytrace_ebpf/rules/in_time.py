"""The judges of what depends on several calls: what comes before, what follows, how many lie within one."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from pytrace_ebpf.rules.calls import OPEN_AT_END, RESUMED, YIELDED, Calls, joined
from pytrace_ebpf.rules.functions import Functions
from pytrace_ebpf.rules.judge import LOST, NAMELESS, NO_ROOM, Judge, Recording
from pytrace_ebpf.rules.paths import NONE, Paths
from pytrace_ebpf.rules.rule import Group, Rule
from pytrace_ebpf.rules.tasks import Tasks

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
_MOST_PENDING = 1 << 22
_NEVER = np.iinfo(np.int64).max


class _Scoped(Judge):
    """One that looks at the calls of a thread, a task or a process by themselves: `scope` is a column of what _scoped() gives."""

    def __init__(self, rule: Rule, functions: Functions, of: Recording, each: bool) -> None:
        super().__init__(rule, functions, of, each)
        self._tasks = Tasks(functions.coroutines) if rule.scope == "task" else None
        self._coroutines = functions.coroutines

    @property
    def wanted(self) -> Bools:
        return self.of | self.others | self._coroutines if self._tasks else self.of | self.others

    @property
    def above(self) -> Mapping[Group, Bools]:
        return self._tasks.above if self._tasks else {}

    def _scoped(self, calls: Calls, paths: Paths) -> Calls:
        """Those of F and G."""
        if self._tasks:
            own, scope = self._tasks.take(calls, self.of | self.others, paths)
            return own.with_scope(scope)
        own = calls.of(self.of | self.others)
        return own.with_scope(own["pid"].astype(np.int64) if self.rule.scope == "process" else own.thread)

    def end(self, paths: Paths, end_ns: int) -> None:
        self.doubt("it is not known of which task they are", self._tasks.left if self._tasks else 0)


class Before(_Scoped):
    """`F before G`: a call of F has returned on the thread, in the task or in the process, before each of G begins. It keeps when that first was and, of a process, the
    calls of G that none was before so far: the last call of each other thread becomes known with what that does next."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._first: dict[int, int] = {}  # by scope
        self._late: list[Calls] = []

    def take(self, calls: Calls, paths: Paths) -> None:
        calls = self._scoped(calls, paths)
        before, after = calls.of(self.of), calls.of(self.others)
        before = before.where(~before.has(YIELDED | OPEN_AT_END))
        after = after.where(~after.has(RESUMED))
        self.calls += len(after)
        where, key = np.unique(before["scope"], return_inverse=True)
        first = np.full(len(where), _NEVER)
        np.minimum.at(first, key, before["end_ns"])
        for scope, ns in zip(where.tolist(), first.tolist(), strict=True):
            self._first[scope] = min(ns, self._first.get(scope, ns))
        late = self._not_before(joined([*self._late, after]))
        if self.rule.scope != "process" or len(late) > _MOST_PENDING:
            self._judge(late)
            late = late.where(np.zeros(0, np.int64))
        self._late = [late]

    def _not_before(self, after: Calls) -> Calls:
        of, key = np.unique(after["scope"], return_inverse=True)
        since = np.array([self._first.get(scope, _NEVER) for scope in of.tolist()], np.int64)[key]
        return after.where(since > after["start_ns"])

    def _judge(self, late: Calls) -> None:
        if not self.recording.whole:
            self.doubt("what was called before the recording began is not known", len(late))
            return
        sure = self.sure(late)
        self.doubt(LOST, int((~sure).sum()))
        self.found.add(late.where(sure))

    def end(self, paths: Paths, end_ns: int) -> None:
        super().end(paths, end_ns)
        for late in self._late:
            self._judge(self._not_before(late))


class Then(_Scoped):
    """`every F then G within T`: a call of G begins on the thread, in the task or in the process, at most T after each of F has returned. It keeps those of F
    that none has followed and, of a process, when the last ones of G began."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._pending: list[Calls] = []
        self._moments: tuple[Ints, Ints] = (np.zeros(0, np.int64), np.zeros(0, np.int64))  # scope and ns
        self._since_ns = -_NEVER  # moments are kept from here on

    def take(self, calls: Calls, paths: Paths) -> None:
        calls = self._scoped(calls, paths)
        first, then = calls.of(self.of), calls.of(self.others)
        first = first.where(~first.has(YIELDED | OPEN_AT_END))
        self.calls += len(first)
        pending = joined([*self._pending, first])
        then = then.where(~then.has(RESUMED))
        scope, ts = (np.append(*pair) for pair in zip(self._moments, (then["scope"], then["start_ns"]), strict=True))
        left = pending.where(_wait_of(pending["scope"], pending["end_ns"], scope, ts) > self.rule.limit_ns)
        if len(left) > _MOST_PENDING:
            self.doubt("more of them than are kept were not followed yet", len(left) - _MOST_PENDING)
            left = left.where(np.arange(_MOST_PENDING))
        self._pending = [left]
        if self.rule.scope == "process":
            self._keep(scope, ts)

    def _keep(self, scope: Ints, ts: Ints) -> None:
        """The last call of a thread that does nothing for a time becomes known only then."""
        if len(ts) > _MOST_PENDING:
            latest = np.argsort(ts, kind="stable")[-_MOST_PENDING // 2 :]
            scope, ts = scope[latest], ts[latest]
            self._since_ns = int(ts[0])
        self._moments = scope, ts

    def end(self, paths: Paths, end_ns: int) -> None:
        super().end(paths, end_ns)
        for left in self._pending:
            due = left["end_ns"] + self.rule.limit_ns
            early, sure = due > end_ns, self.sure(left, due)
            kept = left["end_ns"] >= self._since_ns
            self.doubt("the recording ended before the time for it was over", int((early & sure).sum()))
            self.doubt(LOST, int((~sure).sum()))
            self.doubt("what followed them is not kept any more", int((sure & ~early & ~kept).sum()))
            self.found.add(left.where(~early & sure & kept))


def _wait_of(scope: Ints, since: Ints, of: Ints, ts: Ints) -> Ints:
    """How long after `since` the next of the moments `ts` of the same scope comes; the largest integer where there is none."""
    order = np.lexsort((ts, of))
    of, ts = of[order], ts[order]
    both = np.lexsort((np.concatenate((np.zeros(len(scope)), np.ones(len(of)))), np.concatenate((since, ts)), np.concatenate((scope, of))))
    is_moment = both >= len(scope)
    after = len(of) - np.cumsum(is_moment[::-1])[::-1]  # how many moments stand before each place
    next_ = np.empty(len(scope), np.int64)
    next_[both[~is_moment]] = after[~is_moment]
    last = np.minimum(next_, max(len(of) - 1, 0))
    if not len(of):
        return np.full(len(scope), _NEVER)
    return np.where((next_ < len(of)) & (of[last] == scope), ts[last] - since, _NEVER)


class AtMost(Judge):
    """`at most N F in one G`: of calls of G that lie in no other one. It keeps how many each open or suspended one has had, which is one number a path."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._open: dict[int, int] = {}  # by node of the call of G
        self._suspended: dict[tuple[int, int], int] = {}  # by process and frame

    @property
    def wanted(self) -> Bools:
        return self.of | self.others

    @property
    def above(self) -> Mapping[Group, Bools]:
        return {self.rule.others: self.others}

    def take(self, calls: Calls, paths: Paths) -> None:
        own, outer = self.begun(calls), calls.of(self.others)
        known = paths.known(own["node"])
        self.doubt(NO_ROOM, int((~known).sum()))
        self.doubt(NAMELESS, int((known & paths.nameless(own["node"])).sum()))
        own = own.where(known)
        around = paths.outermost(self.rule.others, own["node"])
        own, around = own.where(around != NONE), around[around != NONE]
        outer = outer.where(paths.known(outer["node"]))
        outer = outer.where(paths.outermost(self.rule.others, outer["node"]) == NONE)
        outer = outer.where(np.argsort(outer["call_id"], kind="stable"))
        place = np.searchsorted(outer["call_id"], own["call_id"], "right") - 1
        last = np.append(outer["last_descendant_id"], -1)[place]
        ended = (place >= 0) & (own["call_id"] <= last)
        count = np.bincount(place[ended], minlength=len(outer)).astype(np.int64)
        self._add_open(outer, count, around[~ended])
        self._join_suspended(outer, count)
        over = ~outer.has(YIELDED) & (count > self.rule.most)
        certain = self.sure(outer, outer["end_ns"])
        self.doubt(LOST, int((over & ~certain).sum()))
        self.found.add(outer.where(over & certain), count[over & certain])

    def end(self, paths: Paths, end_ns: int) -> None:
        self.doubt("they were suspended when the recording ended", sum(count > self.rule.most for count in self._suspended.values()))

    def _add_open(self, outer: Calls, count: Ints, open_: Ints) -> None:
        """Of each path the first call that ended is the one that was open before; `open_`: the paths of those that go on, by each call within them."""
        nodes, first = np.unique(outer["node"], return_index=True)
        for node in self._open.keys() & set(nodes.tolist()) if self._open else ():
            count[first[np.searchsorted(nodes, node)]] += self._open.pop(node)
        for node, more in zip(*(each.tolist() for each in np.unique(open_, return_counts=True)), strict=True):
            self._open[node] = self._open.get(node, 0) + more

    def _join_suspended(self, outer: Calls, count: Ints) -> None:
        """A coroutine's resumes have what those before them had; of what yields only that which has some is kept."""
        resumes = np.flatnonzero((outer["frame"] != 0) & outer.has(RESUMED | YIELDED))
        if not len(resumes):
            return
        frame, pid, flags = outer["frame"][resumes], outer["pid"][resumes], outer["flags"][resumes]
        order = np.lexsort((outer["start_ns"][resumes], frame, pid))
        resumes, frame, pid, flags = resumes[order], frame[order], pid[order], flags[order]
        begins = np.append(True, (frame[1:] != frame[:-1]) | (pid[1:] != pid[:-1])) | ((flags & RESUMED) == 0)
        at = np.flatnonzero(begins)
        before = np.zeros(len(at), np.int64)
        if self._suspended:
            for k in np.flatnonzero((flags[at] & RESUMED) != 0).tolist():
                before[k] = self._suspended.pop((int(pid[at[k]]), int(frame[at[k]])), 0)
        piece = np.cumsum(begins) - 1
        sums = np.cumsum(count[resumes])
        total = sums - np.append(0, sums)[at][piece] + before[piece]
        count[resumes] = total
        ends = np.append(at[1:], len(resumes)) - 1
        for k in ends[((flags[ends] & YIELDED) != 0) & (total[ends] > 0)].tolist():
            self._suspended[int(pid[k]), int(frame[k])] = int(total[k])
