"""Garbage collections and imports are calls of their own, as many as the interpreter counts, below those that cause them."""

import json
from collections import Counter
from collections.abc import Callable

import pandas as pd
import pytest

import pytrace_ebpf
from pytrace_ebpf.trace.reader import Trace
from tests.bpf.conftest import Recorder, lost, reported
from tests.conftest import Python, Target


def named(trace: Trace) -> pd.DataFrame:
    """The calls with their functions' names and, by `caller` and `caller_layer`, their parents'."""
    calls = trace.calls().merge(trace.functions(), on="func_id").set_index("call_id", drop=False).sort_index()
    calls["layer"] = calls["layer"].astype(str)
    calls["caller"] = calls["parent_id"].map(calls["name"])
    calls["caller_layer"] = calls["parent_id"].map(calls["layer"])
    return calls


def below(calls: pd.DataFrame, name: str) -> list[pd.DataFrame]:
    """What each call of a function contains."""
    return [calls.loc[call : calls.at[call, "last_descendant_id"]] for call in calls.index[calls["name"] == name]]


def sound(trace: Trace, calls: pd.DataFrame) -> None:
    """Nothing was lost or inferred, and every collection and import has an end and the four parts."""
    assert not lost(trace)
    assert not calls["status"].isin(["repaired", "in_loss"]).any()
    other = calls[calls["layer"] != "python"]
    assert other["status"].isin(["complete", "unwound"]).all()
    known = reported(trace, other)
    assert (known[["on_cpu_ns", "runq_wait_ns", "gil_wait_ns", "blocked_ns"]].sum(axis=1) == known["wall_ns"]).all()
    assert set(other["file"]) == {""} and set(other["first_line"]) == {-1}
    assert (other["module"] == "<" + other["layer"] + ">").all()


@pytest.mark.parametrize("how", ["attached", "launched"])
def test_collections_are_those_that_the_interpreter_counts(
    how: str, python: Python, source: str, target: Callable[..., Target], attach: Callable[..., Recorder], run: Callable[..., tuple]
) -> None:
    if how == "attached":
        process = target("collects", "--wait", python=python)
        recorder = attach(process.pid, "--source", source)
        process.go()
        counts = process.done()["collections"]
        directory = recorder.finish()
    else:
        directory, ended = run(python.command("collects"), "--source", source)
        counts = facts(ended.stdout)["collections"]
    trace = pytrace_ebpf.open(directory)
    calls = named(trace)
    sound(trace, calls)
    assert len(counts) == 2
    found = [Counter(part.loc[part["layer"] == "gc", "name"]) for part in below(calls, "measured")]
    assert sorted(found, key=str) == sorted((expected(each) for each in counts), key=str)
    asked = calls[(calls["layer"] == "gc") & (calls["caller"] == "ask")]
    assert Counter(asked["name"]) == {"gc generation 0": 6, "gc generation 1": 10, "gc generation 2": 14}
    assert (calls.loc[calls["name"] == "__del__", "caller_layer"] == "gc").all()
    assert (calls["name"] == "finalized").sum() == 30


def expected(counts: list[int]) -> Counter[str]:
    return Counter({f"gc generation {generation}": count for generation, count in enumerate(counts) if count})


def facts(stdout: str) -> dict:
    """What the target said at its end."""
    return json.loads(stdout.splitlines()[-1].removeprefix("done "))


@pytest.mark.parametrize("how", ["attached", "launched"])
def test_imports_are_those_that_the_interpreter_reports_to_its_audit_hooks(
    how: str, python: Python, source: str, target: Callable[..., Target], attach: Callable[..., Recorder], run: Callable[..., tuple]
) -> None:
    if how == "attached":
        process = target("imports", "--wait", python=python)
        recorder = attach(process.pid, "--source", source)
        process.go()
        truth = process.done()
        directory = recorder.finish()
    else:
        directory, ended = run(python.command("imports"), "--source", source)
        truth = facts(ended.stdout)
    trace = pytrace_ebpf.open(directory)
    calls = named(trace)
    sound(trace, calls)
    within = {name: below(calls, name)[0] for name in ("plain", "nested", "missing", "threaded", "by_importlib")}
    imports = pd.concat([part[part["layer"] == "import"] for name, part in within.items() if name != "by_importlib"])
    assert Counter(imports["name"]) == Counter(f"import {name}" for name in truth["imports"])
    assert (within["plain"]["name"] == "import colorsys").sum() == 1, "the second time it was there"
    missing = within["missing"][within["missing"]["layer"] == "import"]
    assert list(missing["status"]) == ["unwound" if source == "agent" else "complete"]
    by_importlib = within["by_importlib"]
    assert by_importlib["name"].str.startswith("import rlcompleter" if python.minor >= 13 else "import sndhdr").any() == (source == "agent")
    # The innermost import around the body of a module is the one of its name.
    bodies = pd.concat(list(within.values()))
    bodies = bodies[(bodies["name"] == "<module>") & bodies["file"].isin(truth["modules"].values())]
    files = {file: name for name, file in truth["modules"].items()}
    for body in bodies.itertuples():
        if source == "agent" or body.call_id not in by_importlib.index:
            assert nearest_import(calls, body.parent_id) == f"import {files[body.file]}"
    assert len(bodies) >= 10


def nearest_import(calls: pd.DataFrame, call: int) -> str:
    while calls.at[call, "layer"] != "import":
        call = calls.at[call, "parent_id"]
    return str(calls.at[call, "name"])


@pytest.mark.sources("agent")
def test_a_program_that_empties_the_list_of_callbacks_runs_on(python: Python, source: str, run: Callable[..., tuple]) -> None:
    directory, ended = run(python.command("collects", "clears"), "--source", source)
    assert ended.returncode == 0, ended.stderr
    assert facts(ended.stdout)["callbacks"] == 0
    trace = pytrace_ebpf.open(directory)
    calls = named(trace)
    assert (calls["layer"] == "gc").sum() >= 30
    assert (calls["status"] == "repaired").sum() <= 1, "the collection whose end could not be reported"


@pytest.mark.usually("agent")
def test_filters_keep_collections_and_imports(python: Python, source: str, run: Callable[..., tuple]) -> None:
    directory, ended = run(python.command("imports"), "--source", source, "--include", "imports")
    assert ended.returncode == 0, ended.stderr
    trace = pytrace_ebpf.open(directory)
    calls = named(trace)
    sound(trace, calls)
    assert set(calls.loc[calls["layer"] == "python", "module"]) == {"imports"}
    assert list(calls.loc[calls["name"] == "import colorsys", "caller"]) == ["plain"]
    assert list(calls.loc[calls["name"] == "import xml.dom", "caller"]) == ["import xml.dom.minidom"]


@pytest.mark.sources("agent")
def test_max_depth_counts_python_calls_only(python: Python, source: str, run: Callable[..., tuple]) -> None:
    directory, ended = run(python.command("collects"), "--source", source, "--max-depth", "3")
    trace = pytrace_ebpf.open(directory)
    calls = named(trace)
    sound(trace, calls)
    counts = facts(ended.stdout)["collections"]
    main = below(calls, "measured")[0]
    assert Counter(main.loc[main["layer"] == "gc", "name"]) in [expected(each) for each in counts]
    assert set(main.loc[main["caller_layer"] == "gc", "name"]) <= {"__del__"}
