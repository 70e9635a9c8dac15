"""What functions allocate, keep and free, on every Python: against amounts that are known, tracemalloc, and the kernel's word."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import pytrace_ebpf
from pytrace_ebpf.trace.reader import Trace
from tests.bpf.conftest import Recorder, lost, wait_until
from tests.conftest import Python, Target

pytestmark = [pytest.mark.sources("agent"), pytest.mark.gil]

HEADER = 33  # bytes of an empty bytes object
_LITTLE = 20_000  # bytes that a function uses besides: lists, integers, frames


def by_name(trace: Trace) -> pd.DataFrame:
    return trace.memory().merge(trace.functions(), on="func_id").drop_duplicates("name").set_index("name")


def assert_known_amounts(trace: Trace, said: dict[str, Any]) -> None:
    rows, blocks = by_name(trace), said["count"] * (said["size"] + HEADER)
    small = said["count"] * (said["small"] + HEADER)

    def near(name: str, column: str, bytes_: int, more: int = _LITTLE) -> bool:
        return bytes_ <= rows[column][name] <= bytes_ * 1.02 + more

    calls = rows["calls"]["keep"]
    assert near("drop", "bytes", blocks, 100_000) and near("drop", "kept_bytes", 0) and near("drop", "peak_bytes", blocks)
    assert near("take_and_drop", "bytes", blocks, 100_000) and near("take_and_drop", "kept_bytes", 0) and near("take_and_drop", "peak_bytes", blocks)
    assert near("one_by_one", "bytes", blocks, 50_000) and near("one_by_one", "kept_bytes", 0) and near("one_by_one", "peak_bytes", said["size"])
    assert near("grow", "kept_bytes", 1_000 * said["count"], 1_000 * said["count"] // 8) and rows["bytes"]["grow"] > rows["kept_bytes"]["grow"]
    assert near("keep", "kept_bytes", (calls - 1) * blocks + small)
    assert near(
        "everything", "kept_bytes", blocks + small + 1_000 * said["count"], 1_000 * said["count"] // 8
    )  # nothing of what a thread made and this one freed
    assert near("hand_over", "kept_bytes", blocks)
    assert (rows["bytes"] >= rows["self_bytes"]).all() and (rows["kept_bytes"] <= rows["bytes"]).all()


@pytest.mark.usually("agent")
def test_functions_are_charged_for_what_they_allocate_and_keep(
    python: Python, source: str, target: Callable[..., Target], traced: Callable[..., tuple[Trace, dict[str, Any]]]
) -> None:
    trace, said = traced(target("allocates", "--wait", python=python), "--source", source, "--memory")
    assert_known_amounts(trace, said)
    rows = by_name(trace)
    assert rows["grown_bytes"]["keep"] == pytest.approx(rows["kept_bytes"]["keep"], rel=0.5)  # both were recorded
    assert not lost(trace)


@pytest.mark.usually("agent")
def test_a_launched_program_too(python: Python, source: str, run: Callable[..., tuple[Path, "subprocess.CompletedProcess[str]"]]) -> None:
    directory, ended = run(python.command("allocates"), "--source", source, "--memory")
    assert ended.returncode == 0, ended.stderr
    said = json.loads(ended.stdout.splitlines()[-1].partition(" ")[2])
    assert_known_amounts(pytrace_ebpf.open(directory), said)


@pytest.mark.usually("agent")
def test_what_is_kept_is_what_tracemalloc_says(
    python: Python, source: str, target: Callable[..., Target], traced: Callable[..., tuple[Trace, dict[str, Any]]]
) -> None:
    process = target("allocates", "compared", python=python)
    said = process.done()
    process.wait()
    trace, _ = traced(target("allocates", "--wait", python=python), "--source", source, "--memory")
    assert by_name(trace)["kept_bytes"]["everything"] == pytest.approx(said["kept"], rel=0.02)


@pytest.mark.usually("agent")
def test_a_tracer_that_comes_in_the_middle_and_goes_leaves_the_program_alone(
    python: Python, source: str, target: Callable[..., Target], attach: Callable[..., Recorder]
) -> None:
    process = target("churn", "600", python=python)
    for _ in range(2):
        recorder = attach(process.pid, "--source", source, "--memory")
        wait_until(lambda recorder=recorder: len(list((recorder.directory / "allocations").glob("*.parquet"))) > 0)
        trace = pytrace_ebpf.open(recorder.stop())
        assert len(trace.allocations()) and process.process.poll() is None
    process.kill()
    assert trace.memory()["bytes"].sum() > 0
