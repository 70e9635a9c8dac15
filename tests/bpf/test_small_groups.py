"""In a control group with little memory the program lives, whatever is recorded of it."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import pytrace_ebpf
from pytrace_ebpf.record.waiting import SAYS
from tests.bpf.conftest import COMMAND
from tests.conftest import PATIENCE_S
from tests.unit.agent_pythons import built

V1, V2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
V1_THERE, V2_THERE = (V1 / "memory.limit_in_bytes").parent.exists(), (V2 / "cgroup.subtree_control").exists()
PYTHON = "/usr/bin/python3.11"
MIB = 1 << 20
pytestmark = [
    built, pytest.mark.bpf, pytest.mark.skipif(os.geteuid() != 0 or not (V1_THERE or V2_THERE), reason="no control groups of memory can be made here"),
]  # fmt: skip

# Has 45 MiB, calls all the time, and allocates and frees: four threads.
PROGRAM = """
import sys, threading
def leaf(n): return [n]
def many():
    for n in range(20000): leaf(n)
def work():
    while not stop: many()
ballast, stop = bytearray(45 << 20), False
for at in range(0, len(ballast), 4096): ballast[at] = 1
threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads: thread.start()
print("ready", flush=True)
sys.stdin.readline()
stop = True
for thread in threads: thread.join()
print("whole", flush=True)
"""
HOW = {
    "agent": ("--source", "agent"),
    "memory": ("--source", "agent", "--memory"),
    "native memory": ("--source", "agent", "--native-memory"),
    "values": ("--source", "agent", "--args", "__main__.leaf"),
    "auto": (),
    "usdt": ("--source", "usdt"),
    "sample": ("--sample",),
}


class Group:
    """A control group of so many MiB."""

    def __init__(self, size: int) -> None:
        self.path = (V1 if V1_THERE else V2) / f"pytrace-test-{os.getpid()}"
        self.path.mkdir()
        (self.path / ("memory.limit_in_bytes" if V1_THERE else "memory.max")).write_text(str(size * MIB))

    @property
    def killed(self) -> int:
        """Processes that the kernel ended in it for want of memory."""
        lines = (self.path / ("memory.oom_control" if V1_THERE else "memory.events")).read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))


@pytest.fixture
def group(request: pytest.FixtureRequest) -> Iterator[Group]:
    made = Group(request.param)
    yield made
    made.path.rmdir()


@pytest.mark.parametrize("group", [64, 96, 256], indirect=True)
def test_the_program_lives_whatever_is_recorded(group: Group, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    words = ["sh", "-c", f'echo $$ > {group.path}/cgroup.procs; exec "$@"', "sh", PYTHON, "-I", "-S", "-c", PROGRAM]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout and program.stdout.readline() == "ready\n"
        for name, options in HOW.items():
            trace = tmp_path / name
            tracer = subprocess.run(
                [*COMMAND, "attach", "--pid", str(program.pid), "-o", str(trace), "--duration", "0.7", *options],
                capture_output=True, text=True, timeout=PATIENCE_S,
            )  # fmt: skip
            assert program.poll() is None, (name, tracer.stderr)
            if tracer.returncode == 3:
                assert "agent" in options and "of memory left (its control group" in tracer.stderr
                continue
            assert tracer.returncode == 0, tracer.stderr
            if "agent" in options:
                said = [line for line in tracer.stderr.splitlines() if not line.startswith(SAYS)]
                assert "a tenth of what is left to its control group" in said[0]
            if name != "sample":
                assert pytrace_ebpf.open(trace).manifest["events"]["call"] > 1000
        said = program.communicate("\n", PATIENCE_S)[0]
    assert (program.returncode, said, group.killed) == (0, "whole\n", 0)
