"""Which programs a process was, by what the kernel told of each exec, and by what is there where it told nothing."""

import numpy as np
import pytest

from pytrace_ebpf.record.process import programs
from pytrace_ebpf.record.process.programs import Ran

EVENT = np.dtype([("ts", "<u8"), ("pid", "<u4"), ("count", "<u4"), ("size", "<u4"), ("words", "S20")])


def told(pid: int, ts: int, *words: bytes, size: int | None = None) -> np.ndarray:
    text = b"".join(word + b"\0" for word in words)
    return np.array([(ts, pid, len(words), len(text) if size is None else size, text[:size])], EVENT)


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> Ran:
    monkeypatch.setattr(programs, "command_line", gone)
    return Ran()


def gone(pid: int) -> str:
    raise ProcessLookupError


def test_a_chain_that_is_over_before_anybody_looks(ran: Ran) -> None:
    ran.seen(7, "sh -c x")
    ran.take_in(np.concatenate([told(7, 10, b"a", b"", b"b c"), told(7, 20, b"/bin/b")]))
    assert ran.executed(7, 10) | {"executable": ""} == {"command": "a '' 'b c'", "executable": "", "earlier_commands": ["sh -c x"]}
    assert ran.executed(7, 20)["earlier_commands"] == ["sh -c x", "a '' 'b c'"]
    assert ran.executed(7, 30) == {}  # nobody told, and it is gone


def test_a_copy_of_its_creator_was_nothing_before(ran: Ran) -> None:
    ran.forked(8)
    ran.seen(8, "python x.py")
    ran.take_in(told(8, 1, b"ls"))
    assert ran.executed(8, 1)["earlier_commands"] == []


def test_what_was_too_long_is_read_where_it_is_there(ran: Ran, monkeypatch: pytest.MonkeyPatch) -> None:
    ran.take_in(
        np.concatenate([told(9, 1, b"python", b"-c", b"pass; pass; pass", size=20), told(9, 2, b"python", b"-c", b"pass; pass; pass", size=20)])
    )
    assert ran.executed(9, 1)["command"] == "python -c 'pass; pass' ..."
    monkeypatch.setattr(programs, "_ALIKE", 8)
    monkeypatch.setattr(programs, "command_line", lambda pid: "python -c 'pass; pass; pass'")
    assert ran.executed(9, 2)["command"] == "python -c 'pass; pass; pass'"


def test_where_nobody_tells_another_command_line_is_another_program(ran: Ran, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "command_line", lambda pid: "one")
    assert ran.executed(5, 1)["earlier_commands"] == []
    assert ran.executed(5, 2)["earlier_commands"] == []  # it has only been looked at again
    monkeypatch.setattr(programs, "command_line", lambda pid: "two")
    assert ran.executed(5, 3)["earlier_commands"] == ["one"]
    ran.forget(5)
    assert ran.earlier(5) == []


def test_what_is_kept_is_bounded(ran: Ran) -> None:
    for ts in range(3000):
        ran.take_in(told(3, ts, b"%d" % ts))
        if ts < 100:
            ran.executed(3, ts)
    assert ran.earlier(3) == ["0", *map(str, range(90, 99))] and len(ran._told) == 1000
