"""Sampled stacks, against programs of which it is known where their time goes, and which function may call which."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import pytrace_ebpf
from pytrace_ebpf.analyze.samples.errors import standard_error
from pytrace_ebpf.trace.reader import Trace
from tests.bpf.conftest import Recorder
from tests.conftest import Python, Target

pytestmark = pytest.mark.gil

HZ = 499
SIGMAS = 5
MOST_MIXED = 0.03  # of a share: what measures itself is no function of its own
LEAST_SAMPLES = 50  # of which shares are worth comparing
MOST_TORN = 0.02
SCHED_IN = 0  # of sched.kind

every_python = pytest.mark.sources("agent")


@pytest.fixture
def sampled(attach: Callable[..., Recorder], target: Callable[..., Target]) -> Callable[..., tuple[Trace, dict[str, Any]]]:
    """`sampled(program, python, *options)`: the trace of a target's samples, and what it said."""

    def sample(program: str, python: Python, *options: str) -> tuple[Trace, dict[str, Any]]:
        process = target(program, "--wait", python=python)
        recorder = attach(process.pid, "--sample", str(HZ), *options)
        process.go()
        said = process.done()
        return pytrace_ebpf.open(recorder.finish()), said

    return sample


def stacks_of(trace: Trace) -> dict[int, list[tuple[str, int]]]:
    """(name, line) of the Python frames of each stack, outermost first, by stack_id."""
    functions = trace.functions()
    names = functions.set_index("func_id")["name"].to_dict()
    native = set(functions.loc[functions["function_layer"] == "native", "func_id"])
    found: dict[int, list[tuple[str, int]]] = {-1: []}
    for row in trace.stacks().itertuples():
        found[row.stack_id] = [*found[row.parent_id], *([] if row.func_id in native else [(names.get(row.func_id, "?"), row.line)])]
    return found


def on_core(trace: Trace) -> pd.DataFrame:
    """The samples of threads that had a core."""
    samples = trace.samples()
    return samples[samples["off_ns"] == 0]


def assert_shares(samples: dict[str, int], spent: dict[str, int], of: int, mixed: float = MOST_MIXED) -> None:
    """The share of samples that each has is that of the time that it said, as far as chance allows."""
    whole = sum(spent.values())
    assert of >= LEAST_SAMPLES
    for name, ns in spent.items():
        expected = ns / whole * of
        off = abs(samples.get(name, 0) - expected)
        assert off <= SIGMAS * float(standard_error(expected, of)) + mixed * of, (name, samples, spent)


@every_python
@pytest.mark.measured
def test_a_program_of_which_shares_are_known(python: Python, sampled: Callable[..., tuple[Trace, dict[str, Any]]]) -> None:
    """Each rule of one recording."""
    trace, said = sampled("shares", python, "--switches")
    assert_shares_are_those_that_the_program_says(trace, said)
    assert_samples_add_up_to_the_time_on_a_core(trace)
    assert_what_did_not_tick_is_no_more_than_there_was_time_for(trace)
    assert_a_stack_of_a_thousand_frames_is_whole(trace, said)


def assert_shares_are_those_that_the_program_says(trace: Trace, said: dict[str, Any]) -> None:
    samples, stacks, spent = on_core(trace), stacks_of(trace), said["spent"]
    main = samples["tid"] == samples["pid"]
    by_function: dict[str, dict[str, int]] = {"": {}, "worker:": {}}
    by_line: dict[str, int] = {}
    for stack, of_main in zip(samples["stack_id"], main, strict=True):
        frames = stacks.get(stack, [])
        if "spend" in [name for name, _ in frames]:
            continue
        for name, line in frames:
            if name in ("short", "long", "generated", "hashed", "deep", "asleep"):
                counts = by_function["" if of_main else "worker:"]
                counts[name] = counts.get(name, 0) + 1
            if name == "lines":
                key = f"line+{line - said['first_line'] - 2}"
                by_line[key] = by_line.get(key, 0) + 1
    assert (samples["stack_id"] == -2).mean() < MOST_TORN
    told = {name: ns for name, ns in spent.items() if ":" not in name and "+" not in name}
    assert_shares(by_function[""], told, sum(by_function[""].values()))
    told = {name.partition(":")[2]: ns for name, ns in spent.items() if name.startswith("worker:")}
    assert_shares(by_function["worker:"], told, sum(by_function["worker:"].values()))
    lines = {name: ns for name, ns in spent.items() if "+" in name}
    assert_shares({name: by_line.get(name, 0) for name in lines}, lines, sum(by_line.get(name, 0) for name in lines))


def assert_samples_add_up_to_the_time_on_a_core(trace: Trace) -> None:
    samples, period = on_core(trace), trace.manifest["sampling"]["period_ns"]
    on_cpu = trace.thread_times().groupby("tid")["on_cpu_ns"].sum()
    periods = (
        (1 + samples["missed"]).groupby(samples["tid"]).sum()
    )  # while the hypervisor gives a core to others, time goes on and its clock does not tick
    for tid, count in periods.items():
        expected = on_cpu[tid] / period
        assert abs(count - expected) <= SIGMAS * np.sqrt(expected) + MOST_MIXED * expected, (tid, count, expected)


def assert_what_did_not_tick_is_no_more_than_there_was_time_for(trace: Trace) -> None:
    samples, period = on_core(trace), trace.manifest["sampling"]["period_ns"]
    for _, core in samples.groupby("cpu"):
        between = np.diff(core["ts"].sort_values()) / period
        missed = core.sort_values("ts")["missed"].to_numpy()[1:]
        assert (missed <= between).all()
        assert (missed + 1).sum() <= between.sum() + 1
    sched = trace.sched()
    given = {tid: rows["ts"].sort_values().to_numpy() for tid, rows in sched[sched["kind"] == SCHED_IN].groupby("tid")}
    for row in samples[samples["missed"] > 0].itertuples():
        before = given[row.tid][: np.searchsorted(given[row.tid], row.ts)]
        assert not len(before) or row.missed <= (row.ts - before[-1]) / period + 1


def assert_a_stack_of_a_thousand_frames_is_whole(trace: Trace, said: dict[str, Any]) -> None:
    bottom = [frames for frames in stacks_of(trace).values() if "deep" in dict(frames) and frames[-1][1] and frames[-1][0] == "down"]
    depths = [sum(name == "down" for name, _ in frames) for frames in bottom]
    assert max(depths) == said["deep"]
    assert trace.manifest["lost"].get("stack_depth", 0) == 0
    for frames in bottom:
        assert [name for name, _ in frames[:2]] == ["<module>", "deep"], frames[:3]


@every_python
def test_no_stack_is_impossible(python: Python, sampled: Callable[..., tuple[Trace, dict[str, Any]]]) -> None:
    """While threads begin and end, code is compiled and discarded, and stacks grow."""
    trace, said = sampled("churn", python)
    assert said["threads"] > 5
    stacks = stacks_of(trace)
    samples = trace.samples()
    assert set(samples["stack_id"]) <= {*stacks, -2}
    known = 0
    for frames in stacks.values():
        for (caller, _), (callee, _) in zip([("", 0), *frames], frames, strict=False):
            found = re.fullmatch(r"(outer|inner|values|lambda)_(\d+)", callee)
            if not found or caller == "?":
                continue
            above = {"outer": "grow", "inner": f"outer_{found[2]}", "values": f"inner_{found[2]}", "lambda": f"inner_{found[2]}"}[found[1]]
            assert caller == above, frames
            known += 1
        grown = [name for name, _ in frames]
        assert "grow" not in grown or {"thread", "?"} & {grown[grown.index("grow") - 1]}, frames
    assert known > 0
    assert (samples["stack_id"] == -2).mean() < 0.2


def test_nothing_is_loaded_into_the_process(target: Callable[..., Target], attach: Callable[..., Recorder], tmp_path: Path) -> None:
    process = target("busy")
    maps, threads = Path(f"/proc/{process.pid}/maps"), Path(f"/proc/{process.pid}/task")
    before = maps.read_text(), sorted(each.name for each in threads.iterdir())
    recorder = attach(process.pid, "--sample", "--duration", "1")
    assert re.search("by sample", recorder.first)
    files = {line.split()[-1] for line in maps.read_text().splitlines()} - {line.split()[-1] for line in before[0].splitlines()}
    assert not [name for name in files if "pytrace" in name or "uprobes" in name]
    assert sorted(each.name for each in threads.iterdir()) == before[1]
    trace = pytrace_ebpf.open(recorder.finish())
    assert len(trace.samples()) and not len(trace.events())
    assert set(trace.processes()["source"]) == {"sample"}


@every_python
@pytest.mark.measured  # the name of a function is read within a quarter of a second, while its process lives
def test_samples_beside_calls(python: Python, target: Callable[..., Target], attach: Callable[..., Recorder]) -> None:
    process = target("fib", "--wait", "30", python=python)
    recorder = attach(process.pid, "--sample", str(HZ), "--source", "agent")
    process.go()
    process.done()
    trace = pytrace_ebpf.open(recorder.finish())
    assert len(trace.samples()) and len(trace.events())
    assert (on_core(trace)["stack_id"] == -2).mean() < MOST_TORN  # up to 3.10 a frame that a profile function is told of does not run yet
    fib = trace.functions().query("name == 'fib'")["func_id"].iloc[0]
    assert fib in set(trace.stacks()["func_id"])
    assert isinstance(trace.tree(), pd.DataFrame) and trace.tree()["calls"].max() > 1000


@every_python
def test_a_thread_before_a_thousand_others_has_its_stack(python: Python, target: Callable[..., Target], attach: Callable[..., Recorder]) -> None:
    """It stands at the end of the interpreter's list, and hardly ever holds the GIL when somebody looks."""
    process = target("behind", "--wait", "--hold", "1000", python=python)
    recorder = attach(process.pid, "--sample", str(HZ))
    process.go()
    said = process.done()
    trace = pytrace_ebpf.open(recorder.stop())  # while it lives: on a busy machine it would end before its functions' names were read
    samples, stacks = trace.samples(), stacks_of(trace)
    mine = samples[samples["tid"] == said["sleeper"]]
    asleep = mine[(mine["off_ns"] > 4_000_000) & (mine["off_ns"] < 1_000_000_000)]["stack_id"]
    assert len(asleep) >= said["naps"] / 5  # of twice as many intervals of 5 ms each, drawn by 16 ms
    assert sum("naps" in dict(stacks.get(stack, [])) for stack in asleep) >= 0.9 * len(asleep)
