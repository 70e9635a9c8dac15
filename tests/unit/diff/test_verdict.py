"""Whether repeated runs differ by more than chance: never more often wrong than is said, however many things are compared, and however their times are distributed."""

import numpy as np
import pytest

from pytrace_ebpf.diff.verdict import RATE, looks, not_slower, slower


@pytest.mark.parametrize(("runs", "things"), [(3, 5), (4, 300), (8, 60)])
def test_where_nothing_differs_few_comparisons_say_so(runs: int, things: int) -> None:
    random, wrong, tries = np.random.default_rng(runs), 0, 100
    for _ in range(tries):
        size = np.exp(random.normal(0, 1, things))
        together = np.exp(0.05 * random.normal(size=(2 * runs, 1)))  # the machine is slow or fast for all functions of a run
        times = size * together * np.exp(0.1 * np.abs(random.standard_t(2, (2 * runs, things))))  # and some of them are far off
        wrong += bool((slower(times[:runs], times[runs:], 0.01 * size) <= RATE).any())
    assert wrong <= 13  # 5 are expected at most, and 14 or more come once in 2,000


def test_what_differs_is_found_among_many_that_do_not() -> None:
    random = np.random.default_rng(1)
    for runs in (3, 6, 12):
        before, after = (random.normal(10, 0.5, (runs, 200)) for _ in range(2))
        after[:, 7] += 10
        chance = slower(before, after, np.full(200, 5.0))
        assert np.flatnonzero(chance <= RATE).tolist() == [7]


def test_what_cannot_be_slower_is_ruled_out_only_where_all_can() -> None:
    random = np.random.default_rng(2)
    before, after = (random.normal(10, 0.5, (6, 20)) for _ in range(2))
    least = np.full(20, 3.0)
    assert not_slower(before, after, least) <= RATE
    after[:, 3] += 3
    assert not_slower(before, after, least) > RATE


def test_runs_that_do_not_differ_at_all_say_nothing() -> None:
    same = np.full((3, 2), 5.0)
    assert (slower(same, same, np.zeros(2)) == 1).all() and (slower(same, same, np.ones(2)) == 1).all()


def test_looks_are_few_and_each_could_find_something() -> None:
    assert looks(3) == [3] and looks(20) == [6, 9, 14, 20] and looks(5)[-1] == 5
