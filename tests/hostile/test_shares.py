"""Users who want a daemon's places and its work for themselves: another one's processes have their own."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest

import pytrace_ebpf
from pytrace_ebpf.record.cpython.functions import Functions
from pytrace_ebpf.record.cpython.holdings import Owners
from pytrace_ebpf.record.native import blocks
from pytrace_ebpf.record.parsing.sandbox import parsers
from pytrace_ebpf.record.process.processes import Processes
from pytrace_ebpf.record.process.shares import Shares, process_s, user_of
from pytrace_ebpf.record.process.target import inspect
from pytrace_ebpf.record.sampling import samples
from pytrace_ebpf.record.source import Recording
from pytrace_ebpf.trace.schema import LOSS_CLASSES
from tests.bpf.conftest import wait_until
from tests.conftest import PATIENCE_S
from tests.daemons import Daemon
from tests.hostile import flooders

pytestmark = [pytest.mark.bpf, pytest.mark.skipif(os.geteuid() != 0, reason="the daemon is root here, and its targets are not")]

STEADY, FIRST, LATER = 70_101, 70_111, 70_121  # made-up users
WINDOW_S, SEEN = 2, 4  # the latter: windows of which it is asked who is in them
MOST_MISSED = 8  # windows on a host as busy as any: on a quiet one it is in the second


@contextmanager
def running(folder: Path, what: str, user: int) -> Iterator["subprocess.Popen[bytes]"]:
    """A program of flooders.py, of a user of its own, from when it is under way; all that it has started ends with it."""
    place = folder / f"{what}-{user}"
    place.mkdir()
    os.chown(place, user, user)
    words = [str(Path(sys.executable).resolve()), str(folder / "flooders.py"), what, str(place)]
    with subprocess.Popen(words, user=user, group=user, extra_groups=[], stdout=-1, start_new_session=True) as process:
        try:
            assert process.stdout and process.stdout.readline() == b"ready\n"
            yield process
        finally:
            os.killpg(process.pid, signal.SIGKILL)


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    found = Path(f"/tmp/flood-{os.getpid()}-{time.monotonic_ns()}")
    found.mkdir(mode=0o755)
    shutil.copy(flooders.__file__, found / "flooders.py")
    (found / "flooders.py").chmod(0o644)
    yield found
    shutil.rmtree(found, ignore_errors=True)


@pytest.fixture
def daemon(folder: Path) -> Iterator[Callable[[str], Daemon]]:
    with ExitStack() as closing:

        def start(more: str = "") -> Daemon:
            found = Daemon(folder, f'window = "{WINDOW_S}s"\n{more}')
            closing.callback(found.close)
            return found

        yield start


def test_a_user_with_many_processes_takes_no_place_of_anothers(folder: Path, daemon: Callable[[str], Daemon]) -> None:
    with ExitStack() as ending:
        sampling = daemon('max_processes = 8\notherwise = "ignore"\n' + f'[[rule]]\naction = "sample"\nuser = [{STEADY}, {FIRST}]\n')
        ending.enter_context(running(folder, "starts", FIRST))
        wait_until(lambda: sampling.status().get("too_many", 0) > 0)
        steady = ending.enter_context(running(folder, "steady", STEADY))
        wait_until(lambda: steady.pid in set(sampling.functions()))

        def sampled() -> dict[int, int]:  # the status is as of some seconds ago, and older than the window may be
            return {each["user"]: each.get("sampled", 0) for each in sampling.status()["users"]}

        wait_until(lambda: sampled().get(STEADY) == 1)
        status = sampling.status()
        assert status["sampled"] <= 8 and json.dumps(status)

        def says_so() -> bool:  # how many are left out changes from one moment to the next
            said = sampling.ask("status").stdout
            return f"user {FIRST}: " in said and "left out" in said

        wait_until(says_so)


def recording_of(*pids: int) -> Recording:
    """One of several users' processes."""
    parsers.start()  # a recording before, in this process, has ended it
    shares = Shares()
    made = Recording(Functions(Owners(shares, user_of)), Processes(names=False), shares)
    for pid in pids:
        made.processes.add_python(inspect(pid), None, time.monotonic_ns())
    return made


def test_who_fills_the_ring_of_stacks_loses_his_own_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "_RINGS", {**samples._RINGS, "stacks": 1 << 17})  # 160 records, of which each stack of who floods takes 30
    with ExitStack() as ending:
        flooder = ending.enter_context(running(folder, "functions", FIRST))
        recording = recording_of(flooder.pid)
        source = samples.Samples(recording, 499, follow=False)
        ending.callback(source.close)
        source.add(flooder.pid)
        wait_until(lambda: source.losses()[LOSS_CLASSES.index("sample_ring")] > 0)
        steady = ending.enter_context(running(folder, "steady", STEADY))
        recording.processes.add_python(inspect(steady.pid), None, time.monotonic_ns())
        source.add(steady.pid)
        until_s = process_s(steady.pid) + 0.3
        wait_until(lambda: process_s(steady.pid) > until_s)  # nothing was taken from the ring so far
        source.drain()
        source.stop()
        (rows,) = source.cut()["samples"]
    stacks = {pid: rows["stack_id"][rows["pid"] == pid] for pid in (flooder.pid, steady.pid)}
    unread = {pid: float((ids == samples.UNREAD).mean()) for pid, ids in stacks.items()}
    assert len(stacks[steady.pid]) > 50 and unread[steady.pid] < 0.1 < unread[flooder.pid], unread


ALLOCATES = """
import ctypes, os, sys
print("ready", flush=True)
made = [ctypes.CDLL(None).malloc(5000) for _ in range(int(sys.argv[1]))] if os.read(0, 1) else []
print("done", flush=True)
os.read(0, 1)
"""


def test_who_has_many_blocks_loses_his_own_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "_MOST_BLOCKS", 4096)
    with ExitStack() as ending:
        made = [
            ending.enter_context(
                subprocess.Popen(["/usr/bin/python3", "-c", ALLOCATES, str(count)], user=user, group=user, extra_groups=[], stdin=-1, stdout=-1)
            )
            for user, count in ((FIRST, 20_000), (STEADY, 500))
        ]
        for each in made:
            ending.callback(each.kill)
        assert all(each.stdout and each.stdout.readline() == b"ready\n" for each in made)
        recording = recording_of(*(each.pid for each in made))
        source = blocks.Blocks(recording, 4096)
        ending.callback(source.close)
        lost = []
        for each in made:
            source.add(each.pid)
        for each in made:
            assert each.stdin and each.stdout
            each.stdin.write(b"x")
            each.stdin.flush()
            assert each.stdout.readline() == b"done\n"
            source.drain()
            lost.append(int(source.losses()[LOSS_CLASSES.index("block_map")]))
        assert lost[0] > 10_000 and lost[1] == lost[0], "the other one's are all known"
        held = {int(user): int(count) for user, count in source._programs.map("kept").items()}
        assert held[FIRST] <= 2048 and held[STEADY] >= 500
        made[0].kill()
        made[0].wait()
        source._let_go(made[0].pid)
        source.cut()
        deleted = {int(user): int(count) for user, count in source._programs.map("deleted").items()}
        assert deleted[FIRST] == held[FIRST]


def windows_of(profile: Path, pid: int) -> tuple[np.ndarray, np.ndarray]:
    """(beginnings of all windows, ascending; whether the steady program's function was sampled in each)."""
    trace = pytrace_ebpf.open(profile)
    table = trace.profile().merge(trace.functions()[["func_id", "name"]], on="func_id", how="left")
    sampled = table[(table["pid"] == pid) & (table["name"] == flooders.STEADY) & (table["samples"] + table["off_samples"] > 0)]
    windows = np.unique(table["start_ns"])
    return windows, np.isin(windows, sampled["start_ns"])


def test_who_floods_leaves_another_users_processes_their_windows(folder: Path, daemon: Callable[[str], Daemon]) -> None:
    """Three users flood; another one's process was there before, and a fourth one's starts amid it."""
    with ExitStack() as ending:
        before = ending.enter_context(running(folder, "steady", STEADY))
        sampling = daemon("")
        wait_until(lambda: before.pid in sampling.functions())
        for at, what in enumerate(("functions", "symbols", "starts")):
            ending.enter_context(running(folder, what, FIRST + at))

        def pass_windows(count: int) -> None:
            until = sampling.status()["windows"] + count
            wait_until(lambda: sampling.status()["windows"] >= until)

        pass_windows(2)
        began_ns = time.time_ns()
        amid = ending.enter_context(running(folder, "steady", LATER))
        wait_until(lambda: flooders.STEADY in sampling.functions().get(amid.pid, ()))
        pass_windows(SEEN)
        status = sampling.status()
        ended_ns = time.time_ns()
        sampling.process.send_signal(signal.SIGTERM)
        assert sampling.process.wait(PATIENCE_S) == 0
    assert status["windows_not_written"] == 0
    users = {each["user"]: each for each in status["users"]}
    assert all(users[FIRST + at]["cpu_s"] > 0 for at in range(3)), "it is said what each has cost"
    windows, seen = windows_of(sampling.profile, before.pid)
    since = int(np.argmax(seen))
    assert seen[since:-1].all(), "who was there before is in every window, but maybe for the last, which may be of a moment"
    windows, seen = windows_of(sampling.profile, amid.pid)
    first = int(np.argmax(seen))
    assert seen[first:-1].all() and len(seen) - first >= SEEN
    assert np.count_nonzero(windows[:first] > began_ns) <= MOST_MISSED
    trace = pytrace_ebpf.open(sampling.profile)
    assert trace.profile()["end_ns"].max() >= ended_ns, "what was sampled until it was told to end is there"
