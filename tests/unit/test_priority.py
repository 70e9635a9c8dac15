"""Who asks what a process does now comes before programs that keep all cores busy."""

import os
import signal
import subprocess
import sys
import time

import pytest

from pytrace_ebpf import priority
from tests.conftest import PATIENCE_S, without_rights

NOBODY = 65534


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to take a priority")
def test_it_is_taken_for_a_while_and_by_what_is_started_meanwhile() -> None:
    before = os.sched_getscheduler(0)
    with priority.first():
        assert os.sched_getscheduler(0) == os.SCHED_RR and os.sched_getparam(0).sched_priority == os.sched_get_priority_min(os.SCHED_RR)
        started = subprocess.run([sys.executable, "-c", "import os; print(os.sched_getscheduler(0))"], capture_output=True, text=True, check=True)
    assert int(started.stdout) == os.SCHED_RR
    assert os.sched_getscheduler(0) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to take a priority")
def test_who_computes_on_and_on_loses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that was started meanwhile, as one that reads what a target made up, is ended."""
    monkeypatch.setattr(priority, "_MOST_US", 100_000)
    before = os.sched_getscheduler(0)
    with priority.first():
        assert subprocess.run([sys.executable, "-c", "while True: pass"]).returncode == -signal.SIGXCPU
        until_s = time.thread_time() + PATIENCE_S
        while os.sched_getscheduler(0) == os.SCHED_RR:
            assert time.thread_time() < until_s
    assert os.sched_getscheduler(0) == before and signal.getsignal(signal.SIGXCPU) == signal.SIG_DFL


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be somebody else")
def test_who_may_not_take_it_goes_on_without() -> None:
    program = "import os; from pytrace_ebpf import priority\nwith priority.first(): print(os.sched_getscheduler(0))"
    done = subprocess.run(without_rights(NOBODY, "-c", program), capture_output=True, text=True, check=True)
    assert int(done.stdout) == os.SCHED_OTHER
