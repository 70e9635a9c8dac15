"""A user who wants all of a daemon's places for himself: another one's process has its own."""

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

import pytest

from tests.bpf.conftest import wait_until
from tests.daemons import Daemon
from tests.hostile import flooders

pytestmark = [pytest.mark.bpf, pytest.mark.skipif(os.geteuid() != 0, reason="the daemon is root here, and its targets are not")]

STEADY, FIRST = 70_101, 70_111  # made-up users


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
