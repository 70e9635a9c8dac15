"""What a database's processes say of themselves: which of their connections' statements wait for a lock."""

import os
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytrace_ebpf.record.scheduling import sessions
from pytrace_ebpf.record.scheduling.peers import Peers
from pytrace_ebpf.record.scheduling.sessions import Sessions
from tests.conftest import PATIENCE_S

ADDRESS = "127.0.0.1:41234"
TITLE = "postgres: 15/main: shop shop 127.0.0.1(41234)"


@contextmanager
def session(title: str, executable: str = "/bin/cat", descriptors: Sequence[int] = ()) -> Iterator[int]:
    """The pid of a process with that command line, that has these descriptors."""
    with subprocess.Popen([title], executable=executable, stdin=subprocess.PIPE, pass_fds=descriptors) as process:
        while not Path(f"/proc/{process.pid}/cmdline").read_bytes():  # exec has not come to it yet
            time.sleep(0.001)
        yield process.pid
        assert process.stdin
        process.stdin.close()


def row(number: int, pid: int, **more: Any) -> sessions.Row:
    words: sessions.Row = {"resource_id": number, "kind": "tcp", "peer_pid": pid, "peer_command": "postgres", "local_name": ADDRESS}
    return words | {"peer_looks": 0, "peer_lock_waits": 0} | more


@pytest.mark.parametrize(
    ("title", "local", "said"),
    [
        (f"{TITLE} UPDATE waiting", ADDRESS, (4, 4)),
        (f"{TITLE} UPDATE", ADDRESS, (4, 0)),
        (f"{TITLE} idle", ADDRESS, None),
        (f"{TITLE} idle in transaction", ADDRESS, None),
        (f"{TITLE} idle in transaction (aborted)", ADDRESS, None),
        (f"{TITLE} UPDATE waiting", "127.0.0.1:1234", None),  # of another connection
        ("postgres: shop shop ::1(41234) SELECT waiting", "[::1]:41234", (4, 4)),
        ("postgres", ADDRESS, None),
    ],
)
def test_what_a_title_says(title: str, local: str, said: tuple[int, int] | None) -> None:
    looked_at = Sessions()
    with session(title) as pid:
        looked_at.watch(row(1, pid, local_name=local))
        told = [each for _ in range(4) for each in looked_at.look()]
        if said is None:
            assert not told
        else:
            assert (told[-1]["peer_looks"], told[-1]["peer_lock_waits"]) == said


def test_others_are_not_looked_at() -> None:
    looked_at = Sessions()
    for number, more in enumerate(({"peer_command": "redis-server"}, {"kind": "unix"})):
        looked_at.watch(row(number, os.getpid(), **more))
    assert not looked_at.due() and not looked_at.look()


def test_in_turn_and_told_ever_more_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "_AT_ONCE", 2)
    looked_at = Sessions()
    with ExitStack() as open_ones:
        for number in range(3):
            looked_at.watch(row(number, open_ones.enter_context(session(f"{TITLE} SELECT waiting"))))
        told = [each["resource_id"] for _ in range(300) for each in looked_at.look()]
        assert told[:6] == [0, 1, 2, 0, 1, 2]
        assert all(8 <= told.count(number) < 30 for number in range(3))  # of 200 looks at each
        assert not looked_at.due()
        looked_at._next_s = time.monotonic()
        assert looked_at.due()
    assert not looked_at.look() + looked_at.look() and not looked_at.due()  # they have ended
    assert not looked_at._told


def test_who_is_at_the_other_end_of_a_connection_is_looked_at_from_then_on(tmp_path: Path) -> None:
    (tmp_path / "postgres").symlink_to("/bin/cat")
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        ends = {"name": "{}:{}".format(*server.getsockname()), "local_name": "{}:{}".format(*client.getsockname())}
        accepted, (_, port) = server.accept()
        with accepted, session(f"postgres: shop shop 127.0.0.1({port}) UPDATE waiting", str(tmp_path / "postgres"), [accepted.fileno()]) as pid:
            accepted.close()
            found, until_s = Peers(), time.monotonic() + PATIENCE_S
            asked = row(1, 0, peer_command="", listens=False, **ends) | {"pid": os.getpid()}
            found.ask({name: np.array([value]) for name, value in asked.items()})
            told = dict[str, Any]()
            while not told.get("peer_lock_waits") and time.monotonic() < until_s:
                told = next(iter(found.found()), told)
                time.sleep(0.01)
    assert (told["peer_pid"], told["peer_command"]) == (pid, "postgres")
    assert told["peer_lock_waits"] == told["peer_looks"] > 0
