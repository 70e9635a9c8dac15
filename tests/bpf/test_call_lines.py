"""The line that a call was made from, by the probes: where code comes and goes, where recording begins late, where callers are not recorded."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest

import pytrace_ebpf
from pytrace_ebpf.trace.reader import Trace
from tests.bpf.conftest import Recorder
from tests.conftest import Python, Target

pytestmark = pytest.mark.sources("usdt")
Traced = Callable[..., tuple[Trace, dict[str, Any]]]


def of_calls(trace: Trace) -> pd.DataFrame:
    """Calls with the names of the function and of its caller."""
    calls, functions = trace.calls(), trace.functions()[["func_id", "qualname", "file", "name"]]
    calls = calls.merge(functions, on="func_id")
    parents = calls[["call_id", "name", "file"]].rename(columns={"call_id": "parent_id", "name": "caller", "file": "caller_file"})
    return calls.merge(parents, on="parent_id", how="left")


def test_the_place_of_freed_code_has_lines_of_its_own(python: Python, source: str, target: Callable[..., Target], traced: Traced) -> None:
    trace, said = traced(target("discarded", "--wait", python=python), "--source", source)
    assert said["addresses"] < 6 * said["count"]
    calls = of_calls(trace)
    inner = calls[calls["name"] == "inner"]
    found = Counter(inner[["caller_file", "caller", "call_line"]].itertuples(index=False, name=None))
    expected = Counter()
    for file in ("<made>", "/tmp/made.py"):
        for number in range(said["count"]):
            expected[file, "calls", number + 2] = 2
            expected[file, "<module>", number + 1] = 1
    assert found == expected


def test_a_caller_that_is_excluded_leaves_no_line(python: Python, source: str, target: Callable[..., Target], traced: Traced) -> None:
    trace, said = traced(target("discarded", "--wait", python=python), "--source", source, "--exclude", "<made>")
    calls = of_calls(trace)
    inner = calls[calls["name"] == "inner"]
    between = inner[inner["caller_file"] != "/tmp/made.py"]  # the nearest callers that are recorded did not call them
    assert len(between) == 3 * said["count"] and between["call_line"].isna().all()
    assert inner.loc[inner["caller_file"] == "/tmp/made.py", "call_line"].nunique() == said["count"] + 1


def test_recording_that_begins_in_the_middle(python: Python, source: str, target: Callable[..., Target], attach: Callable[..., Recorder]) -> None:
    """Calls from frames that were open then have lines at once."""
    process = target("busy", python=python)
    trace = pytrace_ebpf.open(attach(process.pid, "--source", source).stop())
    process.kill()
    calls = of_calls(trace)
    made = calls[(calls["name"] == "down") & (calls["status"] != "open_at_start")]
    assert set(made[["caller", "call_line"]].itertuples(index=False, name=None)) == {("down", 8), ("forever", 13)}
