"""Recorded tests compared by how long they took: which are slower, and which only may be."""

import json
from pathlib import Path

import numpy as np
import pytest

from pytrace_ebpf.diff.tests import TESTS, Ran, next_run, recorded_in, slower, write_tests
from pytrace_ebpf.errors import TraceError

MS = 1_000_000


def ran(*milliseconds: float, cpu: float = 0) -> list[Ran]:
    return [Ran(Path(str(i)), 1, 1, 5, 5 + round(ms * MS), round((cpu or ms) * MS)) for i, ms in enumerate(milliseconds)]


@pytest.mark.parametrize(
    ("before", "after", "is_slower", "sure"),
    [
        ((10,), (12.1,), True, None),
        ((10,), (12,), False, None),  # not by more than a fifth
        ((10,), (8,), False, None),
        ((1,), (1.9,), False, None),  # by less than a millisecond
        ((10, 12), (13, 14), True, None),  # apart, as one pair in six is by chance
        ((10, 12, 11), (11.9, 30, 14), True, False),  # one of them is as quick as before
        ((10, 11, 12), (20,), True, None),
        ((10, 11, 12), (20, 21, 23), True, True),
    ],
)
def test_a_test_is_slower_by_a_share_and_a_millisecond_and_sure_by_its_runs(
    before: tuple[float, ...], after: tuple[float, ...], is_slower: bool, sure: bool | None
) -> None:
    for by in ("on_cpu", "wall"):
        found = slower({"t": ran(*before), "gone": ran(1)}, {"t": ran(*after), "new": ran(100)}, 0.2, by)
        assert [(each.test, each.sure) for each in found] == ([("t", sure)] if is_slower else [])


def test_time_on_a_core_decides_whatever_the_clock_says() -> None:
    before, after = {"t": ran(10, 11, 12, cpu=5)}, {"t": ran(90, 91, 92, cpu=5)}
    assert not slower(before, after, 0.2, "on_cpu") and slower(before, after, 0.2, "wall")[0].sure


def test_of_many_tests_none_is_sure_to_be_slower_where_nothing_differs() -> None:
    """1,000 tests of a tenth of spread: alone, one in twenty of each would be apart."""
    random, wrong = np.random.default_rng(7), 0
    for _ in range(40):
        runs = [{f"t{i}": ran(*times) for i, times in enumerate(random.normal(100, 10, (100, 4)))} for _ in range(2)]
        wrong += any(each.sure for each in slower(*runs, 0.01, "on_cpu"))
    assert wrong <= 6  # 2 are expected; 7 or more come once in 300


def test_what_got_slower_most_comes_first() -> None:
    found = slower({name: ran(10) for name in "abc"}, {"a": ran(20), "b": ran(40), "c": ran(30)}, 0.2, "wall")
    assert [(each.test, each.change_ns, each.share) for each in found] == [("b", 30 * MS, 3.0), ("c", 20 * MS, 2.0), ("a", 10 * MS, 1.0)]


def test_runs_are_kept_by_number_and_read_again(tmp_path: Path) -> None:
    rows = [{"test": "t.py::test", "pid": 1, "tid": 2, "start_ns": 3, "end_ns": 4, "cpu_ns": 5}]
    (tmp_path / "notes").mkdir()
    for _ in range(11):
        write_tests(next_run(tmp_path), rows)
    assert [each.run.name for each in recorded_in(tmp_path)["t.py::test"]] == [str(i) for i in range(1, 12)]
    assert recorded_in(tmp_path)["t.py::test"][0] == Ran(tmp_path / "1", 1, 2, 3, 4, 5)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": "pytrace-ebpf tests", "format_version": 2, "tests": [{"test": 1}]}'])
def test_damaged_runs_are_one_sentence(tmp_path: Path, content: str) -> None:
    run = next_run(tmp_path)
    (run / TESTS).write_text(content)
    with pytest.raises(TraceError, match="is damaged or of another version"):
        recorded_in(tmp_path)
    (run / TESTS).write_text(json.dumps({"format": "pytrace-ebpf tests", "format_version": 2, "tests": []}))
    assert recorded_in(tmp_path) == {}
