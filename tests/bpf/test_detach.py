"""However the tracer ends, the target runs on unchanged, and what was recorded is kept."""

import signal
import struct
from collections.abc import Callable
from pathlib import Path

import pytrace_ebpf
from pytrace_ebpf.record.process.target import Target as Inspected
from pytrace_ebpf.record.process.target import inspect
from tests.bpf.conftest import Recorder, wait_until
from tests.conftest import Python, Target


def semaphores(target: Inspected) -> list[int]:
    """The values of all semaphores of the target's probes."""
    addresses = {p.semaphore_vaddr + target.bias for ps in target.binary.probes.values() for p in ps if p.semaphore_vaddr}
    return [struct.unpack("<H", target.memory.read(address, 2))[0] for address in sorted(addresses)]


def breakpoints(target: Inspected) -> list[int]:
    """The bytes at the function probes, 0x90 where no uprobe is."""
    probes = (p for name in ("function__entry", "function__return") for p in target.binary.probes[name])
    return [target.memory.read(p.location_vaddr + target.bias, 1)[0] for p in probes]


def test_stopping_restores_the_target(python: Python, target: Callable[..., Target], attach: Callable[..., Recorder]) -> None:
    process = target("gil_fight", "2", "--wait", "--hold", python=python)
    inspected = inspect(process.pid)
    assert not any(semaphores(inspected))
    recorder = attach(process.pid, "--source", python.sources[0])
    assert any(semaphores(inspected))
    process.go()
    recorder.stop()
    assert not any(semaphores(inspected))
    assert breakpoints(inspected) == [0x90, 0x90]
    assert process.done()["calls"]


def test_killing_the_tracer_restores_the_target_and_keeps_the_closed_segments(
    python: Python, target: Callable[..., Target], attach: Callable[..., Recorder]
) -> None:
    process = target("gil_fight", "6", "--wait", "--hold", python=python)
    inspected = inspect(process.pid)
    recorder = attach(process.pid, "--source", python.sources[0])
    process.go()
    wait_for_segments(recorder.directory, 2)
    recorder.process.send_signal(signal.SIGKILL)
    recorder.process.wait()
    wait_until(lambda: not any(semaphores(inspected)) and breakpoints(inspected) == [0x90, 0x90])
    assert process.done()["calls"]
    trace = pytrace_ebpf.open(recorder.directory)
    assert trace.manifest["state"] == "recording"
    assert len(trace.manifest["segments"]) >= 2
    assert "compute" in set(trace.calls(columns=["func_id"]).merge(trace.functions(), on="func_id")["name"])


def test_killing_the_target_keeps_everything_up_to_then(
    python: Python, source: str, target: Callable[..., Target], attach: Callable[..., Recorder]
) -> None:
    process = target("gil_fight", "60", "--wait", python=python)
    recorder = attach(process.pid, "--source", source)
    process.go()
    wait_for_segments(recorder.directory, 1)
    process.kill()
    trace = pytrace_ebpf.open(recorder.finish())
    assert trace.manifest["state"] == "complete"
    calls = trace.calls(columns=["func_id", "status", "wall_ns"]).merge(trace.functions(), on="func_id")
    fights = calls[calls["name"] == "fight"]
    assert list(fights["status"]) == ["open_at_end"] * 3
    assert trace.processes()["end_ns"].notna().all()


def wait_for_segments(directory: Path, count: int) -> None:
    """Wait until the manifest names `count` segments."""
    wait_until(lambda: len(pytrace_ebpf.open(directory).manifest["segments"]) >= count)
