"""Users who want all of a daemon's work for themselves: another one's processes have all their windows, and the daemon ends at once."""

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
from typing import Any

import pytest

import pytrace_ebpf
from tests.bpf.conftest import wait_until
from tests.conftest import PATIENCE_S
from tests.daemons import Daemon
from tests.hostile import flooders

pytestmark = [pytest.mark.bpf, pytest.mark.skipif(os.geteuid() != 0, reason="the daemon is root here, and its targets are not")]

STEADY, LATER, FIRST = 70_101, 70_102, 70_111  # made-up users
FLOODERS = ("functions", "symbols", "starts")
WINDOWS = 6  # with all of them, and as many again with one user more
ENDS_S = 20.0  # 2 s on a machine that has them: one that never ends is what is looked for


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
            found = Daemon(folder, f'window = "2s"\n{more}')
            closing.callback(found.close)
            return found

        yield start


def wait_for_windows(daemon: Daemon, count: int) -> None:
    begun = daemon.status()["windows"]
    for more in range(1, count + 1):
        until = begun + more
        wait_until(lambda until=until: daemon.process.poll() is not None or daemon.status().get("windows", 0) >= until)  # type: ignore[misc]
    assert daemon.process.poll() is None, (daemon.folder / "log").read_text()


def windows_of(trace: Any, pid: int) -> tuple[list[int], list[int]]:
    """When the windows begin in which a process's handle_request was sampled, and all from the first of those to the last but one of the trace."""
    profile = trace.profile()
    every = sorted(set(profile["start_ns"]))[:-1]
    own = profile[(profile["pid"] == pid)].merge(trace.functions()[["func_id", "name"]], on="func_id")
    sampled = sorted(set(own[(own["name"] == flooders.STEADY) & (own["samples"] > 0)]["start_ns"]) & set(every))
    return sampled, [start for start in every if sampled and start >= sampled[0]]


def test_users_that_flood_the_daemon_cost_others_no_window(folder: Path, daemon: Callable[[str], Daemon]) -> None:
    with ExitStack() as ending:
        steady = ending.enter_context(running(folder, "steady", STEADY))
        sampling = daemon("max_processes = 200\n")
        wait_until(lambda: sampling.status().get("windows", 0) > 0)
        for at, what in enumerate(FLOODERS):
            ending.enter_context(running(folder, what, FIRST + at))
        wait_for_windows(sampling, WINDOWS)
        later = ending.enter_context(running(folder, "steady", LATER))
        born = time.monotonic_ns()
        wait_for_windows(sampling, WINDOWS)
        users = {each["user"]: each for each in sampling.status()["users"]}
        began_s = time.monotonic()
        sampling.process.send_signal(signal.SIGTERM)
        assert sampling.process.wait(PATIENCE_S) == 0
        took_s = time.monotonic() - began_s
    trace = pytrace_ebpf.open(sampling.profile)
    for process in (steady, later):
        sampled, all_ = windows_of(trace, process.pid)
        assert sampled == all_, (process.args, len(sampled), len(all_))
        own = trace.profile()[trace.profile()["pid"] == process.pid]
        assert not (own["func_id"] < 0).any() or own[own["func_id"] < 0]["samples"].sum() == 0
    assert len(windows_of(trace, steady.pid)[0]) >= 2 * WINDOWS
    # It is seen in the second window that ends after it began, at the latest.
    ends = sorted(set(trace.profile()["end_ns"]))
    seen = trace.profile()[trace.profile()["pid"] == later.pid]["end_ns"].min()
    assert len([end for end in ends if born < end < seen]) <= 2
    assert users[FIRST]["cpu_s"] > users.get(STEADY, {"cpu_s": 0.0})["cpu_s"]
    functions = trace.functions()
    assert functions["name"].str.startswith("invented_").sum() <= 1 << 17
    assert took_s < ENDS_S


def test_a_user_with_many_processes_takes_no_place_of_anothers(folder: Path, daemon: Callable[[str], Daemon]) -> None:
    with ExitStack() as ending:
        sampling = daemon('max_processes = 8\notherwise = "ignore"\n' + f'[[rule]]\naction = "sample"\nuser = [{STEADY}, {FIRST}]\n')
        ending.enter_context(running(folder, "starts", FIRST))
        wait_until(lambda: sampling.status().get("too_many", 0) > 0)
        steady = ending.enter_context(running(folder, "steady", STEADY))
        wait_until(lambda: steady.pid in set(sampling.functions()))
        status = sampling.status()
        assert status["sampled"] <= 8 and json.dumps(status)
        assert {each["user"]: each.get("sampled") for each in status["users"]}[STEADY] == 1
        said = sampling.ask("status").stdout
        assert f"user {FIRST}: " in said and "left out" in said
