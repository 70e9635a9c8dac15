"""The agent's directory is removed, however the tracer ends."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pytrace_ebpf.record.agent.directory import AgentDirectory
from pytrace_ebpf.record.agent.leftovers import LOCK, PREFIX, sweep
from tests.conftest import PATIENCE_S
from tests.unit.agent_pythons import built

pytestmark = built

OPTIONS = [("arena_bytes", 1 << 20)]
MAKES_ONE = f"""
from pytrace_ebpf.record.agent.directory import AgentDirectory
directory = AgentDirectory({OPTIONS})
print(directory.path, directory.arenas_name, directory.keeper, flush=True)
input()
"""


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def places(path: str, arenas_name: str) -> list[Path]:
    return [Path(path), *(place for folder in ("/dev/shm", "/tmp", "/var/tmp", "/run") if (place := Path(folder) / arenas_name).exists())]


@pytest.mark.parametrize("keeper_too", [False, True])
def test_what_a_killed_tracer_left_is_removed_and_nothing_that_is_in_use(keeper_too: bool) -> None:
    maker = subprocess.Popen([sys.executable, "-c", MAKES_ONE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert maker.stdout is not None
    *words, keeper = maker.stdout.readline().split()
    left = places(*words)
    own = AgentDirectory(OPTIONS)
    used = places(own.path, own.arenas_name)
    sweep()
    assert len(left) == 2 and all(place.exists() for place in left + used)  # both tracers live
    if keeper_too:
        os.kill(int(keeper), signal.SIGKILL)
    maker.send_signal(signal.SIGKILL)
    maker.communicate()
    if keeper_too:
        wait_until(lambda: not Path(f"/proc/{keeper}").exists() or "Z" in Path(f"/proc/{keeper}/stat").read_text().split()[2])
        sweep()  # by the next command
        assert not any(place.exists() for place in left)
    wait_until(lambda: not any(place.exists() for place in left))
    assert all(place.exists() for place in used)
    own.remove()
    assert not any(place.exists() for place in used)


def test_arenas_in_use_stay_where_their_session_is_in_another_file_system() -> None:
    own = AgentDirectory(OPTIONS)
    session, arenas = places(own.path, own.arenas_name)
    try:
        session.rename(session.with_name("elsewhere-" + session.name))
        sweep()
        assert arenas.exists()
    finally:
        session.with_name("elsewhere-" + session.name).rename(session)
        own.remove()
    assert not session.exists() and not arenas.exists()


@pytest.fixture
def unlocked(tmp_path: Path) -> Iterator[tuple[int, Path]]:
    """A root of its own, as tracers of other tests sweep the real one, and in it a session without a lock."""
    session = tmp_path / "tmp" / f"{PREFIX}01234567"
    session.mkdir(parents=True)
    root = os.open(tmp_path, os.O_PATH | os.O_DIRECTORY)
    yield root, session
    os.close(root)


def test_a_session_that_gets_its_lock_while_it_is_looked_at_stays(unlocked: tuple[int, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    (root, session), really = unlocked, os.open

    def late(name: Any, *rest: Any, **given: Any) -> int:
        try:
            return really(name, *rest, **given)
        except FileNotFoundError:
            if name == LOCK:
                (session / LOCK).touch()  # by its maker, just now
            raise

    monkeypatch.setattr(os, "open", late)
    sweep(root)
    assert (session / LOCK).exists()


def test_a_session_that_was_left_without_a_lock_is_removed(unlocked: tuple[int, Path]) -> None:
    root, session = unlocked
    sweep(root)
    assert not session.exists()


def test_a_message_of_a_target_is_cut_and_made_printable() -> None:
    directory = AgentDirectory(OPTIONS)
    try:
        (arenas,) = (place for place in places(directory.path, directory.arenas_name) if place.name == directory.arenas_name)
        failure = arenas / "failure"
        assert directory.failure() is None
        failure.write_bytes(b"no \x1b[2Jroom\nleft \xff")
        assert directory.failure() == "no ?[2Jroom left \ufffd"
        assert directory.failure() is None  # of the next process nothing is known yet
        failure.write_bytes(b"x" * 5000)
        assert directory.failure() == "the file that says why is too large"
        failure.symlink_to(__file__)
        said = directory.failure()
        assert said == "the file that says why is not a regular file"
        (arenas / "other").write_bytes(b"linked")
        failure.hardlink_to(arenas / "other")
        assert directory.failure() == "the file that says why has another name elsewhere"
        failure.mkdir()
        assert directory.failure() is not None
    finally:
        directory.remove()
    assert not arenas.exists()
