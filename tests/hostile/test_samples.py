"""A target that is sampled has written into its interpreter's structures what no interpreter would: an unprivileged user's means against root."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import pytrace_ebpf
from tests.bpf.conftest import COMMAND
from tests.bpf.test_samples import stacks_of
from tests.hostile.test_parsing import folder, running

__all__ = ("folder",)
MOST_MIB = 700  # of memory: what a recording of an honest program takes, and some more
FRAMES = 1024  # of one sample, below one that stands for the others
# Runs a command and prints the most memory that it had at any time. The kernel counts for a process also what who started it had by then, which here is
# whatever hundreds of tests have left in theirs; who starts this one has next to nothing.
MEASURES = """
import os, subprocess, sys
_, status, usage = os.wait4(subprocess.Popen(sys.argv[1:]).pid, 0)
print(usage.ru_maxrss)
sys.exit(os.waitstatus_to_exitcode(status))
"""
pytestmark = [pytest.mark.bpf, pytest.mark.skipif(os.geteuid() != 0, reason="the tracer is root here, and its targets are not")]

# CPython 3.11. Threads that run: one whose code object has names and lines of 2^60 bytes, one whose code object has names that lie nowhere, one whose frame was
# called by itself. The list of thread states has no end.
LIES = """
import ctypes, os, sys, threading, time
HUGE, NOWHERE = 1 << 60, 0xFFFF888000000000
kept, begun = [], threading.Semaphore(0)

def word(at):
    return ctypes.c_uint64.from_address(at)

def memory(*words):
    made = (ctypes.c_uint64 * 64)(*words)
    kept.append(made)
    return ctypes.addressof(made)

def run():
    begun.release()
    while True:
        time.monotonic()

def huge():
    run()

def nowhere():
    run()

def knotted():
    frame = sys._getframe()
    kept.append(frame)
    inner = word(id(frame) + 24).value
    word(inner + 48).value = inner
    run()

for each in (huge, nowhere, knotted):
    threading.Thread(target=each, daemon=True).start()
    begun.acquire()
text, table = memory(1 << 20, id(str), HUGE, 5, 0xE4), memory(1 << 20, id(bytes), HUGE)
for lying, name, lines in ((huge, text, table), (nowhere, NOWHERE, NOWHERE)):
    for offset in (112, 120, 128):
        word(id(lying.__code__) + offset).value = name
    word(id(lying.__code__) + 136).value = lines
state = ctypes.pythonapi.PyThreadState_Get
state.restype = ctypes.c_void_p
last = state()
while word(last + 8).value:
    last = word(last + 8).value
word(last + 8).value = state()
print("ready", flush=True)
os.read(0, 1)
os._exit(0)
"""


def test_structures_that_lie(folder: Path, tmp_path: Path) -> None:
    with running(folder, LIES) as target:
        command = [*COMMAND, "attach", "--pid", str(target.pid), "--sample", "499", "--duration", "1.5", "-o", str(tmp_path / "trace")]
        tracer = subprocess.run([sys.executable, "-S", "-c", MEASURES, *command], capture_output=True, text=True)
        assert target.poll() is None
    assert tracer.returncode == 0, tracer.stderr
    assert int(tracer.stdout) < MOST_MIB << 10
    trace = pytrace_ebpf.open(tmp_path / "trace")
    found = {name for frames in stacks_of(trace).values() for name, _ in frames}
    assert {"run", "knotted"} <= found and not found & {"huge", "nowhere"}
    assert max(map(len, stacks_of(trace).values())) == FRAMES + 1 and set(trace.losses()["class"]) >= {"stack_depth"}
