"""Who asks what a process does now comes before programs that keep all cores busy."""

import os
import subprocess
import sys

import pytest

from pytrace_ebpf import priority
from tests.conftest import without_rights

NOBODY = 65534


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to take a priority")
def test_it_is_taken_for_a_while_and_by_what_is_started_meanwhile() -> None:
    before = os.sched_getscheduler(0)
    with priority.first():
        assert os.sched_getscheduler(0) == os.SCHED_RR and os.sched_getparam(0).sched_priority == os.sched_get_priority_min(os.SCHED_RR)
        started = subprocess.run([sys.executable, "-c", "import os; print(os.sched_getscheduler(0))"], capture_output=True, text=True, check=True)
    assert int(started.stdout) == os.SCHED_RR
    assert os.sched_getscheduler(0) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be somebody else")
def test_who_may_not_take_it_goes_on_without() -> None:
    program = "import os; from pytrace_ebpf import priority\nwith priority.first(): print(os.sched_getscheduler(0))"
    done = subprocess.run(without_rights(NOBODY, "-c", program), capture_output=True, text=True, check=True)
    assert int(done.stdout) == os.SCHED_OTHER
