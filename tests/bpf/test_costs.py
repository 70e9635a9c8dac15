"""What tracing costs: one price for all who speak of it, never more than the program used; and what becomes too dear is traced by another source, exactly."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pytrace_ebpf
from tests.bpf.conftest import COMMAND, Recorder, lost, traced_by, wait_until
from tests.conftest import SOURCES, Python, Target

BUSY = 8  # processes that want the cores: all other tests of a run wait for them too


def reported(directory: Path) -> dict[str, Any]:
    """`report --json`."""
    said = subprocess.run([*COMMAND, "report", str(directory), "--json"], capture_output=True, text=True, check=True).stdout
    return dict(json.loads(said))


def makes_sense(directory: Path) -> dict[str, Any]:
    """The manifest's cost, which is never above what the programs used, and is what the report says."""
    facts, cost = reported(directory), dict(pytrace_ebpf.open(directory).manifest["cost"])
    assert 0 <= cost["spent_ns"] <= cost["cpu_ns"]
    assert 0 <= facts["cost"]["total_ns"] <= facts["cost"]["cpu_ns"]
    assert facts["cost"]["cpu_ns"] >= cost["cpu_ns"]
    assert facts["cost"]["ns_per_call"] <= cost["ns_per_call"]
    return cost


def test_workers_decide_for_their_idle_master_and_for_those_to_come(
    target: Callable[..., Target], attach: Callable[..., Recorder], python: Python
) -> None:
    process = target("idle_master", python=python)
    recorder = attach(process.pid)
    (busiest,) = re.findall(r" by agent: .* would cost about .* of a core in process (\d+), the busiest that belongs to it", recorder.first)
    process.go()
    workers = process.done()["workers"]
    assert int(busiest) in workers[:2]
    wait_until(lambda: traced_by(recorder.directory, "agent") >= {process.pid, *workers})
    recorder.stop()
    assert {each["source"] for each in pytrace_ebpf.open(recorder.directory).manifest["sources"]} == {"agent"}
    makes_sense(recorder.directory)


def test_probes_that_become_too_dear_give_way_to_the_agent_and_no_call_is_missing(
    target: Callable[..., Target], attach: Callable[..., Recorder], python: Python
) -> None:
    process = target("bursts", "--wait", python=python)
    recorder = attach(process.pid)
    assert " by usdt: " in recorder.first
    process.go()
    assert recorder.process.stderr is not None
    said = next(line for line in recorder.process.stderr if "from now on" in line)
    assert said.startswith(f"process {process.pid} is traced by agent from now on: the probes took ")
    process.go()
    made = process.done()["calls"]
    trace = pytrace_ebpf.open(recorder.finish())
    assert not lost(trace) and trace.left_out().empty
    assert trace.processes().set_index("pid")["source"].to_dict() == {process.pid: "agent"}
    calls = trace.calls(columns=["func_id", "tid", "start_ns", "end_ns", "status"]).merge(trace.functions(), on="func_id")
    # A call that was open at the change has two rows, one until then and one from then on.
    begun = calls[calls["status"] != "open_at_start"]
    assert begun.groupby("name").size()[["leaf", "burst"]].to_dict() == made
    for _, of_thread in calls[calls["name"] == "work"].groupby("tid"):
        before, after = (of_thread[of_thread["status"].isin(status)] for status in (("unwound",), ("open_at_start",)))
        assert len(of_thread) == 2 and len(before) == len(after) == 1
        assert before["end_ns"].item() <= after["start_ns"].item()
    makes_sense(recorder.directory)


@pytest.mark.parametrize("source", SOURCES)
def test_one_price_in_the_first_line_and_in_the_report_however_busy_the_host(
    source: str, target: Callable[..., Target], attach: Callable[..., Recorder]
) -> None:
    process = target("idle_master")
    # Of sessions of their own: the kernel shares cores out between sessions, and the tracer's would have next to nothing.
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"], start_new_session=True) for _ in range(BUSY)]
    try:
        recorders = [attach(process.pid, "--source", source, "--duration", "1")]
        recorders[0].finish()
        recorders.append(attach(process.pid, "--source", source, "--duration", "1"))
        recorders[1].finish()
    finally:
        process.kill()
        for other in others:
            other.kill()
            other.wait()
    first, again = (makes_sense(recorder.directory) for recorder in recorders)
    first_ns, again_ns = (cost.get("loop_ns_per_call", cost["ns_per_call"]) for cost in (first, again))
    assert again_ns <= first_ns  # the least of all measurements of this host
    (price,) = re.findall(r"about (\d+\.\d+) µs a call", recorders[1].first)
    assert abs(float(price) - first_ns / 1000) <= (0.05 if float(price) >= 1 else 0.005)
