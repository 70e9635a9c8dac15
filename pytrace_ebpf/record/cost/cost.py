"""The recorder that measures what tracing costs, live; with a budget it leaves out functions that cost too much, as rows of `left_out`."""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from pytrace_ebpf.record.choice.price import PASSED_NS
from pytrace_ebpf.record.choice.sources import Sources
from pytrace_ebpf.record.cost.budget import EVERYTHING, Budget, Span
from pytrace_ebpf.record.output.tables import Columns, columns_of
from pytrace_ebpf.record.recorder import Recorder, Rows
from pytrace_ebpf.record.source import Recording
from pytrace_ebpf.trace.left_out import BUDGET, INTERVAL

_LEAST_S, _MOST_S = 0.02, 0.25  # between two decisions: the sooner the more is spent
_HASTE_NS = 4e6  # of CPU time spent since the last decision: then the next one is made at once
_LEAST_OWN = 0.1  # of a program's CPU time: never less is counted as its own, whatever its calls are estimated to cost
_CPU_CLOCK = 2  # CPUCLOCK_SCHED of a process: clock ids of include/linux/posix-timers.h


@dataclass(frozen=True)
class Price:
    """What tracing cost lately."""

    share: float  # of the program's CPU time
    cores: float  # the same in cores
    left_out: int = 0  # functions
    bounded: bool = False  # by a budget
    paused: bool = False  # nothing is recorded at the moment


class Cost(Recorder):
    """Comes after the recorders whose events it counts."""

    def __init__(self, recording: Recording, sources: Sources, budget: float | None) -> None:
        """`budget`: the share of the program's CPU time that tracing may cost; None: it is only reported."""
        self._recording, self._sources = recording, sources
        self._budget = Budget(budget) if budget is not None else None
        self._counts = np.zeros(1024, np.int64)  # events by func_id + 1
        self._events = self._passed = 0
        self.pace_s = 0.0  # how long to wait between two drains, since each costs CPU time
        self._cpu_ns: dict[int, int] = {}  # by process
        self._own_ns, self._began_s = time.process_time_ns(), time.monotonic()
        self._unreported = _Sum()
        self._open: dict[int, dict[str, Any]] = {}  # rows of `left_out` whose end is not known, by func_id
        self._back: dict[int, dict[str, Any]] = {}  # those whose function is to be recorded again
        self._rows: list[dict[str, Any]] = []

    def add(self, pid: int) -> None:
        """What it used before it was recorded does not count, nor what this process did until then."""
        if not self._cpu_ns:
            self._own_ns, self._began_s = time.process_time_ns(), time.monotonic()
        self._cpu_ns |= _cpu_ns([pid])

    def see(self, drained: Rows) -> None:
        """Count the events, and decide from time to time."""
        self._count(drained.get("events", ()))
        seconds = time.monotonic() - self._began_s
        spent_ns = self._events / 2 * self._sources.ns_per_call + (self._sources.passed - self._passed) * PASSED_NS
        hasty = self._budget is not None and spent_ns > _HASTE_NS
        if seconds >= (_LEAST_S if hasty else max(_MOST_S, self.pace_s)):
            span, slowdown, paused = self._span(seconds, self._sources.slowdown), self._sources.slowdown, EVERYTHING in self._open
            if self._budget:
                self._leave_out(self._budget.decide(span), span)
                if paused != (EVERYTHING in self._open):  # the request took a while, during which probes were still or already attached
                    self._budget.decide(self._span(time.monotonic() - self._began_s, max(slowdown, self._sources.slowdown)))
                self.pace_s = 0.0 if hasty or self._back else self._budget.pace(span, self.pace_s)
        elif self._budget and self._back:
            self._leave_out(self._budget.out, None)

    def _count(self, batches: Iterable[Columns]) -> None:
        for batch in batches:
            self._events += len(batch["func_id"])
            if self._budget:
                counts = np.bincount(batch["func_id"].astype(np.intp) + 1, minlength=len(self._counts))
                counts[: len(self._counts)] += self._counts
                self._counts = counts

    def _span(self, seconds: float, slowdown: float) -> Span:
        own_ns, cpu_ns = time.process_time_ns(), _cpu_ns(self._recording.processes.living)
        used_ns = sum(now - self._cpu_ns.get(pid, now) for pid, now in cpu_ns.items())
        passed = self._sources.passed
        passed_ns = float(max(0, passed - self._passed) * PASSED_NS)
        own_most_ns = used_ns / slowdown
        program_ns = max(min(own_most_ns, used_ns - self._events / 2 * self._sources.ns_per_call - passed_ns), min(own_most_ns, _LEAST_OWN * used_ns))
        passed_ns += used_ns - own_most_ns
        calls = self._counts[1:] / 2 if self._budget else np.array([self._events / 2])
        span = Span(
            time.monotonic(), seconds, program_ns, own_ns - self._own_ns, calls, self._sources.ns_per_call, passed_ns, self._sources.by_function
        )
        self._counts, self._events, self._passed = np.zeros_like(self._counts), 0, passed
        self._own_ns, self._cpu_ns, self._began_s = own_ns, cpu_ns, span.now_s
        self._unreported.add(span)
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
        spent, self._unreported = self._unreported, _Sum()
        if not spent.seconds or not spent.program_ns:
            return None
        return Price(
            spent.spent_ns / spent.program_ns,
            spent.spent_ns / 1e9 / spent.seconds,
            len(self._open.keys() - {EVERYTHING}),
            self._budget is not None,
            EVERYTHING in self._open,
        )

    def cut(self) -> Rows:
        """Rows of `left_out` that began or ended."""
        rows, self._rows = self._rows, []
        return {"left_out": [columns_of(rows)]}


@dataclass
class _Sum:
    seconds: float = 0.0
    program_ns: float = 0.0
    spent_ns: float = 0.0

    def add(self, span: Span) -> None:
        self.seconds += span.seconds
        self.program_ns += span.program_ns
        self.spent_ns += span.spent_ns


def _cpu_ns(pids: Iterable[int]) -> dict[int, int]:
    """CPU time of each process, without those that ended."""
    found = {}
    for pid in pids:
        try:
            found[pid] = time.clock_gettime_ns(~pid << 3 | _CPU_CLOCK)
        except OSError:
            continue
    return found
