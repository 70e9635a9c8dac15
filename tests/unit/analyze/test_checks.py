"""A report whose sums do not hold says so: each rule is broken once, and none by what is right."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from pytrace_ebpf.analyze.functions.by_function import by_function, of_tree, overall
from pytrace_ebpf.analyze.functions.checks import wrong_sums
from pytrace_ebpf.cli.main import main
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.view.by import BY
from tests.unit.callrows import Call, frame, functions, random_calls
from tests.unit.synthetic import sample


def report_of(*threads: Any) -> tuple[pd.DataFrame, dict[str, int | None], int]:
    calls = frame(dict(enumerate(threads)))
    return by_function(calls, functions(4)), overall(calls), len(calls)


@pytest.mark.parametrize("seed", range(10))
def test_right_sums_are_not_complained_of(seed: int) -> None:
    assert wrong_sums(*report_of(*(random_calls(10 * seed + k) for k in range(4)))) == []
    assert wrong_sums(*report_of([Call(0, None), Call(1, None)])) == []


KNOWN = ([Call(0, (10, 2, 3, 4), [Call(1, (5, 0, 0, 5), [Call(0, (1, 1, 1, 1))])]), Call(2, 7)],)


@pytest.mark.parametrize(
    ("column", "off", "rules"),
    [
        ("total_ns", -30, {"a row's self is within its total", "a row's total is that of its four parts"}),
        ("total_ns", 10_000, {"a row's total is within the time of all calls", "a row's total is that of its four parts"}),
        ("self_ns", 1, {"self times add up to the time of all calls", "a row's self is that of its four parts"}),
        ("on_cpu_ns", 1, {"a row's total is that of its four parts"}),
        ("blocked_ns", -6, {"a row's total is that of its four parts", "a row's self blocked is within that of its total"}),
        ("self_gil_wait_ns", 3, {"a row's self is that of its four parts", "self gil wait adds up to that of all calls"}),
        ("calls", 1, {"every call is in one row"}),
    ],
)
def test_each_broken_sum_is_found(column: str, off: int, rules: set[str]) -> None:
    table, whole, calls = report_of(*KNOWN)
    assert wrong_sums(table, whole, calls) == []
    table.loc[table["func_id"] == 0, column] += off
    found = wrong_sums(table, whole, calls)
    assert rules <= {wrong.rule for wrong in found}
    assert all(wrong.rows == 1 and 0 < wrong.off <= abs(off) for wrong in found)


def test_time_below_zero_is_found() -> None:
    table, whole, calls = report_of(*KNOWN)
    table.loc[0, "unknown_ns"] = -5
    assert "no unknown is below zero" in {wrong.rule for wrong in wrong_sums(table, whole, calls)}


def test_a_split_of_all_calls_that_does_not_fit_is_found() -> None:
    table, whole, calls = report_of(*KNOWN)
    found = wrong_sums(table, whole | {"on_cpu_ns": int(whole["on_cpu_ns"] or 0) + 8}, calls)
    assert {w.rule for w in found} >= {"the time of all calls is that of its four parts", "self on cpu adds up to that of all calls"}


def test_estimated_times_on_a_core_need_not_fit() -> None:
    table, whole, calls = report_of(*KNOWN)
    table.loc[table["func_id"] == 0, "self_on_cpu_ns"] += 9
    assert wrong_sums(table, whole, calls) and not wrong_sums(table, whole, calls, estimated=True)


@pytest.mark.parametrize("by", [name for name, by in BY.items() if not by.of_samples])
def test_no_kind_of_row_of_a_right_trace_is_complained_of(tmp_path: Path, capsys: pytest.CaptureFixture[str], by: str) -> None:
    assert main(["report", str(sample(tmp_path / "trace")), "--by", by, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["wrong_sums"] == []


def test_a_report_with_wrong_sums_says_so_first(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    path = sample(tmp_path / "trace")

    def broken(tree: pd.DataFrame, *rest: Any) -> pd.DataFrame:
        table = of_tree(tree, *rest)
        most = table["self_ns"].idxmax()
        table.loc[most, "total_ns"] = table.loc[most, "self_ns"] // 2
        return table

    monkeypatch.setattr("pytrace_ebpf.view.functions.of_tree", broken)
    assert main(["report", str(path)]) == 0
    out = capsys.readouterr().out
    assert " ".join(out.split()).startswith(
        "WRONG SUMS, so do not rely on these figures, and please report this defect of pytrace-ebpf: it does not hold that a row's self is within its total (1 row, by up to"
    )
    assert "Nothing was lost." in out
    assert main(["report", str(path), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["wrong_sums"][0]["rows"] == 1 and facts["wrong_sums"][0]["off"] > 0
    # What tracing cost is taken off as an average: there no sum is promised.
    assert main(["report", str(path), "--json", "--compensate"]) == 0
    assert json.loads(capsys.readouterr().out)["wrong_sums"] == []


def test_calls_that_are_wrong_themselves_are_found(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that its caller does not last for."""
    path = sample(tmp_path / "trace")
    tree = Trace.tree

    def longer(self: Any, *args: Any, **options: Any) -> pd.DataFrame:
        rows = tree(self, *args, **options)
        inner = rows.index == rows.index[rows["depth"] == 1][0]
        return rows.assign(self_ns=rows["self_ns"] + 10**9 * inner)

    monkeypatch.setattr(Trace, "tree", longer)
    assert main(["report", str(path)]) == 0
    assert capsys.readouterr().out.startswith("WRONG SUMS")
