"""Rules that are learned hold of what they were learned from, and not of a program that does otherwise."""

import re
from pathlib import Path

import pytest

import pytrace_ebpf
from pytrace_ebpf.cli.main import main
from pytrace_ebpf.rules.check import HOLDS, UNKNOWN, VIOLATED, check
from pytrace_ebpf.rules.file import read_text
from tests.unit.rules.test_shipped import FUNCTIONS, MS, Told, alone, times
from tests.unit.synthetic import sample, write_trace


def recorded(path: Path, scripts: list[Told]) -> Path:
    events = [row for script in scripts for row in script.events]
    sched = [row for script in scripts for row in script.sched]
    whole = {"argv": ["pytrace-ebpf", "run"], "scheduling": {"source": "bpf", "why": ""}}
    return write_trace(path, events=events, sched=sched, functions=list(FUNCTIONS.values()), manifest=whole)


def pages(queries: int, ms: int) -> list[Told]:
    def does(told: Told) -> None:
        for _ in range(3):
            told.call(
                "WSGIHandler.__call__",
                lambda told: told.call("worker", lambda told: (times("CursorWrapper.execute", queries)(told), told.run(ms * MS))),
            )
        told.call("handler", lambda told: told.wait(ms * MS))

    return alone(does)


def test_what_is_learned_holds_and_says_of_what(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = recorded(tmp_path / "right", pages(4, 8))
    assert main(["check", str(trace), "--learn"]) == 0
    text = capsys.readouterr().out
    rules = read_text(text, "learned.toml")
    assert {rule.text for rule in rules} >= {
        "'app.worker' takes at most 20ms",
        "at most 4 'django.db.backends.utils.CursorWrapper.execute' in one request",
        "no wait above 20ms in a coroutine",
    }
    assert re.search(r"^# 3 requests with some, the most 4\n\S+ = ", text, re.MULTILINE) and "# Keep what has to be so" in text
    assert {verdict.state for verdict in check(pytrace_ebpf.open(trace), rules).verdicts} == {HOLDS}
    other = check(pytrace_ebpf.open(recorded(tmp_path / "wrong", pages(5, 30))), rules)
    assert sum(verdict.state == VIOLATED for verdict in other.verdicts) >= 3


def test_what_is_learned_of_a_program_that_was_met_while_it_ran_is_never_violated_by_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = sample(tmp_path / "trace")
    assert main(["check", str(trace), "--learn"]) == 0
    rules = read_text(capsys.readouterr().out, "learned.toml")
    assert "'io' only from 'main' or 'work'" in {rule.text for rule in rules}
    assert {verdict.state for verdict in check(pytrace_ebpf.open(trace), rules).verdicts} == {HOLDS, UNKNOWN}


def test_learning_and_checking_are_two_things(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(sample(tmp_path / "trace")), "--learn", "--rules", "asyncio"]) == 2
    assert "--learn writes rules, and --rules is of checking them" in capsys.readouterr().err
