"""What a wait in the run queue was for: a CPU quota, against what the kernel counts for the group; else who had the core, for all of it."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import pytrace_ebpf
from pytrace_ebpf.analyze.waits.rivals import rivals
from pytrace_ebpf.cli.main import main
from pytrace_ebpf.record.kernel.btf import KernelTypes
from tests.bpf.conftest import Recorder
from tests.conftest import Target

pytestmark = pytest.mark.measured

V1, V2 = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")
V1_THERE, V2_THERE = (V1 / "cpu.cfs_quota_us").parent.exists(), (V2 / "cgroup.subtree_control").exists()
QUOTA_US, PERIOD_US = 30_000, 100_000


class Group:
    """A control group with a CPU quota, which it uses up beside any number of busy processes: its weight is the largest."""

    def __init__(self) -> None:
        self.path = (V1 if V1_THERE else V2) / f"pytrace-test-{os.getpid()}"
        if not V1_THERE:
            (V2 / "cgroup.subtree_control").write_text("+cpu")
        self.path.mkdir()
        if V1_THERE:
            (self.path / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (self.path / "cpu.cfs_quota_us").write_text(str(QUOTA_US))
            (self.path / "cpu.shares").write_text("262144")
        else:
            (self.path / "cpu.max").write_text(f"{QUOTA_US} {PERIOD_US}")
            (self.path / "cpu.weight").write_text("10000")

    def take(self, pid: int) -> None:
        (self.path / "cgroup.procs").write_text(str(pid))

    def throttled_ns(self) -> int:
        counted = dict(line.split() for line in (self.path / "cpu.stat").read_text().splitlines())
        return int(counted["throttled_time"]) if V1_THERE else 1000 * int(counted["throttled_usec"])

    def close(self) -> None:
        self.path.rmdir()


@pytest.fixture
def group() -> Iterator[Group]:
    if not (V1_THERE or V2_THERE):
        pytest.skip("no control groups of the CPU can be made here")
    made = Group()
    yield made
    made.close()


@pytest.fixture
def alone(target: Callable[..., Target]) -> Iterator[Target]:
    """A target on the first core, which ends before its group is removed."""
    process = target("spins", "--wait")
    os.sched_setaffinity(process.pid, {min(os.sched_getaffinity(0))})
    yield process
    process.kill()


@pytest.mark.parametrize("source", ["usdt", "agent"])
def test_a_cpu_quota(group: Group, alone: Target, attach: Callable[..., Recorder], source: str, capsys: pytest.CaptureFixture[str]) -> None:
    recorder = attach(alone.pid, "--source", source)
    group.take(alone.pid)
    before = group.throttled_ns()
    alone.go()
    alone.done()
    directory = recorder.finish()
    alone.kill()
    counted = group.throttled_ns() - before
    trace = pytrace_ebpf.open(directory)
    calls, waits = trace.calls(), trace.waits()
    assert trace.throttling and counted > 5e8
    unseen = (
        1000 * PERIOD_US * int(trace.losses()["class"].isin(["sched_in", "sched_out", "sched_missed"]).sum())
    )  # switches that the kernel did not report
    exact = KernelTypes().offset("cfs_rq", "throttled_clock_self") is not None  # else by the clock of load tracking
    within = (0.02 if exact else 0.1) * counted
    assert counted - unseen - within < waits["throttled_ns"].sum() < counted + within
    spins = calls[calls["func_id"].map(trace.functions().set_index("func_id")["name"]) == "spin"]
    assert len(spins) == 10 and (calls["throttled_ns"] <= calls["runq_wait_ns"]).all()
    assert 0.5 * counted - unseen < spins["throttled_ns"].sum() <= waits["throttled_ns"].sum()  # the rest before and after the calls
    assert main(["report", str(directory)]) == 0
    assert "their control group has used it up" in " ".join(capsys.readouterr().out.split())
    assert main(["report", str(directory), "--by", "wait"]) == 0
    assert "cpu quota" in capsys.readouterr().out


def test_a_pinned_neighbour_had_the_core(alone: Target, attach: Callable[..., Recorder], capsys: pytest.CaptureFixture[str]) -> None:
    first = min(os.sched_getaffinity(0))
    hog = subprocess.Popen([sys.executable, "-c", f"import os\nos.sched_setaffinity(0, {{{first}}})\nwhile True: pass"])
    try:
        recorder = attach(alone.pid, "--source", "usdt")
        alone.go()
        alone.done()
        directory = recorder.finish()
    finally:
        hog.kill()
        hog.wait()
    trace = pytrace_ebpf.open(directory)
    waits, rows, had = trace.waits(), trace.rivals(), rivals(trace)
    queued = (waits["end_ns"] - waits["blocked_until_ns"]).sum()
    assert queued > 2e8 and not trace.losses()["class"].isin(["sched_ring", "external_ring"]).any()
    assert 0.98 * queued < rows["ns"].sum() <= queued  # what was waited for at the end of the recording, and after a switch that was not reported
    per_wait = rows.groupby(["tid", "queued_ns"])["ns"].sum()
    of_waits = waits.assign(ns=waits["end_ns"] - waits["blocked_until_ns"]).groupby(["tid", "blocked_until_ns"])["ns"].sum()
    assert (per_wait <= of_waits.reindex(per_wait.index)).all()
    ours = had[had["pid"] == hog.pid]
    assert ours["ns"].sum() > 0.3 * queued  # on a busy machine others have it too
    assert not ours["traced"].any() and set(ours["name"]) <= {"python", Path(sys.executable).name}
    assert main(["report", str(directory), "--by", "core"]) == 0
    said = capsys.readouterr().out
    assert "Who had the cores that threads waited for" in said and f"(pid {hog.pid})" in said
