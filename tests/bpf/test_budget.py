"""A recording with a bound on its cost: what it leaves out is in the table `left_out`, the rest is exact, and no filter stays in the program."""

import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import pytrace_ebpf
from pytrace_ebpf.trace.reader import Trace
from tests.bpf.conftest import Recorder, has_agent, wait_until
from tests.bpf.test_agent import look
from tests.conftest import HOST_PYTHON, Python, Target, built_pythons
from tests.sums_hold import assert_sums_hold

pytestmark = pytest.mark.sources("agent")

# The newest Python at hand from 3.12 on, where a function that is left out costs nothing.
PYTHONS = [Python(HOST_PYTHON), *[each for each in built_pythons() if each.minor >= 12][-1:]]
CALLS = 20_000  # as hot.py makes in a round
IN_A_ROUND = {"tiny": CALLS, "numbers": CALLS + 1, "wrapped": CALLS + 1, "len_of_nothing": CALLS, "fib": 465}
EVENTUALLY_S = 60


def leaves_out(directory: Path) -> Callable[[], bool]:
    """Whether the trace, which is being written, has rows of `left_out`."""
    return lambda: bool(len(pytrace_ebpf.open(directory).left_out()))


def named(trace: Trace, table: pd.DataFrame) -> pd.DataFrame:
    return table.merge(trace.functions()[["func_id", "name"]], on="func_id")


@pytest.fixture(params=PYTHONS, ids=str)
def recorded(request: pytest.FixtureRequest, target: Callable[..., Target], attach: Callable[..., Recorder]) -> tuple[Trace, dict[str, int]]:
    """A trace with a budget of hot.py, from its first round to its last, and what that says of its calls."""
    process = target("hot", "--wait", python=request.param)
    recorder = attach(process.pid, "--source", "agent", "--budget", "2%")
    process.go()
    wait_until(leaves_out(recorder.directory), EVENTUALLY_S)
    process.go()
    said = process.done()
    return pytrace_ebpf.open(recorder.finish()), said["calls"]


def test_outside_of_the_times_in_left_out_every_call_is_recorded(recorded: tuple[Trace, dict[str, int]]) -> None:
    trace, said = recorded
    assert not len(trace.losses())
    out, calls = trace.left_out(), named(trace, trace.calls())
    names = out.merge(trace.functions(), on="func_id", how="left")["name"].fillna("")
    out["to_ns"] = out["to_ns"].fillna(trace.end_ns)
    intervals = (out["why"] == "interval").any()
    assert len(out) and set(names) <= {*IN_A_ROUND, *([""] if intervals else [])}, out
    if trace.processes()["python_version"].dropna().iloc[0] >= "3.12":  # functions one by one are always enough
        assert not intervals
    counts = calls["name"].value_counts()
    if not intervals:
        assert {name: counts[name] for name in said} == said
    assert sum(counts.get(name, 0) for name in IN_A_ROUND) < said["one_round"] * sum(IN_A_ROUND.values())
    whole = calls[(calls["name"] == "one_round") & (calls["status"] == "complete")]
    for name, number in {**IN_A_ROUND, "within": 1}.items():
        absent = out[names.isin((name, ""))]
        meanwhile = [((absent["from_ns"] <= call.end_ns) & (call.start_ns <= absent["to_ns"])).any() for call in whole.itertuples()]
        below = calls.loc[calls["name"] == name, "call_id"]
        for call in whole[~np.array(meanwhile, bool)].itertuples():
            assert below.between(call.call_id, call.last_descendant_id).sum() == number, name


def test_the_time_of_what_is_left_out_is_its_callers_own_and_all_sums_hold(recorded: tuple[Trace, dict[str, int]]) -> None:
    trace, _ = recorded
    repaired = assert_sums_hold(trace)["status"] == "repaired"
    in_intervals = (trace.left_out()["why"] == "interval").any()  # a frame may be pushed just then whose event is not recorded any more
    assert repaired.mean() < 0.001 if in_intervals else not repaired.any()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT], ids=["killed", "stopped"])
def test_a_tracer_that_ends_while_functions_are_left_out_leaves_no_filter_behind(
    how: signal.Signals, python: Python, target: Callable[..., Target], attach: Callable[..., Recorder]
) -> None:
    process = target("inward", python=python)
    recorder = attach(process.pid, "--source", "agent", "--budget", "1%")
    wait_until(leaves_out(recorder.directory), EVENTUALLY_S)
    recorder.process.send_signal(how)
    recorder.process.wait(30)
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
