"""Who asks what a process does now comes before programs that keep all cores busy, for a moment."""

import os
import subprocess
import sys
import threading
import time

import pytest

from pytrace_ebpf import priority
from tests.conftest import PATIENCE_S, without_rights

NOBODY = 65534
ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to take a priority")
# Says that it runs, then waits for its input to end.
WAITS = "import sys; print('ready', flush=True); sys.stdin.read()"


@ROOT
def test_it_is_taken_for_a_while_and_by_what_is_started_meanwhile() -> None:
    before, done = os.sched_getscheduler(0), threading.Event()
    thread = threading.Thread(target=done.wait)
    words = [sys.executable, "-c", f"import subprocess, sys; subprocess.run([sys.executable, '-c', {WAITS!r}])"]
    with priority.first():
        assert os.sched_getscheduler(0) == os.SCHED_RR and os.sched_getparam(0).sched_priority == os.sched_get_priority_min(os.SCHED_RR)
        thread.start()
        child = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert child.stdout and child.stdout.readline() == b"ready\n"
        started = [thread.native_id or 0, *(tid for tid in priority._threads(child.pid))]
        assert len(started) == 3 and {os.sched_getscheduler(tid) for tid in started} == {os.SCHED_RR}
        priority.let_go()
        assert {os.sched_getscheduler(tid) for tid in (0, *started)} == {before}
        with priority.first():  # once more, as for the end of a recording
            assert os.sched_getscheduler(0) == os.SCHED_RR
    assert {os.sched_getscheduler(tid) for tid in (0, *started)} == {before}
    done.set()
    child.communicate()


@ROOT
def test_who_computes_on_and_on_loses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """And so does a process that was started meanwhile, as one that reads what a target made up."""
    monkeypatch.setattr(priority, "_MOST_S", 0.1)
    before = os.sched_getscheduler(0)
    with priority.first():
        child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        until_s = time.thread_time() + PATIENCE_S
        while os.SCHED_RR in (os.sched_getscheduler(0), os.sched_getscheduler(child.pid)):
            assert time.thread_time() < until_s
        assert os.sched_getscheduler(0) == before
        child.kill()
        child.wait()


@ROOT
def test_what_is_due_later_comes_first_from_then_on() -> None:
    before, done = os.sched_getscheduler(0), threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    with priority.first(after_s=0.05):
        assert os.sched_getscheduler(0) == before
        until_s = time.monotonic() + PATIENCE_S
        while {os.sched_getscheduler(tid) for tid in (0, thread.native_id or 0)} != {os.SCHED_RR}:  # of threads that were there before, too
            assert time.monotonic() < until_s
    assert {os.sched_getscheduler(tid) for tid in (0, thread.native_id or 0)} == {before}
    done.set()


@ROOT
def test_who_was_given_another_priority_keeps_that() -> None:
    program = "import os; from pytrace_ebpf import priority\nwith priority.first(): print(os.sched_getscheduler(0))"
    done = subprocess.run(["nice", sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(done.stdout) == os.SCHED_OTHER


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be somebody else")
def test_who_may_not_take_it_goes_on_without() -> None:
    program = "import os; from pytrace_ebpf import priority\nwith priority.first(): print(os.sched_getscheduler(0))"
    done = subprocess.run(without_rights(NOBODY, "-c", program), capture_output=True, text=True, check=True)
    assert int(done.stdout) == os.SCHED_OTHER
