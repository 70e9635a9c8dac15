"""What agents are granted where there is little memory."""

from typing import Any

import pytest

from pytrace_ebpf.errors import TargetError
from pytrace_ebpf.record.agent import allowance as module
from pytrace_ebpf.record.agent.allowance import Allowance, allowance
from pytrace_ebpf.record.process.memory_left import Left

MIB = 1 << 20
WANTED = 256 * MIB


class Arena:
    """Uses so much, and is granted so much."""

    def __init__(self) -> None:
        self.used = self.granted = 0

    def grant(self, size: int) -> None:
        self.granted = size


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`left(bytes)`: so much is left from now on."""

    def set_left(size: int) -> None:
        monkeypatch.setattr(module, "memory_left", lambda groups: Left(size, "4:/g", "its control group /g"))

    return set_left


def of(counts_memory: bool = False) -> Allowance:
    found = allowance(7, "", WANTED, counts_memory)
    assert found is not None
    return found


def test_where_there_is_enough_nothing_is_bounded(left: Any) -> None:
    left(4096 * MIB)
    assert allowance(7, "", WANTED, counts_memory=True) is None
    left(3000 * MIB)
    assert allowance(7, "", WANTED, counts_memory=False) is None
    assert allowance(7, "", WANTED, counts_memory=True) is not None  # the table of blocks has no room


@pytest.mark.parametrize("counts_memory, size", [(False, 16), (True, 32)])
def test_with_too_little_the_agent_stays_out(counts_memory: bool, size: int, left: Any) -> None:
    left(size * MIB - 1)
    with pytest.raises(TargetError, match=r"process 7 has .* of memory left \(its control group /g\)"):
        of(counts_memory)
    left(size * MIB)
    options = dict(of(counts_memory).options)
    assert options["arena_first"] == MIB
    assert int(str(options["arena_bytes"])) + int(str(options["memory_bytes"])) <= size * MIB // 10


def test_arenas_grow_to_a_tenth_of_what_is_left_together(left: Any) -> None:
    left(200 * MIB)
    given, arenas = of(), [Arena(), Arena()]
    for arena in arenas:
        given.add(arena)  # type: ignore[arg-type]
    given.grow()
    assert [arena.granted for arena in arenas] == [0, 0]  # they have what they began with
    for size in (4, 8, 16, 32):
        for arena in arenas:
            arena.used = size * MIB
        left(200 * MIB - 2 * size * MIB)  # it is theirs that is gone
        given.grow()
    assert sum(arena.granted for arena in arenas) == 20 * MIB
    with pytest.raises(TargetError, match="process 8 gets no agent"):
        given.admit(8)
    left(400 * MIB)
    given.admit(8)
    del arenas[1], arena
    given.grow()
    assert arenas[0].granted > 10 * MIB  # what the other one had


def test_nothing_more_is_granted_when_the_program_has_taken_the_rest(left: Any) -> None:
    left(200 * MIB)
    given, arena = of(), Arena()
    given.add(arena)  # type: ignore[arg-type]
    arena.used = 4 * MIB
    left(10 * MIB)
    given.grow()
    assert arena.granted == 0
