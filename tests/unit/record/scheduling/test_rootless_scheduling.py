"""Scheduling as an ordinary user gets it: perf's records taken apart, and both sources on a living child."""

import os
import signal
import struct
import subprocess
import sys
import time

import numpy as np
import pytest

from pytrace_ebpf.errors import HostError
from pytrace_ebpf.record.output.tables import Columns, by_time
from pytrace_ebpf.record.process.processes import Processes
from pytrace_ebpf.record.scheduling import cputime
from pytrace_ebpf.record.scheduling.cputime import CpuTime
from pytrace_ebpf.record.scheduling.perf_switches import PerfSwitches, parse
from pytrace_ebpf.trace.schema import CPUTIME, SYSCALL_UNKNOWN, SchedKind

WORKERS, BURNT_NS = 3, 60_000_000
PROGRAM = f"""
import subprocess, sys, threading, time
def work():
    for _ in range(3):
        began = time.thread_time()
        while time.thread_time() - began < 0.02: pass
        time.sleep(0.005)
threads = [threading.Thread(target=work) for _ in range({WORKERS})]
[t.start() for t in threads]
[t.join() for t in threads]
subprocess.run(["/bin/true"])
"""
OUT, PREEMPT = 1 << 13, 1 << 14

pytestmark = pytest.mark.measured


def switch(ts: int, misc: int, tid: int = 7, cpu: int = 1) -> bytes:
    return struct.pack("<IHHIIQII", 14, misc, 32, 7, tid, ts, cpu, 0)


def task(kind: int, ts: int, pid: int, ppid: int, tid: int, ptid: int) -> bytes:
    return struct.pack("<IHHIIIIQIIQII", kind, 0, 56, pid, ppid, tid, ptid, ts, ppid, ptid, ts, 1, 0)


LOST = struct.pack("<IHHQQ", 2, 0, 48, 99, 5) + bytes(24)
EXEC = struct.pack("<IHHII8s", 3, 1 << 13, 48, 7, 7, b"python3") + struct.pack("<IIQII", 7, 7, 60, 1, 0)
COMM = struct.pack("<IHHII8s", 3, 0, 48, 7, 7, b"renamed") + struct.pack("<IIQII", 7, 7, 61, 1, 0)


def test_switches_and_what_stands_between_them() -> None:
    fork, end = task(7, 30, 7, 7, 8, 7), task(4, 50, 7, 7, 8, 7)
    raw = switch(10, 0) + switch(20, OUT) + LOST + fork + switch(40, OUT | PREEMPT) + end + EXEC + COMM + switch(70, 0)
    switches, rows, lost = parse(raw)
    assert lost == 5
    kinds = [SchedKind.IN, SchedKind.OUT, SchedKind.OUT, SchedKind.IN]
    assert list(zip(switches["ts"], switches["kind"], switches["state"], switches["syscall"], strict=True)) == list(
        zip((10, 20, 40, 70), kinds, (0, 1, 0, 0), (-1, -2, -2, -1), strict=True)
    )
    assert rows == [
        (30, 7, 8, SchedKind.FORK, -1, 1, -1, 0, 7, 7, -1, 0),
        (50, 7, 8, SchedKind.EXIT, 1, 0, -1, 0, 0, 0, -1, 0),
        (60, 7, 7, SchedKind.EXEC, -1, 0, -1, 0, 0, 0, -1, 0),
    ]
    assert parse(b"")[1:] == ([], 0)


def run_under(source: PerfSwitches | CpuTime, table: str) -> tuple[int, Columns]:
    """The pid of a child that ran PROGRAM, and what `source`, started before its exec, says of it."""
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        os.read(reader, 1)
        os.execv(sys.executable, [sys.executable, "-S", "-c", PROGRAM])
    parts = []
    try:
        source.add(pid)
        os.write(writer, b"x")
        while not os.waitpid(pid, os.WNOHANG)[0]:
            time.sleep(0.005)
            parts.append(source.drain()[table][0])
    except HostError:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise
    finally:
        os.close(reader)
        os.close(writer)
    parts.append(source.drain()[table][0])
    source.close()
    return pid, {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def on_cpu_ns(columns: Columns) -> dict[tuple[int, int], int]:
    """Time on a core per thread, from sched rows."""
    total: dict[tuple[int, int], int] = {}
    since: dict[tuple[int, int], int] = {}
    order = np.argsort(columns["ts"], kind="stable")
    for ts, pid, tid, kind in zip(*(columns[name][order].tolist() for name in ("ts", "pid", "tid", "kind")), strict=True):
        if kind == SchedKind.IN:
            since[pid, tid] = ts
        elif kind in (SchedKind.OUT, SchedKind.EXIT) and (pid, tid) in since:
            total[pid, tid] = total.get((pid, tid), 0) + ts - since.pop((pid, tid))
    return total


def test_switches_of_every_later_thread_and_child() -> None:
    source = PerfSwitches()
    try:
        pid, columns = run_under(source, "sched")
    except HostError as error:
        pytest.skip(str(error))
    assert not source.losses().any()
    spent = on_cpu_ns(columns)
    workers = [ns for (process, thread), ns in spent.items() if process == pid != thread]
    assert len(workers) == WORKERS
    assert min(workers) >= 0.9 * BURNT_NS  # two clocks of the kernel's, which a virtual machine's host may stop for a moment
    assert len({process for process, _ in spent}) == 2  # /bin/true
    kinds = columns["kind"].tolist()
    assert (kinds.count(SchedKind.FORK), kinds.count(SchedKind.EXEC), kinds.count(SchedKind.EXIT)) == (WORKERS + 1, 2, WORKERS + 2)
    slept = (columns["kind"] == SchedKind.OUT) & (columns["state"] == 1)
    assert slept.sum() >= 3 * WORKERS
    assert columns["syscall"][slept].tolist() == [SYSCALL_UNKNOWN] * int(slept.sum())


@pytest.mark.parametrize("with_queue_time", [True, False])
def test_samples_of_cpu_time(with_queue_time: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not with_queue_time:
        monkeypatch.setattr(cputime, "queue_time_is_known", lambda: False)
    pid, columns = run_under(CpuTime("refused", Processes()), "cputime")
    rows = by_time(CPUTIME, columns).to_pandas()
    assert set(rows["pid"]) == {pid}
    by_thread = rows.groupby("tid", sort=True)
    assert len(by_thread) == 1 + WORKERS
    assert all(thread["on_cpu_ns"].is_monotonic_increasing and thread["ts"].is_monotonic_increasing for _, thread in by_thread)
    assert rows["runq_wait_ns"].notna().all() if with_queue_time else rows["runq_wait_ns"].isna().all()


def test_a_process_that_is_gone_cannot_be_followed_and_is_not_sampled() -> None:
    child = subprocess.Popen(["/bin/true"])
    child.wait()
    with pytest.raises(HostError):
        PerfSwitches().add(child.pid)
    source = CpuTime("refused", Processes())
    source.add(child.pid)
    assert len(source.drain()["cputime"][0]["ts"]) == 0
