"""Samples of threads off the core: what each stands for, that sums are unbiased and their errors true, and that reports show the four parts."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pytrace_ebpf
from pytrace_ebpf.analyze.samples import paths
from pytrace_ebpf.analyze.samples.chart import chart
from pytrace_ebpf.analyze.samples.weights import Intervals, Periods, weighed
from pytrace_ebpf.cli.main import main
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.trace.schema import MANIFEST, SchedKind
from pytrace_ebpf.trace.states import SPLIT
from tests.unit.synthetic import FUTEX, GIL, NANOSLEEP, Row, write_trace

PERIOD = 1_000_000
MS = 1_000_000
FUNCTIONS: list[Row] = [(0, "/app/main.py", "<module>", "<module>", 1, "main"), (1, "/app/work.py", "wait", "wait", 11, "work")]
STACKS: list[Row] = [(0, -1, 0, 5), (1, 0, 1, 12), (2, 0, 1, 13)]


def off(ts: int, kind: SchedKind, state: int = 0, syscall: int = -1, address: int = 0) -> Row:
    """A row of schema.SCHED of thread 7."""
    return (ts, 7, 7, kind, 0, state, syscall, address, 0, 0)


SCHED: list[Row] = [
    off(0, SchedKind.IN),
    off(10 * MS, SchedKind.OUT, 1, NANOSLEEP), off(18 * MS, SchedKind.WAKING), off(20 * MS, SchedKind.IN),  # asleep 8, queued 2
    off(21 * MS, SchedKind.OUT, 1, FUTEX, GIL[0]), off(24 * MS, SchedKind.WAKING), off(25 * MS, SchedKind.IN),  # the GIL 3, queued 1
    off(26 * MS, SchedKind.OUT, 0x100), off(26 * MS + 250_000, SchedKind.IN),  # preempted 0.25
    off(27 * MS, SchedKind.OUT, 1, NANOSLEEP),  # to the end
]  # fmt: skip
SAMPLES: list[Row] = [
    (1 * MS, 7, 7, 0, 1, 100),
    (20 * MS + 2_000, 7, 7, 0, 1, -1, 10 * MS),
    (20 * MS + 500_000, 7, 7, 0, 2, 100),
    (25 * MS + 2_000, 7, 7, 0, 2, -1, 4 * MS),
    (26 * MS + 252_000, 7, 7, 0, 2, -1, 250_000),
    (30 * MS, 7, 7, 0, 1, -1, 3 * MS),
]


def sampled(path: Path, **more: Any) -> Trace:
    manifest = {"sampling": {"period_ns": PERIOD, "off_core": 1}, "sources": [{"pid": 7, "source": "sample", "why": "asked"}]}
    options = {"functions": FUNCTIONS, "stacks": STACKS, "samples": SAMPLES, "sched": SCHED, "end_ns": 30 * MS, "manifest": manifest} | more
    return pytrace_ebpf.open(write_trace(path / "trace", **options))


def report(trace: Trace, capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    assert main(["report", str(trace.directory), "--json", "--top", "0", *options]) == 0
    return dict(json.loads(capsys.readouterr().out))


def parts(row: dict[str, Any], prefix: str = "") -> list[float]:
    return [row[prefix + name] / MS for name in SPLIT]


def test_the_parts_are_those_of_the_waits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    facts = report(sampled(tmp_path), capsys)
    rows = {row["qualname"]: row for row in facts["rows"]}
    # The preempted quarter of a period was drawn with the probability 1 / 4: it counts a period.
    assert parts(rows["wait"]) == parts(rows["<module>"]) == parts(facts["split"]) == [2, 2 + 1 + 1, 3, 8 + 3]
    assert rows["wait"]["total_ns"] == rows["wait"]["self_ns"] == sum(map(int, parts(rows["wait"]))) * MS
    assert rows["wait"]["runq_wait_error_ns"] == round(np.sqrt(3 / 4) * PERIOD)
    assert rows["wait"]["blocked_error_ns"] == rows["wait"]["gil_wait_error_ns"] == 0
    assert facts["wrong_sums"] == []
    assert {name: value for name, value in facts["sampled"].items() if not name.endswith("time")} == {
        "period_ns": PERIOD,
        "samples": 2,
        "missed": 0,
        "off_core": 4,
        "with_off_core": 1,
        "states": 0,
        "outside": 0,
        "unread": 0,
    }


def test_the_parts_are_what_the_samples_say_themselves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without eBPF: of time in the run queue each sample is drawn as those on a core are, so its error is that of a count."""
    states = (0, 1, 0, 2, 3, 3)
    rows = [(*row, *(0,) * (8 - len(row)), state) for row, state in zip(SAMPLES, states, strict=True)]
    manifest = {"sampling": {"period_ns": PERIOD, "off_core": 1, "states": 1}, "sources": [{"pid": 7, "source": "sample", "why": "asked"}]}
    manifest["scheduling"] = {"source": "cputime", "why": "asked"}
    trace = sampled(tmp_path, samples=rows, sched=[], manifest=manifest)
    facts = report(trace, capsys)
    assert parts(facts["split"]) == [2, 10, 4, 1 + 3]
    assert facts["split"]["unknown_ns"] == 0 and facts["wrong_sums"] == []
    row = next(row for row in facts["rows"] if row["qualname"] == "wait")
    assert row["runq_wait_error_ns"] == 10 * MS and row["gil_wait_error_ns"] == 0
    assert main(["report", str(trace.directory)]) == 0
    said = capsys.readouterr().out
    assert "run queue" in said and "not distinguished" not in said


def test_the_parts_are_what_drawn_samples_say_and_threads_have_them_with_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By eBPF without switches: a quarter of a period in the run queue was drawn with the probability 1 / 4, whatever it was."""
    states = (0, 3, 0, 2, 1, 3)
    rows = [(*row, *(0,) * (8 - len(row)), state) for row, state in zip(SAMPLES, states, strict=True)]
    manifest: dict[str, Any] = {
        "sampling": {"period_ns": PERIOD, "off_core": 1, "states": 2},
        "sources": [{"pid": 7, "source": "sample", "why": "asked"}],
    }
    manifest["scheduling"] = {"source": None, "why": "samples say it"}
    threads = [(7, 7, "main", 0, 30 * MS)]
    trace = sampled(tmp_path, samples=rows, sched=[], manifest=manifest, threads=threads)
    facts = report(trace, capsys)
    assert parts(facts["split"]) == [2, 1, 4, 10 + 3] and facts["split"]["unknown_ns"] == 0 and facts["wrong_sums"] == []
    row = next(row for row in facts["rows"] if row["qualname"] == "wait")
    assert row["runq_wait_error_ns"] == round(np.sqrt(3 / 4) * PERIOD) and row["blocked_error_ns"] == 0
    facts = report(trace, capsys, "--by", "thread")
    (thread,) = facts["rows"]
    assert parts(thread) == [2, 1, 4, 13] and thread["unknown_ns"] == 10 * MS and thread["samples"] == 6 and facts["wrong_sums"] == []
    assert thread["runq_wait_error_ns"] == round(np.sqrt(3 / 4) * PERIOD) and thread["on_cpu_error_ns"] > 0
    for by in ("gil", "core"):
        assert main(["report", str(trace.directory), "--by", by]) == 0
        assert "record with --sample --switches" in " ".join(capsys.readouterr().out.split())
    manifest["sampling"]["off_period_ns"] = 4 * PERIOD
    facts = report(sampled(tmp_path / "longer", samples=rows, sched=[], manifest=manifest, threads=threads), capsys)
    assert parts(facts["split"]) == [2, 4, 4, 10 + 4]
    row = next(row for row in facts["rows"] if row["qualname"] == "wait")
    assert row["blocked_error_ns"] == round(np.sqrt(1 / 4) * 4 * PERIOD) and row["runq_wait_error_ns"] == round(np.sqrt(15 / 16) * 4 * PERIOD)


def test_lines_and_modules_have_them_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = sampled(tmp_path)
    lines = {row["line"]: row for row in report(trace, capsys, "--by", "line")["rows"]}
    assert parts(lines[12], "self_") == [1, 2, 0, 11] and parts(lines[13], "self_") == [1, 2, 3, 0]
    assert parts(lines[5]) == [2, 4, 3, 11] and lines[5]["self_ns"] == 0
    assert lines[13]["self_runq_wait_error_ns"] == round(np.sqrt(3 / 4) * PERIOD) and lines[12]["self_blocked_error_ns"] == 0
    modules = {row["module"]: row for row in report(trace, capsys, "--by", "module")["rows"]}
    assert parts(modules["work"], "self_") == [2, 4, 3, 11]
    opcodes = report(trace, capsys, "--by", "opcode")["rows"]
    assert sum(row["self_samples"] for row in opcodes) == 2


def test_a_window_has_what_of_an_interval_lies_within(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = sampled(tmp_path)
    assert parts(report(trace, capsys, "--from", "12ms", "--until", "14ms")["split"]) == [0, 0, 0, 2]
    assert parts(report(trace, capsys, "--from", "17ms", "--until", "19ms")["split"]) == [0, 1, 0, 1]


def test_without_its_wait_an_interval_is_unknown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As where scheduling events were lost."""
    facts = report(sampled(tmp_path, sched=[]), capsys)
    assert parts(facts["split"]) == [2, 0, 0, 0] and facts["split"]["unknown_ns"] == (10 + 4 + 1 + 3) * MS
    assert facts["wrong_sums"] == []


@pytest.mark.parametrize("by", ["function", "module", "line", "thread", "opcode"])
@pytest.mark.parametrize("width", ["60", "120", "200"])
def test_every_report_shows_them(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, by: str, width: str) -> None:
    monkeypatch.setenv("COLUMNS", width)
    assert main(["report", str(sampled(tmp_path).directory), "--by", by]) == 0
    shown = capsys.readouterr().out
    assert "2 samples of 1.00ms on a core each and 4 off the core" in " ".join(shown.split())
    assert "WRONG" not in shown and max(map(len, shown.splitlines())) <= int(width)
    assert by not in ("function", "module") or "blocked 55 %" in shown


def test_a_chart_has_the_intervals(tmp_path: Path) -> None:
    trace = sampled(tmp_path)
    boxes = pd.concat(list(chart(trace.window(pid=7, tid=7), PERIOD)))
    outer = boxes[boxes["depth"] == 0]
    assert outer["blocked_ns"].sum() == 11 * MS and outer["gil_wait_ns"].sum() == 3 * MS
    assert (boxes[list(SPLIT)].sum(axis=1) <= boxes["wall_ns"]).all()
    for _, layer in boxes.groupby("depth"):
        assert (layer["start_ns"].to_numpy()[1:] >= layer["end_ns"].to_numpy()[:-1]).all()


def drawn(lengths: "np.ndarray", generator: np.random.Generator, period: int) -> pd.DataFrame:
    """What is sampled of intervals of these lengths of one thread, a nanosecond apart, all of them blocked: schema.SAMPLES, and the intervals."""
    end = np.cumsum(lengths + 1)
    taken = generator.random(len(lengths)) < lengths / period
    intervals = Intervals(np.full(len(lengths), 7 << 32 | 7), end - lengths, end, end, np.zeros(len(lengths), bool))
    samples = pd.DataFrame({"ts": end[taken] + 1, "pid": 7, "tid": 7, "off_ns": lengths[taken], "missed": 0, "state": -1})
    return weighed(samples, intervals, Periods(PERIOD, period), 0, 1 << 62)


@given(seed=st.integers(0, 1 << 32), longest=st.integers(10_000, 20 * PERIOD), period=st.sampled_from([PERIOD, 4 * PERIOD]))
@settings(max_examples=40, deadline=None)
def test_sums_are_unbiased_and_their_errors_true(seed: int, longest: int, period: int) -> None:
    generator = np.random.default_rng(seed)
    lengths = generator.integers(1, longest, 3000)
    runs = [drawn(lengths, generator, period) for _ in range(30)]
    sums = np.array([run["blocked_ns"].sum() for run in runs])
    errors = np.sqrt([run["blocked_square"].sum() for run in runs])
    true = np.sqrt(np.sum(np.maximum(period / lengths - 1, 0) * lengths.astype(float) ** 2))
    assert abs(sums.mean() - lengths.sum()) <= 5 * true / np.sqrt(len(runs)) + 1
    assert np.allclose(errors.mean(), true, rtol=0.2)
    assert 0.5 * true <= sums.std() + 1 and sums.std() <= 1.8 * true + 1


def test_lines_of_samples_beside_calls(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """They say what the time of an exact call was spent in."""
    monkeypatch.setenv("COLUMNS", "160")
    manifest = {"sampling": {"period_ns": PERIOD, "off_core": 1}, "sources": [{"pid": 7, "source": "agent", "why": "asked"}]}
    events = [(2, 7, 7, 0, 0, 1, 1), (3, 7, 7, 0, 1, 2, 11), (29 * MS, 7, 7, 1, 1, 2, 13), (29 * MS + 1, 7, 7, 1, 0, 1, 5)]
    trace = sampled(tmp_path, manifest=manifest, events=events)
    facts = report(trace, capsys, "--by", "line")
    assert facts["sampled"] is None and facts["of_samples"]["off_core"] == 4
    assert sum(row["self_blocked_ns"] for row in facts["rows"]) == 11 * MS
    assert main(["report", str(trace.directory), "--by", "line"]) == 0
    assert "blocked" in capsys.readouterr().out


def test_the_intervals_of_some_segments_are_looked_for_at_a_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And of the waits only those that these samples can be of are read."""
    cuts = [17 * MS, 21 * MS, 25 * MS + 500_000, 28 * MS]
    expected = report(sampled(tmp_path / "whole"), capsys)
    folder = sampled(tmp_path / "cut", cuts=cuts).directory
    manifest = json.loads((folder / MANIFEST).read_text())
    for segment in manifest["segments"][1:]:  # each has the stacks of its own samples
        shutil.copy(folder / "stacks" / "part-00000.parquet", folder / "stacks" / f"part-{segment['index']:05d}.parquet")
        segment["rows"]["stacks"] = len(STACKS)
    (folder / MANIFEST).write_text(json.dumps(manifest))
    cut = pytrace_ebpf.open(folder)
    held, of = [], Intervals.of

    def counted(trace: Trace, samples: pd.DataFrame) -> Intervals:
        found = of(trace, samples)
        held.append((len(samples), len(found.key)))
        return found

    monkeypatch.setattr(paths, "_AT_ONCE", 1)
    monkeypatch.setattr(Intervals, "of", counted)
    facts = report(cut, capsys)
    assert [facts[name] for name in ("rows", "split", "sampled")] == [expected[name] for name in ("rows", "split", "sampled")]
    assert max(samples for samples, _ in held) == 2 and max(waits for _, waits in held) <= 3 < len(cut.waits())
