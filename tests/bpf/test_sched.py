"""Where the time of a thread went, against the kernel's own counters and against programs that know."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import pytrace_ebpf
from pytrace_ebpf.derive.scheduling import split
from tests.bpf.conftest import NOT_REPORTED, Recorder, reported, wait_until
from tests.conftest import Python, Target

pytestmark = pytest.mark.measured

TICKS_NS = 25_000_000  # of two ticks, one at each end, where a hypervisor may delay them
SPLIT = ["on_cpu_ns", "runq_wait_ns", "gil_wait_ns", "blocked_ns"]


def on_cpu_ns(pid: int) -> dict[int, int]:
    """Nanoseconds on a core of each thread, as the kernel counts them."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return {int(task.name): int((task / "schedstat").read_text().split()[0]) for task in tasks}


def recorded(program: str, *args: str, python: Python, target: Callable[..., Target], attach: Callable[..., Recorder]) -> tuple[dict, pd.DataFrame]:
    """What a target said that it did, and its calls with their functions: those whose parts are known, as this kernel reported every switch."""
    process = target(program, *args, "--wait", python=python)
    recorder = attach(process.pid, "--source", python.sources[0])
    process.go()
    facts = process.done()
    trace = pytrace_ebpf.open(recorder.finish())
    calls = trace.calls().merge(trace.functions(), on="func_id")
    known = reported(trace, calls)
    assert (known[SPLIT].sum(axis=1) == known["wall_ns"]).all() and known["on_cpu_ns"].notna().all()
    return facts, known


def seconds(calls: pd.DataFrame, names: list[str], column: str) -> float:
    return float(calls.loc[calls["name"].isin(names), column].sum()) / 1e9


def stolen_ns() -> int:
    """Time that the hypervisor took from the cores, of all together."""
    return int(Path("/proc/stat").read_text().split()[8]) * (1_000_000_000 // os.sysconf("SC_CLK_TCK"))


def at_one_time(pid: int) -> tuple[dict[int, int], int, int]:
    """On-CPU time of each thread, the time at which it was that, and how long it took to read: the quickest of some tries, as this process can be held up."""
    tries = []
    for _ in range(50):
        start = time.monotonic_ns()
        found = on_cpu_ns(pid)
        end = time.monotonic_ns()
        tries.append((end - start, (start + end) // 2, found))
        if end - start < 1_000_000:
            break
    span, when, found = min(tries, key=lambda each: each[0])
    return found, when, span


def test_on_cpu_time_is_the_kernels_own(python: Python, target: Callable[..., Target], attach: Callable[..., Recorder]) -> None:
    process = target("busy", python=python)
    recorder = attach(process.pid, "--source", "usdt")  # the agent has a thread of its own
    stolen = stolen_ns()
    before, before_ns, before_span = at_one_time(process.pid)
    wait_until(lambda: all(spent > before[tid] + 2e8 for tid, spent in on_cpu_ns(process.pid).items()))
    after, after_ns, after_span = at_one_time(process.pid)
    stolen = stolen_ns() - stolen
    trace = pytrace_ebpf.open(recorder.stop())
    process.kill()
    held_up = before_span + after_span
    timeline = split.timeline(trace.sched(), trace.processes(), trace.manifest["end_ns"])
    running = timeline[timeline["state"] == "on_cpu"]
    overlap = np.minimum(running["end_ns"], after_ns) - np.maximum(running["start_ns"], before_ns)
    ours = overlap.clip(lower=0).groupby(running["tid"]).sum()
    losses = trace.losses()
    missing = losses[losses["class"].isin(list(NOT_REPORTED.values()))]
    unknown = (missing["end_ns"] - missing["start_ns"]).groupby(missing["tid"]).sum()
    for tid, total in after.items():
        kernel = total - before[tid]
        assert kernel > 1e8
        # The kernel's own figure is as old as the core's last tick, and without what the hypervisor took while the thread was on it.
        assert -TICKS_NS - held_up - unknown.get(tid, 0) <= ours[tid] - kernel <= TICKS_NS + held_up + stolen, tid


def test_sleeping_is_blocked(python: Python, target: Callable[..., Target], attach: Callable[..., Recorder]) -> None:
    facts, calls = recorded("sleeper", python=python, target=target, attach=attach)
    sleeps = calls[calls["name"] == "sleep"]
    asked = facts["blocked"] / facts["calls"]["sleep"] * len(sleeps)
    assert 0 < asked <= seconds(calls, ["sleep"], "blocked_ns") + 0.01
    without_a_core = seconds(calls, ["sleep"], "runq_wait_ns")  # once it is over, where others want the cores
    assert seconds(calls, ["sleep"], "blocked_ns") > 0.9 * (seconds(calls, ["sleep"], "wall_ns") - without_a_core)
    assert (sleeps["waits"] >= 1).all()


def test_spinning_is_on_cpu(python: Python, target: Callable[..., Target], attach: Callable[..., Recorder]) -> None:
    stolen = stolen_ns()
    facts, calls = recorded("spinner", python=python, target=target, attach=attach)
    stolen = stolen_ns() - stolen
    on_cpu = seconds(calls, ["spin"], "on_cpu_ns")
    asked = facts["on_cpu"] / facts["calls"]["spin"] * (calls["name"] == "spin").sum()
    # The program's clock is without what the hypervisor took while the thread was on a core.
    assert 0 < 0.95 * asked <= on_cpu <= 1.05 * asked + stolen / 1e9
    waited = seconds(calls, ["spin"], "wall_ns") - on_cpu
    assert seconds(calls, ["spin"], "runq_wait_ns") == pytest.approx(waited, abs=0.05)


def test_fighting_for_the_gil_is_gil_wait(python: Python, target: Callable[..., Target], attach: Callable[..., Recorder]) -> None:
    facts, calls = recorded("gil_fight", python=python, target=target, attach=attach)
    wall = seconds(calls, ["compute"], "wall_ns")
    lost = seconds(calls, ["compute"], "gil_wait_ns") + seconds(calls, ["compute"], "runq_wait_ns")
    assert lost > 0.9 * wall - facts["wall"]
    # How much of that is the run queue depends on the machine, for whose cores those who were given the GIL wait. What is blocked is the GIL.
    gil_wait, blocked = seconds(calls, ["compute"], "gil_wait_ns"), seconds(calls, ["compute"], "blocked_ns")
    assert gil_wait > 0.95 * (gil_wait + blocked)
    assert (calls[calls["name"] == "compute"].groupby("tid")["gil_wait_ns"].sum() > 0).all()


@pytest.mark.parametrize(("program", "waiter"), [("lock_wait", "want"), ("pipe_wait", "receive")])
def test_a_lock_and_a_pipe_are_blocked_and_not_the_gil(
    program: str, waiter: str, python: Python, target: Callable[..., Target], attach: Callable[..., Recorder]
) -> None:
    facts, calls = recorded(program, python=python, target=target, attach=attach)
    waits = (calls["name"] == waiter).sum()
    asked = facts["blocked"] / facts["calls"][waiter] * waits
    without_a_core = seconds(calls, [waiter], "runq_wait_ns")  # once it is over, which the program's clock has, too
    assert waits and seconds(calls, [waiter], "blocked_ns") + without_a_core == pytest.approx(asked, rel=0.1)
    assert seconds(calls, [waiter], "gil_wait_ns") < 0.02 * asked
