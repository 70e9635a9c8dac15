"""Page faults and growth of the resident memory, by function: a program that touches known numbers of pages."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import pytrace_ebpf
from pytrace_ebpf.record.kernel import tracefs
from pytrace_ebpf.record.scheduling.faults import Faults
from pytrace_ebpf.record.scheduling.sched import SchedProbes
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.trace.schema import LOSS_CLASSES
from pytrace_ebpf.trace.streams.faults import GROWN, MAJOR, MINOR
from tests.bpf.conftest import COMMAND, lost
from tests.conftest import PATIENCE_S, REPOSITORY, Python, Target, links_of

NO_PERF = [sys.executable, str(REPOSITORY / "tests" / "no_perf.py")]
_FEW = 100  # pages that what else these functions do may touch


@pytest.fixture
def touched(
    python: Python, source: str, target: Callable[..., Target], traced: Callable[..., tuple[Trace, dict[str, Any]]]
) -> tuple[Trace, dict[str, Any]]:
    return traced(target("touches", "--wait", python=python), "--source", source, "--faults")


def by_name(trace: Trace) -> pd.DataFrame:
    return trace.memory().merge(trace.functions(), on="func_id").set_index("name")


def near(value: int, pages: int) -> bool:
    return pages <= value <= pages + max(_FEW, pages // 50)


@pytest.mark.usually("agent")
def test_faults_and_growth_stand_with_the_functions_that_touched_the_pages(touched: tuple[Trace, dict[str, Any]]) -> None:
    trace, said = touched
    rows, page = by_name(trace), said["page"]
    all_pages = said["kept"] + said["given_back"] + said["by_child"]
    assert near(rows["self_minor_faults"]["touch"], all_pages)
    assert near(rows["self_grown_bytes"]["touch"] // page, all_pages)
    assert near(rows["minor_faults"]["keep"], said["kept"] + said["by_child"])
    assert near(rows["minor_faults"]["of_a_child"], said["by_child"])  # of a child, too, whose memory is another
    assert near(rows["grown_bytes"]["of_a_child"] // page, said["by_child"])
    assert abs(rows["self_grown_bytes"]["give_back"] // page + said["given_back"]) < _FEW
    assert abs(rows["grown_bytes"]["give_back"]) < _FEW * page
    assert (rows["major_faults"] >= rows["self_major_faults"]).all()


@pytest.mark.usually("agent")
def test_growth_is_what_the_kernel_says_of_the_process(touched: tuple[Trace, dict[str, Any]], target: Callable[..., Target]) -> None:
    trace, said = touched
    rows = trace.faults()
    parent = rows["pid"].iloc[0]
    kept = by_name(trace)["grown_bytes"]["keep"] - by_name(trace)["grown_bytes"]["of_a_child"]
    assert kept == pytest.approx(said["grown"], rel=0.02)
    assert set(rows["kind"]) <= {MINOR, MAJOR, GROWN} and (rows["grown_bytes"][rows["kind"] != GROWN] == 0).all()
    assert rows["pid"].nunique() == 2 and parent in set(trace.processes()["pid"])
    assert not lost(trace)


@pytest.mark.usually("agent")
def test_a_window_has_what_was_touched_within(touched: tuple[Trace, dict[str, Any]]) -> None:
    trace, _ = touched
    middle = int(trace.faults()["ts"].median())
    whole = by_name(trace)["self_minor_faults"]
    halves = [by_name(trace.window(*edges))["self_minor_faults"].get("touch", 0) for edges in ((None, middle), (middle, None))]
    assert sum(halves) == whole["touch"] and min(halves) > 0


def test_the_list_of_tracepoints_need_not_be_mounted(monkeypatch: pytest.MonkeyPatch) -> None:
    """And is not, for anybody else, when it was read."""
    monkeypatch.setattr(tracefs, "PLACES", ())
    mounts, descriptors = Path("/proc/self/mountinfo"), Path("/proc/self/fd")
    before = mounts.read_text(), len(links_of(descriptors))
    assert int(tracefs.read("events/kmem/rss_stat/id")) > 0
    with pytest.raises(FileNotFoundError):
        tracefs.read("events/kmem/none/id")
    assert (mounts.read_text(), len(links_of(descriptors))) == before


def test_what_has_no_room_in_the_ring_is_counted(target: Callable[..., Target]) -> None:
    """All that happened is in the ring or lost: as many as with a ring that has room."""
    counts = []
    for ring_bytes in (16 << 20, 16 << 10):
        process = target("touches", "--wait")
        scheduling = SchedProbes(256, True, rings={"faults": ring_bytes})
        try:
            faults = Faults(scheduling.programs)
            faults.add(process.pid)
            scheduling.add(process.pid)
            process.go()
            process.done()
            process.wait()
            rows = sum(len(batch["ts"]) for batch in faults.drain().get("faults", ()))
            missing = int(scheduling.losses()[LOSS_CLASSES.index("fault_ring")])
            faults.close()
        finally:
            scheduling.close()
        counts.append((rows, missing))
    (whole, none), (some, missing) = counts
    assert none == 0 and 0 < some <= (16 << 10) // (8 + 32)  # a record's header, and struct fault_event
    assert np.isclose(some + missing, whole, rtol=0.05)


def test_memory_is_recorded_without_faults_where_perf_events_are_refused(tmp_path: Path, python: Python) -> None:
    """As under a container's seccomp filter; page faults alone cannot be had there."""

    def run(option: str) -> "subprocess.CompletedProcess[str]":
        words = [*NO_PERF, *COMMAND, "run", "-o", str(tmp_path / option), "--source", "agent", option, "--", *python.command("allocates")]
        return subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S)

    refused, done = run("--faults"), run("--memory")
    assert refused.returncode == 4 and "the kernel refuses to count page faults (Operation not permitted)" in refused.stderr
    assert done.returncode == 0, done.stderr
    assert "page faults and how the resident memory grows are not recorded: the kernel refuses to count them" in done.stderr
    used = pytrace_ebpf.open(tmp_path / "--memory").memory()
    assert used["bytes"].sum() > 0 and used[["minor_faults", "major_faults", "grown_bytes"]].isna().all(axis=None)
