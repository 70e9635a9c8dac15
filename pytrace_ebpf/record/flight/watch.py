"""Looks at every segment as it is recorded for what a flight recorder waits for; the compiled library decides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pytrace_ebpf.lazy_imports import pa
from pytrace_ebpf.patterns import Mains, fits_called, nearest
from pytrace_ebpf.rebuild import triggers
from pytrace_ebpf.record.flight.conditions import OF_CALLS, SNAP, Condition, Flight
from pytrace_ebpf.record.flight.held import Segment
from pytrace_ebpf.record.output.horizon import opened
from pytrace_ebpf.trace.schema import CALL_LOSSES, SCHED_LOSSES

_COROUTINE = 0x80  # of co_flags
_LOOP = ("asyncio.events", "Handle._run")  # what asyncio's loop calls to run anything
_WHAT = {
    "call": (triggers.CALL_TAKES, 0), "loop": (triggers.LOOP_HELD, 0), "raises": (triggers.RAISES, 0),
    "gil": (triggers.SHARE_WAITED, triggers.GIL), "runq": (triggers.SHARE_WAITED, triggers.RUNQ),
}  # fmt: skip


@dataclass(frozen=True)
class Trigger:
    """That a condition came true, the first time in a segment."""

    condition: str
    ts: int
    pid: int = -1  # pid and tid -1: of no thread
    tid: int = -1
    func_id: int = -1
    name: str = ""  # of the function, MODULE.QUALNAME
    start_ns: int | None = None  # of the call, or of the time in which it waited
    end_ns: int | None = None  # None: it went on, or there is no call
    waited_ns: int | None = None  # of a share
    count: int = 1  # times in the segment


class Watch:
    """The conditions of a recording, and what it knows of the program to judge them."""

    def __init__(self, flight: Flight) -> None:
        """Raises HostError where the compiled library is missing."""
        self._flight, self._mains = flight, Mains()
        self._conditions = [condition for condition in flight.conditions if condition.word != SNAP]
        self._triggers = triggers.Triggers([(*_WHAT[each.word], each.over_ns, each.span_ns) for each in self._conditions])
        self._of_calls = [(number, each) for number, each in enumerate(self._conditions) if each.word in OF_CALLS]
        self._names: dict[int, str] = {}  # of the functions that conditions are about
        self._called: list[tuple[str, str, str]] = []  # every Python function, while a pattern has not fitted: file, module, qualified name
        self._met = np.zeros(len(self._conditions), bool)
        self._wants, self._is_coroutine = np.zeros(0, np.uint32), np.zeros(0, bool)
        self._gil: dict[int, tuple[int, int]] = {}
        self._ended: list[triggers.Ended] = []
        self._lost_until = dict.fromkeys((CALL_LOSSES, SCHED_LOSSES), -1)

    def take(self, segment: Segment) -> list[Trigger]:
        """What came true in the next segment, in the order of time; it is given the calls that are open at its end. Raises HostError."""
        tables = segment.tables
        for row in tables["processes"].to_pylist() if "processes" in tables else []:
            self._mains.add(row["command"])
        self._meet(tables.get("functions"))
        self._lose(tables.get("losses"))
        self._triggers.events(tables.get("events"), self._lost_until[CALL_LOSSES] > segment.start_ns)
        self._live(tables)
        if self._flight.of_shares:
            self._triggers.switches(tables.get("sched"), self._lost_until[SCHED_LOSSES] > segment.start_ns, self._gil)
        self._triggers.ended(ended for ended in self._ended if ended[2] <= segment.end_ns)
        self._ended = [ended for ended in self._ended if ended[2] > segment.end_ns]
        segment.opened = opened(self._triggers.open_calls(), segment.end_ns)
        return sorted((self._named(hit) for hit in self._triggers.hits(segment.end_ns)), key=lambda trigger: trigger.ts)

    def never_met(self) -> list[str]:
        """A sentence for each condition about functions of which none that fits was ever called, with the nearest names."""
        never = self._unmet()
        like = [", ".join(nearest(each.pattern, self._called)) for each in never]
        return [
            f"no function that fits {each.said} was called" + (f"; the nearest names: {of}" if of else "")
            for each, of in zip(never, like, strict=True)
        ]

    def _unmet(self) -> list[Condition]:
        return [each for number, each in self._of_calls if each.pattern and not self._met[number]]

    def _meet(self, functions: pa.Table | None) -> None:
        """Take in new functions: which of the conditions each is about."""
        rows = functions.to_pylist() if functions is not None and self._of_calls else []
        if not rows:
            return
        count = max(len(self._wants), 1 + max(row["func_id"] for row in rows))
        self._wants, self._is_coroutine = _longer(self._wants, count), _longer(self._is_coroutine, count)
        if self._unmet():
            self._called += [(row["file"], row["module"], row["qualname"]) for row in rows if row["file"]]
        for row in rows:
            for number, condition in self._of_calls:
                if self._is_about(condition, row):
                    self._wants[row["func_id"]] |= 1 << number
                    self._met[number] = True
                    self._names[row["func_id"]] = f"{row['module']}.{row['qualname']}" if row["file"] else row["qualname"]
            self._is_coroutine[row["func_id"]] = bool(row["flags"] & _COROUTINE)
        self._triggers.functions(self._wants, self._is_coroutine)

    def _is_about(self, condition: Condition, function: dict[str, Any]) -> bool:
        """Whether it is about a function, a row of schema.FUNCTIONS."""
        if condition.word == "loop":
            return bool((function["module"], function["qualname"]) == _LOOP or function["flags"] & _COROUTINE)
        names = (function["file"], function["module"], function["qualname"])
        return fits_called(condition.pattern, *names, self._mains.have(function["file"]))

    def _lose(self, losses: pa.Table | None) -> None:
        for row in losses.to_pylist() if losses is not None else []:
            for classes, until in self._lost_until.items():
                if row["class"] in classes:
                    self._lost_until[classes] = max(until, row["end_ns"])

    def _live(self, tables: Any) -> None:
        """Which processes and threads there are."""
        for row in tables["processes"].to_pylist() if "processes" in tables else []:
            self._gil[row["pid"]] = (row["gil_start"], row["gil_end"])
            if row["end_ns"] is not None:
                del self._gil[row["pid"]]
                self._ended.append((row["pid"], 0, row["end_ns"]))
        for row in tables["threads"].to_pylist() if "threads" in tables else []:
            if row["end_ns"] is not None:
                self._ended.append((row["pid"], row["tid"], row["end_ns"]))

    def _named(self, hit: Any) -> Trigger:
        ts, start, end, key, count, waited, func_id, number = hit.item()
        condition = self._conditions[number]
        who = (condition.text, ts, key >> 32, key & 0xFFFFFFFF)
        if condition.word in OF_CALLS:
            return Trigger(*who, func_id, self._names.get(func_id, ""), start, end if end >= 0 else None, count=count)
        return Trigger(*who, start_ns=ts - condition.span_ns, end_ns=ts, waited_ns=waited, count=count)


def _longer(array: Any, count: int) -> Any:
    return np.concatenate((array, np.zeros(count - len(array), array.dtype)))
