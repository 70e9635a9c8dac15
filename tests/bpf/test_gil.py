"""Reported waits for the GIL, against a program that knows which thread kept which other from it, and for how long."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import pytrace_ebpf
from pytrace_ebpf.analyze.waits.gil import Gil, analyze
from pytrace_ebpf.trace.reader import Trace
from tests.bpf.conftest import Recorder
from tests.conftest import Python, Target

pytestmark = [pytest.mark.measured, pytest.mark.usefixtures("gil_on")]


def analyzed(trace: Trace) -> Gil:
    gil = analyze(trace)
    assert (gil.processes["wall_ns"] == gil.processes[["alone_ns", "contended_ns", "handover_ns", "idle_ns", "unknown_ns"]].sum(axis=1)).all()
    return gil


def held_up_by(trace: Trace, gil: Gil, waiting: str) -> "pd.Series[float]":
    """Seconds that a function waited for the GIL, by the name of the function that held it."""
    names = trace.functions().set_index("func_id")["name"]
    pairs = gil.pairs[gil.pairs["waiting_func_id"].map(names) == waiting]
    return pairs.groupby(pairs["holding_func_id"].map(names).fillna(pairs["held"]))["total_ns"].sum() / 1e9


def check_victims(trace: Trace, gil: Gil, phases: list[dict[str, Any]]) -> None:
    """The victims wait for the hog and for the one that blocks with it, convoy after convoy."""
    waited = held_up_by(trace, gil, "victim")
    assert waited.sum() > 0.3
    assert waited.reindex(["hog", "step", "stubborn"]).sum() > 0.95 * waited.sum(), waited
    threads, calls = gil.threads.set_index("tid"), trace.calls().merge(trace.functions(), on="func_id")
    for phase, holder in ((phases[0], "hog"), (phases[2], "stubborn")):
        (tid, _), (holding, _) = phase["victim"], phase[holder]
        victim, held = threads.loc[tid], threads.loc[holding, "held_ns"]
        # Not the first waits: how long the holder had had the GIL before is not recorded.
        assert victim["convoys"] >= 0.9 * victim["waits"] - 2
        assert victim["convoy_ns"] <= victim["mean_ns"] * victim["waits"] + victim["waits"]
        assert victim["held_ns"] < 0.05 * held
        takes = gil.takes[gil.takes["tid"] == tid].set_index("holder_tid")["waits"]
        assert takes[holding] > 0.9 * takes.sum() - 2
        # It holds the GIL for its whole call, except while it waits for it.
        wall = calls.loc[(calls["tid"] == holding) & (calls["name"] == holder), "wall_ns"].sum()
        waits = trace.waits(tid=holding)
        waits = waits[waits["kind"] == "gil"]
        assert 0.9 * wall <= held + (waits["end_ns"] - waits["start_ns"]).sum() <= 1.1 * wall


def check_shares(trace: Trace, gil: Gil, phase: dict[str, Any]) -> None:
    """Three threads take turns: each holds the GIL while it sleeps in the C call that keeps it, and hardly longer."""
    threads = gil.threads.set_index("tid")
    for name, (tid, seconds) in phase.items():
        waits = trace.waits(tid=tid)
        names = trace.calls(tid=tid).merge(trace.functions(), on="func_id").set_index("call_id")["name"]
        asleep = waits[(waits["kind"] == "sleep") & (waits["call_id"].map(names) == "keep")]
        assert threads.loc[tid, "held_ns"] / 1e9 >= seconds, name
        assert threads.loc[tid, "held_ns"] / 1e9 == pytest.approx((asleep["end_ns"] - asleep["start_ns"]).sum() / 1e9, rel=0.1, abs=0.01), name


@pytest.mark.usually("agent")
def test_waits_are_attributed_to_the_holder(python: Python, source: str, target: Callable[..., Target], attach: Callable[..., Recorder]) -> None:
    process = target("gil_convoy", "--wait", python=python)
    recorder = attach(process.pid, "--source", source)
    process.go()
    phases = process.done()["phases"]
    trace = pytrace_ebpf.open(recorder.finish())
    gil = analyzed(trace)
    check_victims(trace, gil, phases)
    check_shares(trace, gil, phases[1])


def test_a_single_thread_never_waits(python: Python, target: Callable[..., Target], attach: Callable[..., Recorder]) -> None:
    process = target("spinner", "--wait", python=python)
    recorder = attach(process.pid, "--source", python.sources[0])
    process.go()
    process.done()
    gil = analyzed(pytrace_ebpf.open(recorder.finish()))
    (shares,) = gil.processes.to_dict("records")
    assert shares["alone_ns"] > 0.5 * shares["wall_ns"]
    assert shares["contended_ns"] + shares["handover_ns"] < 0.1 * shares["wall_ns"]


def test_a_sleeping_thread_releases_it(run: Callable[..., tuple[Path, Any]], python: Python) -> None:
    directory, ended = run(python.command("sleeper"))
    assert ended.returncode == 0, ended.stderr
    trace = pytrace_ebpf.open(directory)
    (shares,) = analyzed(trace).processes.to_dict("records")
    asleep = trace.waits(columns=["start_ns", "end_ns", "kind"])
    asleep = asleep[asleep["kind"] == "sleep"]
    assert shares["idle_ns"] > 0.95 * (asleep["end_ns"] - asleep["start_ns"]).sum()
