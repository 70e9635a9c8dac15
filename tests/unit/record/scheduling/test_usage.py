"""Samples of a process's usage: what psutil and the kernel say of it."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest

from pytrace_ebpf.record.scheduling import usage

STILL = "import sys; print('ready', flush=True); sys.stdin.read()"


@pytest.fixture
def pid() -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-c", STILL], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout and process.stdout.readline()
        yield process.pid


def cpus(pid: int) -> str:
    (row,) = (row for row in usage.sample([pid], {}) if row["kind"] == "thread")
    return str(row["cpus"])


def test_affinity_and_its_change_are_seen(pid: int) -> None:
    allowed = os.sched_getaffinity(pid)
    told = [range(int(part.split("-")[0]), int(part.split("-")[-1]) + 1) for part in cpus(pid).split(",")]
    assert {core for part in told for core in part} == allowed
    os.sched_setaffinity(pid, {min(allowed)})
    assert cpus(pid) == str(min(allowed))


@pytest.mark.parametrize(("cores", "text"), [({0}, "0"), ({0, 1}, "0-1"), ({0, 2, 3, 4, 9}, "0,2-4,9"), (set(range(128)), "0-127")])
def test_cores_are_told_as_ranges(cores: set[int], text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda tid: cores)
    assert usage._affinity(1) == text


def test_a_process_that_is_gone_gives_no_rows() -> None:
    assert {row["kind"] for row in usage.sample([2**22 - 1], {})} == {"core"}


def test_what_a_process_used_is_stamped_when_it_is_read(pid: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not when the sample began: between the two another program may have had the core."""
    read, threads = list[int](), psutil.Process.threads
    monkeypatch.setattr(psutil.Process, "threads", lambda self: (read.append(time.monotonic_ns()), threads(self))[1])
    for row in usage.sample([os.getpid(), pid], {})[-2:]:
        assert row["pid"] == pid and read[0] < row["ts"] <= read[1]
