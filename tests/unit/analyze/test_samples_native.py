"""Native frames of samples: part of the Python function that called them, rows of their own where none did, and what own time was spent in."""

import json
from pathlib import Path
from typing import Any

import pytest

import pytrace_ebpf
from pytrace_ebpf.analyze.samples.below import ITSELF, below
from pytrace_ebpf.cli.main import main
from pytrace_ebpf.trace.reader import Trace
from tests.unit.synthetic import Row, write_trace

PERIOD = 1_000_000
LIBZ = "/lib/libz.so.1"
FUNCTIONS: list[Row] = [
    (0, "/app/main.py", "<module>", "<module>", 1, "main"),
    (1, "/app/work.py", "pack", "pack", 11, "work"),
    (2, LIBZ, "libz.so.1+0x40", "libz.so.1+0x40", -1, "libz.so.1", 0, "native"),
    (3, LIBZ, "deflate", "deflate", -1, "libz.so.1", 0, "native"),
    (4, "/usr/bin/python3", "list_sort", "list_sort", -1, "python3", 0, "native"),
    (5, "/app/work.py", "key", "key", 31, "work"),
    (6, "/usr/bin/python3", "_Py_BuiltinCallFast_StackRef", "_Py_BuiltinCallFast_StackRef", -1, "python3", 0, "native"),
]
# <module> 5 -> pack 12 -> +0x40 -> deflate; <module> 6 -> list_sort -> key 32, and list_sort itself
STACKS: list[Row] = [(0, -1, 0, 5), (1, 0, 1, 12), (2, 1, 2, -1), (3, 2, 3, -1), (4, -1, 0, 6), (5, 4, 4, -1), (6, 5, 5, 32)]
COUNTS = {0: 1, 1: 10, 2: 5, 3: 60, 5: 15, 6: 9}
ALONE: list[Row] = [
    (7, -1, 2, -1),
    (8, 7, 3, -1),
    (9, 8, 5, 32),
    (10, 9, 4, -1),
]  # no Python called +0x40 -> deflate, which calls key 32 -> list_sort
BY_A_HELPER: list[Row] = [(11, 0, 6, -1), (12, 11, 3, -1)]  # of the interpreter's, <module> 5 called deflate


def sampled(path: Path, counts: dict[int, int] = COUNTS, **more: Any) -> Trace:
    rows, ts = list[Row](), 0
    for stack, count in counts.items():
        for _ in range(count):
            ts += PERIOD
            rows.append((ts, 7, 7, 0, stack, -1))
    manifest = {"sampling": {"period_ns": PERIOD}, "sources": [{"pid": 7, "source": "sample", "why": "asked"}], "cost": {}}
    return pytrace_ebpf.open(
        write_trace(path / "trace", functions=FUNCTIONS, stacks=[*STACKS, *ALONE, *BY_A_HELPER], samples=rows, **({"manifest": manifest} | more))
    )


def report(trace: Trace, capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    assert main(["report", str(trace.directory), "--json", "--top", "0", *options]) == 0
    return dict(json.loads(capsys.readouterr().out))


def test_by_function_native_code_is_its_callers_and_has_rows_where_no_python_called_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = sampled(tmp_path, COUNTS | {8: 30, 9: 2, 10: 7})
    facts = report(trace, capsys)
    rows = {row["qualname"]: (row["native"], row["total_samples"], row["self_samples"]) for row in facts["rows"]}
    assert rows == {
        "pack": (0, 75, 75),
        "key": (0, 18, 18),
        "<module>": (0, 100, 16),
        "deflate": (1, 39, 30),
        "libz.so.1+0x40": (1, 39, 0),
    }
    assert facts["wrong_sums"] == [] and facts["split"]["wall_ns"] == 139 * PERIOD
    below = {each["qualname"]: [(part["native"], part["self_ns"] // PERIOD) for part in each["parts"]] for each in facts["native_below"]}
    assert below["pack"] == [("deflate", 60), (None, 10), ("libz.so.1+0x40", 5)] and below["key"] == [(None, 11), ("list_sort", 7)]
    for width, with_errors in (("140", True), ("80", False)):
        monkeypatch.setenv("COLUMNS", width)
        assert main(["report", str(trace.directory)]) == 0
        shown = capsys.readouterr().out
        assert "deflate [native]" in shown and "pack  /app" in shown
        assert "deflate 80 %" in shown and ("deflate 80 % ±" in shown) == with_errors


def test_by_module_it_stands_under_its_library(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = {row["module"]: (row["native"], row["self_samples"]) for row in report(sampled(tmp_path), capsys, "--by", "module")["rows"]}
    assert rows == {"libz.so.1": (1, 65), "work": (0, 19), "python3": (1, 15), "main": (0, 1)}


def test_exact_calls_are_advised_of_python_modules_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Those that called the native code: nobody can record the calls of a library by its name."""
    assert report(sampled(tmp_path), capsys)["deserving"]["modules"] == ["work"]


def test_lines_have_the_time_of_the_native_code_that_they_called(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    facts = report(sampled(tmp_path), capsys, "--by", "line")
    rows = {(row["qualname"], row["line"]): (row["self_samples"], row["total_samples"]) for row in facts["rows"]}
    assert rows == {("pack", 12): (75, 75), ("<module>", 5): (1, 76), ("<module>", 6): (15, 24), ("key", 32): (9, 9)}


def test_exports_show_both(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = sampled(tmp_path)
    folded = tmp_path / "folded"
    assert main(["export", str(trace.directory), "--to", "folded", "-o", str(folded)]) == 0
    lines = dict(line.rsplit(" ", 1) for line in folded.read_text().splitlines())
    mixed = [stack for stack in lines if "deflate" in stack]
    assert len(mixed) == 1 and lines[mixed[0]] == str(60 * PERIOD) and all(word in mixed[0] for word in ("<module>", "pack", "libz.so.1+0x40"))
    assert main(["export", str(trace.directory), "--to", "speedscope", "-o", str(tmp_path / "speedscope")]) == 0
    assert "deflate" in (tmp_path / "speedscope").read_text()


def test_what_own_time_was_spent_in_is_the_first_native_function_with_a_name(tmp_path: Path) -> None:
    table = below(sampled(tmp_path, COUNTS | {11: 2, 12: 20}), PERIOD, sum(COUNTS.values()))
    found = {(row.func_id, row.native_id): (row.self_ns // PERIOD, row.self_samples) for row in table.itertuples()}
    module = {(0, 4): (15, 15), (0, 3): (20, 20), (0, 6): (2, 2), (0, ITSELF): (1, 1)}
    assert found == {(1, 3): (60, 60), (1, 2): (5, 5), (1, ITSELF): (10, 10), (5, ITSELF): (9, 9)} | module
    assert (table["self_error_ns"] > 0).all()


def test_beside_exact_calls_the_report_says_what_their_time_was_spent_in(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    events = [(0, 7, 7, 0, 1, 1, 0), (80 * PERIOD, 7, 7, 1, 1, 1, 0)]
    manifest = {"sampling": {"period_ns": PERIOD}}
    trace = sampled(tmp_path, events=events, manifest=manifest)
    (pack, module) = report(trace, capsys)["native_below"]
    assert (pack["qualname"], pack["self_ns"]) == ("pack", 75 * PERIOD)
    assert [(part["native"], part["self_ns"] // PERIOD) for part in pack["parts"]] == [("deflate", 60), (None, 10), ("libz.so.1+0x40", 5)]
    assert module["parts"][0]["native"] == "list_sort"
    monkeypatch.setenv("COLUMNS", "140")
    assert main(["report", str(trace.directory)]) == 0
    assert "deflate 80 %" in capsys.readouterr().out
