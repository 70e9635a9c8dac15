"""Each rule of findings: a program in which it must be the first thing said, and one that looks alike and of which it must not be."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import pytrace_ebpf
from pytrace_ebpf.cli.main import main
from pytrace_ebpf.trace.schema import OBJECT_LOCK, SchedKind
from tests.unit.synthetic import FUTEX, Row, Script, write_trace

MS = 1_000_000
READ, RECVFROM, ACCEPT, FSYNC, WAIT4, EPOLL_WAIT, NONE = 0, 45, 43, 74, 61, 232, -1
LIBRARY = "/usr/lib/python3.11"
MAIN, HANDLE, ASK, HELD, OTHER = range(5)
RECV, GET, PUT, LOOK_UP, RUN, ONCE, SELECT, FIND, WORKER, SHAKE, SERVE, START, RESULT, ITEM = range(5, 19)
FUNCTIONS = [
    (MAIN, "/app/shop.py", "main", "main", 100, "shop"),
    (HANDLE, "/app/shop.py", "handle", "handle", 10, "shop"),
    (ASK, "/app/shop.py", "ask", "ask", 20, "shop"),
    (HELD, "/app/shop.py", "audit", "audit", 30, "shop"),
    (OTHER, "/app/shop.py", "crunch", "crunch", 40, "shop"),
    (RECV, f"{LIBRARY}/socket.py", "readinto", "SocketIO.readinto", 692, "socket"),
    (GET, f"{LIBRARY}/queue.py", "get", "Queue.get", 154, "queue"),
    (PUT, f"{LIBRARY}/queue.py", "put", "Queue.put", 122, "queue"),
    (LOOK_UP, f"{LIBRARY}/socket.py", "getaddrinfo", "getaddrinfo", 945, "socket"),
    (RUN, f"{LIBRARY}/subprocess.py", "run", "run", 506, "subprocess"),
    (ONCE, f"{LIBRARY}/asyncio/base_events.py", "_run_once", "BaseEventLoop._run_once", 1845, "asyncio.base_events"),
    (SELECT, f"{LIBRARY}/selectors.py", "select", "EpollSelector.select", 451, "selectors"),
    (FIND, "<frozen importlib._bootstrap>", "_find_and_load", "_find_and_load", 1165, "importlib._bootstrap"),
    (WORKER, f"{LIBRARY}/concurrent/futures/thread.py", "_worker", "_worker", 69, "concurrent.futures.thread"),
    (SHAKE, f"{LIBRARY}/ssl.py", "do_handshake", "SSLSocket.do_handshake", 1379, "ssl"),
    (SERVE, f"{LIBRARY}/socketserver.py", "process_request_thread", "ThreadingMixIn.process_request_thread", 691, "socketserver"),
    (START, f"{LIBRARY}/threading.py", "start", "Thread.start", 938, "threading"),
    (RESULT, f"{LIBRARY}/concurrent/futures/_base.py", "result", "Future.result", 428, "concurrent.futures._base"),
    (ITEM, f"{LIBRARY}/concurrent/futures/thread.py", "run", "_WorkItem.run", 53, "concurrent.futures.thread"),
]
DATABASE, CLIENT, FILE, NAMES, LOCKED, PIPE = 1, 2, 3, 4, 5, 6
RESOURCES = [
    (DATABASE, "tcp", "10.0.0.7:5432", "10.0.0.1:40000", False, 7, 3, 0, 0, 0),
    (CLIENT, "tcp", "10.0.0.9:50000", "10.0.0.1:8000", False, 7, 4, 0, 0, 0),
    (FILE, "file", "/var/lib/shop.db", "", False, 7, 5, 0, 1, 1),
    (NAMES, "udp", "10.0.0.2:53", "10.0.0.1:41000", False, 7, 6, 0, 0, 0),
    (LOCKED, "tcp", "127.0.0.1:5432", "127.0.0.1:40000", False, 7, 3, 8, 0, 0, "postgres", 5, 5),
    (PIPE, "pipe", "", "", False, 7, 8, 0, 0, 2),
]  # fmt: skip


def thread(tid: int, *first: int) -> Script:
    """A thread in whose outermost calls the rest happens."""
    script = Script(7, tid, cpu=tid % 2, now=10).snapshot()
    for func in first:
        script.enter(func)
    return script


def traced(path: Path, *scripts: Script, functions: Sequence[Row] = FUNCTIONS, **more: Any) -> Any:
    for script in scripts:
        while script.stack:
            script.leave()
    events, sched = (sorted((row for each in scripts for row in getattr(each, name)), key=lambda row: row[0]) for name in ("events", "sched"))
    end = max(script.now for script in scripts) + MS
    rows = {"events": events, "sched": sched, "functions": functions, "resources": RESOURCES, "end_ns": end}
    rows["manifest"] = {"scheduling": {"source": "bpf", "why": "", "throttling": 1}}
    return pytrace_ebpf.open(write_trace(path / "trace", **rows | more))


def peer(resource: int = DATABASE) -> Sequence[Script]:
    return [thread(7, MAIN, HANDLE).run(MS).enter(RECV).wait(50 * MS, syscall=RECVFROM, resource=resource)]


def client() -> Sequence[Script]:
    return [thread(7, MAIN, HANDLE).run(MS).enter(RECV).wait(50 * MS, syscall=RECVFROM, resource=CLIENT).leave().run(9 * MS)]


def lock(computes: bool = False) -> Sequence[Script]:
    """Two threads wait in turn for a lock in which a third waits for the database, or computes."""
    has = thread(8, MAIN, HELD)
    has = has.run(40 * MS) if computes else has.run(MS).wait(39 * MS, syscall=RECVFROM, resource=DATABASE)
    waits = [thread(tid, MAIN, HANDLE).run(MS).wait(39 * MS, syscall=FUTEX, address=0x9000, waker=8) for tid in (7, 9)]
    has.run(MS)
    return [has, *waits]


def lock_and_short_waits(before_ms: int, after_ms: int) -> Sequence[Script]:
    """A third has the lock, and sleeps for a moment before or after it waits for the database."""
    has = thread(8, MAIN, HELD)
    for ms, more in ((before_ms, {}), (30, {"syscall": RECVFROM, "resource": DATABASE}), (after_ms, {})):
        has = has.wait(ms * MS, **more) if ms else has
    return [has.run(MS), thread(7, MAIN, HANDLE).wait((30 + before_ms + after_ms) * MS, syscall=FUTEX, address=0x9000, waker=8)]


def gil() -> Sequence[Script]:
    waits = thread(7, MAIN, HANDLE)
    for _ in range(9):
        waits.gil(5 * MS, waker=8).run(MS)
    return [waits]


def loop() -> Sequence[Script]:
    one = thread(7, MAIN, ONCE)
    for _ in range(3):
        one.enter(SELECT).wait(90 * MS, syscall=EPOLL_WAIT).leave().enter(HANDLE).wait(20 * MS).leave()
    return [one]


def served() -> Sequence[Script]:
    return [thread(8, SERVE, HANDLE).wait(60 * MS)]


def no_loop() -> Sequence[Script]:
    return [thread(7, MAIN, HANDLE).wait(60 * MS)]


def many(called: int = 3, times: int = 12) -> Sequence[Script]:
    one = thread(7, MAIN)
    for _ in range(called):
        one.enter(HANDLE)
        for _ in range(times):
            one.enter(ASK).enter(RECV).wait(MS, syscall=RECVFROM, resource=DATABASE).leave().leave()
        one.leave()
    return [one]


def streamed() -> Sequence[Script]:
    """One answer that comes in pieces."""
    one = thread(7, MAIN)
    for _ in range(3):
        one.enter(HANDLE).enter(RECV)
        for _ in range(12):
            one.wait(MS, syscall=RECVFROM, resource=DATABASE)
        one.leave().leave()
    return [one]


def asleep_beside() -> Sequence[Script]:
    return [thread(7, MAIN, OTHER).run(30 * MS), thread(8, HANDLE).wait(90 * MS)]


def shakes_hands() -> Sequence[Script]:
    return [thread(7, MAIN, HANDLE).enter(RECV).enter(SHAKE).wait(30 * MS, syscall=READ, resource=DATABASE)]


def on_disk() -> Sequence[Script]:
    return [thread(7, MAIN, HANDLE).wait(30 * MS, syscall=FSYNC, resource=FILE)]


def reads() -> Sequence[Script]:
    return [thread(7, MAIN, HANDLE).wait(30 * MS, syscall=READ, resource=FILE)]


def named() -> Sequence[Script]:
    return [thread(7, MAIN, HANDLE).enter(LOOK_UP).wait(30 * MS, syscall=EPOLL_WAIT, ready=NAMES)]


def child() -> Sequence[Script]:
    return [thread(7, MAIN, HANDLE).enter(RUN).wait(30 * MS, syscall=WAIT4)]


def faults() -> Sequence[Script]:
    one = thread(7, MAIN, HANDLE).run(MS)
    one._sched(SchedKind.OUT, state=2)
    one.now += 30 * MS
    one._sched(SchedKind.WAKING)
    return [one._back(5_000)]


def pool() -> Sequence[Script]:
    """Two threads have one connection by turns."""
    both = [thread(tid, MAIN, HANDLE) for tid in (7, 8)]
    both[0].enter(GET).wait(40 * MS, syscall=FUTEX, address=0x9000, waker=8).leave().run(10 * MS).enter(PUT).run(MS).leave()
    both[1].run(40 * MS).enter(PUT).run(MS).leave().enter(GET).wait(40 * MS, syscall=FUTEX, address=0x9000, waker=7).leave()
    return both


def starts() -> Sequence[Script]:
    """Who starts a thread waits until that has a core."""
    return [thread(7, MAIN).enter(START).wait(40 * MS, syscall=FUTEX, address=0x9000, waker=8).leave(), thread(8, OTHER).run(41 * MS)]


def full() -> Sequence[Script]:
    """Even a thread that does nothing else has not nothing to do where it may not put its work down."""
    takes = thread(8, HELD).wait(15 * MS).enter(GET).run(4 * MS).leave()
    return [thread(7, HANDLE).enter(PUT).wait(17 * MS, syscall=FUTEX, address=0x9000, waker=8), takes]


def fed() -> Sequence[Script]:
    return [
        thread(7, MAIN, OTHER).run(40 * MS).enter(PUT).run(MS),
        thread(8, MAIN, HANDLE).enter(GET).wait(40 * MS, syscall=FUTEX, address=0x9000, waker=7),
    ]


def crowded() -> Sequence[Script]:
    one = thread(7, MAIN, HANDLE)
    for _ in range(9):
        out = one.run(MS).preempted(9 * MS, by=999).sched[-2]
        one.sched[-2] = (*out[:8], 999, *out[9:])  # of another program
    return [one]


def throttled() -> Sequence[Script]:
    """Of each 9 ms without a core 8 without a quota, as the row says that it comes back with."""
    one = thread(7, MAIN, HANDLE)
    for _ in range(9):
        back = one.run(MS).preempted(9 * MS, by=0).sched[-1]
        one.sched[-1] = (*back[:7], 8 * MS, *back[8:])
    return [one]


def own_lock() -> Sequence[Script]:
    """Of a list or dict, without a GIL."""
    return [thread(7, MAIN, HANDLE).wait(40 * MS, syscall=FUTEX, address=0x7F0000001230 + OBJECT_LOCK, waker=8), thread(8, OTHER).run(20 * MS)]


def computes() -> Sequence[Script]:
    return [thread(7, MAIN, HANDLE).run(40 * MS), thread(8, WORKER).wait(40 * MS, syscall=FUTEX, address=0x9100, waker=7)]


def results(waiting: int = 3, idle_ms: int = 0) -> Sequence[Script]:
    """A pool of one thread, and those that wait for what it does, one piece after the other; before each it may have nothing to do."""
    has, waits = thread(99, WORKER), [thread(tid, MAIN, HANDLE) for tid in range(8, 8 + waiting)]
    for _ in range(4):
        for each in waits:
            if idle_ms:
                has.wait(idle_ms * MS, syscall=FUTEX, address=0x9100, waker=each.tid)
            has.enter(ITEM).enter(ASK).wait(10 * MS, syscall=RECVFROM, resource=DATABASE).leave().run(MS).leave()
            each.enter(RESULT).wait(has.now - each.now, syscall=FUTEX, address=0x9200, waker=99).leave()
    return [has, *waits]


def imports() -> Sequence[Script]:
    return [thread(7, MAIN, HANDLE).enter(FIND).run(40 * MS)]


PLANTED: dict[str, tuple[Callable[[], Sequence[Script]], str, str]] = {
    "database-lock": (
        lambda: peer(LOCKED),
        "handle",
        "in `SocketIO.readinto`, for a lock of postgres 127.0.0.1:5432 that another of its sessions has (recvfrom).",
    ),
    "peer": (peer, "handle", "`handle` (shop.py:51) waits 98 % of the time, 50.0ms, in `SocketIO.readinto`, for postgres 10.0.0.7:5432 (recvfrom)."),
    "lock-held": (lock, "handle", "for a lock that `audit` (shop.py:30) has while it waits for postgres 10.0.0.7:5432 (recvfrom): 2 times, 39.0ms each."),
    "lock-held: not what it waits for last": (lambda: lock_and_short_waits(2, 1), "handle", "has while it waits for postgres 10.0.0.7:5432 (recvfrom)."),
    "lock-held: nor first": (lambda: lock_and_short_waits(9, 0), "handle", "has while it waits for postgres 10.0.0.7:5432 (recvfrom)."),
    "lock": (lambda: lock(computes=True), "handle", "for a lock that `audit` (shop.py:30) releases: 2 times, 39.0ms each."),
    "gil": (gil, "handle", "Threads wait 83 % of the time, 45.0ms, for the GIL, all of it in `handle` (shop.py:10)."),
    "event-loop": (loop, "handle", "`handle` (shop.py:10) holds the event loop 100 % of the time, 60.0ms: meanwhile it is asleep: 3 times, 20.0ms each."),
    "many-calls": (many, "handle", "`handle` (shop.py:21) calls `ask` 12 times in each of its calls, 36 times in all, and waits"),
    "sleep": (no_loop, "handle", "`handle` (shop.py:10) sleeps 100 % of the time, 60.0ms."),
    "tls": (shakes_hands, "handle", "for postgres 10.0.0.7:5432 in TLS handshakes."),
    "fsync": (on_disk, "handle", "for the disk to have /var/lib/shop.db (fsync)."),
    "file": (reads, "handle", "for /var/lib/shop.db (read)."),
    "dns": (named, "handle", "for a name to be looked up (dns 10.0.0.2:53)."),
    "subprocess": (child, "handle", "`handle` (shop.py:91) waits 100 % of the time, 30.0ms, in `subprocess.run`, for a child process."),
    "memory": (faults, "handle", "for memory to be read in (page faults)."),
    "queue": (pool, "handle", "in `Queue.get`: 2 times, 40.0ms each."),
    "queue: full": (full, "handle", "waits 81 % of the time, 17.0ms, in `Queue.put`, which `audit` (shop.py:30) ends."),
    "thread-pool": (results, "handle", ", in `Future.result`: 12 times, 30.3ms each. The pool's 1 thread always has work, mostly in `ask` (shop.py:20)."),
    "cores": (crowded, "handle", "Threads wait 90 % of the time, 81.0ms, for a core, all of it in `handle` (shop.py:10): other programs have them."),
    "cpu-quota": (throttled, "handle", "Threads wait 80 % of the time, 72.0ms, for a CPU quota, all of it in `handle` (shop.py:10)"),
    "object-lock": (own_lock, "handle", "for an object's own lock, or for all threads to stop."),
    "computes": (computes, "handle", "`handle` (shop.py:10) computes 100 % of the time, 40.0ms."),
    "imports": (imports, "handle", "Imports compute 100 % of the time, 40.0ms, all of it in `handle` (shop.py:10)."),
}  # fmt: skip
ALIKE: dict[str, tuple[str, Callable[[], Sequence[Script]], str]] = {
    "a client that sends nothing is no slow peer": ("peer", client, "computes"),
    "who computes with a lock waits for nothing meanwhile": ("lock-held", lambda: lock(computes=True), "lock"),
    "an event loop that waits is not held": ("event-loop", lambda: [thread(7, MAIN, ONCE, SELECT).wait(90 * MS, syscall=EPOLL_WAIT), *no_loop()[:0]], ""),
    "a thread of a server that sleeps holds no event loop": ("event-loop", served, "sleep"),
    "sleep without an event loop holds none": ("event-loop", no_loop, "sleep"),
    "the loop of a whole program is no function that calls another too often": ("many-calls", lambda: many(1, 36), "peer"),
    "a slow statement waits for no lock": ("database-lock", peer, "peer"),
    "who polls for a sign of its own threads has nothing to do": (
        "wait",
        lambda: [thread(7, MAIN, SELECT).wait(90 * MS, syscall=EPOLL_WAIT, resource=PIPE), thread(8, MAIN, HANDLE).run(9 * MS)],
        "computes",
    ),
    "an answer in pieces is one call": ("many-calls", streamed, "peer"),
    "calls that each take long are not small": ("many-calls", peer, "peer"),
    "a thread of its own that sleeps between its rounds keeps nobody": ("sleep", asleep_beside, "computes"),
    "a worker at its queue waits for work": ("queue", fed, "computes"),
    "who starts a thread has nothing to do until that runs": ("queue", starts, "computes"),
    "a pool that is given one piece at a time has threads enough": ("thread-pool", lambda: results(1, idle_ms=1), "queue"),
    "a pool that is idle before each piece has threads enough": ("thread-pool", lambda: results(3, idle_ms=1), "queue"),
    "who has no core for other programs has quota left": ("cpu-quota", crowded, "cores"),
    "a lock of the program's is no object's": ("object-lock", lambda: lock(computes=True), "lock"),
    "an idle pool is no lock": ("lock", computes, "computes"),
}  # fmt: skip


def checked(trace: Any) -> pd.DataFrame:
    """Its findings, of which none can be more than all."""
    table = trace.findings()
    shares = table.loc[table["rule"] != "idle", "share"]
    assert (shares > 0).all() and shares.sum() <= 1.0001 and shares.is_monotonic_decreasing
    return table


@pytest.mark.parametrize("rule", PLANTED)
def test_a_rule_finds_its_cause(rule: str, tmp_path: Path) -> None:
    program, function, said = PLANTED[rule]
    trace = traced(tmp_path, *program())
    first = checked(trace).iloc[0]
    assert (first["rule"], first["function"]) == (rule.partition(":")[0], function)
    assert said in first["sentence"], first["sentence"]
    assert first["file"] == "/app/shop.py" and first["line"] > 0 and pd.isna(first["confidence"])
    assert first["command"].startswith(f"pytrace-ebpf report {trace.directory} --by ")


@pytest.mark.parametrize("alike", ALIKE)
def test_a_rule_is_silent_where_it_only_looks_like_that(alike: str, tmp_path: Path) -> None:
    rule, program, instead = ALIKE[alike]
    table = checked(traced(tmp_path, *program()))
    assert rule not in set(table["rule"]) and (not instead or table["rule"].iloc[0] == instead), table["sentence"].tolist()


def test_a_report_opens_with_them_and_with_what_was_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = traced(tmp_path, *peer(), thread(8, WORKER).wait(500 * MS, syscall=FUTEX, address=0x9100, waker=7))
    assert main(["report", str(trace.directory)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Threads were at work for 51.0ms. Most of that went to:"
    assert lines[1] == "1. `handle` (shop.py:51) waits 98 % of the time, 50.0ms, in `SocketIO.readinto`, for postgres"
    assert lines[2] == "   10.0.0.7:5432 (recvfrom). [--by wait]"
    assert lines[3] == "Left out: 500ms in which 1 thread only waited for work."


@pytest.mark.parametrize(("ms", "rule", "asked"), [(40, "peer", "http://shop/all"), (2, "many-calls", "http://shop/item/?")])
def test_a_peer_is_said_with_what_it_is_asked_for(ms: int, rule: str, asked: str, tmp_path: Path) -> None:
    """Which of the calls are most of the time: one that takes long, or many that do not."""
    urlopen = len(FUNCTIONS)
    functions = [*FUNCTIONS, (urlopen, f"{LIBRARY}/urllib/request.py", "urlopen", "urlopen", 200, "urllib.request")]
    one, calls = thread(7, MAIN), list[Any]()
    for _ in range(3):
        one.enter(HANDLE)
        for what, each in (("http://shop/all", ms), *[("http://shop/item/?", 1)] * 12):
            calls.append((one.now, 7, 7, "urllib", what, "complete"))
            one.enter(ASK).enter(urlopen).wait(each * MS, syscall=RECVFROM, resource=DATABASE).leave().leave().run(1000)
        one.leave()
    one.leave()
    rows = {"events": one.events, "sched": one.sched, "client_calls": calls}
    path = write_trace(tmp_path / "trace", functions=functions, resources=RESOURCES, end_ns=one.now + MS, **rows)
    first = checked(pytrace_ebpf.open(path)).iloc[0]
    assert first["rule"] == rule and f", mostly for `{asked}`" in first["sentence"], first["sentence"]
    assert first["command"].endswith(" --by client")


def test_a_window_has_findings_of_its_own(tmp_path: Path) -> None:
    one = thread(7, MAIN, HANDLE).enter(RECV).wait(50 * MS, syscall=RECVFROM, resource=DATABASE).leave().run(50 * MS)
    trace = traced(tmp_path, one)
    assert trace.window(0, 40 * MS).findings()["rule"].tolist() == ["peer"]
    assert trace.window(60 * MS).findings()["rule"].tolist() == ["computes"]


def test_of_what_was_not_recorded_nothing_is_said(tmp_path: Path) -> None:
    trace = traced(tmp_path, *computes())
    trace.manifest["scheduling"] = {"source": None, "why": "no."}
    assert trace.findings().empty


def test_a_trace_without_calls_and_one_without_waits_have_none(tmp_path: Path) -> None:
    empty = write_trace(tmp_path / "empty", functions=[], end_ns=MS)
    only_calls = write_trace(tmp_path / "calls", events=thread(7, MAIN).run(MS).leave().events, functions=FUNCTIONS, end_ns=2 * MS)
    only_switches = write_trace(tmp_path / "switches", sched=thread(7).wait(MS).sched, functions=[], end_ns=2 * MS)
    assert [len(pytrace_ebpf.open(path).findings()) for path in (empty, only_calls, only_switches)] == [0, 0, 0]
