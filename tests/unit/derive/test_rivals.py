"""Who had the core of a waiting thread: every part of the wait is somebody's, whatever is taken together."""

import random

import numpy as np
import pyarrow as pa
import pytest

from pytrace_ebpf.derive.scheduling.rivals import Rivals
from pytrace_ebpf.trace.schema import EXTERNAL_SWITCHES, SCHED, SchedKind
from tests.unit.synthetic import table_of

NO_LOSS = np.zeros((0, 2), np.int64)
MINE = (7, 70)


def row(ts: int, kind: SchedKind, cpu: int, *, who: tuple[int, int] = MINE, state: int = 0, throttled: int = 0) -> tuple:
    return (ts, *who, kind, cpu, state, -1, throttled, 0, 0, -1, 0)


def tables(sched: list[tuple], external: list[tuple]) -> tuple[pa.Table, pa.Table]:
    return table_of(SCHED.name, sched), table_of(EXTERNAL_SWITCHES.name, external)


def sums(found: list[np.ndarray]) -> dict[tuple[int, int, int], int]:
    out: dict[tuple[int, int, int], int] = {}
    for row in np.concatenate(found):
        key = (int(row["key"] & 0xFFFFFFFF), int(row["queued_ns"]), int(row["rival"] & 0xFFFFFFFF))
        out[key] = out.get(key, 0) + int(row["ns"])
    return out


def test_a_wait_is_cut_by_the_switches_of_its_core() -> None:
    sched = [
        row(100, SchedKind.OUT, 0),
        row(110, SchedKind.OUT, 1),  # of another core
        row(150, SchedKind.OUT, 0, who=(7, 71), state=1),
        row(180, SchedKind.IN, 0),
    ]
    sched[1] = row(110, SchedKind.OUT, 1, who=(7, 72), state=1)
    external = [(120, 0, 9, 90, "hog"), (125, 1, 9, 91, "else"), (180, 0, 9, 90, "hog")]
    assert sums([Rivals(NO_LOSS).take(*tables(sched, external))]) == {(70, 100, 90): 20 + 30, (70, 100, 71): 30}


def test_a_wait_goes_on_where_the_thread_is_moved() -> None:
    sched = [row(100, SchedKind.WAKING, 0), row(130, SchedKind.MIGRATE, 1), row(160, SchedKind.IN, 1)]
    external = [(130, 0, 9, 90, "a"), (140, 1, 9, 91, "b"), (160, 1, 0, 0, "swapper/1")]
    assert sums([Rivals(NO_LOSS).take(*tables(sched, external))]) == {(70, 100, 90): 30, (70, 100, 91): 10, (70, 100, 0): 20}


def test_who_is_throttled_or_was_not_off_its_core_waits_for_nobody() -> None:
    throttled = [row(100, SchedKind.OUT, 0), row(200, SchedKind.IN, 0, throttled=60)]
    on_core = [row(300, SchedKind.WAKING, 0), row(400, SchedKind.OUT, 0, state=1)]
    external = [(150, 0, 9, 90, "hog"), (200, 0, 9, 90, "hog"), (390, 0, 9, 90, "hog")]
    assert not sums([Rivals(NO_LOSS).take(*tables(throttled + on_core, external))])


def test_a_wait_in_which_switches_were_lost_is_nobodys() -> None:
    sched = [row(100, SchedKind.OUT, 0), row(200, SchedKind.IN, 0)]
    assert not sums([Rivals(np.array([[120, 130]])).take(*tables(sched, [(200, 0, 9, 90, "hog")]))])


@pytest.mark.parametrize("seed", range(20))
def test_where_segments_are_cut_makes_no_difference(seed: int) -> None:
    """Threads of two processes on two cores, each waiting while others run: all of the waits is somebody's."""
    rng = random.Random(seed)
    sched: list[tuple] = []
    external: list[tuple] = []
    waited = 0
    queue = {cpu: [(7, 70 + 10 * cpu + k) for k in range(3)] + [(9, 90 + cpu)] for cpu in range(2)}
    for cpu, threads in queue.items():
        now, since = 1000, dict.fromkeys(threads, 1000)
        sched += [row(now, SchedKind.WAKING, cpu, who=who) for who in threads if who[0] == 7]
        on = (9, 99)
        for _ in range(60):
            now += rng.randrange(1, 50)
            comes = rng.choice([who for who in threads if who != on])
            if on[0] == 7:
                sched.append(row(now, SchedKind.OUT, cpu, who=on))
            else:
                external.append((now, cpu, *on, "other"))
            if comes[0] == 7:
                sched.append(row(now, SchedKind.IN, cpu, who=comes))
                waited += now - since[comes]
            since[on] = now
            on = comes
    sched.sort(key=lambda row: row[0])
    external.sort()
    once = sums([Rivals(NO_LOSS).take(*tables(sched, external))])
    end = max(row[0] for row in [*sched, *external]) + 1
    cuts = [0, *sorted(rng.sample(range(1001, end), 5)), end]
    rivals = Rivals(NO_LOSS)
    parts = [
        rivals.take(*tables([r for r in sched if lo <= r[0] < hi], [r for r in external if lo <= r[0] < hi]))
        for lo, hi in zip(cuts, cuts[1:], strict=False)
    ]
    assert sums(parts) == once
    ended = {(row[2], row[0]) for row in sched if row[3] == SchedKind.IN}
    assert ended and sum(ns for (_, _, _), ns in once.items()) >= waited
