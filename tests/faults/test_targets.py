"""A program ends, becomes another or is stopped while `attach` comes."""

import os
import signal
import time

import pytest

import pytrace_ebpf
from tests.bpf.conftest import wait_until
from tests.conftest import PATIENCE_S
from tests.faults.scene import Scene

COMES_S = 2.5  # in which attach comes
# Becomes itself without calls to make when it is told.
BECOMES = """
import os, sys
print("ready", flush=True)
sys.stdin.readline()
os.execv(sys.executable, [sys.executable, "-c", "import sys; print('ready', flush=True); sys.stdin.read()", *sys.argv[1:]])
"""
BOTH = pytest.mark.parametrize("source", ["usdt", "agent"])


def ends_in_a_sentence(scene: Scene, tracer: "object", *codes: int) -> str:
    """Its last words, which are no traceback."""
    said = tracer.communicate(timeout=PATIENCE_S)[1]  # type: ignore[attr-defined]
    assert tracer.returncode in codes and "Traceback" not in said, said  # type: ignore[attr-defined]
    return str(said).strip().rpartition("\n")[2]


@BOTH
def test_killed(scene: Scene, source: str) -> None:
    """A program is killed at any moment while `attach` comes, by each source"""
    process = scene.program()
    tracer = scene.attach(process.pid, "--source", source, "--quiet", "--duration", "30")
    time.sleep(scene.moments.uniform(0, COMES_S))
    scene.remember(tracer.pid)
    scene.may_end(process)
    process.kill()
    process.wait()
    said = ends_in_a_sentence(scene, tracer, 0, 3)
    assert (scene.folder / "trace" / "manifest.json").exists() is (tracer.returncode == 0)
    if tracer.returncode:
        scene.says(said.replace(str(process.pid), "N"))
    else:
        assert pytrace_ebpf.open(scene.folder / "trace").manifest["state"] == "complete"


@BOTH
def test_becomes_another(scene: Scene, source: str) -> None:
    """A program calls exec at any moment while `attach` comes, by each source"""
    process = scene.program(BECOMES)
    tracer = scene.attach(process.pid, "--source", source, "--quiet", "--duration", "6")
    time.sleep(scene.moments.uniform(0, COMES_S))
    assert process.stdin and process.stdout
    process.stdin.write(b"\n")
    process.stdin.flush()
    assert process.stdout.readline() == b"ready\n"
    said = ends_in_a_sentence(scene, tracer, 0, 3)
    scene.expect(process)
    if tracer.returncode:
        scene.says(said.replace(str(process.pid), "N"))
    else:
        assert pytrace_ebpf.open(scene.folder / "trace").manifest["state"] == "complete"


@BOTH
def test_stopped(scene: Scene, source: str) -> None:
    """A program is stopped (SIGSTOP) at any moment while `attach` comes, and goes on 5 s later, by each source"""
    process = scene.program()
    tracer = scene.attach(process.pid, "--source", source, "--quiet", "--duration", "12")
    time.sleep(scene.moments.uniform(0, COMES_S))
    os.kill(process.pid, signal.SIGSTOP)
    time.sleep(5)
    os.kill(process.pid, signal.SIGCONT)
    said = ends_in_a_sentence(scene, tracer, 0, 3)
    if tracer.returncode:
        scene.says(said.replace(str(process.pid), "N"))
    else:
        trace = pytrace_ebpf.open(scene.folder / "trace")
        wait_until(lambda: trace.manifest["state"] == "complete")
        assert "fib" in set(trace.functions()["name"])
        scene.lose(events=sum(trace.manifest["lost"].values()))


@BOTH
def test_rings_overflow(scene: Scene, source: str) -> None:
    """The memory between a program and `attach` is far too small, by each source"""
    process = scene.program()
    tracer = scene.attach(process.pid, "--source", source, "--quiet", "--duration", "2", "--ring-mib", "0.015625")
    ends_in_a_sentence(scene, tracer, 0)
    trace = pytrace_ebpf.open(scene.folder / "trace")
    lost = sum(trace.manifest["lost"].values())
    assert trace.losses()["count"].sum() == lost
    scene.lose(events=lost)
