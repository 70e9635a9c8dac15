"""What judges one rule while calls go by: the protocol, and the judges of what is a property of a path or of a single call."""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from pytrace_ebpf.rules.calls import OPEN_AT_END, OPEN_AT_START, RESUMED, STATUS_UNWOUND, YIELDED, Calls, Found
from pytrace_ebpf.rules.functions import Functions
from pytrace_ebpf.rules.paths import NONE, Paths
from pytrace_ebpf.rules.rule import Form, Group, Rule
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.trace.states import BY_NAME

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


_OF_WHAT_IS_NOT_THERE = (Form.ONLY_WITHIN, Form.ONLY_FROM, Form.PRECEDES, Form.THEN)  # they are violated where there is no call of one


class Recording(NamedTuple):
    """What judges know of it: `whole`, whether it has all that the program did before; `narrowed`, whether calls were left out on purpose; `lost_ns`, when events of
    calls were first lost."""

    whole: bool
    narrowed: bool
    lost_ns: int


class Judge:
    """`found`: what violates the rule; `doubts`: how many calls are not judged, by why; `calls`: how many were looked at."""

    def __init__(self, rule: Rule, functions: Functions, of: "Recording", each: bool) -> None:
        self.rule, self.recording = rule, of
        self.of = functions.fitting(rule.functions)
        self.others = functions.fitting(rule.others, rule.form is Form.ONLY_FROM)
        self.found, self.doubts, self.calls = Found(each), Counter[str](), 0

    @property
    def wanted(self) -> Bools:
        """The functions whose calls it is to be given, a mask by func_id."""
        return self.of

    @property
    def above(self) -> Mapping[Group, Bools]:
        """Groups of which it asks where they lie above a path, each with a mask by func_id."""
        return {}

    def take(self, calls: Calls, paths: Paths) -> None:
        """The calls that ended in a segment."""
        raise NotImplementedError

    def end(self, paths: Paths, end_ns: int) -> None:
        """There are no more."""

    def doubt(self, why: str, count: int) -> None:
        """So many calls cannot be judged."""
        if count:
            self.doubts[why] += count

    def sure(self, calls: Calls, until_ns: Ints | None = None) -> Bools:
        """Of which it is known what is above them, and what came before or, `until_ns`, up to these moments: where an event was lost that may be more or less, and where
        calls were left out it may be more."""
        if self.recording.narrowed and self.rule.form in _OF_WHAT_IS_NOT_THERE:
            return np.zeros(len(calls), np.bool_)
        return calls.certain & ((calls["start_ns"] if until_ns is None else until_ns) < self.recording.lost_ns)

    def begun(self, calls: Calls) -> Calls:
        """Those of F that began, of coroutines and generators once."""
        own = calls.of(self.of)
        own = own.where(~own.has(RESUMED))
        self.calls += len(own)
        return own


LOST = "events were lost or left out before them, or while they ran"
NO_ROOM = "they came by more paths than are kept"
NAMELESS = "a caller above them has no name"


class OfPaths(Judge):
    """`never F [within G]`, `F only within G`, `F only from G`."""

    @property
    def above(self) -> Mapping[Group, Bools]:
        return {self.rule.others: self.others} if self.rule.others else {}

    def take(self, calls: Calls, paths: Paths) -> None:
        own = self.begun(calls)
        if self.rule.others:
            own = self._placed(own, paths)
        self.found.add(own.where(self._violates(own, paths)))

    def _placed(self, own: Calls, paths: Paths) -> Calls:
        """Those of which it is known what is above."""
        sure, known = self.sure(own), paths.known(own["node"])
        named = ~paths.nameless(own["node"]) | (paths.outermost(self.rule.others, own["node"]) != NONE) | (self.rule.form is Form.ONLY_FROM)
        self.doubt(LOST, int((~sure).sum()))
        self.doubt(NO_ROOM, int((sure & ~known).sum()))
        self.doubt(NAMELESS, int((sure & known & ~named).sum()))
        return own.where(sure & known & named)

    def _violates(self, own: Calls, paths: Paths) -> Bools:
        node = own["node"]
        if self.rule.form is Form.NEVER:
            return paths.outermost(self.rule.others, node) != NONE if self.rule.others else np.ones(len(own), np.bool_)
        if self.rule.form is Form.ONLY_WITHIN:
            return paths.outermost(self.rule.others, node) == NONE
        caller = paths.caller(node)
        function = np.where(caller == NONE, NONE, paths.function[caller])
        nameless, unseen = (caller != NONE) & (function < 0), (caller == NONE) & (not self.recording.whole)
        self.doubt(NAMELESS, int(nameless.sum()))
        self.doubt("what called them began before the recording", int(unseen.sum()))
        return ~nameless & ~unseen & ~self.others[function] & ~self.of[function]


class Takes(Judge):
    """`F takes at most T`. Coroutines are judged as `tasks` has them, whole: where one is too long its first resume is looked for."""

    def __init__(self, rule: Rule, functions: Functions, of: Recording, each: bool, trace: Trace) -> None:
        super().__init__(rule, functions, of, each)
        self._sought = Sought(*self._of_tasks(trace, functions))

    def _of_tasks(self, trace: Trace, functions: Functions) -> tuple[Ints, Ints]:
        chosen = np.flatnonzero((self.of & functions.coroutines)[:-1])
        self.of = self.of & ~functions.coroutines
        self._coroutines = functions.mask(chosen)
        if not len(chosen):
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        tasks = trace.tasks()
        tasks = tasks[tasks["func_id"].isin(chosen)]
        self.calls += len(tasks)
        wall = self.rule.state == "wall"
        value = tasks["end_ns"] - tasks["start_ns"] if wall else tasks[f"{self.rule.state}_ns"]
        unknown, over = value.isna().to_numpy(bool), (value > self.rule.limit_ns).fillna(False).to_numpy(bool)
        self.doubt("it is not known where their time went", int(unknown.sum()))
        open_ = tasks["status"].isin(("open_at_start", "open_at_end", "in_loss")).to_numpy(bool)
        self.doubt("they were not recorded from their begin to their end", int((open_ & ~over & ~unknown).sum()))
        return tasks["coroutine_id"].to_numpy(np.int64)[over], value[over].to_numpy(np.int64)

    @property
    def wanted(self) -> Bools:
        return self.of | self._coroutines

    def take(self, calls: Calls, paths: Paths) -> None:
        found, value = self._sought.among(calls)
        self.found.add(found, value)
        own = calls.of(self.of)
        self.calls += len(own)
        value = own[f"{self.rule.state}_ns"]
        known = (own["known"] & BY_NAME[self.rule.state].known != 0) if self.rule.state != "wall" else np.ones(len(own), np.bool_)
        over = known & (value > self.rule.limit_ns)
        lost = ~own.certain
        self.doubt("it is not known where their time went", int((~known).sum()))
        self.doubt("they were not recorded from their begin to their end", int((known & ~over & own.has(OPEN_AT_START | OPEN_AT_END)).sum()))
        self.doubt(LOST, int((known & lost).sum()))
        self.found.add(own.where(over & ~lost), value[over & ~lost])

    def end(self, paths: Paths, end_ns: int) -> None:
        self.doubt(LOST, self._sought.left)


class Sought:
    """Calls that are known to violate a rule, by their ids; `among` finds them as they come by, and with them their paths."""

    def __init__(self, ids: Ints, value: Ints) -> None:
        order = np.argsort(ids, kind="stable")
        self._ids, self._value, self.left = ids[order], value[order], len(ids)

    def among(self, calls: Calls) -> tuple[Calls, Ints]:
        """Those that are, each as often as it is sought, and the value of each."""
        first, last = (np.searchsorted(self._ids, calls["call_id"], side) for side in ("left", "right"))
        times = last - first
        at = np.repeat(first, times) + np.arange(times.sum()) - np.repeat(np.cumsum(times) - times, times)
        self.left -= len(at)
        return calls.where(np.repeat(np.arange(len(calls)), times)), self._value[at]


class NoWait(Judge):
    """`no wait`: those that are too long are known before, and their calls are looked for as they come by."""

    def __init__(self, rule: Rule, functions: Functions, of: Recording, each: bool, waits: pd.DataFrame) -> None:
        """`waits`: call_id, func_id and ns of those of its kinds that are too long."""
        super().__init__(rule, functions, of, each)
        called = waits[waits["call_id"] >= 0]
        nameless = called["func_id"] < 0
        self.doubt("they are of calls without a name", int(nameless.sum()))
        named = called[~nameless]
        self._sought = Sought(named["call_id"].to_numpy(np.int64), named["ns"].to_numpy(np.int64))
        self.of = functions.mask(named["func_id"].unique())
        if not rule.others or rule.locked:  # threads without Python wait, too
            self.doubt("they are of no call", int((waits["call_id"] < 0).sum()))

    @property
    def above(self) -> Mapping[Group, Bools]:
        return {self.rule.others: self.others} if self.rule.others and not self.rule.locked else {}

    def take(self, calls: Calls, paths: Paths) -> None:
        found, ns = self._sought.among(calls)
        self.calls += len(found)
        if self.above:
            known, lies = paths.known(found["node"]), self.others[found["func_id"]] | (paths.outermost(self.rule.others, found["node"]) != NONE)
            self.doubt(NO_ROOM, int((~known).sum()))
            self.doubt(NAMELESS, int((known & ~lies & paths.nameless(found["node"])).sum()))
            found, ns = found.where(known & lies), ns[known & lies]
        certain = self.sure(found) if self.above else found.certain
        self.doubt(LOST, int((~certain).sum()))
        self.found.add(found.where(certain), ns[certain])

    def end(self, paths: Paths, end_ns: int) -> None:
        self.doubt("they are of calls that were not found", self._sought.left)


class OfValues(Judge):
    """`F raises only E`, `F gets ARG`: of calls whose values were recorded. `judged` says of a call's values whether they are right."""

    def __init__(
        self, rule: Rule, functions: Functions, of: Recording, each: bool, values: pd.DataFrame, judged: Callable[[pd.DataFrame], Any]
    ) -> None:
        """`values`: call_id and what is recorded of it, one row of each; `judged`: of some, True, False or NA."""
        super().__init__(rule, functions, of, each)
        self._right = judged(values).set_axis(values["call_id"].to_numpy(np.int64)) if len(values) else pd.Series(dtype="boolean")

    def take(self, calls: Calls, paths: Paths) -> None:
        own = calls.of(self.of)
        if self.rule.form is Form.RAISES:
            own = own.where(~own.has(YIELDED))
            self.calls += len(own)
            own = own.where(own["status"] == STATUS_UNWOUND)
        else:
            own = own.where(~own.has(RESUMED | OPEN_AT_START))
            self.calls += len(own)
        right = self._right.reindex(own["call_id"])
        if self.rule.form is Form.RAISES and not self.rule.exceptions:
            right = pd.Series(False, own["call_id"], dtype="boolean")
        unknown = right.isna().to_numpy(bool)
        what = "which exception left them" if self.rule.form is Form.RAISES else f"what they were given as {self.rule.argument}"
        self.doubt(f"it is not recorded {what} (--args)", int(unknown.sum()))
        self.found.add(own.where(~unknown & ~right.fillna(True).to_numpy(bool)))
