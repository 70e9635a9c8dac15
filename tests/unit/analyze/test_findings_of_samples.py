"""Findings of samples: what each rule is known by in stacks, that threads without work are left out, and what a few samples may say."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest

import pytrace_ebpf
from pytrace_ebpf.cli.main import main
from pytrace_ebpf.trace.profile import SQUARES
from tests.unit.synthetic import Row, table_of, write_trace

MS = 1_000_000
PERIOD = 10 * MS
QUEUED, GIL, BLOCKED = 1, 2, 3
LIBRARY = "/usr/lib/python3.11"
MAIN, HANDLE, AUDIT, GET, WAIT, RUN, ONCE, BOOTSTRAP, WORKER, FIND, SERVE = range(11)
RECV, SLEEP, ACQUIRE, WAIT4, FSYNC, GETADDRINFO, POLL, ACCEPT, EVAL, START, READ = range(11, 22)
PYTHON = [
    (MAIN, "/app/shop.py", "main", "main", 100, "shop"),
    (HANDLE, "/app/shop.py", "handle", "handle", 10, "shop"),
    (AUDIT, "/app/shop.py", "audit", "audit", 30, "shop"),
    (GET, f"{LIBRARY}/queue.py", "get", "Queue.get", 154, "queue"),
    (WAIT, f"{LIBRARY}/threading.py", "wait", "Condition.wait", 288, "threading"),
    (RUN, f"{LIBRARY}/subprocess.py", "run", "run", 506, "subprocess"),
    (ONCE, f"{LIBRARY}/asyncio/base_events.py", "_run_once", "BaseEventLoop._run_once", 1845, "asyncio.base_events"),
    (BOOTSTRAP, f"{LIBRARY}/threading.py", "_bootstrap", "Thread._bootstrap", 985, "threading"),
    (WORKER, f"{LIBRARY}/concurrent/futures/thread.py", "_worker", "_worker", 69, "concurrent.futures.thread"),
    (FIND, "<frozen importlib._bootstrap>", "_find_and_load", "_find_and_load", 1165, "importlib._bootstrap"),
    (SERVE, f"{LIBRARY}/socketserver.py", "serve_forever", "BaseServer.serve_forever", 215, "socketserver"),
]
NATIVE = {RECV: "recv", SLEEP: "clock_nanosleep", ACQUIRE: "PyThread_acquire_lock_timed", WAIT4: "wait4", FSYNC: "fsync", GETADDRINFO: "getaddrinfo",
          POLL: "poll", ACCEPT: "accept4", EVAL: "python3.11+0x5d6440", START: "_start", READ: "read"}  # fmt: skip
FUNCTIONS: list[Row] = [*PYTHON, *((number, "/lib/libc.so.6", name, name, -1, "libc.so.6", 0, "native") for number, name in NATIVE.items())]


class Samples:
    """Samples by thread, state and stack, a path of functions from the outermost on, each at ten times its number and five."""

    def __init__(self) -> None:
        self.stacks, self.rows, self.numbers, self.now = list[Row](), list[Row](), dict[tuple[int, ...], int](), 1000 * MS

    def add(self, tid: int, state: int, ms: int, *path: int, times: int = 1) -> "Samples":
        """`times` looks at a thread: on a core, or after so many ms off it."""
        for depth in range(1, len(path) + 1):
            if path[:depth] not in self.numbers:
                self.numbers[path[:depth]] = len(self.stacks)
                self.stacks.append((len(self.stacks), self.numbers.get(path[: depth - 1], -1), path[depth - 1], 10 * path[depth - 1] + 5))
        for _ in range(times):
            self.now += ms * MS
            off = 0 if state == 0 else ms * MS
            self.rows.append((self.now, 7, tid, 0, self.numbers[path], -1, off, 0, state))
        return self

    def trace(self, path: Path, **more: Any) -> Any:
        """Written."""
        sampling = {"period_ns": PERIOD, "off_core": 1, "states": 2}
        manifest = {
            "sampling": sampling,
            "sources": [{"pid": 7, "source": "sample", "why": "asked"}],
            "scheduling": {"source": None, "why": "samples say it"},
        }
        rows = {"functions": FUNCTIONS, "stacks": self.stacks, "samples": self.rows, "end_ns": self.now + MS, "manifest": manifest} | more
        return pytrace_ebpf.open(write_trace(path / "trace", **rows))


PLANTED: dict[str, tuple[int, Sequence[int], str, str]] = {
    "peer": (BLOCKED, (MAIN, HANDLE, EVAL, RECV), "handle", "`handle` (shop.py:15) waits 99 %"),
    "sleep": (BLOCKED, (MAIN, HANDLE, EVAL, SLEEP), "handle", "`handle` (shop.py:15) sleeps 99 %"),
    "lock": (BLOCKED, (START, MAIN, HANDLE, EVAL, ACQUIRE), "handle", "for a lock."),
    "queue": (BLOCKED, (MAIN, HANDLE, GET, WAIT, EVAL, ACQUIRE), "handle", "in `Queue.get`."),
    "subprocess": (BLOCKED, (MAIN, HANDLE, RUN, EVAL, WAIT4), "handle", "in `subprocess.run`, for a child process."),
    "fsync": (BLOCKED, (MAIN, HANDLE, FSYNC), "handle", "for the disk to have files (fsync)."),
    "dns": (BLOCKED, (MAIN, HANDLE, GETADDRINFO, POLL), "handle", "for a name to be looked up."),
    "event-loop": (BLOCKED, (MAIN, ONCE, HANDLE, EVAL, SLEEP), "handle", "holds the event loop 99 % of the time, 3.00s: meanwhile it is asleep."),
    "wait": (BLOCKED, (MAIN, HANDLE, READ), "handle", "of the time, 3.00s, in read."),
    "gil": (GIL, (MAIN, HANDLE, ACQUIRE), "handle", "for the GIL, all of it in `handle` (shop.py:15)."),
    "cores": (QUEUED, (MAIN, HANDLE), "handle", "for a core, all of it in `handle` (shop.py:15)."),
    "computes": (0, (MAIN, HANDLE), "handle", "`handle` (shop.py:15) computes 99 %"),
    "imports": (0, (MAIN, HANDLE, FIND), "handle", "Imports compute 99 %"),
}  # fmt: skip


@pytest.mark.parametrize("rule", PLANTED)
def test_a_rule_is_known_by_the_stack_and_the_state(rule: str, tmp_path: Path) -> None:
    state, stack, function, said = PLANTED[rule]
    samples = Samples().add(7, state, 100 if state else 10, *stack, times=30 if state else 300).add(7, 0, 10, MAIN, AUDIT, times=3)
    first = samples.trace(tmp_path).findings().iloc[0]
    assert (first["rule"], first["function"], first["file"], first["line"]) == (rule, function, "/app/shop.py", 10 * HANDLE + 5), first["sentence"]
    assert said in first["sentence"] and first["share"] == pytest.approx(3000 / 3030) and first["confidence"] == pytest.approx(1.0)


RESOURCES: list[Row] = [
    (51, "tcp", "10.0.0.5:5432", "10.0.0.7:40000", False, 7, 4, 0, 0, 0),
    (52, "file", "/var/lib/app/log", "", False, 7, 5, 0, 0, 0),
]
NAMED: dict[str, tuple[Sequence[int], int, int, str, str]] = {
    "a peer": ((MAIN, HANDLE, EVAL, RECV), 45, 51, "peer", "for postgres 10.0.0.5:5432 (recvfrom)."),
    "a read of which the stack says nothing": ((MAIN, HANDLE, READ), 0, 51, "peer", "for postgres 10.0.0.5:5432 (read)."),
    "a page of memory": ((MAIN, HANDLE), -1, 0, "memory", "for memory to be read in (page faults)."),
    "a file": ((MAIN, HANDLE, READ), 0, 52, "file", "for /var/lib/app/log (read)."),
    "a file that goes to its disk": ((MAIN, HANDLE, FSYNC), 74, 52, "fsync", "for the disk to have /var/lib/app/log (fsync)."),
}


@pytest.mark.parametrize("what", NAMED)
def test_what_is_behind_the_descriptor_is_named(what: str, tmp_path: Path) -> None:
    stack, call, resource, rule, said = NAMED[what]
    samples = Samples().add(7, BLOCKED, 100, *stack, times=20)
    samples.rows = [(*row, None, call, resource) for row in samples.rows]
    samples.add(7, BLOCKED, 100, *stack, times=10)  # of these it is not known
    found = samples.trace(tmp_path, resources=RESOURCES).findings().iloc[0]
    assert found["rule"] == rule and found["command"].endswith(" --by wait") and said in found["sentence"], found["sentence"]


def test_a_server_that_waits_for_its_clients_has_nothing_to_do(tmp_path: Path) -> None:
    samples = Samples().add(7, BLOCKED, 100, MAIN, HANDLE, EVAL, RECV, times=20)
    samples.rows = [(*row, None, 45, 53) for row in samples.rows]
    accepted = (53, "tcp", "10.0.0.9:41000", "10.0.0.7:8000", False, 7, 4, 0, 0, 0)
    table = samples.add(7, 0, 10, MAIN, AUDIT, times=50).trace(tmp_path, resources=[*RESOURCES, accepted]).findings()
    assert table["rule"].tolist() == ["computes", "idle"] and table["share"].iloc[0] == 1.0, table["sentence"].tolist()
    assert table["sentence"].iloc[1].startswith("Left out: 2.00s"), table["sentence"].tolist()


IDLE: dict[str, Sequence[int]] = {
    "a thread of a pool": (BOOTSTRAP, WORKER, ACQUIRE),
    "a thread at its queue": (BOOTSTRAP, HANDLE, GET, WAIT, ACQUIRE),
    "a thread that accepts": (BOOTSTRAP, MAIN, HANDLE, ACCEPT),
    "a thread that a client sends nothing": (BOOTSTRAP, HANDLE, RECV),
    "a server": (BOOTSTRAP, MAIN, SERVE, POLL),
    "a loop that waits": (BOOTSTRAP, MAIN, ONCE, POLL),
    "a thread that sleeps between its rounds": (BOOTSTRAP, HANDLE, SLEEP),
}


@pytest.mark.parametrize("what", IDLE)
def test_a_thread_that_waits_for_work_is_left_out(what: str, tmp_path: Path) -> None:
    table = Samples().add(7, 0, 10, MAIN, AUDIT, times=50).add(8, BLOCKED, 4000, *IDLE[what], times=1).trace(tmp_path).findings()
    assert table["rule"].tolist() == ["computes", "idle"], table["sentence"].tolist()
    assert table["share"].iloc[0] == 1.0 and table["sentence"].iloc[1] == "Left out: 4.00s in which 1 thread only waited for work."


def test_what_is_drawn_has_an_error_and_what_a_few_draws_say_is_not_said(tmp_path: Path) -> None:
    """Waits of 5 ms are drawn every other time: two of them stand for 10 ms each, and may as well have been one or four."""
    samples = Samples().add(7, 0, 10, MAIN, AUDIT, times=16).add(7, BLOCKED, 5, MAIN, HANDLE, SLEEP, times=16)
    few = samples.add(7, BLOCKED, 1, MAIN, HANDLE, RECV, times=2).trace(tmp_path).findings()
    assert few["rule"].tolist() == ["sleep", "computes"] or few["rule"].tolist() == ["computes", "sleep"]
    sleeps = few[few["rule"] == "sleep"].iloc[0]
    assert sleeps["ns"] == 160 * MS and "± 8.3 %" in sleeps["sentence"]  # 16 draws of 10 ms with p = 1 / 2: 28.3 of 340 ms
    assert 0.99 < sleeps["confidence"] < 1


def test_samples_that_were_summed_say_it_too(tmp_path: Path) -> None:
    """As a daemon keeps them: no thread is known, and none is counted."""
    end, functions = 10_000 * MS, (MAIN, HANDLE, RECV)
    sums = [(0, 0, 0, 0), (0, 0, 0, 0), (0, 40, 0, 4000 * MS)]  # on a core and off it, missed, blocked
    rows = [
        (0, end, 7, at, at - 1, func_id, 5, on, off, missed, 0, 0, 0, blocked, 0, *(0.0,) * len(SQUARES))
        for at, (func_id, (on, off, missed, blocked)) in enumerate(zip(functions, sums, strict=True))
    ]
    sampling = {"period_ns": PERIOD, "off_core": 1, "states": 2, "summed_ns": end}
    manifest: dict[str, Any] = {"sampling": sampling, "sources": [{"pid": 7, "source": "sample", "why": "asked"}]}
    path = write_trace(tmp_path / "trace", functions=FUNCTIONS, end_ns=end, manifest=manifest)
    (path / "profile").mkdir()
    pq.write_table(table_of("profile", rows), path / "profile" / "part-00000.parquet")
    text = (path / "manifest.json").read_text()
    (path / "manifest.json").write_text(text.replace('"events": 0', f'"profile": {len(rows)}, "events": 0', 1))
    table = pytrace_ebpf.open(path).findings()
    assert table["rule"].tolist() == ["peer"] and table["ns"].iloc[0] == 4000 * MS and table["function"].iloc[0] == "handle"


def test_a_report_of_samples_opens_with_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = Samples().add(7, BLOCKED, 100, MAIN, HANDLE, EVAL, RECV, times=30).trace(tmp_path)
    assert main(["report", str(trace.directory)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Threads were at work for 3.00s, by samples. Most of that went to:"
    assert lines[1] == "1. `handle` (shop.py:15) waits 100 % of the time, 3.00s, for a connection (recv). [--by line]"
    assert main(["report", str(trace.directory), "--json"]) == 0
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert finding["rule"] == "peer" and finding["confidence"] == 1.0 and pd.isna(finding["resource"])
