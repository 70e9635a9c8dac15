"""`--retain`: a recording that goes on drops what is older, and what is left is a whole trace, also when the tracer was killed."""

import json
import random
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import pytrace_ebpf
from pytrace_ebpf.trace.reader import Trace
from tests.bpf.conftest import COMMAND, Recorder, reported, wait_until
from tests.conftest import PATIENCE_S, SOURCES
from tests.sums_hold import assert_sums_hold
from tests.unit.record.output.test_long_recordings import with_rows

# Two threads whose outermost calls never return; what they call changes, so that what was called before the beginning is known by it alone.
SERVICE = """
import sys, threading, time
def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)
def at_first(n): fib(n)
def later(n): fib(n)
def serve(name):
    while not ended:
        handlers[-1](8)
        time.sleep(0.02)
def listen():
    for _ in sys.stdin: handlers.append(later)
    ended.append(True)
def main():
    threading.Thread(target=listen).start()
    other = threading.Thread(target=serve, args=("other",))
    other.start()
    serve("main")
    other.join()
handlers, ended = [at_first], []
print("ready", flush=True)
main()
"""


@pytest.fixture
def service() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["/usr/bin/python3.11", "-c", SERVICE], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout and process.stdout.readline() == b"ready\n"
        yield process
        process.kill()


def dropped(directory: Path) -> int:
    return int((pytrace_ebpf.open(directory).manifest.get("dropped") or {"segments": 0})["segments"])


def line_of(program: str, text: str) -> int:
    return next(number for number, line in enumerate(program.splitlines(), 1) if line.strip().startswith(text))


def check(trace: Trace) -> None:
    """It has every call with its name and its time, and what was open when it begins."""
    calls = assert_sums_hold(trace).merge(trace.functions()[["func_id", "qualname"]], on="func_id", how="left")
    assert calls["qualname"].notna().all()
    opened = calls[calls["status"] == "open_at_start"]
    assert set(opened["start_ns"]) == {trace.start_ns}
    outermost = opened[~opened["qualname"].isin(["at_first", "later", "fib"])].groupby("tid")["qualname"].apply(list)
    assert sorted(outermost) == [["<module>", "main", "serve"]] + [
        ["Thread._bootstrap", "Thread._bootstrap_inner", "Thread.run", name] for name in ("listen", "serve")
    ]
    assert not reported(trace, calls)[["on_cpu_ns", "runq_wait_ns", "gil_wait_ns", "blocked_ns"]].isna().any(axis=None)


@pytest.mark.parametrize("source", SOURCES)
def test_what_is_left_of_a_recording_is_a_whole_trace(source: str, service: subprocess.Popen[bytes], attach: Callable[..., Recorder]) -> None:
    recorder = attach(service.pid, "--source", source, "--retain", "3s")
    wait_until(lambda: len(pytrace_ebpf.open(recorder.directory).segments) > 0)
    assert service.stdin is not None
    service.stdin.write(b"later\n")
    service.stdin.flush()
    wait_until(lambda: dropped(recorder.directory) >= 4)
    report = subprocess.run([*COMMAND, "report", str(recorder.directory)], capture_output=True, text=True, timeout=PATIENCE_S)
    assert report.returncode == 0 or "was dropped meanwhile by the running recording (--retain): try again" in report.stderr
    trace = pytrace_ebpf.open(recorder.stop())
    check(trace)
    made = trace.calls().merge(trace.functions(), on="func_id")
    lines = made.loc[(made["status"] == "open_at_start") & (made["name"] == "serve"), "call_line"]
    called_from = {line_of(SERVICE, 'serve("main")'), line_of(Path("/usr/lib/python3.11/threading.py").read_text(), "self._target(")}
    assert len(lines) == 2 and set(lines.dropna()) == (called_from if source == "agent" else set())
    assert 2.5e9 < trace.end_ns - trace.start_ns < 30e9 and "at_first" in set(trace.functions()["name"])
    said = subprocess.run([*COMMAND, "info", str(trace.directory)], capture_output=True, text=True, check=True).stdout
    assert "dropped" in said and "--retain" in said
    facts = json.loads(subprocess.run([*COMMAND, "info", "--json", str(trace.directory)], capture_output=True, text=True, check=True).stdout)
    assert facts["dropped"]["segments"] >= 4 and facts["dropped"]["wall_ns"] > 3e9
    for table in ("events", "sched", "usage"):
        assert with_rows(trace.directory / table) == {part.name for part in trace._parts(table)}


def test_a_tracer_killed_while_it_drops_leaves_a_whole_trace(service: subprocess.Popen[bytes], attach: Callable[..., Recorder]) -> None:
    recorder = attach(service.pid, "--source", "usdt", "--retain", "2s")
    wait_until(lambda: dropped(recorder.directory) >= 2)
    moments = random.Random(1)
    wait_until(lambda: moments.random() < 0.02)
    recorder.process.kill()
    recorder.process.wait()
    trace = pytrace_ebpf.open(recorder.directory)
    assert trace.manifest["state"] == "recording" and dropped(recorder.directory) >= 2
    check(trace)
