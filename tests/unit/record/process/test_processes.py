"""When threads began, as the kernel reported it or as they were first seen."""

import os
import subprocess
import sys
import threading

import numpy as np
import pytest

from pytrace_ebpf.errors import TargetError
from pytrace_ebpf.record.cpython.functions import Functions
from pytrace_ebpf.record.options import Options
from pytrace_ebpf.record.process import target
from pytrace_ebpf.record.process.following import Following
from pytrace_ebpf.record.process.pinned import Pinned
from pytrace_ebpf.record.process.processes import Processes
from pytrace_ebpf.record.process.target import Target, inspect, its_own_doing
from pytrace_ebpf.record.source import Recording
from pytrace_ebpf.record.source_selection.sources import Sources
from pytrace_ebpf.trace.schema import SCHED, SchedKind


def test_a_late_fork_event_does_not_remove_the_source_of_calls_that_came_before_it() -> None:
    known, pid = Processes(), os.getpid()
    known.set_source(pid, "agent", "3.11.2", 6000)
    known.add_other(pid, 1, 5000)  # it was forked, it says
    assert known.processes[pid]["source"] == "agent" and known.is_recorded(pid, 5500)
    known.add_other(pid, 1, 7000)  # it is another program since
    assert known.processes[pid]["source"] is None


def test_how_many_interpreters_a_process_made_only_grows_and_is_a_number_that_can_be() -> None:
    known = Processes()
    known.set_source(7, "agent", "3.13.0", 6000)
    for said, believed in ((3, 3), (2, 3), (1 << 31, 3), (0, 3), (5, 5)):
        known.made(7, said)
        assert known.processes[7]["interpreters"] == believed
    known.made(8, 2)  # nobody knows that process any more


def test_which_interpreters_a_thread_ran_is_kept_before_it_is_listed_and_after_it_ended() -> None:
    known, now = Processes(), 1000
    columns = {name: np.array([7, 7], np.int32) for name in ("pid", "tid", "other_pid", "other_tid", "state", "address")}
    fork_and_exit = columns | {"ts": np.array([now, now + 5]), "kind": np.array([SchedKind.FORK, SchedKind.EXIT])}
    known.run(7, {7: [2]})
    known.learn(fork_and_exit)
    known.run(7, {7: [4]})
    assert [row["interpreters"] for row in known.take_changed()[1]] == ["2 4"]
    known.run(7, {7: [5]})
    assert [(row["interpreters"], row["end_ns"]) for row in known.take_changed()[1]] == [("2 4 5", now + 5)]
    assert known.take_changed()[1] == []
    known.learn({name: column[:1] for name, column in fork_and_exit.items()})
    assert [row["interpreters"] for row in known.take_changed()[1]] == [""]  # another thread has that number


def test_a_child_that_ends_while_it_is_looked_at_keeps_the_source_of_its_calls() -> None:
    def ends(pid: int) -> Target:
        with its_own_doing(pid):
            raise FileNotFoundError

    recording, pid = Recording(Functions(), Processes()), os.getpid()
    recording.processes.set_source(pid, "agent", "3.11.2", 6000)
    recording.declare(pid, "agent", "it came with the agent of its creator")
    following = Following(recording, Sources(Options(None), recording), ())
    following._adopt({"pid": pid, "tid": pid, "ts": 5000, "other_pid": 1}, ends)
    assert recording.processes.processes[pid]["source"] == "agent" == recording.chosen[0]["source"]
    following._adopt({"pid": pid, "tid": pid, "ts": 7000, "other_pid": 1}, ends)  # another program since
    assert recording.processes.processes[pid]["source"] is None and "ended" in recording.chosen[0]["why"]


def test_what_was_attached_to_a_copy_is_not_the_source_of_the_program_that_it_had_become() -> None:
    recording, pid = Recording(Functions(), Processes()), os.getpid()
    recording.processes.set_source(pid, "usdt", "3.11.2", 6000)  # as it took that long to attach
    following = Following(recording, Sources(Options(None), recording), ())
    following._reset({"pid": pid, "tid": pid, "ts": 5000, "other_pid": 0})  # exec, before that
    assert recording.processes.processes[pid]["source"] is None and not recording.processes.is_recorded(pid, 5000)
    recording.processes.set_source(pid, "agent", "3.11.2", 6000)  # the new program came with an agent of its own
    following._reset({"pid": pid, "tid": pid, "ts": 5000, "other_pid": 0})
    assert recording.processes.is_recorded(pid, 5000)


def test_a_forked_child_that_has_ended_is_a_target_error(monkeypatch: pytest.MonkeyPatch) -> None:
    child = subprocess.Popen([sys.executable, "-c", "print('ready', flush=True); input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None and child.stdout.readline()
    parent, pinned = inspect(child.pid), target.pinned

    def pins(pid: int) -> Pinned:
        found = pinned(pid)
        child.kill()
        child.communicate()
        return found

    monkeypatch.setattr(target, "pinned", pins)
    with pytest.raises(TargetError, match="ended"):
        parent.forked(child.pid, child.pid)


def test_a_thread_that_was_seen_before_its_fork_was_read_began_with_that() -> None:
    known, pid = Processes(), os.getpid()
    release = threading.Event()
    thread = threading.Thread(target=release.wait)
    thread.start()
    try:
        known.add_other(pid, os.getppid(), 1000)
        known.add_threads(pid, 1000)  # of the process: when its threads began is not known
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


def test_of_many_processes_that_ended_only_some_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytrace_ebpf.record.process.processes._MOST_ENDED", 3)
    monkeypatch.setattr("pytrace_ebpf.record.source._MOST_ENDED", 2)
    processes = Processes()
    recording = Recording(Functions(), processes)
    handed_out: set[int] = set()
    for pid in range(-1, -11, -1):  # none has such a pid
        processes.add_other(pid, 1, 5)
        if pid < -1:
            processes.processes[pid]["end_ns"] = 9
        recording.declare(pid, "agent" if pid % 2 else None, "so it is")
        handed_out |= {row["pid"] for row in processes.take_changed()[0]}
    assert handed_out == set(range(-10, 0)) and list(processes.processes) == [-1, -8, -9, -10]
    assert [each["pid"] for each in recording.chosen] == [-1, -9, -10]
    assert sum(each.get("others", 0) for each in recording.chosen) == 7
    assert {each["source"]: each.get("others", 0) for each in recording.chosen[1:]} == {"agent": 0, None: 4}


def test_a_thread_that_was_seen_before_its_process_was_listed_began_with_that() -> None:
    known, pid = Processes(), os.getpid()
    known.add_other(pid, os.getppid(), 5000)
    known.add_threads(pid, 5000)
    known.take_changed()
    for ts, start in ((6000, []), (4000, [4000]), (4500, [])):
        row = {"ts": ts, "pid": pid, "tid": pid, "kind": SchedKind.SNAPSHOT}
        assert known.take_in({name: np.array([row.get(name, 0)]) for name in SCHED.arrow.names}) == []
        _, changed = known.take_changed()
        assert [each["start_ns"] for each in changed if each["tid"] == pid] == start
