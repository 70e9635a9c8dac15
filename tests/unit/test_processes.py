"""When threads began, by what the kernel said and by what was seen."""

import os
import threading

import numpy as np

from pytrace_ebpf.record.processes import Processes
from pytrace_ebpf.trace.schema import SCHED, SchedKind


def test_a_thread_that_was_seen_before_its_fork_was_read_began_with_that() -> None:
    known, pid = Processes(), os.getpid()
    release = threading.Event()
    thread = threading.Thread(target=release.wait)
    thread.start()
    try:
        known.add_other(pid, os.getppid(), 1000)
        known.add_threads(pid, 1000)  # of the process: nothing tells when its threads began
        tid = thread.native_id
        assert known.threads[pid, tid]["start_ns"] == 1000
        known.take_changed()
        row = {"ts": 5000, "pid": pid, "tid": tid, "kind": SchedKind.FORK, "other_pid": pid, "other_tid": pid, "state": 1}
        known.take_in({name: np.array([row.get(name, 0)]) for name in SCHED.arrow.names})
        _, changed = known.take_changed()
        assert [each["start_ns"] for each in changed if each["tid"] == tid] == [5000]
    finally:
        release.set()
        thread.join()
