"""`dump`: what each thread does right now, against faulthandler's stacks and what the program itself waits for."""

import ctypes
import json
import mmap
import os
import re
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from pytrace_ebpf.cli import main
from pytrace_ebpf.cli.dump import _primitive
from pytrace_ebpf.record.dump.resources import Resources
from pytrace_ebpf.record.process.pinned import Pinned
from pytrace_ebpf.view.dump import dump, summary
from tests.conftest import PATIENCE_S, without_rights
from tests.unit.agent_pythons import BUILDS, PYTHONS, TARGETS

NOBODY = 65534
FAULTHANDLERS = re.compile(r'  File "(.+)", line (\d+) in (.+)')


@dataclass
class Waiting:
    """tests/targets/dumped.py, all of whose threads wait."""

    process: "subprocess.Popen[str]"
    folder: Path
    port: int  # that it listens on
    peer: int  # port of the connection's other end
    child: int

    def stacks(self) -> dict[str, list[tuple[str, int]]]:
        """(function, line) of each thread by its innermost function, innermost first, as faulthandler has them."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "written\n"
        found = {}
        for thread in (self.folder / "stacks").read_text().split("\n\n"):
            frames = [(name, int(line)) for _, line, name in FAULTHANDLERS.findall(thread)]
            found[next((name for name, _ in frames if name[0] != "<"), "")] = frames
        return found


@pytest.fixture
def waiting(interpreter: str, tmp_path: Path) -> Iterator[Waiting]:
    words = [BUILDS[interpreter], "-I", "-S", str(TARGETS / "dumped.py"), str(tmp_path / "stacks"), str(tmp_path / "socket")]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield Waiting(process, tmp_path, *map(int, process.stdout.readline().split()))
    finally:
        process.communicate(timeout=PATIENCE_S)


def dumped(pid: int, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main.main(["dump", str(pid), "--json"]) == 0
    return dict(json.loads(capsys.readouterr().out))


@pytest.mark.parametrize("interpreter", BUILDS)
def test_every_stack_is_faulthandlers_and_every_wait_names_its_object(waiting: Waiting, capsys: pytest.CaptureFixture[str]) -> None:
    looked_s = time.monotonic()
    found = dumped(waiting.process.pid, capsys)
    passed_s = time.monotonic() - looked_s
    truth = waiting.stacks()
    threads = {each["name"] if each["tid"] != found["pid"] else "main": each for each in found["threads"]}
    assert len(threads) == 11 and found["pid"] == waiting.process.pid
    for name, thread in threads.items():
        assert thread["state"] == "blocked"
        if name == "main":  # at another line when faulthandler writes
            assert [frame["own"] for frame in thread["frames"]][-1]
            continue
        frames = [(frame["function"].rpartition(".")[2], frame["line"]) for frame in thread["frames"]]
        assert frames in truth.values(), name
    names = {name: (each["waits_for"], each["resources"]) for name, each in threads.items() if name != "main"}
    peer, pipe = f"tcp 127.0.0.1:{waiting.port}", "a pipe"
    assert names == {
        "waits_lock": ("lock", []),
        "reads_tcp": ("net", [peer]),
        "accepts_tcp": ("net", [f"tcp, listening on 127.0.0.1:{waiting.port}"]),
        "accepts_unix": ("net", [f"unix socket {waiting.folder}/socket"]),
        "polls": ("poll", [peer, pipe]),
        "epolls": ("poll", [peer]),
        "selects": ("poll", [pipe]),
        "waits_child": ("wait-child", [f"child process {waiting.child} (sleep)"]),
        "reads_pipe": ("io-read", [f"a pipe, process {waiting.child} (sleep)"]),
        "sleeps": ("sleep", []),
    }
    again = {each["tid"]: each["off_cpu_ns"] for each in dumped(waiting.process.pid, capsys)["threads"]}
    for name, thread in threads.items():
        if name != "main" and None not in (thread["off_cpu_ns"], again[thread["tid"]]):  # the kernel tells, in time
            assert again[thread["tid"]] - thread["off_cpu_ns"] > 0
    assert passed_s < PATIENCE_S


def test_threads_that_have_waited_longer_say_so(capsys: pytest.CaptureFixture[str]) -> None:
    """The scheduler's clocks of two cores may be seconds apart, so the time of a wait is checked against this process's own."""
    program = "import sys, time\nprint(flush=True)\nsys.stdin.readline()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        began_s = time.monotonic()
        stat = Path(f"/proc/{process.pid}/stat")
        while stat.read_text().rpartition(")")[2].split()[0] != "S":
            time.sleep(0.001)
        waits_s = time.monotonic()
        time.sleep(0.5)
        before_s = time.monotonic()
        (thread,) = dumped(process.pid, capsys)["threads"]
        after_s = time.monotonic()
        process.communicate("\n")
    if thread["off_cpu_ns"] is None:
        pytest.skip("this kernel does not tell when a thread was last on a core")
    assert before_s - waits_s - 0.1 < thread["off_cpu_ns"] / 1e9 < after_s - began_s + 0.1


@pytest.mark.parametrize("interpreter", PYTHONS)
def test_who_holds_the_gil_while_others_wait_for_it(interpreter: str, capsys: pytest.CaptureFixture[str]) -> None:
    program = (
        "import signal, threading\ndef computes():\n    while True: sum(range(1000))\n"
        "for k in range(3): threading.Thread(target=computes).start()\nprint(flush=True)\nsignal.pause()"
    )
    with subprocess.Popen([BUILDS[interpreter], "-I", "-c", program], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            until_s = time.monotonic() + PATIENCE_S
            while True:
                found = dumped(process.pid, capsys)
                waiters = [each for each in found["threads"] if each["state"] == "gil_wait"]
                (main_thread,) = (each for each in found["threads"] if each["tid"] == found["pid"])
                if main_thread["syscall"] == "pause" and waiters and found["gil_holder"] not in (None, *(each["tid"] for each in waiters)):
                    break
                assert time.monotonic() < until_s
        finally:
            process.kill()
    assert all(each["waits_on"]["holder"] == found["gil_holder"] for each in waiters)
    assert all(each["waits_for"] == "gil" and each["frames"][0]["function"] == "computes" for each in waiters)
    assert found["gil_holder"] in {each["tid"] for each in found["threads"]}
    # Its registers still hold the GIL's address, which pause() does not take.
    assert (main_thread["state"], main_thread["waits_for"]) == ("blocked", "other")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["dump", "2000000000"], 3, "process 2000000000 does not exist"),
        (["dump"], 2, "PID is missing"),
    ],
)
def test_what_cannot_be_looked_at_is_one_sentence(words: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(words) == code
    told = capsys.readouterr()
    assert told.out == "" and said in told.err and told.err.count("\n") == 1


def test_another_program_is_no_python(capsys: pytest.CaptureFixture[str]) -> None:
    with subprocess.Popen(["sleep", "100"]) as process:
        try:
            assert main.main(["dump", str(process.pid)]) == 3
        finally:
            process.kill()
    assert "sleep, which is not a Python" in capsys.readouterr().err


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be somebody else")
def test_ordinary_users_look_at_their_own_processes_and_no_others(capsys: pytest.CaptureFixture[str]) -> None:
    program = "import sys; print(flush=True); sys.stdin.readline()"
    own = without_rights(NOBODY, "-c", program)
    with (
        subprocess.Popen(own, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as theirs,
        subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as ours,
    ):
        for each in (theirs, ours):
            assert each.stdout is not None and each.stdout.readline() == "\n"
        looks = [
            subprocess.run(without_rights(NOBODY, "-m", "pytrace_ebpf", "dump", str(each.pid)), capture_output=True, text=True)
            for each in (theirs, ours)
        ]
        for each in (theirs, ours):
            each.communicate("\n")
    assert looks[0].returncode == 0 and "<module>" in looks[0].stdout, looks[0].stderr
    assert looks[1].returncode == 4 and "may not be inspected by this user" in looks[1].stderr


def thread(tid: int, name: str, **more: Any) -> dict[str, Any]:
    frames = [
        {"function": "Pool.get", "file": "/usr/lib/python3.11/site-packages/pool.py", "first_line": 1, "line": 5, "own": False},
        {"function": "order", "file": "/srv/shop.py", "first_line": 8, "line": 9, "own": True},
    ]
    waits = {"state": "blocked", "waits_for": "poll", "syscall": "poll", "resources": ["postgres 10.0.0.5:5432"], "off_cpu_ns": 1_500_000_000}
    waits |= {"primitive": None, "waits_on": None}
    return {"tid": tid, "name": name, **waits, "frames": frames} | more


def shown(*threads: dict[str, Any], holder: int | None = None, whole: bool = False, **more: Any) -> str:
    found = {
        "pid": 7,
        "command": "python shop.py",
        "python": "3.11.2",
        "gil_holder": holder,
        "deadlocks": [],
        "threads": list(threads),
        "tasks": [],
        "task_deadlocks": [],
        "left_out": [],
    } | more
    screen = Console(width=100, record=True, file=None, quiet=False, force_terminal=False)
    with screen.capture() as capture:
        screen.print(dump(found, 100, whole))
    return capture.get()


def test_threads_that_do_the_same_are_shown_once() -> None:
    idle = [thread(10 + k, f"pool-{k}", waits_for="lock", syscall="futex", resources=[], frames=[], off_cpu_ns=k * 10**9) for k in range(6)]
    said = shown(
        *idle,
        thread(1, "MainThread"),
        thread(2, "worker", off_cpu_ns=2_000_000_000),
        thread(3, "busy", state="on_cpu", waits_for=None, resources=[], off_cpu_ns=None),
    )
    assert said.splitlines() == [
        "python shop.py   Python 3.11.2   pid 7   9 threads",
        "Of 9 threads 6 are waiting for a lock, 2 are waiting in poll for postgres 10.0.0.5:5432 and 1 is ",
        "computing.",
        "",
        "busy (3)  computing",
        "    Pool.get  /usr/lib/python3.11/site-packages/pool.py:5",
        "  > order  /srv/shop.py:9",
        "",
        "MainThread (1), worker (2)  waiting in poll for postgres 10.0.0.5:5432, for 1.50s to 2.00s",
        "    Pool.get  /usr/lib/python3.11/site-packages/pool.py:5",
        "  > order  /srv/shop.py:9",
        "",
        "pool-0 (10), pool-1 (11), pool-2 (12), pool-3 (13), 2 more  waiting for a lock, for 0 to 5.00s",
        "    (no Python code)",
    ]


def test_the_holder_of_the_gil_is_named_where_others_wait_for_it() -> None:
    waits = {"state": "gil_wait", "waits_for": "gil", "resources": []}
    holder = {"kind": "gil", "name": None, "address": None, "holder": 2}
    found = {"threads": [thread(1, "a", **waits, waits_on=holder), thread(2, "b", state="on_cpu", waits_for=None)]}
    assert summary(found) == "Of 2 threads 1 is waiting for the GIL, which b (2) has and 1 is computing."
    found["threads"][0]["waits_on"] = None
    assert summary(found) == "Of 2 threads 1 is waiting for the GIL and 1 is computing."
    assert summary({"threads": [thread(1, "a")]}) == "Its only thread is waiting in poll for postgres 10.0.0.5:5432."


def test_deadlocks_come_first_in_a_sentence_and_their_threads_next() -> None:
    def waits(tid: int, name: str, holder: int, **more: Any) -> dict[str, Any]:
        on = {"kind": "lock", "name": f"lock_{tid}", "address": tid, "holder": holder}
        return thread(tid, name, waits_for="lock", syscall="futex", resources=[], waits_on=on | more, off_cpu_ns=None)

    locked = [waits(2, "b", 3), waits(3, "c", 2, kind="thread"), waits(4, "d", 4)]
    said = shown(thread(1, "a"), *locked, deadlocks=[[2, 3], [4]]).splitlines()
    assert " ".join(" ".join(said[1:5]).split()).split(" Of ")[0] == (
        "Deadlock: b (2), in order /srv/shop.py:9, waits for lock_2, which c (3) has; c (3), in order /srv/shop.py:9, waits for the end of b (2). "
        "Deadlock: d (4), in order /srv/shop.py:9, waits for lock_4, which it has itself."
    )
    assert "d (4)  waiting for lock_4, which it has itself" in said
    heads = [line.split()[0] for at, line in enumerate(said) if at and not said[at - 1]]
    assert set(heads[:3]) == {"b", "c", "d"} and heads[3] == "a"


def test_who_has_what_others_wait_for_comes_next_and_says_so() -> None:
    on = {"kind": "rlock", "name": "self._lock", "address": 1, "holder": 9}
    waiters = [thread(k, "w", waits_for="lock", syscall="futex", resources=[], waits_on=on, off_cpu_ns=10**9) for k in range(2, 5)]
    said = shown(thread(1, "a"), *waiters, thread(9, "holds", off_cpu_ns=2 * 10**9)).splitlines()
    first = said[said.index("") + 1]
    assert first == "holds (9)  waiting in poll for postgres 10.0.0.5:5432, for 2.00s; has self._lock (3 wait for it)"
    assert "w (2), w (3), w (4)  waiting for self._lock, which holds (9) has, for 1.00s" in said


def task(name: str, **more: Any) -> dict[str, Any]:
    frames = [{"function": "fetch", "file": "/srv/shop.py", "first_line": 1, "line": 3, "own": True}]
    waits = {"thread": 1, "state": "waiting", "awaits": [], "awaits_more": 0, "awaited": [], "waits_on": None, "primitive": "sleep"}
    return {"id": hash(name), "name": name, **waits, "frames": frames} | more


def test_tasks_that_do_the_same_are_shown_once() -> None:
    others = [task("each", awaits=[f"Task-{k}"], primitive=None) for k in range(2)]
    many = task("all", awaits=["a", "b", "c"], awaits_more=7, frames=[])
    said = shown(thread(1, "a"), tasks=[*(task(f"Task-{k}") for k in range(6)), *others, many, task("runs", state="running")])
    assert "Of 10 tasks 6 are awaiting sleep, 3 are awaiting other tasks and 1 is running." in said
    assert "Task-0, Task-1, Task-2, Task-3, 2 more  tasks of the loop of a (1), awaiting sleep\n  > fetch  /srv/shop.py:3\n" in said
    assert "each, each  tasks of the loop of a (1), awaiting other tasks\n" in said
    assert "all  a task of the loop of a (1), awaiting a, b, c and 7 more\n    (no Python code)" in said
    assert "runs  a task of the loop of a (1), running\n" in said


def test_what_an_idle_thread_waits_through_is_named() -> None:
    library, ends = "/usr/lib/python3.11", [("Thread.run", "threading.py"), ("Thread._bootstrap", "threading.py")]

    def through(*frames: tuple[str, str]) -> str | None:
        return _primitive([{"function": name, "file": f"{library}/{file}"} for name, file in (*frames, *ends)])

    waits = ("Condition.wait", "threading.py")
    assert through(waits, ("Event.wait", "threading.py")) == "Event.wait"
    assert through(waits, ("Queue.get", "queue.py"), ("work", "../shop.py")) == "Queue.get"
    assert through(("_worker", "concurrent/futures/thread.py")) == "ThreadPoolExecutor"
    assert through(("Lock.acquire", "asyncio/locks.py"), ("_Mixin.__aenter__", "asyncio/locks.py"), ("own", "../shop.py")) == "Lock.acquire"
    assert through(("read", "socket.py")) is None and through() is None


def test_a_frame_whose_line_is_not_known_stands_beside_others() -> None:
    frames = thread(1, "a")["frames"]
    said = shown(thread(1, "a"), thread(2, "b", frames=[frames[0] | {"line": None}, *frames[1:]]))
    assert "  Pool.get  /usr/lib/python3.11/site-packages/pool.py\n" in said and "pool.py:5" in said


def resources() -> Resources:
    process = Pinned(os.getpid())
    return Resources(process, process.memory)


def test_descriptors_that_are_closed_hide_no_others() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        asked = struct.pack("<ihhihh", 1_000_000, 1, 0, ours.fileno(), 1, 0)
        buffer = ctypes.create_string_buffer(asked)
        garbage = 7 << 32  # above an argument of 32 bits
        assert resources().of("poll", (ctypes.addressof(buffer), garbage | 2)) == ["a unix socket"]
        assert resources().of("read", (garbage | ours.fileno(),)) == ["a unix socket"]


def test_a_select_of_few_descriptors_reads_no_more_than_the_kernel() -> None:
    libc, page = ctypes.CDLL(None), mmap.PAGESIZE
    libc.mmap.restype, libc.munmap.argtypes = ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_size_t)
    begin = libc.mmap(None, ctypes.c_size_t(2 * page), mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, ctypes.c_long(0))
    libc.munmap(begin + page, page)
    reads, writes = os.pipe()
    try:
        size = 8 * (reads // 64 + 1)  # behind it there is nothing
        ctypes.memmove(begin + page - size, (1 << reads).to_bytes(size, "little"), size)
        assert resources().of("select", (reads + 1, begin + page - size, 0, 0)) == ["a pipe"]
    finally:
        libc.munmap(begin, page)
        os.close(reads)
        os.close(writes)


def test_a_name_that_looks_like_further_rows_names_no_other_socket() -> None:
    with socket.socket(socket.AF_UNIX) as honest, socket.socket(socket.AF_UNIX) as forged, socket.socket() as listening:
        honest.bind(f"\0honest-{os.getpid()}")
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        told = f"tcp, listening on 127.0.0.1:{listening.getsockname()[1]}"
        assert [resources().descriptor(each.fileno()) for each in (honest, listening)] == [f"unix socket @honest-{os.getpid()}", told]
        inodes = [os.fstat(each.fileno()).st_ino for each in (honest, listening)]
        forged.bind("\0\n" + "\n".join(f"0: 2 0 0 1 1 {inode} /lie" for inode in inodes))
        assert [resources().descriptor(each.fileno()) for each in (honest, listening)] == ["a unix socket", told]


def test_deep_stacks_are_cut_unless_asked_for() -> None:
    frames = [{"function": f"f{k}", "file": "/srv/shop.py", "first_line": k, "line": k, "own": True} for k in range(30)]
    assert "f23 " in shown(thread(1, "deep", frames=frames)) and "f24 " not in shown(thread(1, "deep", frames=frames))
    assert "(6 frames more: --all)" in shown(thread(1, "deep", frames=frames)) and "f29 " in shown(thread(1, "deep", frames=frames), whole=True)
