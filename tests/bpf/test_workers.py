"""CPU time that threads without Python spend for a call, against a pool that reports how much it computed."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import pytrace_ebpf
from pytrace_ebpf.trace.losses import NOT_REPORTED
from tests.bpf.conftest import Recorder
from tests.conftest import TARGETS, Target

pytestmark = pytest.mark.measured


@pytest.fixture
def pool(tmp_path: Path) -> Path:
    """tests/targets/pool.c as a library."""
    library = tmp_path / "pool.so"
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-pthread", "-o", library, TARGETS / "pool.c"], check=True)
    return library


@pytest.mark.parametrize("source", ["usdt", "agent"])
def test_a_parallel_region_is_the_calls_that_waited_for_it(
    source: str, pool: Path, target: Callable[..., Target], attach: Callable[..., Recorder]
) -> None:
    process = target("parallel", str(pool), "--wait")
    recorder = attach(process.pid, "--source", source)
    process.go()
    used = process.done()["used"]
    trace = pytrace_ebpf.open(recorder.finish())
    calls = trace.calls().merge(trace.functions(), on="func_id").sort_values("start_ns")
    regions, outer, alone = (calls[calls["name"] == name] for name in ("region", "outer", "alone"))
    known = regions["worker_on_cpu_ns"].notna().to_numpy()
    assert known.all() or set(trace.losses()["class"]) & set(NOT_REPORTED.values())  # a switch of a worker that the kernel did not report
    used = [seconds for seconds, is_known in zip(used, known, strict=True) if is_known]
    assert regions["worker_on_cpu_ns"].to_numpy()[known] / 1e9 == pytest.approx(used, rel=0.25)
    assert regions["worker_on_cpu_ns"].sum() / 1e9 == pytest.approx(sum(used), rel=0.1)
    # A worker may have a moment to go when the last of them has woken the caller.
    assert (outer["worker_on_cpu_ns"].to_numpy() >= regions["worker_on_cpu_ns"].to_numpy()).all()
    assert alone["worker_on_cpu_ns"].sum() < 0.01 * regions["worker_on_cpu_ns"].sum()
    assert (trace.threads()["name"] != "pytrace-agent").sum() in (3, 4)  # with the one that the agent has for a moment as it joins
