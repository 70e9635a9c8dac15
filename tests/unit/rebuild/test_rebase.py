"""A state is gone on from only where the switches that are still to be taken are the same, one by one."""

from typing import Any

import numpy as np
import pytest

from pytrace_ebpf.rebuild.engine import Engine
from pytrace_ebpf.trace.schema import CallKind, SchedKind
from tests.unit.synthetic import GIL, table_of

AHEAD = (1100, 1, 1, SchedKind.OUT, 0, 0, 0, 0, 0, 0)
"""A switch that came with the first segment, which ends at 1000."""


def begun() -> Engine:
    engine = Engine(0, by_cputime=False, rows=False, nodes=1 << 20)
    engine.losses(np.zeros((0, 2), np.int64), np.zeros((0, 2), np.int64))
    engine.functions(np.zeros(2), np.zeros(2))
    engine.processes([1], [0], [GIL[0]], [GIL[1]])
    engine.threads([1], [1], [0], [-1])
    return engine


def taken(engine: Engine, end_ns: int, sched: list[tuple[Any, ...]], events: list[tuple[Any, ...]]) -> Engine:
    engine.switches(table_of("sched", sched), end_ns)
    list(engine.take([table_of("events", events)], end_ns, 100))
    return engine


def first(*ahead: tuple[Any, ...]) -> bytes:
    on = (10, 1, 1, SchedKind.IN, 0, 0, 0, 0, 0, 0)
    return taken(begun(), 1000, [on, *ahead], [(20, 1, 1, CallKind.ENTRY, 0, 64, 1)]).save()


def second() -> bytes:
    engine = begun()
    engine.load(first(AHEAD))
    return taken(engine, 2000, [(1200, 1, 1, SchedKind.IN, 0, 0, 0, 0, 0, 0)], []).save()


def rebased(here: bytes) -> bool:
    fresh, before, after = begun(), begun(), begun()
    fresh.load(here)
    before.hold(first(AHEAD))
    after.hold(second())
    return fresh.rebase(before, after)


def test_the_same_switches_ahead_are_gone_on_from() -> None:
    assert rebased(first(AHEAD))


@pytest.mark.parametrize(
    "ahead",
    [
        [],
        [AHEAD, (1150, 1, 1, SchedKind.IN, 0, 0, 0, 0, 0, 0)],
        [(1101, *AHEAD[1:])],
        [(*AHEAD[:4], 1, *AHEAD[5:])],
        [(*AHEAD[:3], SchedKind.FORK, *AHEAD[4:])],
        [(*AHEAD[:5], 1, *AHEAD[6:])],  # it sleeps, and does not wait for a core
    ],
    ids=["none", "one more", "time", "core", "kind", "state"],
)
def test_others_are_not(ahead: list[tuple[Any, ...]]) -> None:
    assert not rebased(first(*ahead))
