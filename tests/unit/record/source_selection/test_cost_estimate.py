"""The estimated cost of probes in a program: from its CPU time where that is enough, else by counting calls."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from pytrace_ebpf.errors import TargetError
from pytrace_ebpf.record.process.target import Target, inspect
from pytrace_ebpf.record.source_selection.cost_estimate import estimate_cost
from tests.unit.live_pythons import running

SLEEPS = "import time; print('ready', flush=True); time.sleep(60)"
COMPUTES = "print('ready', flush=True)\nwhile True: pass"


@contextmanager
def program(source: str, *version: int) -> Iterator[Target]:
    """A running one, as if it were of that CPython."""
    with running([sys.executable], source) as pid:
        yield replace(inspect(pid), python_version=version)


def never(target: Target, seconds: float) -> float:
    raise AssertionError


@pytest.mark.parametrize("version", [(3, 9, 2), (3, 11, 2), (3, 15, 2)])
def test_a_sleeping_program_is_cheap_and_not_probed(version: tuple[int, ...]) -> None:
    with program(SLEEPS, *version) as target:
        estimate = estimate_cost(target, never, 2500.0)
    assert estimate.is_cheap and estimate.calls_per_s is None and estimate.cpu_share < 0.005


def test_a_computing_program_on_3_11_is_expensive_and_not_probed() -> None:
    with program(COMPUTES, 3, 11, 2) as target:
        estimate = estimate_cost(target, never, 2500.0)
    assert not estimate.is_cheap and estimate.calls_per_s is None


@pytest.mark.parametrize(("seen", "calls", "cheap"), [(1_000, 1_002, True), (200_000, 392_157, False), (10**9, 10**9 / 0.03, False)])
def test_the_count_is_corrected_for_the_cost_of_counting(seen: float, calls: float, cheap: bool) -> None:
    with program(COMPUTES, 3, 9, 2) as target:
        estimate = estimate_cost(target, lambda *_: seen, 2450.0)
    assert estimate.calls_per_s == pytest.approx(calls, rel=0.001)
    assert estimate.is_cheap == cheap


def test_a_process_that_has_ended() -> None:
    process = subprocess.Popen([sys.executable, "-c", SLEEPS], stdout=subprocess.PIPE)
    assert process.stdout and process.stdout.readline()
    target = inspect(process.pid)
    process.kill()
    process.wait()
    with pytest.raises(TargetError, match="ended"):
        estimate_cost(target, never, 2500.0)
