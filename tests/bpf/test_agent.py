"""The agent in processes of other users: it leaves nothing behind, however it ends, and its records are correct."""

import json
import re
import signal
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest

import pytrace_ebpf
from pytrace_ebpf.record.cpython.functions import module_of
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.trace.schema import SchedKind
from tests.bpf.conftest import COMMAND, Recorder, has_agent, lost, reported, wait_until
from tests.conftest import HOST_PYTHON, PATIENCE_S, Python, Target, links_of

pytestmark = pytest.mark.sources("agent")

SPLIT = ["on_cpu_ns", "runq_wait_ns", "gil_wait_ns", "blocked_ns"]
CLOCKS_DIFFER_NS = 2000  # at most


def look(process: Target) -> dict:
    """What inward.py finds in itself."""
    process.go()
    return process.done()


def directories(tracer: int, target: int) -> set[Path]:
    """The agent's directories that a tracer's keeper made, in the target's file system."""
    keepers = psutil.Process(tracer).children()
    links = [link for process in keepers for link in links_of(Path(f"/proc/{process.pid}/fd"))]
    found = (re.search(r"(/tmp|/var/tmp|/dev/shm|/run)/pytrace-ebpf-[\w.]+$", link) for link in links)
    return {Path(f"/proc/{target}/root{place[0]}") for place in found if place}


def assert_as_before(found: dict, before: dict) -> None:
    # A hook that is still installed doubles it at least; the noise of a busy machine does not.
    assert found.pop("slowness") < 1.35 * before["slowness"]
    assert found == {name: before[name] for name in found}


@pytest.mark.measured  # what a hook costs
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT], ids=["killed", "stopped"])
def test_a_tracer_that_ends_leaves_nothing_in_the_target_which_can_be_traced_again(
    how: signal.Signals, python: Python, target: Callable[..., Target], attach: Callable[..., Recorder]
) -> None:
    process = target("inward", python=python)
    before = look(process)
    assert before["hooks"] == []
    for _ in range(2):
        recorder = attach(process.pid, "--source", "agent")
        during, places = look(process), directories(recorder.process.pid, process.pid)
        assert (during["agents"], during["arenas"]) == (0, 1)
        assert during["slowness"] > before["slowness"] * 1.35
        assert len(places) == 2 and all(place.is_dir() for place in places)
        recorder.process.send_signal(how)
        recorder.process.wait(PATIENCE_S)
        wait_until(lambda: not has_agent(process.pid))
        # The target's user is root here: its agent may remove all.
        wait_until(lambda places=places: not any(place.exists() for place in places))
        assert_as_before(look(process), before)
    trace = pytrace_ebpf.open(recorder.directory)
    assert trace.manifest["state"] == ("complete" if how == signal.SIGINT else "recording")
    if how == signal.SIGINT:
        (said,) = trace.manifest["sources"]
        assert said["source"] == "agent"
        assert "serves CPython" in said["why"]
        calls = trace.calls(columns=["func_id"]).merge(trace.functions(), on="func_id")
        assert (calls["name"] == "step").sum() > 1000


def test_every_kind_of_child_of_a_launched_program_brings_the_agent_along(python: Python, run: Callable[..., tuple]) -> None:
    directory, ended = run(python.command("family"), "--source", "agent")
    assert ended.returncode == 0, ended.stderr
    facts = json.loads(ended.stdout.splitlines()[-1].removeprefix("done "))
    trace = pytrace_ebpf.open(directory)
    assert not lost(trace)
    calls = trace.calls().merge(trace.functions(), on="func_id")
    steps = calls[calls["name"] == "step"].groupby("pid").size()
    assert steps.to_dict() == {int(pid): count for pid, count in facts["steps"].items()}
    known = reported(trace, calls[calls["on_cpu_ns"].notna()])
    assert (known[SPLIT].sum(axis=1) == known["wall_ns"]).all()
    processes = trace.processes().set_index("pid")
    assert (processes.loc[steps.index, "source"] == "agent").all()
    # A program that is not a Python has the library loaded, inactive; an environment that the program made is not changed.
    preload, mapped = facts["shell"]
    assert preload == facts["preload"] and preload.endswith("/agent.so") and int(mapped) > 0
    assert facts["bare"] == ""
    assert not Path(preload).parent.exists()


def test_without_following_children_do_not_inherit_the_agent(python: Python, run: Callable[..., tuple]) -> None:
    directory, ended = run(python.command("family"), "--source", "agent", "--no-follow")
    assert ended.returncode == 0, ended.stderr
    facts = json.loads(ended.stdout.splitlines()[-1].removeprefix("done "))
    assert facts["shell"] == ["0"] and facts["preload"] == ""
    trace = pytrace_ebpf.open(directory)
    calls = trace.calls().merge(trace.functions(), on="func_id")
    assert calls[calls["name"] == "step"].groupby("pid").size().to_list() == [11]


FILTERS = {
    "include": (["--include", "layers"], lambda file, depth: file.endswith("/layers.py")),
    "include-two": (
        ["--include", "layers", "--include", "json"],
        lambda file, depth: "/json/" in file or "layers.py" in file,
    ),
    "exclude": (["--exclude", "json"], lambda file, depth: module_of(file).split(".")[0] != "json"),
    "exclude-path": (["--exclude", "*/json/encoder.py"], lambda file, depth: not file.endswith("/json/encoder.py")),
    "max-depth": (["--max-depth", "4"], lambda file, depth: depth < 4),
}


@pytest.mark.parametrize("name", FILTERS)
def test_filters_leave_out_what_they_name_and_keep_the_rest_correct(name: str, python: Python, tmp_path: Path) -> None:
    options, wanted = FILTERS[name]
    traces = []
    for number, words in enumerate(([], options)):
        directory = tmp_path / str(number)
        command = [
            *COMMAND,
            "run",
            "-q",
            "-o",
            str(directory),
            "--source",
            "agent",
            *words,
            "--",
            *python.command("layers"),
        ]
        subprocess.run(command, check=True, timeout=PATIENCE_S, stdout=subprocess.DEVNULL)
        traces.append(pytrace_ebpf.open(directory))
    assert edges(traces[1], lambda file, depth: True) == edges(traces[0], wanted)
    calls = traces[1].calls()
    inner = calls[calls["parent_id"] >= 0].groupby("parent_id")["wall_ns"].sum().reindex(calls["call_id"], fill_value=0)
    assert (calls["self_wall_ns"].to_numpy() + inner.to_numpy() == calls["wall_ns"].to_numpy()).all()
    known = reported(traces[1], calls)
    assert (known[SPLIT].sum(axis=1) == known["wall_ns"]).all()


def edges(trace: Trace, wanted: Callable[[str, int], bool]) -> Counter:
    """How often each wanted function was called by each, or by none, in layers.py; calls that are not wanted are looked through."""
    assert not lost(trace)
    calls = trace.calls().merge(trace.functions(), on="func_id").set_index("call_id")
    # By their plain names: before 3.11 a program that ends at once has no others.
    parents, files, names, depths, layers = (calls[column].to_dict() for column in ("parent_id", "file", "name", "depth", "layer"))
    found: Counter = Counter()
    for call in names:
        if ("layers.py" not in files[call] and "/json/" not in files[call]) or not wanted(files[call], depths[call]):
            continue
        parent = parents[call]
        while parent >= 0 and (layers[parent] != "python" or not wanted(files[parent], depths[parent])):
            parent = parents[parent]
        found[names[call], names[parent] if parent >= 0 else ""] += 1
    assert found
    return found


@pytest.mark.parametrize(("number", "code"), [(None, 0), (signal.SIGTERM, 128 + 15)])
def test_signals_and_exit_codes_are_the_programs_own(number: signal.Signals | None, code: int, python: Python, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*COMMAND, "run", "-q", "-o", str(tmp_path / "trace"), "--source", "agent", "--", *python.command("sleeper", "0.5", "--wait")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    if number is not None:
        process.send_signal(number)
        process.wait(PATIENCE_S)  # the program waits for a line, so that it does not end by itself before the signal was passed on
    said, _ = process.communicate("\n", timeout=PATIENCE_S)
    assert process.returncode == code
    assert said.startswith("done") == (code == 0)
    assert pytrace_ebpf.open(tmp_path / "trace").manifest["state"] == "complete"


def test_an_event_of_the_agent_and_one_of_the_kernel_have_the_same_clock(
    python: Python, target: Callable[..., Target], traced: Callable[..., tuple], clock_seconds: int
) -> None:
    process = target("yields", str(clock_seconds), "--wait", python=python)
    trace, _ = traced(process, "--source", "agent", "--no-follow")
    calls = trace.calls().merge(trace.functions(), on="func_id").sort_values("start_ns")
    gives = calls[(calls["name"] == "give") & (calls["status"] == "complete")]
    sched = trace.sched()
    sched = sched[(sched["tid"] == process.pid) & (sched["kind"] <= SchedKind.OUT)]
    away = np.flatnonzero((sched["kind"] == SchedKind.OUT) & (sched["kind"].shift(-1) == SchedKind.IN))
    left, back = sched["ts"].to_numpy()[away], sched["ts"].to_numpy()[away + 1]
    # An absence is assigned to a call by its middle: it lasts many times longer than the clocks may differ by.
    call = np.searchsorted(gives["start_ns"], (left + back) // 2) - 1
    within = (call >= 0) & ((left + back) // 2 < gives["end_ns"].to_numpy()[call])
    assert within.sum() > max(100 * clock_seconds, 0.9 * len(gives))
    # A call begins before its thread leaves the core and ends after it is back. An agent's clock that is behind by b
    # makes the first of these b longer and the second b shorter, so that neither clock can be off by more than the least of each.
    before = (left - gives["start_ns"].to_numpy()[call])[within]
    after = (gives["end_ns"].to_numpy()[call] - back)[within]
    least = np.array([[times.min() for times in np.array_split(gaps, clock_seconds)] for gaps in (before, after)])
    print(f"{len(before)} calls; least ns of each second, entry to switch: {least[0]}, switch to return: {least[1]}")
    assert (least > 0).all() and (least < CLOCKS_DIFFER_NS).all()


def test_a_child_that_is_still_starting_is_not_harmed(python: Python, target: Callable[..., Target], traced: Callable[..., tuple]) -> None:
    trace, said = traced(target("births", "--wait", python=python), "--source", "agent")
    assert said["ends"] == [[0, ""]] * 16
    assert len(trace.processes()) == 17


def test_a_program_that_ends_while_the_agent_is_injected_is_no_failure(
    python: Python, target: Callable[..., Target], attach: Callable[..., Recorder]
) -> None:
    for _ in range(5):
        trace = pytrace_ebpf.open(attach(target("hasty", python=python).pid, "--source", "agent").finish())
        (source,) = trace.manifest["sources"]
        assert source["source"] == "agent", source["why"]
        calls = trace.calls(columns=["func_id"]).merge(trace.functions(), on="func_id")
        assert (calls["name"] == "step").sum() == 100


def test_a_thread_goes_on_whose_main_thread_waits_for_it(run: Callable[..., tuple]) -> None:
    """The tracer looks in while nothing is reported: on 3.11 a pending call for the main thread would then hold all other threads at their next function."""
    trace, done = run(Python(HOST_PYTHON).command("waits_for_computing"), "--source", "agent", "-q")
    assert done.returncode == 0 and "done" in done.stdout
    calls = pytrace_ebpf.open(trace).named_calls()
    assert (calls["qualname"] == "leaf").sum() == 100
