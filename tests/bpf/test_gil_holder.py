"""Who holds the GIL at each switch, against a program in which that is known."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import pytrace_ebpf
from pytrace_ebpf.derive.scheduling.split import timeline
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.trace.schema import SchedKind
from tests.bpf.conftest import Recorder
from tests.bpf.test_containers import Container, contained
from tests.conftest import HOST_PYTHON, Python, Target

pytestmark = [pytest.mark.measured, pytest.mark.usefixtures("gil_on")]

SLEEPS = (23, 230, 270)  # select, clock_nanosleep, pselect6


def gil_waits(trace: Trace, tid: int) -> pd.Series:
    """Seconds that a thread waited for the GIL, by who held it when the wait began."""
    sched = trace.sched()
    waits = timeline(sched, trace.processes(), trace.end_ns)
    waits = waits[(waits["state"] == "gil_wait") & (waits["tid"] == tid)]
    out = sched.loc[(sched["kind"] == SchedKind.OUT) & (sched["tid"] == tid), ["ts", "holder_tid"]]
    waits = waits.merge(out, left_on="start_ns", right_on="ts")
    return (waits["end_ns"] - waits["start_ns"]).groupby(waits["holder_tid"]).sum() / 1e9


def asleep(trace: Trace, tid: int) -> pd.DataFrame:
    """The switches by which a thread went to sleep."""
    sched = trace.sched(tid=tid)
    return sched[(sched["kind"] == SchedKind.OUT) & sched["syscall"].isin(SLEEPS)]


def check(trace: Trace, said: dict[str, Any], begins: bool = False) -> None:
    """Hold what was recorded against what the target said of its threads. `begins`: for the first moments, until the program was looked at, no holder is known."""
    for waiter, holder in (("want", "hold"), ("kept_out", "block")):
        waited = gil_waits(trace, said[waiter])
        # Nobody has it where who was given it waits for a core, on a busy machine for some time.
        unknown, nobody = waited.get(-1, 0.0), waited.get(0, 0.0)
        assert unknown < (0.5 if begins else 0.05) * waited.sum() and nobody < 0.3 * waited.sum(), (waiter, said, waited)
        waited = waited[waited.index > 0]
        assert waited.sum() > 0.03, waited
        assert waited.get(said[holder], 0.0) > 0.95 * waited.sum(), (waiter, said, waited)
    # A thread that sleeps with the GIL is its holder; if it released the GIL, nobody is, or the thread that started it.
    kept = asleep(trace, said["block"])["holder_tid"]
    assert len(kept) >= 10
    assert (kept == said["block"]).all()
    left = asleep(trace, said["rest"])["holder_tid"]
    assert len(left) >= 10
    assert (left == 0).sum() >= len(left) - 2 and set(left) <= {0, said["pid"]}


def test_the_holder_is_reported(python: Python, source: str, target: Callable[..., Target], attach: Callable[..., Recorder]) -> None:
    process = target("gil_holder", "--wait", python=python)
    recorder = attach(process.pid, "--source", source)
    process.go()
    said = process.done()
    trace = pytrace_ebpf.open(recorder.finish())
    check(trace, said)
    assert (trace.sched()["holder_tid"] >= 0)[trace.sched()["kind"] == SchedKind.OUT].mean() > 0.99


@pytest.mark.usually("agent")
def test_the_holder_is_known_from_the_start_of_a_launched_program(python: Python, source: str, run: Callable[..., tuple[Path, Any]]) -> None:
    directory, ended = run(python.command("gil_holder"), "--source", source)
    said = json.loads(ended.stdout.partition("done ")[2])
    check(pytrace_ebpf.open(directory), said)


@pytest.mark.usually("agent")
@pytest.mark.parametrize("way", ["fork", "exec"])
def test_children_have_a_gil_of_their_own(way: str, python: Python, target: Callable[..., Target], attach: Callable[..., Recorder]) -> None:
    process = target("gil_holder", "0.6", way, "--wait", python=python)
    recorder = attach(process.pid, "--source", python.sources[0])
    process.go()
    said = process.done()
    assert said["pid"] != process.pid
    check(pytrace_ebpf.open(recorder.finish()), said, begins=way == "exec")


def test_in_a_container_the_holder_has_the_hosts_thread_id(attach: Callable[..., Recorder]) -> None:
    process = Container(contained(Python(HOST_PYTHON)), "gil_holder", "--wait")
    try:
        recorder = attach(process.pid, "--source", "usdt")
        process.go()
        said = process.done()
        trace = pytrace_ebpf.open(recorder.finish())
    finally:
        process.close()
    inside = sorted(said.values())  # the process's own first, then in the order of their birth
    here = trace.threads().sort_values("start_ns")["tid"].tolist()
    assert inside != here
    check(trace, {name: here[inside.index(tid)] for name, tid in said.items()})
