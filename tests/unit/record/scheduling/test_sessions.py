"""What a database's processes say of themselves: which of their connections' statements wait for a lock."""

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from pytrace_ebpf.record.scheduling import sessions
from pytrace_ebpf.record.scheduling.sessions import Sessions

ADDRESS = "127.0.0.1:41234"
TITLE = "postgres: 15/main: shop shop 127.0.0.1(41234)"


@contextmanager
def session(title: str) -> Iterator[int]:
    """The pid of a process with that command line."""
    with subprocess.Popen([title], executable="/bin/cat", stdin=subprocess.PIPE) as process:
        yield process.pid
        assert process.stdin
        process.stdin.close()


def row(number: int, pid: int, **more: Any) -> sessions.Row:
    words = {"resource_id": number, "kind": "tcp", "peer_pid": pid, "peer_command": "postgres", "local_name": ADDRESS}
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
