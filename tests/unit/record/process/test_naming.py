"""When threads' names are read: again where one was not listed in time, less and less often, and not without end."""

from typing import Any

import pytest

from pytrace_ebpf.record.process import naming, processes
from pytrace_ebpf.record.process.processes import Processes

PID = 40


class World:
    """A clock, and a process whose threads are listed from some moment on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, listed: dict[int, float]) -> None:
        self.now, self.listed = 1000.0, listed
        self.looks: list[float] = []
        monkeypatch.setattr(naming.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(naming, "read_names", self.read)
        monkeypatch.setattr(processes, "comm_of", lambda pid, tid: "python3")
        self.known = Processes()
        self.known.targets[PID] = object()  # type: ignore[assignment]
        for tid in listed:
            self.known._add_thread(PID, tid, 0)

    def read(self, _target: Any, _active: int) -> tuple[dict[int, str], int, float]:
        self.looks.append(self.now - 1000)
        return {tid: f"thread {tid}" for tid, since in self.listed.items() if self.now - 1000 >= since}, 0, 0.0

    def names_after(self, seconds: float) -> dict[int, str]:
        while self.now < 1000 + seconds:
            self.now += 0.01
            self.known._name_threads()
        return {tid: row["name"] for (_, tid), row in self.known.threads.items()}


def test_a_thread_that_waits_for_the_gil_before_it_is_listed_gets_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, {PID: 0, 41: 0, 42: 2.0})
    assert world.names_after(1) == {PID: "thread 40", 41: "thread 41", 42: "python3"}
    assert world.names_after(5)[42] == "thread 42"


def test_all_that_are_listed_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, {PID: 0, 41: 0})
    world.names_after(20)
    assert len(world.looks) == 1


def test_one_that_is_none_of_pythons_is_not_looked_for_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, {PID: 0, 41: 10**9})
    world.names_after(60)
    pauses = [after - before for before, after in zip(world.looks, world.looks[1:], strict=False)]
    assert len(world.looks) == naming._LOOKS and pauses == sorted(pauses) and world.looks[-1] > 5
    world.known._add_thread(PID, 43, 0)
    world.listed[43] = 0
    assert world.names_after(61)[43] == "thread 43"
