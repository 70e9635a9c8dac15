"""`--trigger`: a recording that is held in memory becomes a trace when something happens, with what led up to it and what came after."""

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import pytrace_ebpf
from pytrace_ebpf.trace.reader import Trace
from tests.bpf.conftest import COMMAND, Recorder, wait_until
from tests.bpf.test_output import small_disk
from tests.conftest import PATIENCE_S, Python, Target
from tests.sums_hold import assert_sums_hold

SLOW_S = 0.6  # of tests/targets/incidents.py
SECOND = 1_000_000_000
BRIEF = ("--retain", "2s", "--after", "1s", "--every", "0")


class Incidents(Target):
    """The target, which does what it is asked to."""

    def do(self, *words: str) -> None:
        """Have these happen; returns when they have."""
        assert self.process.stdin
        self.process.stdin.write(" ".join(words) + "\n")
        for word in words:
            if word not in ("hang", "end"):
                assert self._expect("did") == word


@pytest.fixture
def incidents() -> Iterator[Callable[[Python], Incidents]]:
    started: list[Incidents] = []

    def start(python: Python) -> Incidents:
        started.append(Incidents(python, "incidents"))
        return started[-1]

    yield start
    for each in started:
        each.close()


@pytest.fixture
def host(incidents: Callable[[Python], Incidents]) -> Incidents:
    return incidents(Python("3.11"))


def is_complete(directory: Path) -> bool:
    manifest = directory / "manifest.json"
    return manifest.exists() and json.loads(manifest.read_text())["state"] == "complete"


def written(recorder: Recorder, name: str = "") -> Trace:
    """The trace that is being written there, once it is whole."""
    directory = recorder.directory.with_name(recorder.directory.name + name)
    wait_until(lambda: is_complete(directory))
    return pytrace_ebpf.open(directory)


def call_of(trace: Trace) -> "pd.Series[Any]":
    """The call that set the trace off, as the trace has it."""
    found = trace.manifest["trigger"]
    calls = trace.calls(tid=found["tid"])
    (row,) = calls[(calls["func_id"] == found["func_id"]) & (calls["start_ns"] == max(found["start_ns"], trace.start_ns))].itertuples()
    return calls.loc[row.Index]


def report(directory: Path, *words: str) -> str:
    return subprocess.run([*COMMAND, "report", str(directory), *words], capture_output=True, text=True, check=True, timeout=PATIENCE_S).stdout


def test_a_slow_call_is_in_a_trace_with_what_was_before_and_after(
    python: Python, source: str, incidents: Callable[[Python], Incidents], attach: Callable[..., Recorder]
) -> None:
    target = incidents(python)
    recorder = attach(target.pid, "--source", source, *BRIEF, "--trigger", "call incidents.handle > 400ms")
    assert not recorder.directory.exists()
    target.do("slow")
    trace = written(recorder)
    assert_sums_hold(trace)
    found, call = trace.manifest["trigger"], call_of(trace)
    assert (found["condition"], found["pid"], found["name"]) == ("call incidents.handle > 400ms", target.pid, "incidents.handle")
    assert found["ts"] == found["start_ns"] + 400_000_000 and call["wall_ns"] >= SLOW_S * 1e9 and call["status"] == "complete"
    assert found.get("end_ns") in (None, call["end_ns"])
    assert trace.end_ns >= found["ts"] + SECOND
    calls = trace.calls().merge(trace.functions(), on="func_id")
    others = calls[calls["name"] == "handle"]
    assert (others["end_ns"] < found["start_ns"]).any() and (others["start_ns"] > call["end_ns"]).any()
    said = report(trace.directory)
    assert said.startswith("SET OFF by call incidents.handle > 400ms: incidents.handle in thread ")
    (command,) = [line for line in said.splitlines() if line.startswith("To see it alone add: ")]
    words = command.split()
    alone = json.loads(report(trace.directory, "--json", *words[words.index("--from") :]))
    assert alone["rows"][0]["qualname"] == "handle" and alone["rows"][0]["total_ns"] >= SLOW_S * 1e9
    assert recorder.stop() and target.process.poll() is None


def test_a_call_that_hangs_sets_off_a_trace(host: Incidents, attach: Callable[..., Recorder]) -> None:
    recorder = attach(host.pid, "--source", "usdt", *BRIEF, "--trigger", "call incidents.handle > 1s")
    host.do("hang")
    trace = written(recorder)
    assert "end_ns" not in trace.manifest["trigger"] and call_of(trace)["status"] == "open_at_end"
    assert "and went on" in " ".join(report(trace.directory).split("To see it")[0].split())


@pytest.mark.parametrize(
    ("condition", "incident", "name"),
    [
        ("raises incidents.fail", "raise", "incidents.fail"),
        ("loop > 300ms", "hold", "asyncio.events.Handle._run"),
        ("call incidents.wait_long > 300ms", "await", "incidents.wait_long"),
    ],
)
def test_a_call_sets_off_a_trace(condition: str, incident: str, name: str, host: Incidents, attach: Callable[..., Recorder]) -> None:
    recorder = attach(host.pid, "--source", "agent", *BRIEF, "--trigger", condition)
    others = {"raise", "hold", "await", "slow"} - {incident}
    host.do(*sorted(others), incident)
    found = written(recorder).manifest["trigger"]
    assert (found["condition"], found["name"]) == (condition, name)
    assert not Path(f"{recorder.directory}-2").exists() and not found["more"]


def test_a_thread_that_waits_for_the_gil_sets_off_a_trace(host: Incidents, attach: Callable[..., Recorder]) -> None:
    # Beside others a thread waits for a core each time that its 5 ms for the GIL are over, which takes longer than those.
    recorder = attach(host.pid, "--source", "usdt", *BRIEF, "--trigger", "gil > 10%")
    host.do("slow", "fight")
    trace = written(recorder)
    found = trace.manifest["trigger"]
    assert found["end_ns"] - found["start_ns"] == SECOND and 0.1 * SECOND < found["waited_ns"] <= SECOND
    waits = trace.waits()
    waits = waits[(waits["tid"] == found["tid"]) & (waits["kind"] == "gil")]
    within = waits["blocked_until_ns"].clip(upper=found["end_ns"]) - waits["start_ns"].clip(lower=found["start_ns"])
    assert abs(within.clip(lower=0).sum() - found["waited_ns"]) <= 0.02 * SECOND
    assert f"({found['tid']})" in report(trace.directory)


def test_a_thread_that_waits_for_a_core_sets_off_a_trace(host: Incidents, attach: Callable[..., Recorder]) -> None:
    core = min(os.sched_getaffinity(0))
    for tid in os.listdir(f"/proc/{host.pid}/task"):  # noqa: PTH208 - numbers
        os.sched_setaffinity(int(tid), {core})
    with subprocess.Popen(["/usr/bin/python3", "-c", "while True: pass"], preexec_fn=lambda: os.sched_setaffinity(0, {core})) as other:
        try:
            recorder = attach(host.pid, "--source", "usdt", *BRIEF, "--trigger", "runq > 30%")
            host.do("fight")
            trace = written(recorder)
        finally:
            other.kill()
    found = trace.manifest["trigger"]
    assert found["condition"] == "runq > 30%" and 0.3 * SECOND < found["waited_ns"] <= SECOND
    waits = trace.waits()
    waits = waits[waits["tid"] == found["tid"]]
    queued = (waits["end_ns"].clip(upper=found["end_ns"]) - waits["blocked_until_ns"].clip(lower=found["start_ns"])).clip(lower=0).sum()
    assert abs(queued - found["waited_ns"]) <= 0.02 * SECOND


def test_each_trace_has_its_own_directory_and_no_more_than_asked_for_are_written(host: Incidents, attach: Callable[..., Recorder]) -> None:
    recorder = attach(host.pid, "--source", "usdt", *BRIEF, "--trigger", "call incidents.handle > 400ms", "--traces", "2")
    host.do("slow")
    first = written(recorder)
    host.do("slow")
    second = written(recorder, "-2")
    recorder.finish()  # by itself, and the program runs on
    assert host.process.poll() is None and second.manifest["trigger"]["start_ns"] > first.manifest["trigger"]["end_ns"]
    assert_sums_hold(second)
    assert second.end_ns - second.start_ns >= 2 * SECOND
    assert sorted(path.name for path in recorder.directory.parent.iterdir()) == [recorder.directory.name, f"{recorder.directory.name}-2"]
    assert "2 traces were written (--traces)" in str(recorder.process.stderr and recorder.process.stderr.read())


def test_what_comes_too_early_is_counted(host: Incidents, attach: Callable[..., Recorder]) -> None:
    recorder = attach(host.pid, "--source", "usdt", *BRIEF[:4], "--every", "1h", "--trigger", "call incidents.handle > 400ms", "--trigger", "snap")
    host.do("slow")
    written(recorder)
    host.do("slow", "slow")
    recorder.process.send_signal(signal.SIGUSR2)  # somebody's wish is no accident
    trace = written(recorder, "-2")
    assert trace.manifest["trigger"]["condition"] == "snap" and trace.manifest["trigger"]["skipped"] == {"call incidents.handle > 400ms": 2}
    said = report(trace.directory)
    assert said.startswith("SET OFF by snap, ") and "came true too early" in " ".join(said.split())
    recorder.stop()


def test_somebody_asks(host: Incidents, attach: Callable[..., Recorder]) -> None:
    recorder = attach(host.pid, "--source", "usdt", *BRIEF, "--trigger", "call incidents.handle > 100s")
    host.do("slow")
    asked = subprocess.run([*COMMAND, "snap", str(recorder.process.pid)], capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    assert asked.stdout == f"process {recorder.process.pid} writes a trace of what it holds\n"
    trace = written(recorder)
    assert trace.manifest["trigger"]["condition"] == "snap" and trace.calls()["wall_ns"].max() >= SLOW_S * 1e9
    refused = subprocess.run([*COMMAND, "snap", str(host.pid)], capture_output=True, text=True, timeout=PATIENCE_S)
    assert refused.returncode == 3 and f"process {host.pid} is no flight recorder that you may ask" in refused.stderr


def test_without_an_incident_nothing_is_written(host: Incidents, attach: Callable[..., Recorder]) -> None:
    recorder = attach(host.pid, "--source", "usdt", *BRIEF, "--trigger", "call incidents.handle > 100s", "--trigger", "call incidents.handel > 1s")
    host.do("slow", "end")
    recorder.process.wait(PATIENCE_S)
    said = str(recorder.process.stderr and recorder.process.stderr.read())
    assert not recorder.directory.exists() and recorder.process.returncode == 0
    assert "nothing set it off: no trace was written" in said and "no function that fits --trigger 'call incidents.handel > 1s' was called" in said


def test_an_incident_at_the_end_of_the_program_is_written(host: Incidents, attach: Callable[..., Recorder]) -> None:
    recorder = attach(host.pid, "--source", "usdt", *BRIEF, "--trigger", "call incidents.handle > 400ms")
    host.do("slow", "end")
    trace = pytrace_ebpf.open(recorder.finish())
    assert trace.manifest["state"] == "complete" and call_of(trace)["wall_ns"] >= SLOW_S * 1e9


def test_a_tracer_killed_while_it_holds_leaves_nothing_and_while_it_writes_a_trace(host: Incidents, attach: Callable[..., Recorder]) -> None:
    recorder = attach(host.pid, "--source", "usdt", *BRIEF, "--trigger", "call incidents.handle > 400ms")
    recorder.process.kill()
    recorder.process.wait()
    assert not recorder.directory.exists()
    recorder = attach(host.pid, "--source", "usdt", "--retain", "2s", "--after", "1h", "--trigger", "call incidents.handle > 400ms")
    host.do("slow")
    wait_until(lambda: recorder.directory.exists() and (recorder.directory / "manifest.json").exists())
    wait_until(lambda: len(pytrace_ebpf.open(recorder.directory).segments) > 0)
    recorder.process.kill()
    recorder.process.wait()
    trace = pytrace_ebpf.open(recorder.directory)
    assert trace.manifest["state"] == "recording" and trace.manifest["trigger"]["name"] == "incidents.handle"
    assert host.process.poll() is None


def test_a_place_where_nothing_can_be_written_is_refused_at_once(host: Incidents, tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").touch()
    words = [*COMMAND, "attach", str(host.pid), "--source", "usdt", "--trigger", "snap", "-o", str(tmp_path / "taken")]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S)
    assert ended.returncode == 2 and "is not empty" in ended.stderr


def test_a_disk_that_is_full_costs_that_trace_alone(host: Incidents, attach: Callable[..., Recorder], tmp_path: Path) -> None:
    (tmp_path / "trace0").mkdir()
    with small_disk(tmp_path / "trace0", "4M") as disk:
        recorder = attach(host.pid, "--source", "usdt", *BRIEF, "--trigger", "call incidents.handle > 400ms", "-o", str(disk / "trace"))
        with suppress(OSError), (disk / "filler").open("wb", 0) as filler:
            while filler.write(b"x" * 4096):
                pass
        host.do("slow")
        assert recorder.process.stderr
        said = next(line for line in recorder.process.stderr if "came true" in line)
        assert "'call incidents.handle > 400ms' came true: incidents.handle" in said and f"but cannot write to {disk / 'trace'} (" in said
        (disk / "filler").unlink()
        host.do("slow")
        wait_until(lambda: any(is_complete(path) for path in disk.glob("trace*")))
        recorder.process.send_signal(signal.SIGINT)
        assert recorder.process.wait(PATIENCE_S) == 4
        assert "not every trace could be written" in recorder.process.stderr.read()


def test_what_is_held_is_bounded(attach: Callable[..., Recorder]) -> None:
    """Of a program that calls as fast as it can there is no more in memory than --retain asks for."""
    program = "def f(): pass\nprint('ready', flush=True)\nwhile True: f()"
    with subprocess.Popen(["/usr/bin/python3.11", "-c", program], stdout=subprocess.PIPE) as busy:
        try:
            assert busy.stdout and busy.stdout.readline()
            recorder = attach(busy.pid, "--source", "agent", "--retain", "64MB", "--trigger", "snap", "--after", "0")
            enough = cpu_ticks(recorder) + 4 * os.sysconf("SC_CLK_TCK")  # some 80 million events
            wait_until(lambda: cpu_ticks(recorder) > enough)
            recorder.process.send_signal(signal.SIGUSR2)
            trace = written(recorder)
            rows = sum(segment["rows"].get("events", 0) for segment in trace.segments)
            assert trace.manifest["options"]["keep"]["size"] == 64_000_000 and 0 < 33 * rows < 3 * 64e6
        finally:
            busy.kill()


def cpu_ticks(recorder: Recorder) -> int:
    """What the tracer has used of the cores."""
    fields = Path(f"/proc/{recorder.process.pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])
