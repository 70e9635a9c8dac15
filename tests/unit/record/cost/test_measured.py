"""The price of a call in a program, from what is measured in a small loop and what the agent timed."""

import pytest

from pytrace_ebpf.record.cost.measured import Measured, Price, Timed

LOOP = Measured(alone=24.0, recorded=64.0, within=20.0)
SLOWED = LOOP._replace(code=0.4)  # 24 of the 40 ns by fib's own code, which takes 40 in place of 24, are not the way to the callbacks


def test_what_is_timed_in_a_small_loop_is_the_price_there() -> None:
    timed = Timed(1000, 10_000.0, 1000, 20_000.0)
    assert timed.price(LOOP, LOOP.ns_per_call) == Price(40.0, 40.0)
    assert (SLOWED.way_ns, timed.price(SLOWED, 40.0).of_call) == (pytest.approx(4.0), pytest.approx(24.0))


def test_where_callbacks_take_longer_so_does_the_way_to_them() -> None:
    assert Timed(1000, 50_000.0, 1000, 100_000.0).price(LOOP, 40.0) == Price(40.0, 200.0)


def test_a_share_of_the_time_between_events_is_charged_to_none_of_them() -> None:
    price = Timed(1000, 50_000.0, 1000, 102_000.0).price(SLOWED, 40.0)
    assert price == (40.0, pytest.approx(104.0), pytest.approx(0.4 * 100))


@pytest.mark.parametrize(
    ("timed", "loop"), [(Timed(99, 99e6), LOOP), (Timed(10**6, 1e12), None), (Timed(10**6, 1e12), LOOP._replace(within=0.0)), (Timed(), LOOP)]
)
def test_without_enough_to_go_by_it_is_that_of_a_small_loop(timed: Timed, loop: Measured | None) -> None:
    assert timed.price(loop, 40.0) == Price(40.0, 40.0)


def test_of_two_arenas_of_a_process_both_count() -> None:
    assert Timed(1, 2.0, 3, 4.0) + Timed(10, 20.0, 30, 40.0) == Timed(11, 22.0, 33, 44.0)


def test_the_share_of_callbacks_is_of_them_and_what_runs_between() -> None:
    assert Timed(10, 100.0, 20, 600.0).share == 0.25
    assert Timed().share == 0.0
