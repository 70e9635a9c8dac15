"""What a flight recorder waits for: the compiled library finds just what a slow and obvious reference finds."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytrace_ebpf.rebuild import triggers
from pytrace_ebpf.rebuild.triggers import CALL_TAKES, LOOP_HELD, RAISES, RUNQ, SHARE_WAITED, Triggers
from pytrace_ebpf.trace.schema import CallKind, SchedKind
from tests.unit.synthetic import GIL, Row, table_of

PID, FUNCTIONS = 50, 6
ENTERS = (CallKind.ENTRY, CallKind.OPEN, CallKind.RESUME)
CONDITIONS = [
    (CALL_TAKES, 0, 40, 0),
    (CALL_TAKES, 0, 7, 0),
    (RAISES, 0, 0, 0),
    (LOOP_HELD, 0, 25, 0),
    (SHARE_WAITED, triggers.GIL, 30, 100),
    (SHARE_WAITED, RUNQ, 12, 40),
]
WANTS = [0b0001, 0b1011, 0b1100, 0b0110, 0, 0b1001]  # by function
COROUTINES = {1, 2}
Hit = tuple[int, int, int, int, int]  # ts, start, end, tid, function
Found = dict[int, list[Hit]]  # by condition


@dataclass
class Open:
    frame: int
    func: int
    start: float
    since: float
    hit: set[int] = field(default_factory=set)
    inner: set[int] = field(default_factory=set)  # loops that a call below it is about


class Reference:
    """One event at a time, each open call a row of a list."""

    def __init__(self) -> None:
        self.stacks: dict[int, list[Open]] = {}
        self.last: dict[int, int] = {}
        self.suspended: dict[int, tuple[int, Open]] = {}
        self.waits: dict[int, list[tuple[int, int, int]]] = {}  # state, from, to
        self.at: dict[int, tuple[int, int]] = {}  # state, since
        self.above: set[tuple[int, int]] = set()
        self.edges: dict[tuple[int, int], int] = {}
        self.found: Found = {}

    def wants(self, call: Open, what: int) -> list[int]:
        bits = WANTS[call.func] if 0 <= call.func < FUNCTIONS else 0
        return [k for k, condition in enumerate(CONDITIONS) if bits >> k & 1 and condition[0] == what and k not in call.inner]

    def judge(self, tid: int, call: Open, now: int, ended: bool) -> None:
        for what, start in ((CALL_TAKES, call.start), (LOOP_HELD, call.since)):
            for k in self.wants(call, what):
                if now - start > CONDITIONS[k][2] and k not in call.hit:
                    call.hit.add(k)
                    hit = (int(start) + CONDITIONS[k][2], int(start), now if ended else -1, tid, call.func)
                    self.found.setdefault(k, []).append(hit)

    def event(self, row: Row, lost: bool) -> None:
        ts, _, tid, kind, func, frame, _ = row
        stack = self.stacks.setdefault(tid, [])
        now = self.last[tid] = max(ts, self.last.get(tid, ts))
        place = next((k for k, call in enumerate(stack) if frame and call.frame == frame), None)
        if kind in (CallKind.LINE, CallKind.STANDS):
            return
        if kind == CallKind.RESET:
            for call in stack:
                self.judge(tid, call, now, True)
            stack.clear()
        elif kind in ENTERS:
            if place is not None:
                del stack[place:]
            time = float("inf") if lost else now
            call = Open(frame, func, time, time)
            slept = self.suspended.pop(frame, None) if frame else None
            if slept and kind == CallKind.RESUME and func in COROUTINES:
                call.start, call.hit = slept[1].start, {k for k in slept[1].hit if CONDITIONS[k][0] == CALL_TAKES}
            call.inner = {k for below in stack for k in self.wants(below, LOOP_HELD)}
            stack.append(call)
        else:
            if place is None and stack and (not frame or not stack[-1].frame):
                place = len(stack) - 1
            if place is not None:
                self.ends(tid, stack[place], kind, now)
                del stack[place:]

    def ends(self, tid: int, call: Open, kind: int, now: int) -> None:
        sleeps = kind == CallKind.YIELD and call.func in COROUTINES
        self.judge(tid, call, now, not sleeps)
        if kind == CallKind.UNWIND and call.start != float("inf"):
            for k in self.wants(call, RAISES):
                self.found.setdefault(k, []).append((now, int(call.start), now, tid, call.func))
        if sleeps and call.frame and WANTS[call.func] & 0b0111:
            self.suspended[call.frame] = tid, call

    def forget(self) -> None:
        for call in [*(call for stack in self.stacks.values() for call in stack), *(call for _, call in self.suspended.values())]:
            call.start = call.since = float("inf")

    def until(self, tid: int, end: int) -> None:
        """Let the thread be in its state up to `end`, and look at each edge."""
        state, since = self.at[tid]
        self.waits.setdefault(tid, []).append((state, since, end))
        for k, (what, of, over, span) in enumerate(CONDITIONS):
            for edge in range(since // (span // 10) + 1, end // (span // 10) + 1) if what == SHARE_WAITED else ():
                edge *= span // 10
                waited = sum(max(0, min(to, edge) - max(came, edge - span)) for s, came, to in self.waits[tid] if s == of)
                if waited > over and (tid, k) not in self.above:
                    self.found.setdefault(k, []).append((edge, edge - span, waited, tid, -1))
                (self.above.add if waited > over else self.above.discard)((tid, k))
        self.at[tid] = state, end

    def switch(self, ts: int, tid: int, state: int) -> None:
        if tid in self.at:
            self.until(tid, ts)
        self.at[tid] = state, ts

    def lose_switches(self) -> None:
        self.at.clear()
        self.waits.clear()
        self.above.clear()

    def end(self, end: int) -> None:
        for tid, stack in self.stacks.items():
            for call in stack:
                self.judge(tid, call, end, False)
        for tid, call in self.suspended.values():
            call.since, call.inner = float("inf"), set()
            self.judge(tid, call, end, False)
        for tid in self.at:
            self.until(tid, end)


def life(rng: random.Random, tid: int) -> Iterator[Row]:
    """Events of a thread: mostly nested, some odd, coroutines that other threads resume."""
    now, stack = rng.randrange(1, 50), list[tuple[int, int]]()
    for _ in range(rng.randrange(80)):
        now += rng.choice((0, 1, 3, 10, 60))
        if rng.random() < 0.1:
            yield now, PID, tid, rng.choice(list(CallKind)), rng.randrange(-1, 7), rng.choice((0, rng.randrange(1, 9))), 1
        elif rng.random() < 0.5 or not stack:
            kind = rng.choice((CallKind.ENTRY, CallKind.ENTRY, CallKind.OPEN, CallKind.RESUME))
            stack.append((rng.randrange(FUNCTIONS), rng.randrange(1, 4) if kind == CallKind.RESUME else 10 * tid + len(stack)))
            yield now, PID, tid, kind, stack[-1][0], stack[-1][1], 1
        else:
            func, frame = stack.pop()
            yield now, PID, tid, rng.choice((CallKind.RETURN, CallKind.RETURN, CallKind.UNWIND, CallKind.YIELD)), func, frame, 1


# What a switch makes of a thread's state: kind, task state, syscall, address.
SWITCHES = {
    0: (SchedKind.IN, 0, -1, 0),
    RUNQ: (SchedKind.OUT, 0, -1, 0),
    triggers.GIL: (SchedKind.OUT, 1, 202, GIL[0] + 8),
    3: (SchedKind.OUT, 1, 0, 5),
    9: (SchedKind.WAKING, 0, -1, 0),  # WAKES
}


WAKES = 9


def scheduling(rng: random.Random, tid: int) -> Iterator[tuple[int, int, int]]:
    """Nothing is missing: who waited is woken before it gets a core, and who leaves one has had it."""
    now, state = rng.randrange(1, 80), 0
    for _ in range(rng.randrange(60)):
        if state:
            state = WAKES if state not in (RUNQ, WAKES) else 0
        else:
            state = rng.choice([each for each in SWITCHES if each not in (0, WAKES)])
        yield now, tid, state
        now += rng.choice((1, 2, 5, 20, 300))


def found_by(library: Triggers, end: int) -> dict[int, tuple[int, Hit]]:
    """By condition how often, and the first."""
    hits = {}
    for hit in library.hits(end):
        ts, start, ended, key, count, waited, func, condition = hit.item()
        assert key >> 32 == PID
        of_share = CONDITIONS[condition][0] == SHARE_WAITED
        who = (key & 0xFFFFFFFF, func)
        hits[condition] = (count, (ts, ts - CONDITIONS[condition][3], waited, *who) if of_share else (ts, start, ended, *who))
    return hits


def is_lost(rng: random.Random) -> bool:
    return rng.random() < 0.05


@settings(deadline=None)
@given(st.integers(0, 2**40))
def test_what_comes_true_is_what_the_slow_reference_finds(seed: int) -> None:
    rng = random.Random(seed)
    events = [list(life(rng, tid)) for tid in range(1, rng.randrange(2, 5))]
    switches = sorted(row for tid in range(1, 4) for row in scheduling(rng, tid))
    last = max([1, *(row[0] for rows in events for row in rows), *(row[0] for row in switches)]) + rng.choice((1, 100))
    cuts = sorted({*(rng.randrange(1, last) for _ in range(rng.randrange(1, 9))), last} if last > 1 else {last})
    library, reference = Triggers(CONDITIONS), Reference()
    library.functions(np.array(WANTS, np.uint32), np.isin(np.arange(FUNCTIONS), list(COROUTINES)))
    began = 0
    for end in cuts:
        of_segment = [row for rows in events for row in rows if began <= row[0] < end]
        lost, blind = is_lost(rng), is_lost(rng)
        if lost:
            reference.forget()
        for row in of_segment:
            reference.event(row, lost)
        library.events(table_of("events", of_segment) if of_segment else None, lost)
        if blind:
            reference.lose_switches()
        rows = []
        for ts, tid, state in switches:
            if began <= ts < end:
                kind, task, syscall, address = SWITCHES[state]
                rows.append((ts, PID, tid, kind, 0, task, syscall, address, 0, 0))
                if not blind:
                    reference.switch(ts, tid, RUNQ if state == WAKES else state)
        library.switches(table_of("sched", rows), blind, {PID: GIL, PID + 1: (1, 2)})
        reference.found = dict(reference.found)
        reference.end(end)
        hits = found_by(library, end)
        assert {k: count for k, (count, _) in hits.items()} == {k: len(found) for k, found in reference.found.items()}
        for k, (_, first) in hits.items():
            assert first[0] == min(hit[0] for hit in reference.found[k]) and first in reference.found[k]
        found = library.open_calls()
        still_open = [(tid, call.func, call.frame) for tid, stack in reference.stacks.items() for call in stack]
        assert sorted(zip(*(found[name].tolist() for name in ("tid", "func_id", "frame")), strict=True)) == sorted(still_open)
        assert set(found["pid"]) <= {PID} and set(found["line"]) <= {1}
        reference.found, began = {}, end


def hits_of(conditions: list[Any], wants: list[int], *segments: tuple[list[Row], int], coroutines: tuple[int, ...] = ()) -> list[list[Any]]:
    """ts, start, end, function of each hit, by segment: its events and end."""
    library = Triggers(conditions)
    library.functions(np.array(wants, np.uint32), np.isin(np.arange(len(wants)), coroutines))
    found = []
    for rows, end in segments:
        library.events(table_of("events", rows), False)
        found.append([[hit[name].item() for name in ("ts", "start", "end", "func_id")] for hit in library.hits(end)])
    return found


def test_a_call_that_goes_on_comes_true_once() -> None:
    begins, ends = (10, PID, 1, CallKind.ENTRY, 0, 16, 1), (700, PID, 1, CallKind.RETURN, 0, 16, 1)
    assert hits_of([(CALL_TAKES, 0, 200, 0)], [1], ([begins], 210), ([], 211), ([], 400), ([ends], 800)) == [[], [[210, 10, -1, 0]], [], []]


def test_a_coroutine_takes_what_it_awaits_and_holds_the_loop_only_while_it_runs() -> None:
    def step(ts: int, kind: CallKind) -> Row:
        return ts, PID, 1, kind, 0, 16, 1

    rows = [step(10, CallKind.ENTRY), step(20, CallKind.YIELD), step(300, CallKind.RESUME), step(310, CallKind.RETURN)]
    whole, loop = (CALL_TAKES, 0, 200, 0), (LOOP_HELD, 0, 200, 0)
    assert hits_of([whole, loop], [3], (rows, 400), coroutines=(0,)) == [[[210, 10, 310, 0]]]
    assert hits_of([whole], [1], (rows, 400)) == [[]]  # a generator
    assert hits_of([whole], [1], (rows[:2], 205), ([], 250), (rows[2:], 400), coroutines=(0,)) == [[], [[210, 10, -1, 0]], []]


def test_threads_that_ended_wait_no_longer() -> None:
    library = Triggers([(CALL_TAKES, 0, 200, 0)])
    library.functions(np.array([1], np.uint32), np.array([True]))
    opened = [(10, PID, tid, CallKind.ENTRY, 0, 16 * tid, 1) for tid in (1, 2)]
    library.events(table_of("events", [*opened, (20, PID, 2, CallKind.YIELD, 0, 32, 1)]), False)
    library.ended([(PID, 1, 100), (PID, 7, 100), (PID, 0, 100)])
    assert len(library.hits(1000)) == 0


def test_a_call_longer_than_asked_for_that_ends_with_its_thread_comes_true() -> None:
    library = Triggers([(CALL_TAKES, 0, 200, 0)])
    library.functions(np.array([1], np.uint32), np.array([False]))
    library.events(table_of("events", [(10, PID, 1, CallKind.ENTRY, 0, 16, 1)]), False)
    library.ended([(PID, 1, 300)])
    (hit,) = library.hits(1000)
    assert (hit["ts"], hit["end"]) == (210, 300)


@pytest.mark.parametrize("count", [1, 50_000])
def test_any_number_of_coroutines_may_be_suspended(count: int) -> None:
    library = Triggers([(CALL_TAKES, 0, 10**9, 0)])
    library.functions(np.array([1], np.uint32), np.array([True]))
    for at, kind in enumerate((CallKind.ENTRY, CallKind.RESUME)):
        rows = [
            row
            for k in range(count)
            for row in ((at * 10**9 + 1, PID, 1, kind, 0, 16 * k + 16, 1), (at * 10**9 + 2, PID, 1, CallKind.YIELD, 0, 16 * k + 16, 1))
        ]
        library.events(table_of("events", rows), False)
    (hit,) = library.hits(2 * 10**9)
    assert hit["count"] == count
