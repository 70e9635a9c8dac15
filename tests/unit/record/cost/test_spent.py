"""What tracing took in the programs, and what they used."""

import os
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from pytrace_ebpf.record.cost import spent
from pytrace_ebpf.record.cost.measured import Measured, Timed
from pytrace_ebpf.record.source import Recording
from pytrace_ebpf.record.source_selection.sources import Sources


def test_a_process_that_has_ended_when_it_is_first_looked_at_used_nothing_and_not_less(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    ticks = iter(range(time.monotonic_ns(), time.monotonic_ns() + 10**12, 1000))
    monkeypatch.setattr(spent.time, "monotonic_ns", lambda: next(ticks))
    processes = SimpleNamespace(living={ended.pid: None, os.getpid(): None})
    recording = cast(Recording, SimpleNamespace(processes=processes, source_of=lambda pid: "agent"))
    sources = cast(
        Sources, SimpleNamespace(passed=dict, dropped=dict, slowdown=lambda pid: 1.0, timed=dict, parts=lambda name: None, price=lambda name: 100.0)
    )
    accounts = spent.Accounts(recording, sources)
    lately = accounts.look(0.1)
    assert lately.used_ns > 0 and lately.spent_ns == lately.calls_ns == 0
    assert accounts.whole().spent_ns == 0


def test_calls_of_a_program_that_ended_before_their_price_was_known_cost_something() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    price = [0.0]
    processes = SimpleNamespace(living={})
    recording = cast(Recording, SimpleNamespace(processes=processes, source_of=lambda pid: None, source_at_end=lambda pid: "agent"))
    sources = cast(
        Sources,
        SimpleNamespace(passed=dict, dropped=dict, slowdown=lambda pid: 1.0, timed=dict, parts=lambda name: None, price=lambda name: price[0]),
    )
    accounts = spent.Accounts(recording, sources)
    for _ in range(2):  # the second time it is known to have ended
        accounts.count([{"pid": np.full(20, ended.pid)}])
        accounts.look(0.1)
    price[0] = 100.0
    assert accounts.whole().spent_ns == accounts.whole().calls_ns == 2 * 10 * 100


def test_events_that_are_only_looked_at_cost_a_share_of_what_a_call_costs_here() -> None:
    """On a fast machine they took all of a program's time that does nothing but call functions of C."""
    mine = os.getpid()
    processes, passed = SimpleNamespace(living={mine: None}), {mine: 0}
    recording = cast(Recording, SimpleNamespace(processes=processes, source_of=lambda pid: "agent"))
    price = [100.0]
    sources = cast(
        Sources,
        SimpleNamespace(
            passed=lambda: dict(passed), dropped=dict, slowdown=lambda pid: 1.0, timed=dict, parts=lambda name: None, price=lambda name: price[0]
        ),
    )
    found = []
    for price[0] in (100.0, 200.0):
        accounts = spent.Accounts(recording, sources)
        accounts.approach(mine)
        accounts.add(mine)
        accounts.look(0.1)
        passed[mine] += 1000
        sum(range(3_000_000))  # something to take it of
        found.append(accounts.look(0.1).spent_ns)
    assert found == [15_000, 30_000]


def test_what_was_timed_in_a_process_is_its_price() -> None:
    mine, loop = os.getpid(), Measured(24.0, 64.0, within=20.0)
    recording = cast(Recording, SimpleNamespace(processes=SimpleNamespace(living={mine: None}), source_of=lambda pid: "agent"))
    timed = {mine: Timed(1000, 50_000.0)}
    sources = SimpleNamespace(
        passed=dict, dropped=dict, slowdown=lambda pid: 1.0, timed=lambda: timed, parts=lambda name: loop, price=lambda name: 40.0
    )
    accounts = spent.Accounts(recording, cast(Sources, sources))
    accounts.approach(mine)
    accounts.add(mine)
    accounts.look(0.1)
    accounts.count([{"pid": np.full(2000, mine)}])
    sum(range(3_000_000))  # something to take it of
    assert accounts.look(0.1).spent_ns == 1000 * 200
    assert accounts.timed == 1000
