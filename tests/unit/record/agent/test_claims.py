"""Whose an arena is, when what is known comes late."""

from typing import Any

import numpy as np
import pytest

from pytrace_ebpf.record.agent import claims
from pytrace_ebpf.record.agent.claims import Claims
from pytrace_ebpf.record.process import namespaces
from pytrace_ebpf.record.process.namespaces import Shared
from pytrace_ebpf.record.process.processes import Processes
from pytrace_ebpf.trace.schema import LOSS_CLASSES, SchedKind

NOBODY = 4_300_000  # no such process is there, and no such user
FIRST, SECOND = NOBODY + 1, NOBODY + 2
NAMESPACE = 7, 8


class OneArena:
    """Of which nothing is asked but what it says of itself, and how many events are in it."""

    pid = 1  # as the first process of a pid namespace calls itself

    def news(self) -> list[Any]:
        return [type("Piece", (), {"stream": claims.CALLS, "size": 20})]


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> Processes:
    """None of them is there any more; of a namespace that is watched it is known that its first one was FIRST."""
    monkeypatch.setattr(namespaces, "_watched", {NAMESPACE: None})
    monkeypatch.setattr(namespaces, "_ended", lambda namespace, tid: FIRST)
    return Processes(names=False)


def begins(processes: Processes, pid: int, ts: int) -> None:
    """Its fork is reported, and followed."""
    _report(processes, SchedKind.FORK, pid, ts)
    processes.take_news()
    processes.set_source(pid, "agent", "3.11.2", ts)


def _report(processes: Processes, kind: SchedKind, pid: int, ts: int) -> None:
    row = {"ts": ts, "pid": pid, "tid": pid, "kind": kind, "other_pid": NOBODY, "other_tid": NOBODY, "state": 0, "address": 1}
    processes.learn({name: np.array([value]) for name, value in row.items()})


def claimed(processes: Processes, start_ns: int) -> Claims:
    """An arena that began then."""
    made = Claims(processes)
    made.add(OneArena(), Shared("/x", NOBODY, (0, 0)), start_ns)  # type: ignore[arg-type]
    return made


def owners(made: Claims) -> list[int]:
    """Whose those are that are decided now."""
    return [ids.pid for _, _, ids in made.decide()]


def test_it_waits_for_the_news_however_long_they_take(processes: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    begins(processes, FIRST, 100)
    made = claimed(processes, 210)
    monkeypatch.setattr(claims.time, "monotonic", lambda: 1e9)
    assert owners(made) == [] and made  # not the first, whose end is not heard of yet
    _report(processes, SchedKind.EXIT, FIRST, 150)
    processes.take_news()
    assert owners(made) == [] and made
    begins(processes, SECOND, 200)
    assert owners(made) == [SECOND] and not made and not made.losses.any()


def test_one_that_was_not_there_then_is_not_taken_for_its_process(processes: Processes) -> None:
    begins(processes, FIRST, 300)
    made = claimed(processes, 210)
    made.has_all_news = True
    assert owners(made) == [] and not made
    assert dict(zip(LOSS_CLASSES, made.losses.tolist(), strict=True))["thread_map"] == 20


def test_with_all_news_it_is_decided_at_once(processes: Processes) -> None:
    begins(processes, FIRST, 100)
    begins(processes, SECOND, 200)
    made = claimed(processes, 150)
    made.has_all_news = True
    assert owners(made) == [FIRST]
    assert processes.processes[FIRST]["start_ns"] == 100
