"""Thousands of threads with ids at the top of their range: totals, order and lookups are those of a slow walk."""

import random
from collections.abc import Sequence

import numpy as np
import pandas as pd
import pytest

from pytrace_ebpf.analyze.functions.by_function import by_function, compensate
from pytrace_ebpf.derive.calls.preorder import begin_end, outermost, preorder
from pytrace_ebpf.derive.scheduling.last_at import last_at
from tests.unit.callrows import Call, frame, functions
from tests.unit.view.test_report_functions import walked

THREAD_BITS = 40  # of a call_id, below the thread's number: rebuild/calls.c
THREADS, FUNCTIONS = 2_500, 60
TOP = (1 << 63 - THREAD_BITS) - 1  # the last number of a thread


def short_thread(dice: random.Random) -> Sequence[Call]:
    """A chain of calls, most of it recursion."""
    call = Call(dice.randrange(FUNCTIONS), dice.randrange(1, 10))
    for _ in range(dice.randrange(6)):
        call = Call(call.func if dice.random() < 0.5 else dice.randrange(FUNCTIONS), dice.randrange(9), [call, Call(dice.randrange(FUNCTIONS), 3)])
    return [call, Call(dice.randrange(FUNCTIONS), 5)]


@pytest.fixture(scope="module")
def threads() -> dict[int, Sequence[Call]]:
    dice = random.Random(11)
    return {tid: short_thread(dice) for tid in range(1, THREADS + 1)}


@pytest.fixture(scope="module", params=["low", "top", "apart", "backwards"])
def calls(request: pytest.FixtureRequest, threads: dict[int, Sequence[Call]]) -> pd.DataFrame:
    """The rows of `threads` with their ids at the bottom, at the top and all over the range, and against the order of the threads."""
    numbers = {
        "low": range(THREADS),
        "top": range(TOP - THREADS + 1, TOP + 1),
        "apart": np.linspace(0, TOP, THREADS, dtype=np.int64).tolist(),
        "backwards": range(TOP, TOP - THREADS, -1),
    }[request.param]
    return frame(threads, first_ids=[number << THREAD_BITS for number in numbers])


@pytest.mark.parametrize("key", ["function", "module"])
def test_totals_are_those_of_a_walk(calls: pd.DataFrame, threads: dict[int, Sequence[Call]], key: str) -> None:
    expected = walked(threads, key == "module")
    table = by_function(calls, functions(FUNCTIONS), key)
    assert len(table) == len(expected)
    for row in table.to_dict("records"):
        want = expected[row["module" if key == "module" else "func_id"]]
        assert {k: None if pd.isna(row[k]) else row[k] for k in want} == want


def slow_outermost(calls: pd.DataFrame, key: np.ndarray) -> list[bool]:
    parent = dict(zip(calls["call_id"].tolist(), calls["parent_id"].tolist(), strict=True))
    of = dict(zip(calls["call_id"].tolist(), key.tolist(), strict=True))

    def is_outermost(call: int) -> bool:
        above = parent[call]
        while above != -1:
            if of[above] == of[call]:
                return False
            above = parent[above]
        return True

    return [is_outermost(call) for call in calls["call_id"].tolist()]


def test_outermost_calls_are_those_without_an_ancestor_of_the_same_key(calls: pd.DataFrame) -> None:
    shuffled = calls.sample(frac=1, random_state=3).reset_index(drop=True)
    for key in (shuffled["func_id"].to_numpy(np.int64), np.zeros(len(shuffled), np.int64), shuffled["func_id"].to_numpy(np.int64) << 55):
        assert outermost(shuffled, key).tolist() == slow_outermost(shuffled, key)


def test_the_order_within_threads_counts_what_lies_below(calls: pd.DataFrame) -> None:
    order, below = preorder(calls)
    rows = calls.iloc[order]
    assert rows.groupby(["pid", "tid"], sort=False)["call_id"].is_monotonic_increasing.all()
    # In these rows a thread's ids have no gaps.
    assert below.tolist() == (rows["last_descendant_id"] - rows["call_id"]).tolist()
    row, is_end = begin_end(calls)
    stack: list[int] = []
    for at, ends in zip(row.tolist(), is_end.tolist(), strict=True):
        if ends:
            assert stack.pop() == at
        else:
            stack.append(at)
    assert not stack


def test_compensation_counts_the_calls_below(calls: pd.DataFrame) -> None:
    many = calls.assign(wall_ns=10**9, on_cpu_ns=pd.array([10**9] * len(calls), "Int64"))
    taken = many["wall_ns"] - compensate(many, 7.0)["wall_ns"]
    assert taken.tolist() == (7 * (calls["last_descendant_id"] - calls["call_id"])).tolist()


@pytest.mark.parametrize("seed", range(8))
def test_what_came_last_is_found_in_the_whole_range_of_numbers(seed: int) -> None:
    dice = random.Random(seed)
    numbers = [-(2**63), -1, 0, 1, 2**40, 2**62, 2**63 - 2, 2**63 - 1]
    rows = sorted((dice.choice(numbers), dice.choice(numbers)) for _ in range(dice.randrange(1, 40)))
    asked = [(dice.choice(numbers), dice.choice(numbers)) for _ in range(60)]
    expected = [max((k for k, row in enumerate(rows) if row[0] == key and row[1] <= ts), default=-1) for key, ts in asked]
    keys, when = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    thread, ts = (np.array(column, np.int64) for column in zip(*asked, strict=True))
    assert last_at(keys, when, thread, ts).tolist() == expected
