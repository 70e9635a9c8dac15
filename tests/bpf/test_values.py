"""What functions are given and return is what a decorator sees: types and values of every kind, each with its call."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import pytrace_ebpf
from pytrace_ebpf.analyze.observed.exceptions import exceptions
from pytrace_ebpf.trace.reader import Trace
from tests.bpf.test_gc_and_imports import facts
from tests.conftest import TARGETS, Python, Target

pytestmark = pytest.mark.sources("agent")


def told(trace: Trace) -> list[list]:
    """trace.values() in the order of time, as the target writes its rows."""
    calls = trace.calls(["call_id", "func_id", "start_ns", "end_ns"]).merge(
        trace.functions()[["func_id", "name"]].rename(columns={"name": "function"}), on="func_id"
    )
    rows = trace.values().merge(calls, on="call_id")
    rows["ts"] = np.where(rows["what"] == "argument", rows["start_ns"], rows["end_ns"])
    rows = rows.sort_values(["ts", "position"], kind="stable")
    columns = [rows[name].astype(object).where(rows[name].notna(), None) for name in ("function", "what", "name", "type", "value", "shape", "status")]
    return [[each if not isinstance(each, np.ndarray) else each.tolist() for each in row] for row in zip(*columns, strict=True)]


@pytest.mark.parametrize("how", ["attached", "launched"])
def test_values_are_those_that_a_decorator_sees(
    how: str, python: Python, source: str, target: Callable[..., Target], traced: Callable[..., tuple], run: Callable[..., tuple]
) -> None:
    options = ("--source", source, "--args", "values.*seen_*")
    if how == "attached":
        trace, said = traced(target("values", "--wait", python=python), *options)
    else:
        directory, ended = run(python.command("values"), *options)
        trace, said = pytrace_ebpf.open(directory), facts(ended.stdout)
    expected = said["rows"]
    assert len(expected) > 300 and {row[-1] for row in expected} >= {"complete", "cut", "redacted"}
    assert told(trace) == expected
    assert not len(trace.losses())
    assert len(trace.observed()) == len(expected) == trace.manifest["events"]["value"]
    arguments = trace.values(["call_id", "position"], what="argument")
    assert (arguments["position"] == arguments.groupby("call_id").cumcount()).all()
    assert_private(trace.directory)


def assert_private(directory: Path) -> None:
    for path in (directory, *(Path(folder) / name for folder, folders, files in os.walk(directory) for name in (*folders, *files))):
        mode = path.stat().st_mode
        assert stat.S_IMODE(mode) & 0o077 == 0 or path.parent.name in ("values", "calls"), path


def test_without_being_asked_nothing_is_told(python: Python, source: str, target: Callable[..., Target], traced: Callable[..., tuple]) -> None:
    trace, _ = traced(target("values", "--wait", python=python), "--source", source)
    assert len(trace.calls(["call_id"])) > 300 and not len(trace.values()) and not len(trace.observed())
    read = pd.read_parquet(trace.directory / "observed")
    assert not len(read) and list(read.columns) == [column.name for column in pytrace_ebpf.trace.schema.OBSERVED.columns]


def test_exceptions_are_those_that_the_program_raises(
    python: Python, source: str, target: Callable[..., Target], traced: Callable[..., tuple]
) -> None:
    trace, _ = traced(target("exceptions", "--wait", python=python), "--source", source, "--args", "exceptions")
    rows = exceptions(trace).merge(trace.functions()[["func_id", "name"]], on="func_id")
    assert rows.groupby("name")["times"].sum().drop("<listcomp>", errors="ignore").to_dict() == {
        "raises": 34,
        "passes_on": 34,
        "cleans": 17,
        "converts": 17,
    }
    known = int(python.version.split(".")[1]) >= 12
    kinds = rows.groupby("name")["type"].agg(lambda kinds: set(kinds.dropna())).drop("<listcomp>", errors="ignore").to_dict()
    refused = {"Refused"} if known else set()
    assert kinds == {"raises": refused, "passes_on": refused, "cleans": refused, "converts": {"KeyError"} if known else set()}
    lines = rows.groupby("name")["line"].agg(set).to_dict()
    source_lines = (TARGETS / "exceptions.py").read_text().splitlines()
    if known:  # else the line of `cleans` is that of its `finally`
        at = {"raises": "    raise Refused", "cleans": "        passes_on()", "converts": "        raise KeyError from error"}
        assert {name: lines[name] for name in at} == {name: {source_lines.index(text) + 1} for name, text in at.items()}
    assert rows.loc[rows["name"] == "raises", "raised"].sum() == 34 and not rows.loc[rows["name"] == "passes_on", "raised"].sum()
