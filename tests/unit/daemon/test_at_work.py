"""A process that works is waited for, one that does nothing hangs."""

import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from pytrace_ebpf.daemon.api import at_work
from pytrace_ebpf.daemon.api.at_work import AtWork
from pytrace_ebpf.record.process.shares import process_s
from tests.bpf.conftest import wait_until

STARTS_ONE_THAT_SPINS = (
    "import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', 'while True: pass']).pid, flush=True); sys.stdin.read()"
)


class Spent:
    """A clock, and the processor time of a process, both as they are set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = self.work = self.queued = 0.0
        monkeypatch.setattr(at_work, "process_s", lambda pid: self.work)
        monkeypatch.setattr(at_work, "queued_s", lambda pid: self.queued)
        self.watched = AtWork(1 << 22, 60, 600, lambda: self.now)

    def hangs(self, seconds: float, work: float = 0.0, queued: float = 0.0) -> bool:
        """Whether it does so much later."""
        self.now, self.work, self.queued = self.now + seconds, self.work + work, self.queued + queued
        return self.watched.hangs()


def test_what_does_nothing_hangs_and_what_works_or_waits_for_a_core_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    spent = Spent(monkeypatch)
    assert not any(spent.hangs(10, work=10) for _ in range(30))
    assert not any(spent.hangs(10, work=1, queued=9) for _ in range(30))
    assert not spent.hangs(59) and spent.hangs(2)


def test_time_on_several_cores_makes_up_for_no_time_without_any(monkeypatch: pytest.MonkeyPatch) -> None:
    spent = Spent(monkeypatch)
    assert not spent.hangs(10, work=100) and spent.hangs(61)


def test_work_without_an_end_hangs_too(monkeypatch: pytest.MonkeyPatch) -> None:
    spent = Spent(monkeypatch)
    assert not spent.hangs(599, work=599) and spent.hangs(2, work=2)


@pytest.fixture
def starts_another() -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen([sys.executable, "-c", STARTS_ONE_THAT_SPINS], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    yield process
    for each in (*psutil.Process(process.pid).children(), process):
        each.kill()
    process.communicate()


def test_what_it_has_started_works_for_it(starts_another: "subprocess.Popen[bytes]") -> None:
    assert starts_another.stdout
    spins = int(starts_another.stdout.readline())
    now = 0.0
    watched = AtWork(starts_another.pid, 0.2, 600, lambda: now)
    began = process_s(spins)
    wait_until(lambda: process_s(spins) > began + 0.5)
    now = 0.5
    assert not watched.hangs()


def test_a_child_that_hangs_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(at_work, "LOOK_S", 0.01)
    child = subprocess.Popen(["sleep", "1000"])
    at_work.wait(child, AtWork(child.pid, 0.05))
    assert child.returncode == -9
