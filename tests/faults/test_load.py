"""More than is usual: processes, threads, programs that start; and an interpreter that is replaced."""

import resource
import subprocess
from pathlib import Path

import pytest

from tests.bpf.conftest import COMMAND, wait_until
from tests.conftest import PATIENCE_S
from tests.faults.scene import PYTHON, WINDOW_NS, Scene

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
for _ in range(int(sys.argv[1])):
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


def descriptors_of(pid: int) -> int:
    """How many files a process has open."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def test_200_processes(scene: Scene) -> None:
    """200 processes run"""
    process = scene.program(FAMILY, PYTHON, "199")
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


def test_few_files_may_be_open(scene: Scene) -> None:
    """The daemon may have 200 files open, and 60 processes run"""
    process = scene.program(FAMILY, PYTHON, "59")
    daemon = scene.daemon(within=("prlimit", "--nofile=200"))
    wait_until(lambda: daemon.status()["sampled"] + daemon.status()["too_many"] == 60)
    scene.sampled(daemon)
    status = daemon.status()
    assert 0 < status["sampled"] == status["most"] < 60 and not status["not_sampled"]
    wait_until(lambda: len(daemon.functions()) == status["most"])
    scene.says(next(line for line in daemon.ask("status").stdout.splitlines() if "at most" in line))
    scene.lose(processes=status["too_many"], windows=status["windows_not_written"])
    assert process.poll() is None and status["windows_not_written"] == 0


def test_nothing_can_be_opened(scene: Scene) -> None:
    """The daemon can open no file for a while"""
    first = scene.program()
    daemon = scene.daemon()
    scene.sampled(daemon)
    log, before = scene.folder / "log", descriptors_of(daemon.process.pid)
    limits = resource.prlimit(daemon.process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(daemon.process.pid, resource.RLIMIT_NOFILE, (3, limits[1]))
    second = scene.program()
    wait_until(lambda: "Too many open files" in log.read_text())
    asked = [
        *COMMAND,
        "request",
        "--socket",
        scene.folder / "run" / "daemon.sock",
        "--pid",
        str(first.pid),
        "--duration",
        "1",
        "-o",
        scene.folder / "asked",
    ]
    waiting = subprocess.Popen(asked, stderr=subprocess.PIPE, text=True)  # in the line of those who connect
    resource.prlimit(daemon.process.pid, resource.RLIMIT_NOFILE, limits)
    assert waiting.communicate(timeout=PATIENCE_S) and waiting.returncode == 0
    wait_until(lambda: daemon.status()["sampled"] == 2 and daemon.status()["why_not_written"] is None)
    wait_until(lambda: "fib" in daemon.functions().get(second.pid, ()))
    scene.says(next(line for line in log.read_text().splitlines() if "Too many open files" in line))
    missing = daemon.status()["windows_not_written"]
    assert missing > 0 and scene.gap_s(first, daemon) >= missing * WINDOW_NS / 1e9
    scene.lose(windows=missing)
    wait_until(lambda: descriptors_of(daemon.process.pid) <= before + 16)  # one more process is sampled
