"""More than is usual: processes, threads, programs that start; and an interpreter that is replaced."""

import pytest

from tests.bpf.conftest import wait_until
from tests.faults.scene import Scene

# Starts a program again and again for some seconds; says how many a second.
EXECS = """
import os, sys, time
print("ready", flush=True)
sys.stdin.readline()
began, count = time.monotonic(), 0
while time.monotonic() - began < 5:
    children = [os.posix_spawn("/bin/true", ["true"], {}) for _ in range(16)]
    for child in children: os.waitpid(child, 0)
    count += len(children)
print(count / 5, flush=True)
sys.stdin.read()
"""
BOMB = """
import os, sys, time
print("ready", flush=True)
sys.stdin.readline()
children = []
for _ in range(1000):
    child = os.fork()
    if not child:
        time.sleep(2)
        os._exit(0)
    children.append(child)
assert all(os.waitpid(child, 0)[1] == 0 for child in children)
print(len(children), flush=True)
sys.stdin.read()
"""
FAMILY = """
import os, select, sys
children = []
for _ in range(199):
    child = os.fork()
    if not child: break
    children.append(child)
else:
    print("ready", flush=True)
def work():
    while not select.select([0], [], [], 0.2)[0]: sum(range(1000))
work()
if not children or child: assert all(os.waitpid(each, 0)[1] == 0 for each in children)
else: os._exit(0)
"""
THREADS = """
import sys, threading, time
ended = threading.Event()
def work():
    while not ended.wait(0.5): sum(range(1000))
threads = [threading.Thread(target=work) for _ in range(2000)]
for each in threads: each.start()
print("ready", flush=True)
sys.stdin.read()
ended.set()
for each in threads: each.join()
"""


def test_200_processes(scene: Scene) -> None:
    """200 processes run"""
    process = scene.program(FAMILY)
    daemon = scene.daemon()
    wait_until(lambda: daemon.status()["sampled"] == 200)
    scene.sampled(daemon, 4)
    wait_until(lambda: len(daemon.functions()) == 200)
    scene.lose(events=daemon.status()["lost"], s_of_samples=scene.gap_s(process, daemon))


@pytest.mark.parametrize(("text", "least"), [(EXECS, 0), (BOMB, 1000)], ids=["execs", "forks"])
def test_many_start(scene: Scene, text: str, least: int) -> None:
    """As many programs as go are executed for 5 s; a process forks 1,000 times at once"""
    other = scene.program()
    daemon = scene.daemon()
    scene.sampled(daemon)
    process = scene.program(text)
    assert process.stdin and process.stdout
    process.stdin.write(b"\n")
    process.stdin.flush()
    count = float(process.stdout.readline())
    assert count > least - 1
    scene.sampled(daemon, 3)
    scene.says(f"{count:.0f} were seen to start")
    scene.lose(events=daemon.status()["lost"], s_of_samples=scene.gap_s(other, daemon))
    wait_until(lambda: daemon.status()["sampled"] == 2)


def test_2000_threads(scene: Scene) -> None:
    """A process has 2,000 threads"""
    process = scene.program(THREADS)
    daemon = scene.daemon()
    scene.sampled(daemon, 4)
    assert "work" in daemon.functions()[process.pid]
    scene.lose(events=daemon.status()["lost"], s_of_samples=scene.gap_s(process, daemon))
