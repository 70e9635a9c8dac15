"""Who had the cores: of a whole trace, of a window of it, and of the waits of one function."""

from pathlib import Path

import pytest

import pytrace_ebpf
from pytrace_ebpf.analyze.waits.reasons import NOBODY, reasons
from pytrace_ebpf.analyze.waits.rivals import rivals
from pytrace_ebpf.cli.main import main
from pytrace_ebpf.trace.reader import Trace
from tests.unit.synthetic import SAMPLE_FUNCTIONS, Script, write_trace

MS = 1_000_000
HOG, OTHER = (90, 90), (91, 91)


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    """Two threads, each on a core of its own, from which it is pushed off; another program had each longest that did not take it first."""
    scripts = [Script(7, tid, cpu=cpu, now=10).snapshot().enter(2).run(MS) for cpu, tid in enumerate((7, 8))]
    external = []
    for script, ns in zip(scripts, (40 * MS, 20 * MS), strict=True):
        left = script.now
        script.preempted(ns, by=91).run(MS).leave()
        external += [(left + MS, script.cpu, *OTHER, "other"), (left + ns, script.cpu, *HOG, "hog")]
    events, sched = (sorted((row for script in scripts for row in getattr(script, name)), key=lambda row: row[0]) for name in ("events", "sched"))
    known = {"scheduling": {"source": "bpf", "why": "", "throttling": 1, "external_switches": 1}}
    write_trace(tmp_path, events=events, sched=sched, functions=SAMPLE_FUNCTIONS, external_switches=sorted(external), manifest=known, cuts=(30 * MS,))
    return pytrace_ebpf.open(tmp_path)


def test_each_rival_has_its_time(trace: Trace) -> None:
    rows = rivals(trace)
    assert list(zip(rows["pid"], rows["ns"], strict=True)) == [(90, 58 * MS), (91, 2 * MS)]


def test_of_a_window_and_of_one_thread_it_is_theirs(trace: Trace) -> None:
    rows = rivals(trace.window(tid=8))
    assert list(zip(rows["pid"], rows["ns"], strict=True)) == [(90, 19 * MS), (91, MS)]
    assert set(trace.window(tid=8).rivals()["tid"]) == {8} and not len(trace.window(start_ns=2 * MS).rivals())


def test_a_function_is_told_who_had_its_core(trace: Trace) -> None:
    assert [(row["func_id"], row["ns"]) for row in reasons(trace, 2)["runq"]] == [(NOBODY, 60 * MS)]


def test_a_wait_is_for_who_had_the_core_longest(trace: Trace, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--by", "wait", str(trace.directory)]) == 0
    said = capsys.readouterr().out
    assert "thread 90" in said and "thread 91" not in said  # who took it first
