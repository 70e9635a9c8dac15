"""Samples of threads off the core, against the exact calls and switches of the same seconds."""

import time
from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest

import pytrace_ebpf
from pytrace_ebpf.analyze.samples.paths import by_thread
from pytrace_ebpf.analyze.samples.tree import nodes
from pytrace_ebpf.record.cpython.functions import Functions
from pytrace_ebpf.record.process.processes import Processes
from pytrace_ebpf.record.process.target import inspect
from pytrace_ebpf.record.recorder import Rows
from pytrace_ebpf.record.sampling.samples import Samples
from pytrace_ebpf.record.source import Recording
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.trace.sampled import SAMPLES_ALONE
from pytrace_ebpf.trace.states import SPLIT
from tests.bpf.conftest import Recorder, wait_until
from tests.bpf.test_samples import HZ, MOST_MIXED, SIGMAS, stacks_of
from tests.conftest import TARGETS, Python, Target

pytestmark = pytest.mark.gil

OFF = SPLIT[1:]
LEAST = 10  # samples of a function
MEANWHILE = ["line_on_stdin"]  # it waits while samples and calls begin to be recorded, one after the other

every_python = pytest.mark.sources("agent")


def by_function(trace: Trace, tree: pd.DataFrame, columns: list[str], tid: int) -> pd.DataFrame:
    """Sums over a thread's rows of a tree by the names of functions."""
    names = trace.functions().set_index("func_id")["name"]
    rows = tree[(tree["tid"] == tid) & (tree["depth"] >= 0)]
    return rows[columns].astype("float64").groupby(rows["func_id"].map(names)).sum()


def assert_near(sampled: "pd.Series[float]", exact: "pd.Series[float]", square: "pd.Series[float]", of: float) -> None:
    """Each sampled time is the exact one within its error; `of`: all of that time, of which a small share may be at the edges of calls."""
    off = (sampled - exact.reindex(sampled.index).fillna(0)).abs()
    allowed = SIGMAS * np.sqrt(square) + MOST_MIXED * of
    assert (off <= allowed).all(), pd.DataFrame({"sampled": sampled, "exact": exact, "error": np.sqrt(square)})


@every_python
@pytest.mark.measured
def test_states_by_function_are_those_of_the_exact_calls(python: Python, target: Callable[..., Target], attach: Callable[..., Recorder]) -> None:
    process = target("off_core", "--wait", python=python)
    recorder = attach(process.pid, "--sample", str(HZ), "--source", "agent")
    process.go()
    process.done()
    pid = process.pid
    trace = pytrace_ebpf.open(recorder.finish())
    assert trace.manifest["sampling"]["off_core"] == 1
    exact = by_function(trace, trace.tree(), [f"self_{name}" for name in OFF], pid).drop(index=MEANWHILE)
    squares = [f"self_{name}".replace("_ns", "_square") for name in OFF]
    sampled = by_function(trace, nodes(trace, native=False), [f"self_{name}" for name in OFF] + squares + ["self_samples"], pid).drop(index=MEANWHILE)
    assert {"short", "long", "locked", "computing"} <= set(sampled.index)
    assert (sampled.loc[["short", "long", "locked", "computing"], "self_samples"] >= LEAST).all()
    for name, square in zip(OFF, squares, strict=True):
        assert_near(sampled[f"self_{name}"], exact[f"self_{name}"], sampled[square], exact.to_numpy().sum())
    assert exact.loc["short", "self_blocked_ns"] > 0 and exact.loc["computing", "self_gil_wait_ns"] > 0


@every_python
@pytest.mark.measured
@pytest.mark.parametrize("program", ["gil_fight", "lock_wait", "sleeper", "two_locks"])
def test_states_by_thread_are_those_of_the_switches(
    python: Python, target: Callable[..., Target], attach: Callable[..., Recorder], program: str
) -> None:
    process = target(program, "--wait", "2" if program != "two_locks" else "--wait", python=python)
    recorder = attach(process.pid, "--sample", str(HZ), "--switches")
    process.go()
    process.done()
    trace = pytrace_ebpf.open(recorder.finish())
    assert len(trace.sched()) and "states" not in trace.manifest["sampling"]
    tree, times = nodes(trace), trace.thread_times().set_index("tid")
    threads = tree[tree["depth"] < 0].set_index("tid")
    assert len(threads) >= 1
    for name in OFF:
        whole = float(times[list(SPLIT)].astype("float64").to_numpy().sum())
        assert_near(threads[name].astype("float64"), times[name].astype("float64"), threads[name.replace("_ns", "_square")], whole)


@every_python
@pytest.mark.measured
@pytest.mark.parametrize("program", ["gil_fight", "sleeper"])
def test_samples_alone_say_what_threads_were_in(python: Python, target: Callable[..., Target], attach: Callable[..., Recorder], program: str) -> None:
    """Against the switches of the same seconds, by another tracer: nothing of them is in the trace."""
    process = target(program, "--wait", "2", python=python)
    alone, exact = (attach(process.pid, "--sample", str(HZ), *more) for more in ((), ("--switches",)))
    process.go()
    process.done()
    trace, switches = pytrace_ebpf.open(alone.finish()), pytrace_ebpf.open(exact.finish())
    assert not len(trace.sched()) and trace.manifest["scheduling"]["source"] is None and trace.manifest["sampling"]["states"] == 2
    assert set(trace.samples().query("off_ns > 0")["state"]) <= {1, 2, 3} and set(trace.samples().query("off_ns == 0")["state"]) == {0}
    threads, times = by_thread(trace).set_index("tid"), switches.thread_times().set_index("tid")
    own = threads[threads.index != process.pid] if len(threads) > 1 else threads  # the main thread waits while the tracers come, in turn
    for name in OFF if len(threads) > 1 else OFF[:2]:
        whole = float(times.loc[own.index, list(SPLIT)].astype("float64").to_numpy().sum())
        assert_near(own[name].astype("float64"), times[name].astype("float64"), own[name.replace("_ns", "_square")], whole)
    assert {(row["pid"], row["tid"]) for row in trace.threads().to_dict("records")} >= set(zip(own["pid"], own.index, strict=True))


def test_a_thread_that_waits_all_along_has_its_stack(target: Callable[..., Target], attach: Callable[..., Recorder]) -> None:
    """It never comes back to a core."""
    process = target("sleeper", "--wait")
    trace = pytrace_ebpf.open(attach(process.pid, "--sample", "--duration", "1").finish())
    samples, stacks = trace.samples(), stacks_of(trace)
    (frames,) = {tuple(stacks[stack]) for stack in samples["stack_id"]}
    line = 1 + next(at for at, text in enumerate((TARGETS / "ready.py").read_text().splitlines()) if "os.read(" in text)
    assert [name for name, _ in frames] == ["<module>", "ready", "line_on_stdin"] and frames[-1][1] == line
    tree = nodes(trace)
    assert tree["self_blocked_ns"].sum() == tree.loc[tree["depth"] < 0, "total_ns"].sum() >= 0.9e9


def test_a_thread_that_waits_until_its_program_ends_has_its_stack(target: Callable[..., Target]) -> None:
    """It is sampled when nothing of the program can be read any more."""
    process, recording = target("sleeper", "--wait"), Recording(Functions(), Processes())
    recording.processes.add_python(inspect(process.pid), SAMPLES_ALONE, time.monotonic_ns())
    samples = Samples(recording, HZ, follow=False, states=True)
    rows: Rows = {}

    def looked_at() -> bool:
        samples.drain()
        return bool(samples._sampled[process.pid].off_cpu)

    def sampled() -> bool:
        samples.drain()
        rows.update(samples.cut())
        return any(len(each["off_ns"]) for each in rows.get("samples", ()))

    try:
        samples.add(process.pid)
        wait_until(looked_at)
        process.kill()
        process.wait()
        wait_until(sampled)
    finally:
        samples.close()
    names = {func_id: name for each in recording.functions.cut()["functions"] for func_id, name in zip(each["func_id"], each["name"], strict=True)}
    found = {names.get(func_id) for each in rows["stacks"] for func_id in each["func_id"]}
    assert found >= {"<module>", "ready", "line_on_stdin"} and None not in found


def test_threads_whose_ids_end_in_the_same_bits_are_told_apart(target: Callable[..., Target], attach: Callable[..., Recorder]) -> None:
    """They want the same place of off_cpu.h."""
    process = target("same_bits", "--wait")
    recorder = attach(process.pid, "--sample", str(HZ))
    process.go()
    said = process.done()
    trace = pytrace_ebpf.open(recorder.finish())
    threads, whole = by_thread(trace).set_index("tid").loc[said["ids"]], trace.end_ns - trace.start_ns
    sums = threads[list(SPLIT)].astype("float64").sum(axis=1)
    errors = SIGMAS * np.sqrt(threads[[name.replace("_ns", "_square") for name in OFF]].astype("float64").sum(axis=1))
    assert len(sums) == 2 and (sums >= 0.9e9 * said["wall"] - errors).all() and (sums <= whole + errors).all(), (sums, whole)


def test_a_child_is_sampled_from_its_beginning(target: Callable[..., Target], attach: Callable[..., Recorder]) -> None:
    """It would have ended before user space found it."""
    process = target("brief_children", "--wait")
    recorder = attach(process.pid, "--sample", str(HZ))
    process.go()
    said = process.done()
    trace = pytrace_ebpf.open(recorder.finish())
    samples, stacks = trace.samples(), stacks_of(trace)
    own = samples[(samples["off_ns"] == 0) & (samples["stack_id"] >= 0)]
    for child in said["children"]:
        names = [[name for name, _ in stacks[stack]] for stack in own.loc[own["pid"] == child, "stack_id"]]
        assert sum("burn" in each for each in names) >= 0.1 * HZ / 2, (child, names)


def test_a_child_is_not_sampled_where_children_are_not_followed(target: Callable[..., Target], attach: Callable[..., Recorder]) -> None:
    process = target("brief_children", "--wait")
    recorder = attach(process.pid, "--sample", str(HZ), "--no-follow")
    process.go()
    process.done()
    assert set(pytrace_ebpf.open(recorder.finish()).samples()["pid"]) == {process.pid}
