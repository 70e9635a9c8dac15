"""`--from-call`: nothing of what is before the first call of a function, all of what is after it, and what is open there."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pytrace_ebpf
from tests.bpf.conftest import lost
from tests.conftest import Python
from tests.sums_hold import assert_sums_hold


def recorded(directory: Path) -> tuple[Any, Counter[str], Counter[str]]:
    """The trace, its calls of the program by name, and those of them that were open when it began."""
    trace = pytrace_ebpf.open(directory)
    calls = trace.named_calls(["call_id", "status", "start_ns"])
    own = calls[calls["file"].astype("object").str.endswith("begins.py", na=False)]
    assert (calls["start_ns"] >= trace.start_ns).all()
    return trace, Counter(own["qualname"].astype(str)), Counter(own.loc[own["status"] == "open_at_start", "qualname"].astype(str))


@pytest.mark.usually("agent")
def test_it_begins_with_that_call(python: Python, source: str, run: Callable[..., tuple[Path, Any]], capsys: pytest.CaptureFixture[str]) -> None:
    directory, ended = run(python.command("begins"), "--source", source, "--from-call", "train")
    told = json.loads(ended.stdout.splitlines()[-1].removeprefix("done "))
    assert ended.returncode == 0 and "recorded from the first call of begins.train on" in ended.stderr, ended.stderr
    trace, calls, were_open = recorded(directory)
    assert {name: calls[name] for name in ("prepare", "train", "step", "after", "main")} == {
        "prepare": 0,
        "train": 1,
        "step": 5,
        "after": 1,
        "main": 1,
    }
    assert were_open == {"<module>": 1, "main": 1, "beside": 1}
    assert told["began"] <= trace.start_ns <= told["ended"] and trace.end_ns >= told["ended"] and not lost(trace)
    assert set(trace.threads()["name"]) >= {"MainThread", "beside"} and len(trace.processes()) == 1
    assert_sums_hold(trace)
    assert trace.named_calls(["on_cpu_ns"])["on_cpu_ns"].notna().all(), "what threads did when it began is known"


@pytest.mark.usually("agent")
def test_it_ends_after_the_time_that_for_gives(python: Python, source: str, run: Callable[..., tuple[Path, Any]]) -> None:
    directory, ended = run(python.command("begins", "9"), "--source", source, "--from-call", "begins.train", "--for", "500ms")
    assert ended.returncode == 0 and "the time that --for gives is over" in ended.stderr, ended.stderr
    trace, calls, _ = recorded(directory)
    assert (calls["train"], calls["step"]) == (1, 5) and trace.manifest["state"] == "complete"
    assert 0.5e9 <= trace.end_ns - trace.start_ns < 9e9, "the program went on"


@pytest.mark.usually("agent")
def test_where_it_is_never_called_there_is_no_trace(python: Python, source: str, run: Callable[..., tuple[Path, Any]]) -> None:
    directory, ended = run(python.command("begins"), "--source", source, "--from-call", "trane")
    assert ended.returncode == 0 and not directory.exists()
    assert "no function that fits --from-call trane was called; the nearest names: train" in ended.stderr
