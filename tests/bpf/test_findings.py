"""What a report opens with, of a program whose causes are known: each is the first thing said of its time, and none of threads without work."""

import re
from collections.abc import Callable
from typing import Any

import pytest

import pytrace_ebpf
from pytrace_ebpf.cli.main import main
from tests.bpf.conftest import Recorder
from tests.conftest import Python, Target

pytestmark = pytest.mark.measured

# By phase the rules that may come first, the function, and a pattern in the sentence. Who computes waits for whatever he has not: the GIL, or a core.
# A connection is named by the command at its other end where that was found in time.
CAUSES: dict[str, tuple[set[str], set[str], str]] = {
    "peer": ({"peer"}, {"ask"}, r"for (tcp|python\S*) 127\.0\.0\.1:"),
    "lock": ({"lock-held"}, {"reserve"}, r"in another thread, has while it waits for (tcp|python\S*) 127\.0\.0\.1:"),
    "gil": ({"gil", "computes", "cores"}, {"crunch"}, "`crunch`"),
    "many": ({"many-calls"}, {"listing", "listing.<locals>.<listcomp>"}, "calls `ask` 20 times in each of its calls"),
    "sleep": ({"sleep"}, {"retry"}, "sleeps"),
    "child": ({"subprocess"}, {"convert"}, "for a child process"),
    "pool": ({"queue"}, {"borrow"}, r"in `Queue\.get`, which `borrow`"),
    "log": ({"lock-held"}, {"log"}, r"in `Logger\.warning`, for a lock that `log` \(causes\.py:"),
    "full": ({"queue"}, {"produce"}, r"in `Queue\.put`, which `consume`"),
    "refused": ({"sleep"}, {"again"}, "sleeps"),
    "loop": ({"event-loop"}, {"pause"}, "holds the event loop"),
}
WAITS_FOR_ITS_END = "answering"  # at a pipe, in a process of its own, all the time: it may come first
IDLE = {"worker", "accepts", "_worker", "main", "service"}


@pytest.mark.usually("agent")
def test_the_planted_cause_is_said_first(
    python: Python, source: str, target: Callable[..., Target], attach: Callable[..., Recorder], capsys: pytest.CaptureFixture[str]
) -> None:
    process = target("causes", "--wait", "0.6", *CAUSES, python=python)
    recorder = attach(process.pid, "--source", source)
    process.go()
    phases: dict[str, Any] = process.done()["phases"]
    trace = pytrace_ebpf.open(recorder.finish())
    for name, (rules, functions, pattern) in CAUSES.items():
        found = trace.window(*phases[name]).findings()
        first, said = found[found["function"] != WAITS_FOR_ITS_END].iloc[0], found["sentence"].tolist()
        assert first["rule"] in rules and first["function"] in functions and re.search(pattern, first["sentence"]), (name, said)
        busy = found[found["rule"] != "idle"]
        assert not set(busy["function"]) & IDLE and busy["share"].sum() <= 1.0001, (name, said)
        assert first["file"] == str(process.path) and first["line"] > 0
    assert main(["report", str(trace.directory)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Threads were at work for ") and lines[1].startswith("1. ")


SAMPLED = {"lock": ("lock", "reserve"), "sleep": ("sleep", "retry"), "child": ("subprocess", "convert"), "full": ("queue", "produce")}


def test_samples_say_the_planted_cause_first(python: Python, target: Callable[..., Target], attach: Callable[..., Recorder]) -> None:
    process = target("causes", "--wait", "0.8", *SAMPLED, python=python)
    recorder = attach(process.pid, "--sample", "499")
    process.go()
    phases: dict[str, Any] = process.done()["phases"]
    trace = pytrace_ebpf.open(recorder.finish())
    for name, cause in SAMPLED.items():
        found = trace.window(*phases[name]).findings()
        first = found[~found["function"].isin((WAITS_FOR_ITS_END, "answer"))].iloc[0]
        assert (first["rule"], first["function"]) == cause and first["confidence"] >= 0.9, (name, found["sentence"].tolist())
