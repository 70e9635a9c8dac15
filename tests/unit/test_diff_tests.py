"""Recorded tests compared by how long they took: which are slower, and which only may be."""

import json
from pathlib import Path

import pytest

from pytrace_ebpf.diff.tests import TESTS, Ran, next_run, recorded_in, slower, write_tests
from pytrace_ebpf.errors import TraceError

MS = 1_000_000


def ran(*milliseconds: float) -> list[Ran]:
    return [Ran(Path(str(i)), 1, 1, 5, 5 + round(ms * MS)) for i, ms in enumerate(milliseconds)]


@pytest.mark.parametrize(
    ("before", "after", "is_slower"),
    [
        ((10,), (12.1,), True),
        ((10,), (12,), False),  # not by more than a fifth
        ((10,), (8,), False),
        ((1,), (1.9,), False),  # by less than a millisecond
        ((10, 12), (13, 14), True),
        ((10, 12), (11.9, 30), False),  # one of them is as quick as before
        ((10, 11, 12), (20,), True),
    ],
)
def test_a_test_is_slower_by_a_share_a_millisecond_and_in_every_run(before: tuple[float, ...], after: tuple[float, ...], is_slower: bool) -> None:
    found = slower({"t": ran(*before), "gone": ran(1)}, {"t": ran(*after), "new": ran(100)}, 0.2)
    assert [each.test for each in found] == (["t"] if is_slower else [])


def test_what_got_slower_most_comes_first() -> None:
    found = slower({name: ran(10) for name in "abc"}, {"a": ran(20), "b": ran(40), "c": ran(30)}, 0.2)
    assert [(each.test, each.change_ns, each.share) for each in found] == [("b", 30 * MS, 3.0), ("c", 20 * MS, 2.0), ("a", 10 * MS, 1.0)]


def test_runs_are_kept_by_number_and_read_again(tmp_path: Path) -> None:
    rows = [{"test": "t.py::test", "pid": 1, "tid": 2, "start_ns": 3, "end_ns": 4}]
    (tmp_path / "notes").mkdir()
    for _ in range(11):
        write_tests(next_run(tmp_path), rows)
    assert [each.run.name for each in recorded_in(tmp_path)["t.py::test"]] == [str(i) for i in range(1, 12)]
    assert recorded_in(tmp_path)["t.py::test"][0] == Ran(tmp_path / "1", 1, 2, 3, 4)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": "pytrace-ebpf tests", "format_version": 1, "tests": [{"test": 1}]}'])
def test_damaged_runs_are_one_sentence(tmp_path: Path, content: str) -> None:
    run = next_run(tmp_path)
    (run / TESTS).write_text(content)
    with pytest.raises(TraceError, match="is damaged or of another version"):
        recorded_in(tmp_path)
    (run / TESTS).write_text(json.dumps({"format": "pytrace-ebpf tests", "format_version": 1, "tests": []}))
    assert recorded_in(tmp_path) == {}
