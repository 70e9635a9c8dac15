"""Names of functions that are looked up beside the loop that records, and what has to wait for them."""

import threading
import time
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from pytrace_ebpf.record.cpython.lookups import Lookups, Names
from pytrace_ebpf.record.output.tables import Columns
from pytrace_ebpf.record.process.readings import Readings
from pytrace_ebpf.record.process.shares import Shares
from pytrace_ebpf.record.usdt.held import Held

SLOW, OTHER = 1, 2  # users
PATIENCE_S = 60.0


class Sources:
    """Names that come when the test lets them."""

    def __init__(self) -> None:
        self.may_come = threading.Event()

    def read(self, items: Sequence[str], plain: bool) -> list[Names]:
        assert plain or self.may_come.wait(PATIENCE_S)
        return [Names("a.py", item, None if plain else f"C.{item}") for item in items]


@pytest.fixture
def sources() -> Iterator[Sources]:
    made = Sources()
    yield made
    made.may_come.set()


@pytest.fixture
def readings() -> Iterator[Readings]:
    made = Readings(Shares(), "test")
    yield made
    made.close()


def qualnames(lookups: Lookups[str]) -> list[str | None]:
    return [names.qualname for _, names in lookups.take()]


def test_of_one_user_names_are_there_at_once(sources: Sources) -> None:
    sources.may_come.set()
    lookups = Lookups(Readings(None, ""), 0, sources.read)
    lookups.ask(["f", "g"])
    assert qualnames(lookups) == ["C.f", "C.g"]
    assert lookups.since_ns is None


def test_who_takes_in_events_does_not_wait_for_names(sources: Sources, readings: Readings) -> None:
    lookups = Lookups(readings, SLOW, sources.read)
    lookups.ask(["f"])
    lookups.ask(["g"], look_up=False)
    assert lookups.take() == [], "nor is what came after them named before"
    assert lookups.since_ns is not None
    sources.may_come.set()
    assert readings.finish(PATIENCE_S)
    assert qualnames(lookups) == ["C.f", None]
    assert lookups.since_ns is None


def test_plain_names_have_to_do_where_nobody_waits_any_longer(sources: Sources, readings: Readings) -> None:
    lookups = Lookups(readings, SLOW, sources.read)
    lookups.ask(["f"])
    assert lookups.take() == []
    lookups.give_up()
    lookups.ask(["g"])
    assert qualnames(lookups) == [None, None]
    sources.may_come.set()
    assert readings.finish(PATIENCE_S)
    assert lookups.take() == [], "the names that come too late are not taken"


def test_whoever_has_cost_much_gets_plain_names_and_nobody_else(sources: Sources) -> None:
    shares = Shares()
    readings = Readings(shares, "test")
    dear, cheap = (Lookups(readings, user, sources.read) for user in (SLOW, OTHER))
    dear.ask(["f"])
    assert dear.take() == []
    shares.charge(SLOW, 1000.0)
    assert qualnames(dear) == [None]
    cheap.ask(["g"])
    assert cheap.take() == []
    sources.may_come.set()
    end_s, named = time.monotonic() + PATIENCE_S, list[str | None]()
    while not named and time.monotonic() < end_s:
        named = qualnames(cheap)
    assert named == ["C.g"]
    readings.close()


def rows(*pids_and_ids: tuple[int, int]) -> tuple[Columns, np.ndarray]:
    pids, ids = zip(*pids_and_ids, strict=True)
    return {"ts": np.arange(len(pids)), "pid": np.array(pids, np.int32)}, np.array(ids, np.uint32)


def test_a_process_waits_for_its_names_in_order_and_no_other_does() -> None:
    pending, emitted = {7, 8}, list[tuple[int, int]]()
    held = Held(pending)

    def emit(columns: Columns, ids: np.ndarray) -> None:
        emitted.extend(zip(columns["pid"].tolist(), ids.tolist(), strict=True))

    held.sort(*rows((1, 5), (1, 7), (2, 5)), emit)
    assert emitted == [(2, 5)]
    held.sort(*rows((1, 5), (2, 6), (3, 8)), emit)  # of process 1 all that comes now is later
    assert emitted == [(2, 5), (2, 6)]
    pending.discard(7)
    held.release()
    assert emitted[2:] == [(1, 5), (1, 7), (1, 5)]
    assert 1 not in held and 3 in held
    pending.discard(8)
    held.release()
    held.sort(*rows((3, 8)), emit)
    assert emitted[5:] == [(3, 8), (3, 8)] and 3 not in held


def test_what_a_process_forks_waits_for_the_names_that_its_creator_asked_for() -> None:
    pending, emitted = {7}, list[int]()
    held = Held(pending)
    held.sort(*rows((2, 7)), lambda columns, _: emitted.extend(columns["pid"].tolist()))
    assert not emitted
    pending.clear()
    held.release()
    assert emitted == [2]


def test_so_many_rows_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytrace_ebpf.record.usdt.held._MOST_ROWS", 3)
    held = Held({7})
    held.sort(*rows((1, 7), (1, 7), (1, 7)), lambda *_: None)
    assert not held.is_full
    held.sort(*rows((1, 7)), lambda *_: None)
    assert held.is_full
