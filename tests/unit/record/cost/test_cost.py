"""What the recorder of costs writes of a function that is left out: exact figures, of a program that is made up."""

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from pytrace_ebpf.record.cost import cost
from pytrace_ebpf.record.cost.budget import EVERYTHING, Budget
from pytrace_ebpf.record.cost.cost import Cost
from pytrace_ebpf.record.cost.spent import Spent
from pytrace_ebpf.record.source import Recording
from pytrace_ebpf.record.source_selection.sources import Sources
from pytrace_ebpf.trace.left_out import BUDGET, INTERVAL

SECOND = 1_000_000_000


class Clock:
    def __init__(self) -> None:
        self.now_ns = 100 * SECOND

    def monotonic(self) -> float:
        return self.now_ns / 1e9

    def monotonic_ns(self) -> int:
        return self.now_ns

    def process_time_ns(self) -> int:
        return 0


class Tries:
    """A program with two functions, of which `out` is left out at each decision."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock, self.out, self.follows = Clock(), frozenset[int](), True
        monkeypatch.setattr(cost, "time", self.clock)
        monkeypatch.setattr(Budget, "decide", lambda _, span: self.out)
        monkeypatch.setattr(Budget, "out", property(lambda _: self.out))
        monkeypatch.setattr(Budget, "pace", lambda *_: 0.0)
        self.sources = SimpleNamespace(
            drained=[],
            passed=dict,
            slowdown=lambda _: 1.0,
            dropped=dict,
            timed=dict,
            parts=lambda _: None,
            price=lambda _: 100.0,
            measure=lambda: None,
            measured=lambda: None,
            by_function=True,
            ns_per_left_call=0.0,
            leave_out=lambda _: self.follows,
        )
        recording = cast(
            Recording, SimpleNamespace(processes=SimpleNamespace(living={}), source_of=lambda _: "agent", source_at_end=lambda _: "agent")
        )
        self.cost = Cost(recording, cast(Sources, self.sources), 0.05)

    def passes(self, seconds: float, calls: dict[int, float], out: set[int]) -> None:
        """So many calls of each function, and what is decided then."""
        self.clock.now_ns += int(seconds * SECOND)
        func_id = np.repeat(np.array([*calls], np.int32), [int(2 * count) for count in calls.values()])  # an entry and a return each
        self.sources.drained = [{"pid": np.full(len(func_id), 1 << 22), "func_id": func_id}]
        self.out = frozenset(out)
        self.cost.observe({})

    def rows(self) -> list[tuple[Any, ...]]:
        (columns,) = self.cost.cut()["left_out"]
        named = {name: list(values) for name, values in columns.items()}
        return list(zip(*(named[name] for name in ("func_id", "from_ns", "to_ns", "calls_per_s", "why")), strict=True)) if named else []


def test_a_function_that_is_left_out_has_the_rate_that_it_had(monkeypatch: pytest.MonkeyPatch) -> None:
    tries = Tries(monkeypatch)
    tries.passes(0.5, {0: 300, 1: 20}, {0})
    assert tries.rows() == [(0, 100.5 * SECOND, None, 600.0, BUDGET)]


def test_a_call_that_goes_on_counts_half(monkeypatch: pytest.MonkeyPatch) -> None:
    tries = Tries(monkeypatch)
    tries.passes(0.5, {0: 1.5}, {0})  # it came, another one came and went
    assert tries.rows() == [(0, 100.5 * SECOND, None, 3.0, BUDGET)]


def test_of_an_interval_it_is_the_rate_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    tries = Tries(monkeypatch)
    tries.passes(0.5, {0: 300, 1: 20}, {EVERYTHING})
    assert tries.rows() == [(EVERYTHING, 100.5 * SECOND, None, 640.0, INTERVAL)]


def test_it_ends_when_the_sources_have_followed_and_goes_on_where_they_had_not(monkeypatch: pytest.MonkeyPatch) -> None:
    tries = Tries(monkeypatch)
    tries.passes(0.5, {0: 300}, {0})
    tries.rows()
    tries.follows = False
    tries.passes(0.5, {}, set())
    assert tries.rows() == []
    tries.passes(0.5, {}, {0})  # out again before it came back
    assert tries.rows() == []
    tries.passes(0.5, {}, set())
    tries.follows = True
    tries.passes(0.01, {}, set())
    assert tries.rows() == [(0, 100.5 * SECOND, 102.01 * SECOND, 600.0, BUDGET)]


def test_no_decision_is_made_before_a_quarter_of_a_second_has_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    tries = Tries(monkeypatch)
    tries.passes(0.249, {0: 1}, {0})
    assert tries.rows() == []
    tries.passes(0.001, {0: 1}, {0})
    assert tries.rows() == [(0, 100.25 * SECOND, None, 8.0, BUDGET)]


def test_where_much_is_spent_it_is_made_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    tries = Tries(monkeypatch)
    tries.passes(0.25, {0: 1}, set())  # from here on the price is known: 100 ns a call
    tries.passes(0.02, {0: 40_000}, {0})
    assert tries.rows() == []
    tries.passes(0.02, {0: 40_001}, {0})  # 4 ms and more
    assert [(row[0], row[3]) for row in tries.rows()] == [(0, pytest.approx(80_001 / 0.04))]


def test_what_the_progress_says_is_of_the_time_since_it_was_asked_last(monkeypatch: pytest.MonkeyPatch) -> None:
    tries = Tries(monkeypatch)
    assert tries.cost.price() is None
    spent = iter([Spent(0.5, 4e8, 10, 1e7, 1e8), Spent(1.5, 4e8, 10, 1e7, 3e8), Spent(1.0, 1e9, 10, 1e7, 0.0), Spent()])
    monkeypatch.setattr(tries.cost._accounts, "look", lambda _: next(spent))
    tries.passes(0.5, {0: 10}, set())
    tries.passes(1.5, {0: 10}, {0})
    assert tries.cost.price() == cost.Price(0.5, 0.2, 1, bounded=True, paused=False)
    tries.passes(1.0, {0: 10}, {0, EVERYTHING})
    assert tries.cost.price() == cost.Price(0.0, 0.0, 1, bounded=True, paused=True)
    assert tries.cost.price() is None


def test_the_cost_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    tries = Tries(monkeypatch)
    monkeypatch.setattr(tries.cost._accounts, "whole", lambda: Spent(2.0, 900.6, 30.5, 20.0, 100.4))
    assert tries.cost.cost() == {"calls": 30, "spent_ns": 100, "cpu_ns": 901, "own_ns": 0}
