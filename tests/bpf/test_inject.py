"""A session begins in a running process that was not prepared for it, without side effects."""

import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pytrace_ebpf.errors import TargetError
from pytrace_ebpf.record.agent.directory import AgentDirectory
from pytrace_ebpf.record.agent.inject import Injection, begin, ptrace
from pytrace_ebpf.record.process.target import inspect
from tests.conftest import PATIENCE_S, ROOTS, Python

HERE = Path(__file__).parent
PYENV = Path.home() / ".pyenv" / "versions"
ATTACHES = 5

# Works until its input ends, checking itself all the time.
BUSY = """
import select, zlib
def work():
    return zlib.crc32(repr([x * 1.1 for x in range(200)]).encode())
first = work()
print("ready", flush=True)
while not select.select([0], [], [], 0)[0]:
    for _ in range(50):
        assert work() == first
"""
# The main thread only waits; the others take and give memory, with locks of malloc held much of the time.
MALLOC = """
import sys, threading
stop = False
def work():
    while not stop:
        kept = [bytearray(size) for size in range(600, 60000, 600)]
        assert sum(map(len, kept)) == 2970000
threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads: thread.start()
print("ready", flush=True)
sys.stdin.read()
stop = True
for thread in threads: thread.join()
"""
MANY = """
import sys, threading, time
stop = threading.Event()
naps = []
def work():
    while not stop.is_set():
        began = time.monotonic()
        stop.wait(0.02)
        naps.append(time.monotonic() - began)
threads = [threading.Thread(target=work) for _ in range(50)]
for thread in threads: thread.start()
print("ready", flush=True)
sys.stdin.read()
stop.set()
for thread in threads: thread.join()
assert len(naps) > 50
"""
JOIN = """
import os, threading
def work():
    total = 0
    while True:
        for x in range(20000): total += x
        if not pending.is_alive(): return
pending = threading.Thread(target=os.read, args=(0, 1))
pending.start()
worker = threading.Thread(target=work)
worker.start()
print("ready", flush=True)
worker.join()
"""
PIPE = """
import os
print("ready", flush=True)
assert os.read(0, 1) == b""
"""
PROGRAMS = {"busy": BUSY, "malloc": MALLOC, "many": MANY, "join": JOIN, "pipe": PIPE}

# A call of the C library that the visit must not be seen in: no EINTR, no other duration.
C_CALL = """
import ctypes, os, select, socket, sys, time
libc = ctypes.CDLL(None, use_errno=True)
reading, writing = os.pipe()
span = (ctypes.c_long * 2)(2, 0)
epoll = select.epoll()
print("ready", flush=True)
began = time.monotonic()
result = {call}
took = time.monotonic() - began
assert result == 0, (result, ctypes.get_errno())
assert 1.99 < took < 4, took
"""
C_CALLS = {
    "poll": "libc.poll(None, 0, 2000)",
    "nanosleep": "libc.nanosleep(span, None)",
    "select": "libc.select(0, None, None, None, (ctypes.c_long * 2)(0, 2_000_000))",
    "usleep": "libc.usleep(2_000_000)",
}


class Process:
    """A program on some Python that says ready, and ends when its input does."""

    def __init__(self, command: list[str], source: str) -> None:
        self.process = subprocess.Popen([*command, "-c", source], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.watchdog = threading.Timer(PATIENCE_S, self.process.kill)
        self.watchdog.start()
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"ready\n"
        self.pid = self.process.pid

    def ends_well(self) -> bool:
        self.process.communicate()
        return self.process.returncode == 0

    def close(self) -> None:
        self.watchdog.cancel()
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def start() -> Iterator[Callable[..., Process]]:
    started: list[Process] = []

    def start(source: str, command: list[str] | None = None) -> Process:
        started.append(Process(command or [sys.executable], source))
        return started[-1]

    yield start
    for each in started:
        each.close()


@pytest.fixture(scope="session")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("stub") / "agent.so"
    subprocess.run(["cc", "-O2", "-fPIC", "-shared", "-o", str(library), str(HERE / "session_stub.c")], check=True)
    return library


def attach(pid: int, stub: Path, patience_s: float = 10.0) -> tuple[Injection, int]:
    """Begin a session; returns how, and how often it was begun."""
    target = inspect(pid)
    directory = AgentDirectory([("arena_bytes", 1 << 20)], target.process, library=stub)
    seen = Path(f"/proc/{pid}/root{directory.path}")
    try:
        how = begin(target, directory, lambda: any(seen.glob("begun.*")), patience_s)
        return how, len(list(seen.glob("begun.*")))
    finally:
        directory.remove()


def pythons() -> dict[str, list[str]]:
    """One Python for each way there is, of those at hand: name -> command."""
    found = {"host": [sys.executable]}
    for version in ("3.9", "3.11", "3.13"):
        found |= {f"pyenv-{version}": [str(path / "bin" / "python3")] for path in PYENV.glob(f"{version}.*")}
    for version, root in (("3.9", "bullseye"), ("3.14", "sid")):
        if (ROOTS / root).exists() and os.geteuid() == 0:
            words = Python(version, ROOTS / root).command("")
            found[f"{root}-{version}"] = words[: words.index(f"/usr/bin/python{version}") + 1]
    return found


PYTHONS = pythons()


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("interpreter", PYTHONS.values(), ids=PYTHONS)
def test_every_attach_begins_one_session(interpreter: list[str], program: str, start: Callable[..., Process], stub: Path) -> None:
    process = start(PROGRAMS[program], interpreter)
    for _ in range(ATTACHES):
        how, sessions = attach(process.pid, stub)
        assert sessions == 1
        assert how.stop_ns < 1_000_000_000
    assert process.ends_well()


@pytest.mark.parametrize("call", C_CALLS.values(), ids=C_CALLS)
def test_an_interrupted_system_call_goes_on_unnoticed(call: str, start: Callable[..., Process], stub: Path) -> None:
    process = start(C_CALL.format(call=call))
    for _ in range(3):
        attach(process.pid, stub)
    assert process.ends_well()


def test_a_signal_that_comes_meanwhile_interrupts_as_ever(start: Callable[..., Process], stub: Path) -> None:
    process = start(
        "import signal, time\n"
        "got = []\n"
        "signal.signal(signal.SIGUSR1, lambda *_: got.append(1))\n"
        "class Enough(Exception): pass\n"
        "def enough(*_): raise Enough\n"
        "signal.signal(signal.SIGUSR2, enough)\n"
        "print('ready', flush=True)\n"
        "try: time.sleep(50)\n"
        "except Enough: assert got\n"
        "else: raise AssertionError\n"
    )
    for _ in range(10):
        late = threading.Timer(random.uniform(0.005, 0.03), os.kill, (process.pid, signal.SIGUSR1))
        late.start()
        attach(process.pid, stub)
        late.join()
    os.kill(process.pid, signal.SIGUSR2)
    began = time.monotonic()
    assert process.ends_well()
    assert time.monotonic() - began < 30


@pytest.mark.parametrize("program", ["busy", "malloc", "pipe"])
def test_the_target_goes_on_when_the_tracer_is_killed(program: str, start: Callable[..., Process], stub: Path) -> None:
    """After each single step of the tracer."""
    process = start(PROGRAMS[program])
    for step in range(1, 60):
        if not killed_after(step, process.pid, stub):
            break
    else:
        step = 0
    assert step > 8
    attach(process.pid, stub)
    assert process.ends_well()


def test_a_killed_tracer_leaves_the_system_call_alone(start: Callable[..., Process], stub: Path) -> None:
    source = C_CALL.format(call=C_CALLS["select"].replace("2_000_000", "4_000_000"))
    process = start(source.replace("1.99 < took < 4", "3.99 < took < 6"))
    for step in range(8, 40):
        killed_after(step, process.pid, stub)
    assert process.ends_well()


def killed_after(step: int, pid: int, stub: Path) -> bool:
    """Attach in a process that is killed when it has made `step` calls of ptrace; whether it came so far."""
    child = os.fork()
    if child == 0:
        try:
            calls = iter(range(step - 1))
            real = ptrace.libc

            def counted(*arguments: object) -> int:
                result = int(real.ptrace(*arguments))
                if next(calls, None) is None:
                    os.kill(os.getpid(), signal.SIGKILL)
                return result

            ptrace.libc = type("Libc", (), {"ptrace": staticmethod(counted)})()
            attach(pid, stub)
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def test_a_suspended_process_is_left_alone(start: Callable[..., Process], stub: Path) -> None:
    process = start(PIPE)
    process.process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
    with pytest.raises(TargetError, match=r"is suspended .*kill -CONT"):
        attach(process.pid, stub)
    process.process.send_signal(signal.SIGCONT)
    assert process.ends_well()


@contextmanager
def limited(pid: int, stopped_s: float = 0.08, running_s: float = 0.02) -> Iterator[None]:
    """While the block runs, the process is suspended and continued as by cpulimit; it is there, stopped, when the block begins."""
    enough, first = threading.Event(), threading.Event()

    def turns() -> None:
        while not enough.is_set():
            os.kill(pid, signal.SIGSTOP)
            first.set()
            enough.wait(stopped_s)
            os.kill(pid, signal.SIGCONT)
            enough.wait(running_s)

    turning = threading.Thread(target=turns)
    turning.start()
    first.wait()
    try:
        yield
    finally:
        enough.set()
        turning.join()


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("interpreter", PYTHONS.values(), ids=PYTHONS)
def test_a_process_that_is_suspended_all_the_time_is_attached_to_when_it_runs(
    interpreter: list[str], program: str, start: Callable[..., Process], stub: Path
) -> None:
    process = start(PROGRAMS[program], interpreter)
    with limited(process.pid):
        for _ in range(ATTACHES):
            assert attach(process.pid, stub, 60)[1] == 1
    assert process.ends_well()


@pytest.mark.parametrize("program", ["pipe", "busy"])
@pytest.mark.parametrize(
    ("limit", "room", "said"),
    [(resource.RLIMIT_NOFILE, 3, "it may have 3 files open at a time.*RLIMIT_NOFILE"), (resource.RLIMIT_AS, 1 << 20, "leaves 1.0 MB .RLIMIT_AS")],
    ids=["files", "memory"],
)
def test_a_limit_that_leaves_no_room_is_named(program: str, limit: int, room: int, said: str, start: Callable[..., Process], tmp_path: Path) -> None:
    process = start(PROGRAMS[program])
    if limit == resource.RLIMIT_AS:
        room += int(next(line.split()[1] for line in Path(f"/proc/{process.pid}/status").read_text().splitlines() if line.startswith("VmSize"))) << 10
    before = resource.prlimit(process.pid, limit, (room, resource.getrlimit(limit)[1]))
    target = inspect(process.pid)
    directory = AgentDirectory([("arena_bytes", 64 << 20)], target.process)
    try:
        with pytest.raises(TargetError, match=said):
            begin(target, directory, lambda: any(directory.arenas()), 1.0)
    finally:
        directory.remove()
    resource.prlimit(process.pid, limit, before)
    assert process.ends_well()


def test_a_debugged_process_is_left_alone(start: Callable[..., Process], stub: Path) -> None:
    process = start(PIPE)
    with ptrace.Stopped(inspect(process.pid).process, process.pid), pytest.raises(TargetError, match="held by a debugger"):
        attach(process.pid, stub)
    assert process.ends_well()


def test_an_injection_that_gives_up_leaves_nothing_armed(start: Callable[..., Process], stub: Path) -> None:
    """Nothing but native code runs until it is given up; what was asked for then does not happen later."""
    process = start("import hashlib, sys, os\nprint('ready', flush=True)\nhashlib.pbkdf2_hmac('sha256', b'a', b'b', 3_000_000)\nos.read(0, 1)\n")
    with pytest.raises(TargetError, match="native code"):
        attach(process.pid, stub, 0.3)
    assert process.ends_well()
