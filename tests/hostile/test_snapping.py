"""`pytrace-ebpf snap`: who may ask a flight recorder for a trace, and who may pose as one."""

import argparse
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytrace_ebpf.cli import main
from pytrace_ebpf.runs import snapping
from tests.conftest import PATIENCE_S, without_rights
from tests.hostile import USER, as_user, needs_root

pytestmark = needs_root


class Session:
    def __init__(self) -> None:
        self.asked: list[int] = []

    def snap(self, ts: int) -> None:
        self.asked.append(ts)


@pytest.fixture
def recorder() -> Iterator[Session]:
    """A flight recorder of root's that looks for requests all the time."""
    session, ended = Session(), threading.Event()
    with snapping.snap_requests(argparse.Namespace(trigger=["snap"])) as pass_on:

        def look() -> None:
            while not ended.wait(0.01):
                pass_on(session)  # type: ignore[arg-type]

        thread = threading.Thread(target=look)
        thread.start()
        yield session
        ended.set()
        thread.join()


def own() -> list[str]:
    """The names of this process's sockets; other tests' recorders have some, too, and end when they like."""
    names = [name for name in snapping.names() if f"/{os.getpid()}-" in name]
    assert names
    return names


def test_root_asks(recorder: Session, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["snap", str(os.getpid())]) == 0
    assert len(recorder.asked) == 1 and capsys.readouterr().out == f"process {os.getpid()} writes a trace of what it holds\n"


def test_another_user_is_not_answered(recorder: Session) -> None:
    as_user(
        "import socket, sys\n"
        "for name in sys.argv[1:]:\n"
        "    for _ in range(100):\n"
        "        with socket.socket(socket.AF_UNIX) as asking:\n"
        "            asking.settimeout(20)\n"
        "            asking.connect('\\0' + name[1:])\n"
        "            try:\n"
        "                asking.send(b'snap\\n')\n"
        "                assert asking.recv(9) == b''\n"
        "            except (ConnectionResetError, BrokenPipeError):\n"
        "                pass\n",
        *own(),
    )
    assert recorder.asked == []


def test_one_who_says_nothing_asks_for_nothing(recorder: Session) -> None:
    for name in own():
        with socket.socket(socket.AF_UNIX) as silent:
            silent.connect("\0" + name[1:])
    assert main.main(["snap", str(os.getpid())]) == 0
    assert len(recorder.asked) == 1


@pytest.mark.parametrize("pid", ["{pid}", "1", "x"])
def test_who_poses_as_a_flight_recorder_is_left_alone(pid: str, tmp_path: Path) -> None:
    """A user's process whose socket has such a name, or that of another process, gets no word from root."""
    program = (
        "import os, socket, sys\n"
        "with socket.socket(socket.AF_UNIX) as posing:\n"
        "    posing.bind(('\\0pytrace-ebpf/snap/' + sys.argv[1] + '-0').format(pid=os.getpid()))\n"
        "    posing.listen()\n"
        "    print('ready', flush=True)\n"
        "    print(posing.accept()[0].recv(9), flush=True)\n"
    )
    with subprocess.Popen(without_rights(USER, "-c", program, pid), stdout=subprocess.PIPE, text=True, cwd="/") as posing:
        assert posing.stdout and posing.stdout.readline() == "ready\n"
        asked = subprocess.run([sys.executable, "-m", "pytrace_ebpf", "snap", str(posing.pid)], capture_output=True, text=True, timeout=PATIENCE_S)
        assert asked.returncode == 3 and "is no flight recorder that you may ask" in asked.stderr
        assert posing.stdout.readline() == "b''\n"
