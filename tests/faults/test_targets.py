"""A program ends, becomes another, is stopped or has little memory while `attach` comes."""

import os
import signal
import time

import pytest

import pytrace_ebpf
from tests.bpf.conftest import wait_until
from tests.conftest import PATIENCE_S
from tests.faults.memory_limit import MemoryLimit
from tests.faults.scene import PROGRAM, Scene

COMES_S = 2.5  # in which attach comes
# Becomes itself without calls to make when it is told.
BECOMES = """
import os, sys
print("ready", flush=True)
sys.stdin.readline()
os.execv(sys.executable, [sys.executable, "-c", "import sys; print('ready', flush=True); sys.stdin.read()", *sys.argv[1:]])
"""
_LIMIT = 96 << 20
HOLDS = "held = bytearray(b'x') * (60 << 20)" + PROGRAM  # so many bytes of its limit
# Takes more and more, by a function that can be seen to, once it is told.
TAKES = """
import sys
print("ready", flush=True)
sys.stdin.readline()
taken = []
def take():
    taken.append(bytearray(b"x") * 10_000)
while True:
    take()
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


@pytest.mark.parametrize("options", [("--source", "usdt"), ("--source", "agent"), ("--source", "agent", "--memory"), ("--sample",)], ids=" ".join)
def test_little_memory(scene: Scene, options: tuple[str, ...]) -> None:
    """A program has 60 of the 96 MB that its control group allows, by each source"""
    limit = MemoryLimit(_LIMIT)
    scene.undo.append(lambda: limit.__exit__(None, None, None))
    process = scene.program(HOLDS, within=limit.__enter__().within)
    tracer = scene.attach(process.pid, *options, "--quiet", "--duration", "4")
    ends_in_a_sentence(scene, tracer, 0)
    trace = pytrace_ebpf.open(scene.folder / "trace")
    assert "fib" in set(trace.functions()["name"])
    scene.lose(events=sum(trace.manifest["lost"].values()))


@BOTH
def test_out_of_memory(scene: Scene, source: str) -> None:
    """The kernel kills a program for want of memory while `attach` records it, by each source"""
    limit = MemoryLimit(_LIMIT)
    scene.undo.append(lambda: limit.__exit__(None, None, None))
    process = scene.program(TAKES, within=limit.__enter__().within)
    tracer = scene.attach(process.pid, "--source", source, "--quiet")
    wait_until(lambda: (scene.folder / "trace" / "manifest.json").exists())
    scene.remember(tracer.pid)
    scene.may_end(process)
    assert process.stdin
    process.stdin.write(b"\n")
    process.stdin.flush()
    said = ends_in_a_sentence(scene, tracer, 0)
    assert "was killed by the kernel: out of memory (its control group's limit is 96 MiB)" in said
    scene.says(said.replace("Process ", "process "))  # its number is taken out
    trace = pytrace_ebpf.open(scene.folder / "trace")
    assert trace.manifest["state"] == "complete" and "take" in set(trace.functions()["name"])
    assert trace.processes().set_index("pid").loc[process.pid, "oom_killed"]
    scene.lose(events=sum(trace.manifest["lost"].values()))
