"""Which functions of a simulated program a budget leaves out, when it brings them back, and that the budget holds."""

from dataclasses import dataclass, field

import numpy as np
import pytest

from pytrace_ebpf.record.cost.budget import EVERYTHING, MOST_OUT, Budget, Span

NS_PER_CALL, NS_TO_READ = 100.0, 60.0


@dataclass
class Program:
    """Calls a second of each function, by func_id, of a program that computes on one core; what tracing it cost so far."""

    rates: list[float]
    budget: Budget
    now_s: float = 0.0
    spent_ns: float = 0.0
    at_rest_ns: float = 0.0  # of the tracer, in a second
    to_pass_ns: float = 0.0  # cost of a call that is left out
    foretold: bool = False  # whether that is known beforehand
    left: list[int] = field(default_factory=list)  # in the order in which they were
    pauses: list[float] = field(default_factory=list)  # when everything was

    def runs(self, seconds: float, step_s: float = 0.05) -> "Program":
        for _ in range(round(seconds / step_s)):
            out = self.budget.out
            on, rates = EVERYTHING not in out, np.array(self.rates) * step_s
            calls = np.array([rate if on and number not in out else 0.0 for number, rate in enumerate(rates)])
            passed_ns = (rates.sum() - calls.sum()) * self.to_pass_ns if on else 0.0
            own_ns, left_ns = calls.sum() * NS_TO_READ + self.at_rest_ns * step_s, self.to_pass_ns if self.foretold else 0.0
            span = Span(self.now_s, step_s, step_s * 1e9, own_ns, calls, NS_PER_CALL, passed_ns, ns_per_left_call=left_ns)
            self.now_s += step_s
            self.spent_ns += span.spent_ns
            gone = self.budget.decide(span) - out
            self.left += sorted(gone - {EVERYTHING}, key=lambda func_id: -self.rates[func_id])
            self.pauses += [self.now_s] * (EVERYTHING in gone)
        return self

    @property
    def share(self) -> float:
        return self.spent_ns / (self.now_s * 1e9)


def test_within_the_budget_nothing_is_left_out() -> None:
    program = Program([1000.0, 100_000.0, 50.0], Budget(0.05)).runs(20)
    assert not program.left and program.share < 0.05


def test_the_hottest_are_left_out_first_and_no_more_than_needed() -> None:
    rates = [100.0, 4e6, 90_000.0, 1e6, 300_000.0, 20_000.0]
    program = Program(rates, Budget(0.05)).runs(1)
    assert program.left[:3] == [1, 3, 4]
    assert program.budget.out >= {1, 3, 4} and not program.budget.out & {0, 5}


@pytest.mark.parametrize("share", [0.02, 0.05, 0.1, 0.5])
@pytest.mark.parametrize("rates", [[1e7], [4e6, 1e6, 1e5, 1e4, 1e3] * 10, [30_000.0] * 400], ids=["one", "some", "many alike"])
def test_the_budget_holds_on_average(share: float, rates: list[float]) -> None:
    program = Program(rates, Budget(share)).runs(60)
    assert program.left
    assert program.share <= share * 4 / 3


def test_most_of_the_budget_is_used() -> None:
    program = Program([20_000.0] * 100, Budget(0.1)).runs(60)
    assert 0.1 / 2 < program.share <= 0.1 * 4 / 3


def test_a_function_that_cooled_down_comes_back_and_stays() -> None:
    program = Program([4e6, 100.0], Budget(0.05)).runs(30)
    assert program.budget.out == {0}
    program.rates[0] = 1000.0
    times = len(program.left)
    assert not program.runs(200).budget.out
    assert len(program.left) == times


def test_a_function_that_stays_hot_is_tried_ever_more_seldom() -> None:
    program = Program([4e6], Budget(0.05)).runs(1000)
    assert set(program.left) == {0}
    assert 5 <= len(program.left) <= 12


def test_the_cpu_time_of_an_idle_tracer_leaves_no_function_out() -> None:
    program = Program([5000.0, 100.0], Budget(0.01), at_rest_ns=5e7).runs(30)
    assert not program.left
    program.rates += [1e6]
    assert program.runs(1).budget.out == {2}


def test_nothing_of_an_idle_program_is_left_out() -> None:
    budget = Budget(0.05)
    for now in range(100):
        assert not budget.decide(Span(now, 1.0, 0.0, 2e7, np.array([5.0]), NS_PER_CALL))


def test_no_more_are_left_out_than_an_agent_can_take() -> None:
    program = Program([1e5] * (4 * MOST_OUT), Budget(0.001)).runs(0.3)
    assert len(program.budget.out) == MOST_OUT


@pytest.mark.parametrize("share", [0.02, 0.05, 0.1])
def test_where_a_left_out_call_still_costs_recording_is_in_intervals(share: float) -> None:
    program = Program([4e6, 1e5, 10.0], Budget(share), to_pass_ns=80.0)
    program.runs(300, step_s=0.01)
    assert 0.5 * share <= program.share <= 0.9 * share  # on busy cores a call costs more than is reckoned with
    assert len(program.pauses) > 10
    assert not program.budget.out - {EVERYTHING}  # an interval is exact


def test_where_leaving_out_functions_is_enough_there_are_no_intervals() -> None:
    assert not Program([4e6, 1e5, 1e4], Budget(0.05), to_pass_ns=0.0).runs(300).pauses


def test_intervals_end_when_the_program_calms_down() -> None:
    program = Program([4e6], Budget(0.05), to_pass_ns=80.0).runs(60, step_s=0.01)
    program.rates[0] = 1000.0
    assert EVERYTHING not in program.runs(60).budget.out
    pauses = len(program.pauses)
    assert len(program.runs(60).pauses) == pauses


def test_an_agent_that_follows_slowly_is_no_reason_for_intervals() -> None:
    budget, calls = Budget(0.02), np.array([1e5, 10.0])
    for number in range(100):  # what was asked for comes on for two seconds
        out = budget.decide(Span(number / 50, 0.02, 2e7, 5e6, calls, NS_PER_CALL))
    assert out == {0}


def test_a_moment_of_almost_no_cpu_time_leaves_no_function_out() -> None:
    budget = Budget(0.01)
    for number in range(5):
        assert not budget.decide(Span(number, 0.1, 1e4, 1e6, np.array([2.0, 1.0]), NS_PER_CALL))


def test_a_program_that_waits_keeps_its_few_calls() -> None:
    """They are many for its little CPU time, which the tracer alone takes more of than the budget."""
    budget = Budget(0.1)
    for number in range(200):
        assert not budget.decide(Span(number / 2, 0.5, 5e5, 5e6, np.array([30.0, 90.0]), NS_PER_CALL))
    assert budget.decide(Span(100.5, 0.5, 5e5, 5e6, np.array([30.0, 9000.0]), NS_PER_CALL)) == {1}


def test_where_what_is_left_out_costs_nearly_as_much_intervals_begin_at_once() -> None:
    program = Program([4e6, 1e6], Budget(0.1), to_pass_ns=90.0, foretold=True).runs(0.3)
    assert program.pauses and not program.left
    assert program.runs(60).share < 0.1 and not program.left


def test_where_it_costs_little_functions_are_left_out_however_much_is_to_be_saved() -> None:
    program = Program([4e6, 1e3], Budget(0.1), to_pass_ns=10.0, foretold=True).runs(20)
    assert set(program.left) == {0} and not program.pauses
