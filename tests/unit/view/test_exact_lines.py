"""Exact lines (`--lines exact`) as the reading half makes them: hits, and times that add up, in windows too; and the same for KCachegrind."""

import argparse
import io
import json
import re
import shutil
import subprocess
from collections import defaultdict
from pathlib import Path

import pandas as pd
import pytest

import pytrace_ebpf
from pytrace_ebpf.cli.main import main
from pytrace_ebpf.errors import UsageError
from pytrace_ebpf.options import option_rules, recording
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.trace.schema import CallKind
from pytrace_ebpf.trace.states import SPLIT
from pytrace_ebpf.view.export import callgrind
from tests.conftest import PATIENCE_S
from tests.unit.synthetic import SAMPLE_FUNCTIONS, Script, sample, write_trace

LINES = {"options": {"filters": {"lines": "exact"}}}
PARTS = ("ns", *SPLIT, "unknown_ns")
STANDS = CallKind.STANDS


def script() -> Script:
    """main (1): line 12 calls step (3), whose line 33 sleeps, and fib (4), which calls itself from one line; <module> is open, at line 5. io (5) has no lines."""
    out = Script(1, 1).snapshot().open(0).line(5, STANDS).run(100)
    out.enter(1).run(10).line(12).run(20)
    out.enter(3).run(1).line(32).run(30).line(33).run(5).wait(1000).run(5).line(33).gil(500).run(40).leave()
    out.run(7)
    out.enter(4).line(41).run(50).enter(4).line(41).run(60).preempted(300, by=9).run(1).leave().run(2).leave()
    out.line(13).run(3).enter(5).wait(70).run(8).leave()
    return out.line(14, STANDS).run(9).leave().run(4)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    life = script()
    where = tmp_path_factory.mktemp("lines") / "trace"
    return write_trace(where, events=life.events, sched=life.sched, functions=SAMPLE_FUNCTIONS, end_ns=life.now, cuts=(700, 2000), manifest=LINES)


@pytest.fixture
def trace(path: Path) -> Trace:
    return pytrace_ebpf.open(path)


def rows(trace: Trace, *columns: str) -> dict[tuple[int, int], tuple[int, ...]]:
    return {(int(row.func_id), int(row.line)): tuple(int(getattr(row, name)) for name in columns) for row in trace.lines().itertuples()}


def test_hits_and_times(trace: Trace) -> None:
    found = rows(trace, "hits", "total_ns", "self_ns", "self_blocked_ns", "self_gil_wait_ns", "self_runq_wait_ns")
    assert found[3, 31] == (0, 1, 1, 0, 0, 0)  # before its first line
    assert found[3, 32] == (1, 30, 30, 0, 0, 0)
    assert found[3, 33] == (2, 11_550, 11_550, 1000, 500, 10_000)
    assert found[4, 41] == (2, 413, 413, 0, 0, 300)  # recursion counts once
    assert found[1, 11] == (0, 10, 10, 0, 0, 0)
    assert found[1, 12] == (1, 20 + 11_581 + 7 + 413, 27, 0, 0, 0)
    assert found[1, 13] == (1, 3 + 5078, 3, 0, 0, 0)
    assert found[1, 14] == (0, 9, 9, 0, 0, 0)
    assert found[0, 5][:3] == (0, trace.end_ns - trace.start_ns, 104)
    assert not any(func_id == 5 for func_id, _ in found)


def assert_sums(trace: Trace) -> None:
    names = [f"self_{part}" for part in PARTS]
    own, lines = (table.groupby("func_id")[names].sum() for table in (trace.tree().query("calls > 0"), trace.lines()))
    pd.testing.assert_frame_equal(own.loc[lines.index].astype("int64"), lines.astype("int64"))


def test_the_lines_of_a_function_are_its_own_time(trace: Trace) -> None:
    assert_sums(trace)


@pytest.mark.parametrize("at", [50, 140, 161, 700, 1200, 6000, 11_000, 12_000])
def test_windows_add_up(trace: Trace, at: int) -> None:
    windows = [trace.window(None, at), trace.window(at, None)]
    added: dict[tuple[int, int], list[int]] = defaultdict(lambda: [0] * 7)
    for window in windows:
        assert_sums(window)
        for place, found in rows(window, "hits", *(f"self_{part}" for part in PARTS)).items():
            added[place] = [a + b for a, b in zip(added[place], found, strict=True)]
    assert added == {place: list(found) for place, found in rows(trace, "hits", *(f"self_{part}" for part in PARTS)).items()}


def test_other_tables_do_not_know_lines(trace: Trace, tmp_path: Path) -> None:
    life = script()
    calls = [row for row in life.events if row[3] not in (CallKind.LINE, STANDS)]
    without = pytrace_ebpf.open(write_trace(tmp_path / "t", events=calls, sched=life.sched, functions=SAMPLE_FUNCTIONS, end_ns=life.now))
    pd.testing.assert_frame_equal(trace.calls(), without.calls())
    pd.testing.assert_frame_equal(trace.tree(), without.tree())
    assert not len(without.lines())


def test_where_events_were_lost_nothing_is_made_up(path: Path, tmp_path: Path) -> None:
    life = script()
    lost = [("call_ring", 100, 900, 3)]
    events = [row for row in life.events if not 100 < row[0] < 900]
    trace = pytrace_ebpf.open(
        write_trace(tmp_path / "t", events=events, sched=life.sched, functions=SAMPLE_FUNCTIONS, end_ns=life.now, losses=lost, manifest=LINES)
    )
    assert_sums(trace)
    whole, found = pytrace_ebpf.open(path).lines()["hits"].sum(), trace.lines()["hits"].sum()
    assert 0 < found < whole


def test_the_report(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(path), "--by", "line", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert not said["wrong_sums"]
    assert [(row["qualname"], row["line"], row["hits"], row["self_ns"]) for row in said["rows"]][:3] == [
        ("Worker.step", 31, 0, 1), ("Worker.step", 32, 1, 30), ("Worker.step", 33, 2, 11_550),
    ]  # fmt: skip
    assert main(["report", str(path), "--by", "line"]) == 0
    shown = capsys.readouterr().out
    assert "Lines by their own time" in shown and "Worker.step" in shown
    assert main(["report", str(path), "--compensate"]) == 0  # the cost of lines was not measured here


def read(text: str) -> tuple[list[str], dict[tuple[str, int], list[int]], dict[tuple[str, int, str], list[int]]]:
    """A file of Callgrind's as its specification has it: events; own costs by function and line; count and costs of calls by function, line and callee."""
    events: list[str] = []
    own: dict[tuple[str, int], list[int]] = {}
    calls: dict[tuple[str, int, str], list[int]] = {}
    names: dict[tuple[str, str], str] = {}
    at: dict[str, str] = {}
    count = None
    for line in text.splitlines():
        if named := re.fullmatch(r"(c?f[ln])=\((\d+)\)(?: (.*))?", line):
            kind, number, name = named.groups()
            names.setdefault((kind[-1], number), name)
            at[kind] = names[kind[-1], number]
        elif line.startswith("calls="):
            count = int(line[6:].split()[0])
        elif line.startswith("events: "):
            events = line.split()[1:]
        elif re.fullmatch(r"[\d ]+", line):
            number, *costs = map(int, line.split())
            if count is None:
                own[at["fn"], number] = costs
            else:
                calls[at["fn"], number, at["cfn"]] = [count, *costs]
            count = None
    return events, own, calls


def written(trace: Trace) -> str:
    out = io.BytesIO()
    callgrind.write(trace, out)
    return out.getvalue().decode()


def test_kcachegrind_gets_lines_and_calls(trace: Trace) -> None:
    events, own, calls = read(written(trace))
    assert events == ["Wall", "OnCpu", "RunQueue", "Gil", "Blocked"]
    assert own["Worker.step", 33] == [11_550, 50, 10_000, 500, 1000]
    tree = trace.tree()
    assert sum(costs[0] for costs in own.values()) == tree["self_ns"].sum()
    sites = trace.call_sites().query("caller_id >= 0")
    assert sum(costs[1] for costs in calls.values()) == sites["total_ns"].sum()
    assert sum(costs[0] for costs in calls.values()) == sites["calls"].sum()


def test_a_trace_without_lines_has_its_time_where_functions_begin(tmp_path: Path) -> None:
    trace = pytrace_ebpf.open(sample(tmp_path / "sample"))
    _, own, calls = read(written(trace))
    self = trace.tree().groupby("func_id")["self_ns"].sum()
    assert own == {(row[3], row[4]): [int(self[row[0]]), *own[row[3], row[4]][1:]] for row in SAMPLE_FUNCTIONS}
    sites = trace.call_sites().query("caller_id >= 0")
    assert {key: cost[1] for key, cost in calls.items()} == {
        (
            SAMPLE_FUNCTIONS[row.caller_id][3],
            SAMPLE_FUNCTIONS[row.caller_id][4] if pd.isna(row.call_line) else int(row.call_line),
            SAMPLE_FUNCTIONS[row.func_id][3],
        ): row.total_ns
        for row in sites.itertuples()
    }


@pytest.mark.skipif(not shutil.which("callgrind_annotate"), reason="callgrind_annotate is not installed: it comes with valgrind")
def test_callgrind_annotate_opens_it(path: Path, trace: Trace, tmp_path: Path) -> None:
    out = tmp_path / "out.callgrind"
    assert main(["export", str(path), "--to", "callgrind", "-o", str(out)]) == 0
    done = subprocess.run(["callgrind_annotate", "--threshold=100", str(out)], capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    total = int(trace.tree()["self_ns"].sum())
    assert f"{total:,} (100.0%)" in done.stdout and "Worker.step" in done.stdout


def test_names_of_a_trace_stay_names(tmp_path: Path) -> None:
    evil = [(0, "/a\nfn=(9) b", "f", "f\ncalls=9 9", 1, "a"), (1, "/c", "<lambda>", "<lambda>", 3, "c"), (2, "/c", "<lambda>", "<lambda>", 7, "c")]
    life = Script(1, 1).snapshot().enter(0).run(5).enter(1).run(6).leave().enter(2).run(7).leave().leave()
    trace = pytrace_ebpf.open(write_trace(tmp_path / "t", events=life.events, sched=life.sched, functions=evil))
    _, own, calls = read(written(trace))
    assert len(own) == 3 and {name for name, _ in own} >= {"<lambda>:3", "<lambda>:7"}
    assert len(calls) == 2


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--source", "usdt", "--lines", "exact"], "only the agent sees every line"),
        (["--lines", "exact", "--budget", "5%"], "would be missing"),
        (["--lines", "exact", "--sample"], ""),
        (["--lines-of", "x"], "give --lines exact"),
    ],
)
def test_options_that_cannot_go_together_are_one_sentence(words: list[str], told: str) -> None:
    args = argparse.Namespace(source=None, lines=None, lines_of=[], budget=None, sample=None)
    parser = argparse.ArgumentParser()
    recording.add_common_arguments(parser)
    parser.parse_args(words, args)
    if told:
        with pytest.raises(UsageError, match=told):
            option_rules.to_recording(args)
