"""Samples by the task that ran: which coroutine of a stack is a task's own, and that a report shows them."""

import json
from pathlib import Path

import pytest

from pytrace_ebpf.cli.main import main
from tests.unit.synthetic import Row, write_trace

PERIOD = 1_000_000
RUN, OUTER, INNER, WAITER, NUMBERS, PLAIN, OTHER = range(7)
_NAMES = {"run": 0, "outer": 0x80, "inner": 0x80, "waiter": 0x20, "numbers": 0x200, "plain": 0, "other": 0x80}
FUNCTIONS: list[Row] = [(at, "/app/a.py", name, name, 10 * at + 1, "a", flags) for at, (name, flags) in enumerate(_NAMES.items())]
STACKS = [
    (RUN,),  # none
    (RUN, OUTER, INNER, PLAIN),
    (RUN, OUTER, WAITER, INNER),  # __await__ of a class
    (RUN, OUTER, NUMBERS, INNER, PLAIN, WAITER),
    (RUN, OUTER, PLAIN, OTHER),  # begun at once
    (RUN, OTHER),
    (RUN, WAITER, INNER),  # a generator that no coroutine awaits
]
TASKS = ["", "outer", "outer", "outer", "other", "other", "inner"]


def trace(path: Path) -> str:
    numbers: dict[tuple[int, ...], int] = {}
    for stack in STACKS:
        for depth in range(1, len(stack) + 1):
            numbers.setdefault(stack[:depth], len(numbers))
    stacks: list[Row] = [(number, numbers.get(stack[:-1], -1), stack[-1], 5) for stack, number in numbers.items()]
    samples: list[Row] = [(PERIOD * (10 * at + turn + 1), 7, 7, 0, numbers[stack], -1) for at, stack in enumerate(STACKS) for turn in range(at + 1)]
    manifest = {"sampling": {"period_ns": PERIOD}, "sources": [{"pid": 7, "source": "sample", "why": "asked"}]}
    return str(write_trace(path / "trace", functions=FUNCTIONS, stacks=stacks, samples=samples, manifest=manifest))


def test_each_sample_is_of_the_task_that_ran(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", trace(tmp_path), "--by", "task", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    expected = {name: sum(at + 1 for at, task in enumerate(TASKS) if task == name) for name in TASKS if name}
    assert {row["qualname"]: row["total_samples"] for row in facts["rows"]} == expected
    for row in facts["rows"]:
        assert row["total_ns"] == row["on_cpu_ns"] == row["total_samples"] * PERIOD
        assert 0 < row["total_error_ns"] == row["on_cpu_error_ns"]
    assert [row["qualname"] for row in facts["rows"]] == ["other", "outer", "inner"]


def test_a_report_says_how_much_was_in_tasks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", trace(tmp_path), "--by", "task"]) == 0
    shown = capsys.readouterr().out
    assert "96 % of the sampled time was in tasks." in shown
    assert "Tasks by sampled time" in shown


def test_tasks_have_their_names_and_automatic_ones_are_one_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    functions, stacks = FUNCTIONS, [(0, -1, RUN, 5), (1, 0, OUTER, 5), (2, 0, OTHER, 5)]
    names = [(1, "Task-5"), (1, "Task-6"), (1, "own"), (2, "Task-7"), (2, "own"), (2, None), (0, None)]
    samples: list[Row] = [(PERIOD * (at + 1), 7, 7, 0, stack, -1, 0, 0, -1, name) for at, (stack, name) in enumerate(names)]
    manifest = {"sampling": {"period_ns": PERIOD}, "sources": [{"pid": 7, "source": "sample", "why": "asked"}]}
    path = str(write_trace(tmp_path / "trace", functions=functions, stacks=stacks, samples=samples, manifest=manifest))
    assert main(["report", path, "--by", "task", "--json"]) == 0
    rows = {(row["qualname"], row["task"]): row["total_samples"] for row in json.loads(capsys.readouterr().out)["rows"]}
    assert rows == {("outer", "Task-N"): 2, ("outer", "own"): 1, ("other", "Task-N"): 1, ("other", "own"): 1, ("other", None): 1}
    assert main(["report", path, "--by", "task"]) == 0
    shown = capsys.readouterr().out
    assert "(no name known)" in shown
    assert "own" in shown
