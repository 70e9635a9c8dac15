"""Sums are kept while a trace is recorded: by a process that wants nothing which anybody else wants, and ends with the recording."""

import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

import pytrace_ebpf
from pytrace_ebpf.derive import sums
from pytrace_ebpf.derive.checkpoints import Checkpoints
from pytrace_ebpf.runs import summing
from tests.unit.derive.test_sums import read_of, recorded_upto, straight, threads_told_early
from tests.unit.derive.test_windows import trace_tree
from tests.unit.synthetic import sample

# It would wait for ever where the machine has no core to spare.
CHILD = f"""
import sys
sys.path[:0] = {[str(Path(pytrace_ebpf.__file__).parents[1]), *sys.path]!r}
from pytrace_ebpf.workers import summing_up
summing_up.step_back = lambda: None
summing_up.main()
"""


def recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sums, "BYTES_AN_EVENT", 1 << 20)
    path = sample(tmp_path / "trace")
    threads_told_early(path)
    recorded_upto(path, 1)
    return path


def test_what_was_kept_meanwhile_is_not_read_by_the_first_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = recording(tmp_path, monkeypatch)
    for count in (1, 2):
        recorded_upto(path, count)
        trace = pytrace_ebpf.open(path)
        read = read_of(trace, monkeypatch)
        sums.keep_up(trace)
        assert read == [count - 1] and Checkpoints(trace).reach == count
        sums.keep_up(trace)
        assert read == [count - 1]
    recorded_upto(path, 3)
    trace = pytrace_ebpf.open(path)
    read = read_of(trace, monkeypatch)
    found = trace_tree(trace)
    assert read == [2]
    pd.testing.assert_frame_equal(found, straight(trace))


def test_it_keeps_no_more_than_what_is_large_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last segment is not kept for its own sake: that would be a file for each look."""
    path = recording(tmp_path, monkeypatch)
    monkeypatch.setattr(sums, "BYTES_AN_EVENT", 0.001)
    for count in (1, 2, 3):
        recorded_upto(path, count)
        sums.keep_up(pytrace_ebpf.open(path))
    assert Checkpoints(pytrace_ebpf.open(path)).reach <= 1


def test_the_process_keeps_up_and_ends_with_the_recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = recording(tmp_path, monkeypatch)
    started, real = [], subprocess.Popen

    def without_stepping_back(words: list[str], **options: Any) -> "subprocess.Popen[bytes]":
        assert words[:3] == [sys.executable, "-I", "-S"] and str(path) not in words
        started.append(real([sys.executable, "-c", CHILD], **options))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", without_stepping_back)
    shown: list[float] = []
    session: Any = SimpleNamespace(directory=path)
    with summing.beside(session, False, lambda status: shown.append(status.seconds)) as look:
        look(SimpleNamespace(seconds=1.0, calls=9))  # type: ignore[arg-type]
        assert not started
        for seconds in (20.0, 21.0):
            look(SimpleNamespace(seconds=seconds, calls=9))  # type: ignore[arg-type]
        (child,) = started
        deadline = time.monotonic() + 120
        while not Checkpoints(pytrace_ebpf.open(path)).reach:
            assert child.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
    assert child.poll() is not None and shown == [1.0, 20.0, 21.0]


def test_a_recording_without_calls_has_nothing_to_sum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summing, "_start", lambda _: pytest.fail("started"))
    with summing.beside(SimpleNamespace(directory=tmp_path), False, lambda _: None) as look:  # type: ignore[arg-type]
        look(SimpleNamespace(seconds=100.0, calls=0))  # type: ignore[arg-type]


def test_a_recording_that_drops_segments_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summing, "_start", lambda _: pytest.fail("started"))
    with summing.beside(SimpleNamespace(directory=tmp_path), True, lambda _: None) as look:  # type: ignore[arg-type]
        look(SimpleNamespace(seconds=100.0, calls=9))  # type: ignore[arg-type]


@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="a policy of Linux")
def test_it_takes_no_core_that_anybody_wants_and_is_the_first_to_go() -> None:
    imports = "import os; from pytrace_ebpf.workers import summing_up"
    says = f"{imports}; summing_up.step_back(); print(os.sched_getscheduler(0), open('/proc/self/oom_score_adj').read())"
    environment = {**os.environ, "PYTHONPATH": str(Path(summing.__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", says], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.split() == [str(os.SCHED_IDLE), "1000"]
