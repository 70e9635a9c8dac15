"""The recorder that measures what tracing costs, live; with a budget it leaves out functions that cost too much, as rows of `left_out`.

It is measured once, here (spent.py), for the progress, the report and what is decided meanwhile.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from pytrace_ebpf.record.cost.budget import EVERYTHING, Budget, Span
from pytrace_ebpf.record.cost.spent import Accounts, Spent
from pytrace_ebpf.record.cost.watch import Watch
from pytrace_ebpf.record.output.tables import Columns, columns_of
from pytrace_ebpf.record.recorder import Recorder, Rows
from pytrace_ebpf.record.source import Recording
from pytrace_ebpf.record.source_selection.cost_estimate import MOST_SHARE
from pytrace_ebpf.record.source_selection.sources import Sources
from pytrace_ebpf.trace.left_out import BUDGET, INTERVAL

_LEAST_S, _MOST_S = 0.02, 0.25  # between two decisions: the sooner the more is spent
_HASTE_NS = 4e6  # of CPU time spent since the last decision: then the next one is made at once
_PRICED_S = 0.5  # the price of a call is measured then, or at the end, so that what was launched is not held up; at once where decisions wait for it


@dataclass(frozen=True)
class Price:
    """What tracing cost the traced programs lately."""

    share: float  # of the CPU time that they used, 1 at most
    cores: float  # the same in cores
    left_out: int = 0  # functions
    bounded: bool = False  # by a budget
    paused: bool = False  # nothing is recorded at the moment


class Cost(Recorder):
    """Comes after the recorders whose events it counts."""

    def __init__(self, recording: Recording, sources: Sources, budget: float | None, unasked: bool = False, leaves_out: bool = False) -> None:
        """`budget`: the share of the programs' CPU time that tracing may cost; None: it is only reported.

        `unasked`: where it takes more than MOST_SHARE the source is changed or, with `leaves_out`, calls are left out, although nobody gave a budget.
        """
        self._sources, self._accounts = sources, Accounts(recording, sources)
        self._budget = Budget(budget) if budget is not None else None
        self._watch = Watch(sources, leaves_out) if unasked and budget is None else None
        self._counts = np.zeros(1024, np.int64)  # events by func_id + 1, where calls may be left out
        self._counts_functions = budget is not None or (unasked and leaves_out)
        self.pace_s = 0.0  # how long to wait between two drains, since each costs CPU time
        self._own_ns = self._first_own_ns = time.process_time_ns()
        self._began_s = self._first_s = time.monotonic()
        self._unreported = Spent()
        self._open: dict[int, dict[str, Any]] = {}  # rows of `left_out` whose end is not known, by func_id
        self._back: dict[int, dict[str, Any]] = {}  # those whose function is to be recorded again
        self._rows: list[dict[str, Any]] = []
        self._said: list[str] = []

    def approach(self, pid: int) -> None:
        """What it used until now does not count; what it uses from its first call on does, which may come before all recorders have it."""
        self._accounts.approach(pid)

    def add(self, pid: int) -> None:
        """What this process did before the first came does not count."""
        if not len(self._accounts):
            self._own_ns = self._first_own_ns = time.process_time_ns()
            self._began_s = self._first_s = self._accounts.approached_s
        self._accounts.add(pid)

    def observe(self, _drained: Rows) -> None:
        """Count the events of the sources, and decide from time to time."""
        self._count(self._sources.drained)
        seconds = time.monotonic() - self._began_s
        hasty = self._counts_functions and self._accounts.roughly_ns() > _HASTE_NS
        if seconds >= (_LEAST_S if hasty else max(_MOST_S, self.pace_s)):
            if self._watch or time.monotonic() - self._first_s > _PRICED_S:
                self._sources.measure()
            span, paused = self._span(seconds), EVERYTHING in self._open
            if self._watch and (why := self._watch.look(self._accounts.lately(seconds))):
                self._bound(why)
            if self._budget:
                self._leave_out(self._budget.decide(span), span)
                if paused != (EVERYTHING in self._open):  # the request took a while, during which probes were still or already attached
                    self._budget.decide(self._span(time.monotonic() - self._began_s))
                self.pace_s = 0.0 if hasty or self._back else self._budget.pace(span, self.pace_s)
        elif self._budget and self._back:
            self._leave_out(self._budget.out, None)

    def _bound(self, why: str) -> None:
        """From now on within MOST_SHARE, where functions can be left out at all."""
        self._watch = None
        if self._sources.boundable:
            self._budget = Budget(MOST_SHARE)
            self._said.append(why)

    def take_said(self) -> list[str]:
        """What there is to say since the last call, a sentence each."""
        said, self._said = self._said, []
        return said

    def _count(self, batches: Iterable[Columns]) -> None:
        self._accounts.count(batches)
        for batch in batches if self._counts_functions else ():
            counts = np.bincount(batch["func_id"].astype(np.intp) + 1, minlength=len(self._counts))
            counts[: len(self._counts)] += self._counts
            self._counts = counts

    def _span(self, seconds: float) -> Span:
        own_ns, spent = time.process_time_ns(), self._accounts.look(seconds)
        self._unreported.add(spent)
        calls = self._counts[1:] / 2 if self._counts_functions else np.array([spent.calls])
        span = Span(
            time.monotonic(),
            seconds,
            max(spent.used_ns - spent.spent_ns, spent.least_ns),
            own_ns - self._own_ns,
            calls,
            spent.calls_ns / max(1.0, spent.calls),
            max(0.0, spent.spent_ns - spent.calls_ns),
            self._sources.by_function,
            self._sources.ns_per_left_call,
        )
        self._counts, self._own_ns, self._began_s = np.zeros_like(self._counts), own_ns, span.now_s
        return span

    def _leave_out(self, out: frozenset[int], span: Span | None) -> None:
        """Pass the decision to the sources; note when they may begin to follow it, and since when all do."""
        now_ns = time.monotonic_ns()
        for func_id in out - self._open.keys() if span else ():
            if func_id in self._back:  # it stays left out: the same row goes on
                self._open[func_id] = self._back.pop(func_id)
                continue
            everything = func_id == EVERYTHING
            rate = float(span.calls.sum() if everything else span.calls[func_id]) / span.seconds if span else 0.0
            why = INTERVAL if everything else BUDGET
            self._open[func_id] = {"func_id": func_id, "from_ns": now_ns, "to_ns": None, "calls_per_s": rate, "why": why}
            self._rows.append(self._open[func_id])
        for func_id in self._open.keys() - out:
            self._back[func_id] = self._open.pop(func_id)
        if self._sources.leave_out(out) and self._back:
            self._rows += [row | {"to_ns": time.monotonic_ns()} for row in self._back.values()]
            self._back.clear()

    def price(self) -> Price | None:
        """What tracing cost since the last call; None where no time has passed or nothing is known."""
        spent, self._unreported = self._unreported, Spent()
        if not spent.seconds or not spent.used_ns:
            return None
        return Price(
            spent.spent_ns / spent.used_ns,
            spent.spent_ns / 1e9 / spent.seconds,
            len(self._open.keys() - {EVERYTHING}),
            self._budget is not None,
            EVERYTHING in self._open,
        )

    def cut(self) -> Rows:
        """Rows of `left_out` that began or ended."""
        rows, self._rows = self._rows, []
        return {"left_out": [columns_of(rows)]}

    def cost(self) -> dict[str, Any]:
        """Of the whole recording: what tracing took in the programs, what they used, and what this process used itself."""
        self._count(self._sources.drained)
        self._sources.measured()  # a short program has ended by then
        self._span(max(1e-9, time.monotonic() - self._began_s))
        whole = self._accounts.whole()
        loop, timed, in_place = self._sources.parts("agent"), self._accounts.timed, dict[str, Any]()
        if loop and loop.within and timed and whole.calls:
            each_ns = round(whole.calls_ns / whole.calls, 1)
            in_place = {"ns_per_call": each_ns, "loop_ns_per_call": loop.ns_per_call, "timed": timed, "code_ns": round(whole.code_ns)}
        return in_place | {
            "calls": round(whole.calls),
            "spent_ns": round(whole.spent_ns),
            "cpu_ns": round(whole.used_ns),
            "own_ns": self._own_ns - self._first_own_ns,
        }
