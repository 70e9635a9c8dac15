"""The report by core where nobody recorded which core ran what, and for a move outside of every call."""

from pathlib import Path
from typing import Any

import pytrace_ebpf
from pytrace_ebpf.analyze.time import split
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.view import cores
from tests.unit.synthetic import sample, write_trace


def facts_of(trace: Trace) -> dict[str, Any]:
    return cores.facts(trace, split.timeline(trace.sched(), trace.processes(), trace.end_ns, trace.losses()))


def test_what_nobody_recorded_is_not_zero(tmp_path: Path) -> None:
    trace = pytrace_ebpf.open(write_trace(tmp_path / "t", end_ns=100, manifest={"scheduling": {"source": None, "why": "it was refused"}}))
    facts = facts_of(trace)
    assert (facts["busy_cores"], facts["cores_at_a_time"]) == (None, [])


def test_a_line_number_is_whole_also_beside_moves_outside_of_calls(tmp_path: Path) -> None:
    trace = pytrace_ebpf.open(sample(tmp_path / "sample"))
    facts = facts_of(trace)
    lines = [row["first_line"] for row in facts["migrations"] + facts["functions"]]
    assert lines and all(line is None or type(line) is int for line in lines)
