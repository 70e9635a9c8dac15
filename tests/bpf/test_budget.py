"""A recording with a bound on its cost: what it leaves out is in the table `left_out`, the rest is exact, and no filter stays in the program."""

import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import pytrace_ebpf
from pytrace_ebpf.record.process.target import inspect
from pytrace_ebpf.trace.reader import Trace
from tests.bpf.conftest import Recorder, has_agent, lost, wait_until
from tests.bpf.test_agent import look
from tests.bpf.test_detach import breakpoints, semaphores
from tests.conftest import HOST_PYTHON, PATIENCE_S, Python, Target, built_pythons
from tests.sums_hold import assert_sums_hold

# The newest Python at hand from 3.12 on, where a function that is left out costs nothing.
PYTHONS = [Python(HOST_PYTHON), *[each for each in built_pythons() if each.minor >= 12][-1:]]
# In a round of hot.py. By the agent: so many that `within`, called once in a round, is never hot. By probes: so few that whole rounds
# fit into an interval of exact recording.
CALLS = {"agent": 100_000, "usdt": 100}


def in_a_round(calls: int) -> dict[str, int]:
    """How often a round calls its hot functions, by name."""
    return {"tiny": calls, "numbers": calls + 1, "wrapped": calls + 1, "len_of_nothing": calls, "fib": 465}


def left_out(directory: Path) -> pd.DataFrame:
    """The rows of `left_out` so far of a trace that is being written."""
    return pytrace_ebpf.open(directory).left_out()


def named(trace: Trace, table: pd.DataFrame) -> pd.DataFrame:
    return table.merge(trace.functions()[["func_id", "name"]], on="func_id")


def assert_complete_outside_of(out: pd.DataFrame, trace: Trace, calls: int) -> int:
    """Every round that no absence in `out` overlaps has all of its calls, but for those of functions left out then; how many rounds had all."""
    rows, whole_rounds = named(trace, trace.calls()), 0
    names = out.merge(trace.functions(), on="func_id", how="left")["name"].fillna("")
    rounds = rows[(rows["name"] == "one_round") & (rows["status"] == "complete")]
    for name, number in {**in_a_round(calls), "within": 1}.items():
        absent = out[names.isin((name, ""))]
        meanwhile = [((absent["from_ns"] <= call.end_ns) & (call.start_ns <= absent["to_ns"])).any() for call in rounds.itertuples()]
        below = rows.loc[rows["name"] == name, "call_id"]
        present = rounds[~np.array(meanwhile, bool)]
        for call in present.itertuples():
            assert below.between(call.call_id, call.last_descendant_id).sum() == number, name
        whole_rounds = len(present)  # of `within`, which is there when nothing or only other functions are left out
    return whole_rounds


@pytest.fixture(params=PYTHONS, ids=str)
def recorded(request: pytest.FixtureRequest, target: Callable[..., Target], attach: Callable[..., Recorder]) -> tuple[Trace, dict[str, int]]:
    """A trace of hot.py by the agent with a budget, from its first round to its last, and the calls that hot.py counted."""
    process = target("hot", "--wait", str(CALLS["agent"]), python=request.param)
    recorder = attach(process.pid, "--source", "agent", "--budget", "2%")
    process.go()
    wait_until(lambda: len(left_out(recorder.directory)) > 0)
    process.go()
    said = process.done()
    return pytrace_ebpf.open(recorder.finish()), said["calls"]


def test_outside_of_the_times_in_left_out_every_call_is_recorded(recorded: tuple[Trace, dict[str, int]]) -> None:
    trace, said = recorded
    assert not lost(trace)
    out, hot = trace.left_out(), in_a_round(CALLS["agent"])
    names = out.merge(trace.functions(), on="func_id", how="left")["name"].fillna("")
    out["to_ns"] = out["to_ns"].fillna(trace.end_ns)
    intervals = (out["why"] == "interval").any()
    assert len(out) and set(names) <= {*hot, *([""] if intervals else [])}, out
    if trace.processes()["python_version"].dropna().iloc[0] >= "3.12":  # functions one by one are always enough
        assert not intervals
    counts = named(trace, trace.calls(columns=["func_id"]))["name"].value_counts()
    if not intervals:
        assert {name: counts[name] for name in said} == said
    assert sum(counts.get(name, 0) for name in hot) < said["one_round"] * sum(hot.values())
    assert_complete_outside_of(out, trace, CALLS["agent"])


def test_the_time_of_what_is_left_out_is_its_callers_own_and_all_sums_hold(recorded: tuple[Trace, dict[str, int]]) -> None:
    trace, _ = recorded
    repaired = assert_sums_hold(trace)["status"] == "repaired"
    in_intervals = (trace.left_out()["why"] == "interval").any()  # a frame may be pushed just then whose event is not recorded any more
    assert repaired.mean() < 0.001 if in_intervals else not repaired.any()


@pytest.mark.sources("usdt")
def test_by_probes_a_budget_is_kept_by_intervals_of_exact_recording(
    python: Python, source: str, target: Callable[..., Target], attach: Callable[..., Recorder]
) -> None:
    process = target("hot", "--wait", str(CALLS[source]), python=python)
    inspected = inspect(process.pid)
    recorder = attach(process.pid, "--source", source, "--budget", "10%")
    process.go()
    wait_until(lambda: left_out(recorder.directory)["to_ns"].notna().sum() >= 2)
    wait_until(lambda: left_out(recorder.directory)["to_ns"].isna().any())  # paused again
    wait_until(lambda: not any(semaphores(inspected)) and breakpoints(inspected) == [0x90, 0x90])
    trace = pytrace_ebpf.open(recorder.stop())
    assert not any(semaphores(inspected)) and breakpoints(inspected) == [0x90, 0x90]
    process.go()
    said = process.done()["calls"]
    out = trace.left_out()
    assert (out["func_id"] == -1).all() and (out["why"] == "interval").all()
    assert (out["to_ns"].iloc[:-1].to_numpy() <= out["from_ns"].iloc[1:].to_numpy()).all(), "one after the other"
    assert not lost(trace)
    counts = named(trace, trace.calls(columns=["func_id"]))["name"].value_counts()
    assert 0 < counts["within"] < said["within"]
    assert assert_complete_outside_of(out.fillna({"to_ns": trace.end_ns}), trace, CALLS[source]) > 0
    repaired = assert_sums_hold(trace)["status"] == "repaired"
    assert repaired.mean() < 0.001


@pytest.mark.sources("agent")
@pytest.mark.gil
def test_between_intervals_no_event_comes_even_of_the_thread_that_was_told(
    python: Python, target: Callable[..., Target], attach: Callable[..., Recorder]
) -> None:
    if python.minor >= 12:
        pytest.skip("a function that is left out costs nothing there")
    process = target("inward", python=python)  # has one thread
    recorder = attach(process.pid, "--source", "agent", "--budget", "10%")
    wait_until(lambda: left_out(recorder.directory)["to_ns"].notna().sum() >= 2)
    trace = pytrace_ebpf.open(recorder.stop())
    out, cost = trace.left_out(), trace.manifest["cost"]
    assert (out["why"] == "interval").all()
    # What passes without being written is reckoned with, and hardly any does: one call of C code in a thousand of Python's.
    assert cost["calls"] > 1000 and cost["spent_ns"] - cost.get("code_ns", 0) < 1.1 * cost["calls"] * cost["ns_per_call"]


@pytest.mark.sources("agent")
@pytest.mark.gil
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT], ids=["killed", "stopped"])
def test_a_tracer_that_ends_while_functions_are_left_out_leaves_no_filter_behind(
    how: signal.Signals, python: Python, target: Callable[..., Target], attach: Callable[..., Recorder]
) -> None:
    process = target("inward", python=python)
    recorder = attach(process.pid, "--source", "agent", "--budget", "1%")
    wait_until(lambda: len(left_out(recorder.directory)) > 0)
    recorder.process.send_signal(how)
    recorder.process.wait(PATIENCE_S)
    if how == signal.SIGKILL:  # within an interval in which nothing is recorded nobody there sees it before the next recording does
        attach(process.pid, "--source", "agent").stop()
    wait_until(lambda: not has_agent(process.pid))
    found = look(process)
    assert (found["hooks"], found["agents"], found["arenas"]) == ([], 0, 0)
    trace = pytrace_ebpf.open(recorder.directory)
    out = trace.left_out().merge(trace.functions(), on="func_id", how="left")
    assert "step" in set(out["name"]) or (out["why"] == "interval").any()
    again = attach(process.pid, "--source", "agent")
    look(process)
    after = pytrace_ebpf.open(again.stop())
    calls = named(after, after.calls(columns=["func_id", "call_id", "last_descendant_id", "status"]))
    bursts = calls[(calls["name"] == "burst") & (calls["status"] == "complete")]
    assert len(bursts) and (bursts["last_descendant_id"] - bursts["call_id"] == 1000).all()
    assert not len(after.left_out())
