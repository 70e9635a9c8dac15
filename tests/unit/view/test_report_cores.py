"""The report by core where nobody recorded which core ran what, for a move outside of every call, and from the sums that are kept."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import pytrace_ebpf
from pytrace_ebpf.derive.sinks import cores as core_sums
from pytrace_ebpf.derive.sinks.cores import OnCores
from pytrace_ebpf.derive.store import packed
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.view import cores
from tests.unit.synthetic import sample, write_trace


def facts_of(trace: Trace) -> dict[str, Any]:
    return cores.facts(trace, core_sums.core_sums(trace))


def test_what_nobody_recorded_is_not_zero(tmp_path: Path) -> None:
    trace = pytrace_ebpf.open(write_trace(tmp_path / "t", end_ns=100, manifest={"scheduling": {"source": None, "why": "it was refused"}}))
    facts = facts_of(trace)
    assert (facts["busy_cores"], facts["cores_at_a_time"]) == (None, [])


def test_a_line_number_is_whole_also_beside_moves_outside_of_calls(tmp_path: Path) -> None:
    trace = pytrace_ebpf.open(sample(tmp_path / "sample"))
    facts = facts_of(trace)
    lines = [row["first_line"] for row in facts["migrations"] + facts["functions"]]
    assert lines and all(line is None or type(line) is int for line in lines)


def test_a_second_report_reads_neither_events_nor_switches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = sample(tmp_path / "sample")
    rows, facts = cores.found(pytrace_ebpf.open(path), pd.DataFrame(), {})
    assert len(rows) and facts["cores"]["functions"] and rows["busy_ns"].sum() > 0
    monkeypatch.setattr(OnCores, "scheduled", None)
    again, same = cores.found(pytrace_ebpf.open(path), pd.DataFrame(), {})
    pd.testing.assert_frame_equal(again, rows)
    assert same == facts


def of_other_type() -> bytes:
    return packed(dict.fromkeys(core_sums._DTYPES, np.zeros(1, "i4")))


def below_zero() -> bytes:
    return packed({name: np.full(1, -5, np.int64).astype(dtype) for name, dtype in core_sums._DTYPES.items()})


@pytest.mark.parametrize("damage", [b"", b"{}\n", packed({}), of_other_type(), below_zero()])
def test_what_is_damaged_is_made_again(tmp_path: Path, damage: bytes) -> None:
    path = sample(tmp_path / "sample")
    facts = facts_of(pytrace_ebpf.open(path))
    (kept,) = (path / core_sums.FOLDER).iterdir()
    whole = kept.read_bytes()
    kept.write_bytes(damage)
    assert facts_of(pytrace_ebpf.open(path)) == facts and kept.read_bytes() == whole


def test_of_a_window_nothing_is_kept(tmp_path: Path) -> None:
    trace = pytrace_ebpf.open(sample(tmp_path / "sample"))
    window = trace.window(trace.start_ns, (trace.start_ns + trace.end_ns) // 2)
    assert facts_of(window) != facts_of(trace)
    assert len(list((trace.directory / core_sums.FOLDER).iterdir())) == 1
