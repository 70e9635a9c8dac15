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
from tests.bpf.conftest import lost
from tests.bpf.test_gc_and_imports import facts
from tests.conftest import TARGETS, Python, Target
from tests.unit.record.agent.test_agent_values import ACCOUNT

pytestmark = pytest.mark.gil


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
    assert not lost(trace)
    assert len(trace.observed()) == len(expected) == trace.manifest["events"]["value"]
    arguments = trace.values(["call_id", "position"], what="argument")
    assert (arguments["position"] == arguments.groupby("call_id").cumcount()).all()
    assert_private(trace.directory)


def assert_private(directory: Path) -> None:
    for path in (directory, *(Path(folder) / name for folder, folders, files in os.walk(directory) for name in (*folders, *files))):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path


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
    kinds = rows.groupby("name")["type"].agg(lambda kinds: set(kinds.dropna())).drop("<listcomp>", errors="ignore").to_dict()
    assert kinds == {"raises": {"Refused"}, "passes_on": {"Refused"}, "cleans": {"Refused"}, "converts": {"KeyError"}}
    lines = rows.groupby("name")["line"].agg(set).to_dict()
    source_lines = (TARGETS / "exceptions.py").read_text().splitlines()
    at = {"raises": "    raise Refused", "cleans": "        passes_on()", "converts": "        raise KeyError from error"}
    if source == "usdt":  # the line of `cleans` is that of its `finally`
        del at["cleans"]
    assert {name: lines[name] for name in at} == {name: {source_lines.index(text) + 1} for name, text in at.items()}
    assert rows.loc[rows["name"] == "raises", "raised"].sum() == 34 and not rows.loc[rows["name"] == "passes_on", "raised"].sum()


def observed(trace: Trace) -> pd.DataFrame:
    """trace.observed(), None where there is nothing."""
    rows = trace.observed().astype(object)
    return rows.where(rows.notna(), None)


@pytest.mark.sources("usdt")
def test_forged_objects_harm_nobody(python: Python, source: str, run: Callable[..., tuple]) -> None:
    directory, ended = run(python.command("forged"), "--source", source, "--args", "forged.seen_*")
    assert ended.returncode == 0
    trace, given = pytrace_ebpf.open(directory), facts(ended.stdout)["given"]
    rows = observed(trace)
    assert not lost(trace) and len(given) > 120
    assert rows["what"].tolist() == ["argument", "return"] * len(given)
    for what in ("argument", "return"):
        of = rows[rows["what"] == what]
        for expected, status, kind, value, shape in zip(given, of["status"], of["type"], of["value"], of["shape"], strict=True):
            assert status in ("complete", "cut", "unread")
            assert shape is None or (np.asarray(shape) >= 0).all()
            assert value is None or len(value.encode()) <= 4 * 160
            if expected == "unread":
                assert (status, value, shape) == ("unread", None, None), kind
            elif expected == "sized":
                assert (status, kind) == ("complete", "list")


SECRETS = f"""{ACCOUNT}
for _ in range(3000):
    account.login("me", "hunter1", Api_Key=["hunter2"], SESSION_TOKEN=b"hunter3", x="hunter4")
    account.token()
    try: fails_secretly()
    except ValueError: pass
    mine("hunter5", "said")
"""


@pytest.mark.sources("usdt")
def test_a_secret_is_in_no_file(python: Python, source: str, tmp_path: Path, run: Callable[..., tuple]) -> None:
    directory, ended = run([*python.words, "-c", SECRETS], "--source", source, "--args", "<string>", "--redact", "PIN")
    assert ended.returncode == 0
    trace = pytrace_ebpf.open(directory)
    rows = observed(trace)
    assert not lost(trace) and rows["name"].notna().sum() == 3000 * (6 + 1 + 2)
    assert ((rows["what"] != "argument") & (rows["status"] == "redacted")).sum() == 3000 * 2
    told = {(row.name, row.type): (row.value, row.status) for row in rows.itertuples(index=False) if row.name}
    for secret in (("password", "str"), ("Api_Key", "list"), ("SESSION_TOKEN", "bytes"), ("pin", "str"), ("credentials", "dict")):
        assert told[secret] == (None, "redacted")
    assert told[("user", "str")] == ("me", "complete") and told[("note", "str")] == ("said", "complete")
    assert set(rows.loc[rows["what"] == "raised", "status"]) == {"redacted"}
    values = rows["value"].dropna()
    assert not values.str.contains("hunter").any() and (rows.loc[rows["type"] == "ValueError", "value"].isna()).all()


@pytest.mark.sources("usdt")
@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("shop", "abcd"),
        ("*/shop.py", "abcd"),
        ("shop.free", "a"),
        ("free", "a"),
        ("shop.*.inner", "c"),
        ("shop.nothing", ""),
        ("sh*", "abcd"),
        ("*.inner", "c"),
    ],
)
def test_patterns_name_modules_files_and_functions(
    python: Python, source: str, pattern: str, names: str, target: Callable[..., Target], traced: Callable[..., tuple]
) -> None:
    trace, _ = traced(target("shop", "--wait", python=python), "--source", source, "--args", pattern)
    assert {name for name in trace.observed()["name"].dropna() if len(name) == 1} == set(names)


@pytest.mark.sources("usdt")
def test_calls_that_are_filtered_out_have_no_values(python: Python, source: str, target: Callable[..., Target], traced: Callable[..., tuple]) -> None:
    trace, _ = traced(target("shop", "--wait", python=python), "--source", source, "--args", "*", "--include", "shop")
    assert set(trace.values()["call_id"]) <= set(trace.calls(["call_id"])["call_id"])
    assert {name for name in trace.observed()["name"].dropna() if len(name) == 1} == set("abcd")


@pytest.mark.sources("usdt")
def test_values_of_threads_are_those_that_were_given(
    python: Python, source: str, target: Callable[..., Target], traced: Callable[..., tuple]
) -> None:
    trace, said = traced(target("garbage", "--wait", python=python), "--source", source, "--args", "garbage.seen_*")
    rows = trace.values().merge(trace.calls(["call_id", "tid", "start_ns"]), on="call_id")
    given = rows[rows["what"] == "argument"].pivot(index="call_id", columns="name", values=["type", "value", "shape"])
    assert not lost(trace) and len(given) == said["calls"] == 4000
    number = given[("value", "number")].astype("int64")
    assert (given[("value", "text")].str.rstrip("é€").astype("int64") == number).all()
    assert (given[("value", "fraction")] == (number + 0.5).astype(str)).all()
    assert (given[("shape", "many")].str[0] == number % 50).all()
    assert (given[("type", "made")] == "Made" + (number % 7).astype(str)).all()


@pytest.mark.sources("usdt")
def test_what_a_trace_function_stops_is_not_returned(
    python: Python, source: str, target: Callable[..., Target], traced: Callable[..., tuple]
) -> None:
    trace, _ = traced(target("stopped_returns", "--wait", python=python), "--source", source, "--args", "stopped_returns.seen_*")
    left = observed(trace).query("what != 'argument'")
    assert list(zip(left["what"], left["type"], left["value"], strict=True)) == [("raised", "Stop", "here"), ("return", "list", None)] * 50
