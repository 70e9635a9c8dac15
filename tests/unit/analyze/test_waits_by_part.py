"""What is summed of waits is the same however many come at a time; and no report takes all of them at once."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import pytrace_ebpf
from pytrace_ebpf.analyze.time import cores
from pytrace_ebpf.analyze.waits import by_wait, locks, reasons
from pytrace_ebpf.cli.main import main
from pytrace_ebpf.derive import one_pass
from pytrace_ebpf.derive.added import added
from pytrace_ebpf.derive.calls import primitives
from pytrace_ebpf.trace import reader
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.view.by import BY
from tests.unit.derive.test_calls_properties import SCENARIOS, story
from tests.unit.synthetic import sample, write_trace


def trace_of(path: Path, number: int) -> Trace:
    """Stories of all kinds, and the sample."""
    return pytrace_ebpf.open(write_trace(path, **story(number, SCENARIOS[number % len(SCENARIOS)])) if number else sample(path))


def found(trace: Any) -> dict[str, Any]:
    """All that is summed of the waits of a trace."""
    functions, pids = trace.functions(), trace.processes()["pid"]
    named = {func: (reasons.reasons(trace, func), primitives.main_wait(trace, func)) for func in functions["func_id"]}
    for why, _ in named.values():
        for rows in why.values():  # of those of one length any may come first
            rows.sort(key=lambda row: (-row["ns"], str(row)))
    return {
        "wait": by_wait.by_wait(trace.waits_by_part(by_wait.WAITS), trace.threads(), trace.neighbours(), trace.resources()),
        "migrations": cores.migrations(trace.waits_by_part(cores.WAITS)).sort_values(["func_id", "cpu_before", "cpu_after"], ignore_index=True),
        "preemptions": cores.preemptions(trace.waits_by_part(cores.WAITS), trace.threads(), trace.neighbours()).sort_values("tid", ignore_index=True),
        "named": named,
        "lock": locks.most_contended(trace, functions),
        "pids": list(pids),
    }


@pytest.mark.parametrize("number", range(12))
def test_however_many_come_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    whole = trace_of(tmp_path / "trace", number)
    waits = whole.waits()
    expected = found(whole)
    assert expected["wait"]["total_ns"].sum() == (waits["end_ns"] - waits["start_ns"]).sum()
    dice = np.random.default_rng(number)
    cuts = np.sort(dice.integers(0, len(waits) + 1, 5))

    def by_part(self: Trace, columns: Any, _where: Any = None) -> Any:
        shuffled = waits[list(columns)]
        return iter([shuffled.iloc[a:b] for a, b in zip([0, *cuts], [*cuts, len(waits)], strict=True)])

    monkeypatch.setattr(Trace, "waits_by_part", by_part)
    cut = found(whole)
    for name in ("wait", "migrations", "preemptions"):
        pd.testing.assert_frame_equal(cut.pop(name), expected.pop(name))
    assert cut == expected


def test_of_a_window_they_are_those_of_all_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_pass, "_AT_ONCE", 1)
    trace = pytrace_ebpf.open(sample(tmp_path))
    middle = (trace.start_ns + trace.end_ns) // 2
    for window in (trace, trace.window(None, middle), trace.window(middle, None, tid=4001)):
        parts = pd.concat([*window.waits_by_part(["start_ns", "end_ns", "pid", "tid", "func_id"])])
        pd.testing.assert_frame_equal(
            parts.sort_values(["start_ns", "pid", "tid"], ignore_index=True), window.waits(["start_ns", "end_ns", "pid", "tid", "func_id"])
        )


def test_small_parts_come_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = pytrace_ebpf.open(sample(tmp_path))
    whole = [*trace.waits_by_part(["start_ns", "kind"])]
    monkeypatch.setattr(reader, "_AT_ONCE", 1)
    parts = [*trace.waits_by_part(["start_ns", "kind"])]
    assert len(whole) == 1 < len(parts)
    pd.testing.assert_frame_equal(pd.concat(parts, ignore_index=True).astype({"kind": "object"}), whole[0].astype({"kind": "object"}))


@pytest.mark.parametrize("by", sorted(set(BY) - {"gil", "request", "task", "path", "opcode"}))
def test_no_report_takes_them_all_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str) -> None:
    monkeypatch.setattr(Trace, "waits", lambda *_, **__: pytest.fail("all waits were read"))
    assert main(["report", str(sample(tmp_path / "trace")), "--by", by]) == 0


def test_null_is_a_key_and_no_rows_are_none() -> None:
    parts = [
        pd.DataFrame({"a": pd.array([1, None], "Int64"), "n": [1, 2]}),
        pd.DataFrame({"a": pd.array([None], "Int64"), "n": [5]}),
        pd.DataFrame({"a": pd.array([], "Int64"), "n": np.zeros(0, np.int64)}),
    ]
    assert added(parts, ["a"], {"n": "sum"}).fillna(-1).to_numpy().tolist() == [[1, 1], [-1, 7]]
    assert len(added(parts[2:], ["a"], {"n": "sum"})) == 0
