"""What users cost is charged, fades, and decides whose turn it is; places, functions and a segment's stacks are shared."""

import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytrace_ebpf.daemon import finding
from pytrace_ebpf.daemon.configuration import Configuration
from pytrace_ebpf.daemon.finding import Finding
from pytrace_ebpf.daemon.policy import SAMPLE, Rule
from pytrace_ebpf.record.cpython import holdings
from pytrace_ebpf.record.cpython.functions import UNKNOWN, Functions
from pytrace_ebpf.record.cpython.holdings import Holdings, Owners
from pytrace_ebpf.record.parsing.sandbox import Patience, Sandbox, UnansweredError
from pytrace_ebpf.record.process import lanes, matching, shares
from pytrace_ebpf.record.process.matching import Key
from pytrace_ebpf.record.process.readings import Readings
from pytrace_ebpf.record.process.shares import ALLOWANCE_S, HALF_LIFE_S, Places, Shares, user_of
from pytrace_ebpf.record.sampling.turns import in_turn, parts
from tests.conftest import PATIENCE_S


class Clock:
    """A time that passes when it is told to."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_who_has_cost_least_comes_first_and_what_was_spent_fades(clock: Clock) -> None:
    of = Shares(clock=clock)
    of.charge(1, 4.0)
    of.charge(2, 3.0)
    assert of.next([1, 2]) == 2 and of.next([1, 2, 3]) == 3 and of.next([]) is None
    clock.now += HALF_LIFE_S
    assert of.spent_s(1) == pytest.approx(2.0)
    of.charge(2, 1.0)
    assert of.next([1, 2]) == 1


def test_who_costs_too_much_is_left_alone_until_half_of_it_has_faded_and_it_is_said(clock: Clock) -> None:
    of = Shares(clock=clock)
    of.charge(7, ALLOWANCE_S)
    assert not of.is_left_alone(7) and of.take_said() == []
    of.charge(7, 1.0)
    assert of.is_left_alone(7) and of.next([7]) is None and of.next([7, 8]) == 8
    (said,) = of.take_said()
    assert "user 7 are left alone" in said and of.take_said() == []
    assert of.status({7: {"sampled": 3}}) == [{"user": 7, "cpu_s": 16.0, "lately_s": 16.0, "left_alone": True, "sampled": 3}]
    clock.now += HALF_LIFE_S
    assert of.is_left_alone(7)
    clock.now += HALF_LIFE_S / 4
    assert not of.is_left_alone(7) and of.take_said() == ["processes of user 7 are looked at again"]
    assert of.status()[0]["cpu_s"] == 16.0


def test_the_time_of_another_process_is_charged_too(clock: Clock) -> None:
    of = Shares(clock=clock)
    with of.charged(5):
        shares.add(2.0)
        with of.charged(6):
            shares.add(3.0)
    assert of.spent_s(5) == pytest.approx(2.0, abs=0.1) and of.spent_s(6) == pytest.approx(3.0, abs=0.1)


def test_of_very_many_users_those_who_cost_least_are_forgotten(clock: Clock) -> None:
    of = Shares(clock=clock)
    of.charge(-1, 2 * ALLOWANCE_S)
    for user in range(20_000):
        of.charge(user, 0.001)
    assert of.is_left_alone(-1) and len(of._in_all) <= 2 * shares._MOST_USERS and len(of.status()) == shares.MOST_SAID


@given(st.lists(st.integers(0, 4), max_size=60), st.integers(1, 10))
def test_places_are_shared(users: list[int], most: int) -> None:
    places: Places[int] = Places(most)
    wanted = Counter[int]()
    for who, user in enumerate(users):
        wanted[user] += 1
        if places.has_room(user):
            places.take(who, user)
    held = places.by_user()
    assert sum(held.values()) == len(places) == min(most, len(users))
    fair = most // max(len(wanted), 1)
    assert all(held.get(user, 0) >= min(count, fair) for user, count in wanted.items())


def test_a_namespace_of_users_is_charged_to_who_made_it() -> None:
    if os.geteuid() != 0:
        pytest.skip("starts processes of other users")
    with subprocess.Popen(
        ["unshare", "-Ur", sys.executable, "-c", "print('ready', flush=True); input()"], user=70_001, stdin=-1, stdout=-1
    ) as process:
        assert process.stdout and process.stdin
        if process.stdout.readline() != b"ready\n":
            pytest.skip("this kernel lets no user have a namespace of users")
        assert user_of(process.pid) == 70_001
        process.kill()
    assert user_of(os.getpid()) == os.getuid()


def name(functions: Functions, number: int, user: int) -> int:
    return functions.intern("/a.py", f"f{number}", None, number, 0, lambda *_: None, user)


def test_a_user_has_so_many_functions_at_a_time_and_those_that_nobody_holds_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holdings, "MOST_OF_ONE", 100)
    functions = Functions(Owners(Shares(), int), forgets=True)
    own = [name(functions, number, 1) for number in range(150)]
    functions.hold(own[:100])
    assert own[:100] == list(range(100)) and set(own[100:]) == {UNKNOWN} and functions.turned_away == 50
    assert functions.is_full(1) and not functions.is_full(2)
    assert name(functions, 1000, 2) == 100 and name(functions, 5, 2) == 5
    functions.hold([5, 100])
    functions.release(own[:100])
    functions.forget()
    assert functions.metadata() == {"forgotten": []}  # the segment that is closed may refer to them
    functions.forget()
    assert functions.metadata() == {"forgotten": [number for number in range(100) if number != 5]}
    assert len(functions) == 2 and name(functions, 5, 1) == 5 and name(functions, 6, 1) == 101


def test_functions_that_keep_coming_are_few_a_second(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holdings, "NEW_OF_ONE", 100)
    of = Holdings(1 << 20, forgets=True, clock=clock)

    def come(count: int) -> int:
        got = 0
        for _ in range(count):
            came, come.next = of.takes(come.next, b"%d" % come.next, 1), come.next + 1  # type: ignore[attr-defined]
            got += came
        return got

    come.next = 0  # type: ignore[attr-defined]
    assert come(500) == 100
    assert of.takes(10_000, b"x", 2)
    clock.now += holdings._HALF_LIFE_S
    assert come(500) == 50


def test_no_user_takes_all_functions_of_a_recording_of_several() -> None:
    of = Holdings(1000, forgets=False)
    assert sum(of.takes(number, b"", 1) for number in range(2000)) == 500
    assert sum(of.takes(number, b"", 2) for number in range(2000)) == 250
    assert sum(of.takes(number, b"", 3) for number in range(2000)) == 125


def test_stacks_of_a_segment_are_taken_in_turn_and_what_some_do_not_need_others_get() -> None:
    sizes, taken = {1: 100, 2: 5, 3: 30}, Counter[int]()
    users = [user for user in sizes for _ in range(10)]  # stacks of so many nodes, ten of each

    def grown() -> int:
        return sum(sizes[user] * count for user, count in taken.items())

    for place in in_turn(range(len(users)), users, grown, 600):
        taken[users[place]] += 1
    assert taken[2] == 10 and taken[3] >= 7 and taken[1] >= 2 and grown() < 600 + sum(sizes.values())


def test_stacks_are_learned_whole_and_few_at_a_time() -> None:
    reported = np.zeros(1000, [("stack", "<u8"), ("first", "<u2")])
    reported["stack"] = np.repeat(np.arange(40), 25)
    reported = reported[np.random.default_rng(1).permutation(1000)]
    found = list(parts(reported))
    assert sum(count for count, _ in found) == 40 and all(len(part) <= 64 for _, part in found)
    stacks = [set(part["stack"].tolist()) for _, part in found]
    assert sum(map(len, stacks)) == 40 and set.union(*stacks) == set(range(40))
    assert [len(part) for _, part in parts(np.repeat(reported[:1], 500))] == [500] and list(parts(reported[:0])) == []


def test_a_users_long_queue_keeps_nobody_waiting() -> None:
    of, done, go = Shares(), list[int](), threading.Event()
    reading = Readings(of, "test")
    assert reading.do(1, lambda: (go.wait(PATIENCE_S), None)[1])
    accepted = [reading.do(1, lambda: (shares.add(0.1), done.append(1))[1]) for _ in range(200)]
    assert 60 < sum(accepted) < 70
    assert reading.do(2, lambda: done.append(2))
    go.set()
    assert reading.finish(PATIENCE_S)
    assert done.index(2) <= 1 and done.count(1) == sum(accepted)
    of.charge(1, 2 * ALLOWANCE_S)
    assert not reading.do(1, lambda: None) and reading.do(2, lambda: None)
    reading.close()
    reading.join(PATIENCE_S)
    assert not reading.do(2, lambda: None)


def test_at_the_end_nobody_waits_for_who_has_cost_much() -> None:
    of, done, go = Shares(), list[int](), threading.Event()
    reading = Readings(of, "test")
    of.charge(1, ALLOWANCE_S / 2)
    assert reading.do(1, lambda: (go.wait(PATIENCE_S), None)[1]) and reading.do(1, lambda: done.append(1))
    assert not reading.finish(PATIENCE_S) and done == []
    go.set()
    assert reading.do(2, lambda: done.append(2)) and reading.finish(PATIENCE_S) and done == [2]
    reading.close()
    reading.join(PATIENCE_S)


def test_what_goes_wrong_beside_is_raised() -> None:
    reading = Readings(Shares(), "test")
    assert reading.do(1, lambda: [][1])
    reading.join(PATIENCE_S)
    with pytest.raises(IndexError):
        reading.do(1, lambda: None)


def test_the_places_of_the_daemon_are_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finding, "processes", lambda: list(there))
    monkeypatch.setattr(finding, "key_of", lambda pid: (pid, "1", 0, 0))
    monkeypatch.setattr(Finding, "_see", lambda self, pid, known, now: finding._Seen(now, (pid, "1", 0, 0), Rule(SAMPLE)))
    monkeypatch.setattr(matching, "is_ours", lambda pid: False)
    monkeypatch.setattr(matching, "user_of", lambda pid: pid // 100)
    monkeypatch.setattr(matching.Looking, "_look_at", lambda self, pid, key, ready: self._judged.add(key) or object())
    there = list(range(100, 120))
    of = Finding(Configuration(max_processes=10))

    def look() -> tuple[list[int], list[int]]:
        found = sorted(pid for pid, _ in of._look(True, PATIENCE_S))
        return found, sorted(of.take_let_go())

    assert look() == (list(range(100, 110)), []) and of.left_out == 10
    there += [200, 201, 300]
    assert look() == ([200, 201, 300], [107, 108, 109])
    assert of.users() == {1: {"sampled": 7, "too_many": 13}, 2: {"sampled": 2, "too_many": 0}, 3: {"sampled": 1, "too_many": 0}}
    there += range(202, 220)
    found, gone = look()
    assert sorted(Counter(pid // 100 for pid in found)) == [2] and of.handed == 10
    assert {user: each["sampled"] for user, each in of.users().items()} in ({1: 5, 2: 4, 3: 1}, {1: 4, 2: 5, 3: 1}) and all(pid < 200 for pid in gone)
    there[:] = [pid for pid in there if pid // 100 != 2]
    found, gone = look()
    assert all(pid // 100 == 1 for pid in found) and gone == [] and of.users()[1]["sampled"] == 9
    of.close()


def test_a_user_with_many_processes_is_not_looked_at_before_others(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[int] = []

    def look_at(self: matching.Looking, pid: int, key: Key, ready: bool) -> None:
        shares.add(1.0)
        order.append(pid // 100)

    monkeypatch.setattr(matching, "is_ours", lambda pid: False)
    monkeypatch.setattr(matching, "user_of", lambda pid: pid // 100)
    monkeypatch.setattr(matching.Looking, "_look_at", look_at)
    monkeypatch.setattr(matching.Looking, "_fitting", lambda self: {pid: (pid, "1", 0, 0) for pid in [*range(100, 150), 200, 201, 300]})
    of = matching.Looking()
    of._look(True, PATIENCE_S)
    assert sorted(order[:3]) == [1, 2, 3] and order.count(2) == 2 and order.count(3) == 1
    assert order.count(1) in (15, 16, 17) and of.shares.is_left_alone(1)  # as often as he may, and no more
    of.close()


def test_who_takes_long_to_look_at_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four users whose processes take for ever, all lanes, and one who comes later: one of the four is put aside, and looked at again."""
    aside: list[int] = []
    slow, begun = threading.Event(), Counter[int]()

    def look_at(self: matching.Looking, pid: int, key: Key, ready: bool) -> object:
        begun[pid] += 1
        if pid // 100 < 5 and len(aside) == 0:
            slow.wait(PATIENCE_S)
        self._judged.add(key)
        return object()

    def put_aside(self: Sandbox) -> None:
        aside.append(1)
        slow.set()

    there = [100, 200, 300, 400]
    monkeypatch.setattr(lanes, "_LONG_S", 0.0)
    monkeypatch.setattr(Sandbox, "put_aside", put_aside)
    monkeypatch.setattr(matching, "is_ours", lambda pid: False)
    monkeypatch.setattr(matching, "user_of", lambda pid: pid // 100)
    monkeypatch.setattr(matching.Looking, "_look_at", look_at)
    monkeypatch.setattr(matching.Looking, "_fitting", lambda self: {pid: (pid, "1", 0, 0) for pid in there})
    of = matching.Looking()
    assert of._look(True, 0.0) == [] and of._lanes.users == {1, 2, 3, 4}
    there.append(500)
    found = dict(of._look(True, PATIENCE_S))
    assert aside == [1] and set(found) >= {500} and len(found) == 4
    assert set(found) == {100, 200, 300, 400, 500} - {pid for pid in there if pid not in found}
    of._judged -= {key for key in of._judged if key[0] not in found}
    assert set(dict(of._look(True, PATIENCE_S))) == set(there) - set(found), "it has its turn again"
    assert sorted(begun.values()) == [1, 1, 1, 1, 2]
    of.close()


def test_who_ended_while_it_was_looked_at_is_not_handed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = threading.Event()

    def look_at(self: matching.Looking, pid: int, key: Key, ready: bool) -> object:
        looked.wait(PATIENCE_S)
        self._judged.add(key)
        return object()

    there = [100]
    monkeypatch.setattr(finding, "processes", lambda: list(there))
    monkeypatch.setattr(finding, "key_of", lambda pid: (pid, "1", 0, 0))
    monkeypatch.setattr(Finding, "_see", lambda self, pid, known, now: finding._Seen(now, (pid, "1", 0, 0), Rule(SAMPLE)))
    monkeypatch.setattr(matching, "is_ours", lambda pid: False)
    monkeypatch.setattr(matching, "user_of", lambda pid: pid // 100)
    monkeypatch.setattr(matching.Looking, "_look_at", look_at)
    of = Finding(Configuration())
    assert of._look(True, 0.0) == [] and of._lanes.users == {1}
    there[:] = [200]
    looked.set()
    assert [pid for pid, _ in of._look(True, PATIENCE_S)] == [200] and of.handed == 1
    of.close()


def test_what_is_put_aside_is_not_held_against_it() -> None:
    asked, over = Sandbox("tests.hostile.confined_tasks"), threading.Event()

    def put_aside() -> None:
        while not over.wait(0.05):
            asked.put_aside()

    thread = threading.Thread(target=put_aside)
    thread.start()
    try:
        for _ in range(5):
            with pytest.raises(UnansweredError, match="put aside"):
                asked.ask("hang", {}, [], int, PATIENCE_S, "it")
    finally:
        over.set()
        thread.join()
        asked.close()


def test_what_a_process_waits_for_a_core_is_no_wait_for_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    monkeypatch.setattr(shares, "queued_s", lambda pid: 0.0)
    with ours, theirs:
        patience = Patience(0.05, 1)
        threading.Timer(0.2, lambda: theirs.send(b"x")).start()
        monkeypatch.setattr(shares, "queued_s", lambda pid: 100.0)
        patience.wait(ours, select.POLLIN)
        assert patience.spent_s < 0.2, "but for a tenth of it"
        monkeypatch.setattr(shares, "queued_s", lambda pid: 0.0)
        ours.recv(1)
        with pytest.raises(TimeoutError):
            Patience(0.05, 1).wait(ours, select.POLLIN)


def test_a_process_that_works_while_it_starts_is_waited_for_and_one_that_does_nothing_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        threading.Timer(0.2, lambda: theirs.send(b"x")).start()
        began = time.monotonic()
        monkeypatch.setattr(shares, "process_s", lambda pid: time.monotonic() - began)  # all of it
        Patience(0.05, 1, starts=True).wait(ours, select.POLLIN)
        ours.recv(1)
        with pytest.raises(TimeoutError):
            Patience(0.05, 1).wait(ours, select.POLLIN)
        monkeypatch.setattr(shares, "process_s", lambda pid: 0.0)
        with pytest.raises(TimeoutError):
            Patience(0.05, 1, starts=True).wait(ours, select.POLLIN)
