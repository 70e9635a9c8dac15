"""What is made of samples: the tree, sums by function and line, errors, the advice; and that a report shows them."""

import json
import os
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pytrace_ebpf
from pytrace_ebpf.analyze.samples.chart import chart
from pytrace_ebpf.analyze.samples.errors import standard_error, with_errors, with_unread
from pytrace_ebpf.analyze.samples.paths import OTHER, Paths
from pytrace_ebpf.analyze.samples.tree import nodes
from pytrace_ebpf.cli.export import FORMATS
from pytrace_ebpf.cli.main import main, parser
from pytrace_ebpf.options.option_rules import source, to_recording
from pytrace_ebpf.trace import opcodes
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.view.sampled import command
from pytrace_ebpf.view.source_text import lines_of
from tests.unit.synthetic import Row, sample, write_trace

PERIOD = 1_000_000
LARGE = 0.25  # of the time
FUNCTIONS: list[Row] = [
    (0, "/app/main.py", "<module>", "<module>", 1, "main"),
    (1, "/app/work.py", "fib", "fib", 11, "work"),
    (2, "/app/work.py", "other", "other", 21, "work"),
]
# <module> 5 -> fib 12 -> fib 13 -> other 22; other alone
STACKS: list[Row] = [(0, -1, 0, 5), (1, 0, 1, 12), (2, 1, 1, 13), (3, 2, 2, 22), (4, -1, 2, 23)]
COUNTS = {0: 1, 1: 20, 2: 30, 3: 40, 4: 5, -1: 7, -2: 3}


def sampled(path: Path, **more: Any) -> Trace:
    rows, ts = list[Row](), 0
    for stack, count in COUNTS.items():
        for _ in range(count):
            ts += PERIOD
            rows.append((ts, 7, 7 if ts // PERIOD % 2 else 8, 0, stack, 100 if stack >= 0 else -1))
    manifest = {"sampling": {"period_ns": PERIOD}, "sources": [{"pid": 7, "source": "sample", "why": "asked"}], "cost": {"sampling_ns": 12_345}}
    options = {"functions": FUNCTIONS, "stacks": STACKS, "samples": rows, "manifest": manifest} | more
    return pytrace_ebpf.open(write_trace(path / "trace", **options))


def report(trace: Trace, capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    assert main(["report", str(trace.directory), "--json", "--top", "0", *options]) == 0
    return dict(json.loads(capsys.readouterr().out))


def test_the_tree_has_every_sample_once(tmp_path: Path) -> None:
    tree = sampled(tmp_path).tree()
    threads, nodes = tree[tree["depth"] < 0], tree[tree["depth"] >= 0]
    in_python = sum(count for stack, count in COUNTS.items() if stack != -1)
    assert threads["total_ns"].sum() == nodes["self_ns"].sum() == in_python * PERIOD
    for row in nodes.itertuples():
        below = tree[tree["parent_id"] == row.node_id]
        assert row.total_ns == row.self_ns + below["total_ns"].sum()
        assert row.parent_id < row.node_id
    assert tree["runq_wait_ns"].isna().all()


def test_recursion_counts_once_in_a_total(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    facts = report(sampled(tmp_path), capsys)
    rows = {row["qualname"]: row for row in facts["rows"]}
    assert (rows["fib"]["total_samples"], rows["fib"]["self_samples"]) == (90, 50)
    assert (rows["other"]["total_samples"], rows["other"]["self_samples"]) == (45, 45)
    assert rows["<module>"]["total_samples"] == 91
    assert {name: value for name, value in facts["sampled"].items() if not name.endswith("time")} == {
        "period_ns": PERIOD,
        "samples": 106,
        "missed": 0,
        "outside": 7,
        "unread": 3,
        "off_core": 0,
        "with_off_core": 0,
        "states": 0,
    }
    assert [facts["sampled"][name]["total_ns"] for name in ("time", "unread_time")] == [106 * PERIOD, 3 * PERIOD]
    assert facts["wrong_sums"] == []
    assert facts["deserving"]["modules"] == ["work"]


def test_a_sample_stands_for_the_ticks_that_did_not_come(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows: list[Row] = [(20 * PERIOD * (at + 1), 7, 7, 0, at % 3, 100, 0, 9 if at == 4 else 0) for at in range(12)]
    trace = sampled(tmp_path, samples=rows)
    tree = trace.tree()
    assert tree.loc[tree["depth"] < 0, "on_cpu_ns"].sum() == 21 * PERIOD
    facts = report(trace, capsys)
    assert (facts["sampled"]["samples"], facts["sampled"]["missed"]) == (12, 9)
    own = {(row["qualname"]): (row["self_samples"], row["self_ns"]) for row in facts["rows"]}
    assert own["fib"] == (8, 17 * PERIOD)
    assert all(0 < row["self_error_ns"] < 21 * PERIOD for row in facts["rows"])
    assert sum(row["self_ns"] for row in report(trace, capsys, "--by", "line")["rows"]) == 21 * PERIOD
    instructions = report(trace, capsys, "--by", "opcode")["rows"]
    assert (sum(row["self_ns"] for row in instructions), sum(row["self_samples"] for row in instructions)) == (21 * PERIOD, 12)
    assert main(["report", str(trace.directory)]) == 0
    assert "9 ticks missed" in capsys.readouterr().out


def test_a_window_has_its_own_samples(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = sampled(tmp_path)
    facts = report(trace, capsys, "--from", "10ms", "--until", "20ms")
    assert facts["sampled"]["samples"] == 10
    assert report(trace, capsys, "--tid", "8")["sampled"]["samples"] == 53


def test_segments_may_name_their_stacks_anew(tmp_path: Path) -> None:
    """As a recorder does: numbers go on, and the same path is one node."""
    first = sampled(tmp_path).tree()
    stacks = [*STACKS, *((number + 10, parent + 10 if parent >= 0 else -1, func, line) for number, parent, func, line in STACKS)]
    rows = [tuple(row) for row in sampled(tmp_path).samples().itertuples(index=False)]
    rows = [(*row[:4], row[4] + 10 if row[4] >= 0 and row[0] % 3 == 0 else row[4], row[5]) for row in rows]
    second = sampled(tmp_path / "again", stacks=stacks, samples=rows).tree()
    pd.testing.assert_frame_equal(first, second)


def test_lines_have_what_stood_at_them_and_below(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    facts = report(sampled(tmp_path), capsys, "--by", "line")
    rows = {(row["qualname"], row["line"]): (row["self_samples"], row["total_samples"]) for row in facts["rows"]}
    assert rows == {("<module>", 5): (1, 91), ("fib", 12): (20, 90), ("fib", 13): (30, 70), ("other", 22): (40, 40), ("other", 23): (5, 5)}
    assert [row["line"] for row in facts["rows"]] == [12, 13, 22, 23, 5]  # functions by self time, their lines in order


def test_a_line_that_recursion_comes_to_again_counts_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stacks = [(0, -1, 1, 12), (1, 0, 1, 12), (2, 1, 1, 12), (3, 2, 2, 22), (4, -1, 2, 23)]
    facts = report(sampled(tmp_path, stacks=stacks), capsys, "--by", "line")
    rows = {(row["qualname"], row["line"]): row["total_samples"] for row in facts["rows"]}
    assert rows["fib", 12] == 91


def test_source_lines_stand_beside_their_time(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    source = tmp_path / "work.py"
    source.write_text("".join(f"line {number} \x1b[31m of it\n" for number in range(1, 30)))
    functions = [(0, "/nowhere/main.py", *FUNCTIONS[0][2:]), *((number, str(source), *row) for number, _, *row in FUNCTIONS[1:])]
    assert main(["report", str(sampled(tmp_path, functions=functions).directory), "--by", "line"]) == 0
    shown = capsys.readouterr().out
    assert all(f"line {number} " in shown for number in (12, 13, 22, 23)) and "line 5 " not in shown
    assert "its source is not here" in shown and "\x1b[31m" not in shown


def test_a_source_that_is_a_trap_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.py")
    assert lines_of(str(tmp_path / "pipe.py")) is None  # and nobody waits for a writer
    assert lines_of(str(tmp_path)) is None and lines_of("/dev/zero") is None and lines_of("relative.py") is None
    assert lines_of("/no\0thing") is None


def test_instructions_have_their_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    facts = report(sampled(tmp_path), capsys, "--by", "opcode")
    number = json.loads((Path(opcodes.__file__).parent / "opcodes.json").read_text())["3.11"]["names"]["100"]
    assert [(row["name"], row["self_samples"]) for row in facts["rows"]] == [(number, 96)]
    assert [each["qualname"] for each in facts["by_function"]] == ["fib", "other", "<module>"]
    assert opcodes.name_of("3.11.2", 5) == ("BINARY_OP_ADD_INT", "BINARY_OP")
    assert opcodes.name_of("3.8.18", 93) == ("FOR_ITER", "FOR_ITER")
    assert opcodes.name_of("", 5) == opcodes.name_of("9.9", 5) == ("opcode 5", "opcode 5")


def test_without_samples_there_are_no_instructions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(sample(tmp_path)), "--by", "opcode"]) == 2
    said = capsys.readouterr().err
    assert (
        said
        == "pytrace-ebpf: --by opcode is made of samples or of counted instructions, which this trace does not have; --sample and --opcodes exact of run and attach record them.\n"
    )


@pytest.mark.parametrize("by", ["line", "opcode"])
def test_samples_may_all_be_outside_of_python(tmp_path: Path, capsys: pytest.CaptureFixture[str], by: str) -> None:
    trace = sampled(tmp_path, stacks=[], samples=[(PERIOD, 7, 7, 0, -1, -1)])
    assert main(["report", str(trace.directory), "--by", by]) == 0
    assert "No sample was taken of Python code." in capsys.readouterr().out


def test_a_chart_has_every_sample_where_it_was(tmp_path: Path) -> None:
    """Of each depth boxes do not overlap, and those of a function have as many samples as it has in all."""
    trace = sampled(tmp_path)
    for tid in (7, 8):
        own = trace.window(pid=7, tid=tid)
        boxes = pd.concat(list(chart(own, PERIOD)))
        for _, layer in boxes.groupby("depth"):
            assert (layer["start_ns"].to_numpy()[1:] >= layer["end_ns"].to_numpy()[:-1]).all()
        tree = own.tree()
        for depth, layer in boxes.groupby("depth"):
            assert layer["on_cpu_ns"].sum() == tree.loc[tree["depth"] == depth, "total_ns"].sum()


def test_a_thread_of_which_no_stack_is_known_has_no_chart(tmp_path: Path) -> None:
    """As one that ended before it ran Python: nobody's page fails for it."""
    alone: list[Row] = [(at * PERIOD, 7, 9, 0, -1, -1) for at in range(150, 155)]
    rows = [tuple(row) for row in sampled(tmp_path).samples().itertuples(index=False)]
    trace = sampled(tmp_path / "again", samples=[*(row[:6] for row in rows), *alone])
    assert not list(chart(trace.window(pid=7, tid=9), PERIOD)) and list(chart(trace.window(pid=7, tid=7), PERIOD))
    assert main(["report", str(trace.directory), "--html", str(tmp_path / "page.html")]) == 0


@given(share=st.floats(0, 1), of=st.integers(1, 100_000))
@settings(max_examples=200)
def test_an_error_is_a_binomials(share: float, of: int) -> None:
    samples = round(share * of)
    error = float(standard_error(samples, of))
    assert error >= np.sqrt(samples * (1 - samples / of)) * 0.9  # and never nothing
    assert 0 < error < np.sqrt(of / 4) + 1


def test_where_threads_wait_for_work_no_calls_are_advised(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    functions = [*FUNCTIONS, (3, "/lib/queue.py", "get", "Queue.get", 5, "queue"), (4, "/lib/selectors.py", "select", "select", 5, "selectors")]
    stacks = [*STACKS, (5, -1, 3, 6), (6, -1, 4, 7)]
    waits: list[Row] = [(at * PERIOD, 7, 9, 0, 5, -1, PERIOD, 0, 3) for at in range(100, 150)]  # blocked
    busy: list[Row] = [(at * PERIOD, 7, 10, 0, 6 if at % 2 else 4, -1) for at in range(100, 150)]
    manifest = {"sampling": {"period_ns": PERIOD, "off_core": 1, "states": 2}, "sources": [{"pid": 7, "source": "sample", "why": ""}], "cost": {}}
    trace = sampled(tmp_path, functions=functions, stacks=stacks, samples=[*waits, *busy], manifest=manifest)
    assert report(trace, capsys, "--by", "module")["deserving"]["modules"] == ["selectors", "work"]


def test_the_advice_is_a_command(tmp_path: Path) -> None:
    argv = ["/usr/bin/pytrace-ebpf", "run", "--sample", "99", "-o", "/tmp/t", "--no-follow", "--", "python3", "app.py", "--sample", "5"]
    assert command({"argv": argv}, ["shop"]) == "pytrace-ebpf run --no-follow --include shop -- python3 app.py --sample 5"
    argv = ["pytrace-ebpf", "attach", "--sample", "--pid", "7", "--output=/tmp/t"]
    assert command({"argv": argv}, ["a", "b c"]) == "pytrace-ebpf attach --pid 7 --include a --include 'b c'"


@pytest.mark.parametrize(
    "words",
    [
        ["attach", "--sample", "--switches", "-o/tmp/t", "7"],
        ["attach", "7", "--rootless", "--sample", "199", "--duration", "5"],
        ["run", "--sample", "--rootless", "-o", "t", "--", "python3", "app.py", "-o", "x"],
    ],
)
def test_the_advice_is_a_command_that_is_taken(words: list[str]) -> None:
    """Nothing is in it that goes with samples alone."""
    said = shlex.split(command({"argv": ["pytrace-ebpf", *words], "target": {"command": "python3 app.py -o x"}}, ["shop"]))
    args = parser().parse_args(said[1:])
    to_recording(args)
    assert source(args) == "auto" and args.include == ["shop"] and args.output is None
    assert not (said[1] == "attach" and args.rootless)
    assert said[1] == "attach" or said[said.index("--") :] == ["--", "python3", "app.py", "-o", "x"]


@pytest.mark.parametrize("by", ["function", "module", "thread", "core", "wait", "gil", "task", "line", "opcode"])
@pytest.mark.parametrize("width", ["60", "120"])
def test_every_report_shows_them(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, by: str, width: str) -> None:
    monkeypatch.setenv("COLUMNS", width)
    assert main(["report", str(sampled(tmp_path).directory), "--by", by]) == 0
    shown = capsys.readouterr().out
    assert "106 samples of 1.00ms" in " ".join(shown.split())
    assert "WRONG" not in shown and "0 calls" not in shown
    assert max(map(len, shown.splitlines())) <= int(width)


@pytest.mark.parametrize("form", FORMATS)
def test_exports_have_the_paths(tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes], form: str) -> None:
    trace = sampled(tmp_path)
    assert main(["export", str(trace.directory), "--to", form, "-o", "-"]) == (2 if form == "chrome" else 0)
    written = capsysbinary.readouterr().out
    if form == "folded":
        weights = {
            tuple(part.split(" (")[0] for part in line.rpartition(" ")[0].split(";")): int(line.rpartition(" ")[2])
            for line in written.decode().splitlines()
        }
        assert weights["<module>", "fib", "fib", "other"] == 40 * PERIOD
        assert weights["other",] == 5 * PERIOD and weights["(unknown)",] == 3 * PERIOD
    if form == "callgrind":
        summary = next(line for line in written.decode().splitlines() if line.startswith("summary: "))
        assert int(summary.split()[1]) == 99 * PERIOD
    if form == "speedscope":
        profiles = json.loads(written)["profiles"]
        assert sum(sum(profile["weights"]) for profile in profiles) == 99 * PERIOD


@given(parents=st.lists(st.integers(-1, 60), min_size=1, max_size=60), most=st.integers(1, 40), seed=st.integers(0, 1 << 32))
@settings(max_examples=200)
def test_the_rarest_of_too_many_paths_become_one_of_their_caller(parents: list[int], most: int, seed: int) -> None:
    paths = Paths()
    for at, parent in enumerate(parents):
        paths.number(min(parent, len(paths.parents) - 1), at)
    own = np.random.default_rng(seed).integers(0, 100, len(parents))
    total = own.copy()
    for at in range(len(parents) - 1, -1, -1):
        if paths.parents[at] >= 0:
            total[paths.parents[at]] += total[at]
    merged, became = paths.merged(total, most)
    others = [at for at, function in enumerate(merged.functions) if function == OTHER]
    assert len(merged.functions) - len(others) == min(most, len(parents)) and len(others) <= most + 1
    kept = [at for at, path in enumerate(became.tolist()) if merged.functions[path] != OTHER]
    assert min(total[kept], default=0) >= max((total[at] for at in range(len(total)) if at not in kept), default=0)
    for at in kept:  # its callers are what they were
        above = paths.parents[at]
        assert merged.functions[became[at]] == paths.functions[at] and merged.parents[became[at]] == (became[above] if above >= 0 else -1)


def test_a_tree_has_no_more_paths_than_it_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """And has all samples all the same; the report says what became of the others."""
    whole = nodes(sampled(tmp_path))
    few = nodes(sampled(tmp_path / "again"), most=4)
    assert few["self_samples"].sum() == whole["self_samples"].sum()
    assert few.loc[few["depth"] < 0, "total_ns"].sum() == whole.loc[whole["depth"] < 0, "total_ns"].sum()
    assert few["merged"].any() and not whole["merged"].any()
    assert (few.loc[few["merged"], "func_id"] == -1).all()
    monkeypatch.setattr(nodes, "__defaults__", (4, True, False, False))
    trace = sampled(tmp_path / "report")
    facts = report(trace, capsys)
    assert facts["merged_ns"] > 0 and facts["wrong_sums"] == []
    assert main(["report", str(trace.directory)]) == 0
    assert "of it is at paths that are too many" in " ".join(capsys.readouterr().out.split())


def test_where_the_locale_is_c_their_reports_are_ascii(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "C")
    monkeypatch.setenv("COLUMNS", "100")
    folder = str(sampled(tmp_path).directory)
    for words in ([], ["--by", "line"], ["--by", "opcode"]):
        main(["report", folder, *words])
        out = capsys.readouterr().out
        assert out.isascii() and "~ is one standard error" in out


@given(unread=st.floats(0, 0.5), share=st.floats(0.01, 0.99), of=st.integers(100, 10_000), seed=st.integers(0, 1 << 32))
@settings(max_examples=100)
def test_an_error_holds_whoever_had_what_could_not_be_read(unread: float, share: float, of: int, seed: int) -> None:
    """Looks fail at random or, where it has much of the time, just at this function: what is printed is within four errors of what it was."""
    random = np.random.default_rng(seed)
    for rates in ((unread, unread), *([(unread, 0.0)] if share >= LARGE else [])):  # of this function, and of the others
        true = random.binomial(of, share)
        seen, others = (count - random.binomial(count, rate) for count, rate in zip((true, of - true), rates, strict=True))
        table = pd.DataFrame({"func_id": [0, -1], "total_ns": [seen * PERIOD, (of - seen - others) * PERIOD]})
        whole, gone = ({"total_ns": count * PERIOD} for count in (of, of - seen - others))
        plain = with_errors(table, PERIOD, of)
        found = with_unread(plain, PERIOD, whole, gone)
        assert abs(seen - true) * PERIOD <= 4 * found["total_error_ns"][0]
        assert found["total_error_ns"][0] >= plain["total_error_ns"][0]
        assert found["total_error_ns"][1] == plain["total_error_ns"][1]  # of the unknown themselves


def test_a_report_counts_in_its_errors_what_could_not_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stacks: list[Row] = [(0, -1, 1, 5)]
    facts = {}
    for lost in (0, 25):
        samples: list[Row] = [(PERIOD * (at + 1), 7, 7, 0, -2 if at < lost else 0, -1) for at in range(100)]
        trace = sampled(tmp_path / str(lost), stacks=stacks, samples=samples)
        facts[lost] = report(trace, capsys)
    assert facts[25]["sampled"]["unread_time"]["total_ns"] == 25 * PERIOD
    row = next(row for row in facts[25]["rows"] if row["func_id"] == 1)
    assert row["total_ns"] == 75 * PERIOD and row["total_error_ns"] >= 24 * PERIOD
    assert next(row for row in facts[0]["rows"] if row["func_id"] == 1)["total_error_ns"] < 3 * PERIOD
    assert main(["report", str(tmp_path / "25" / "trace")]) == 0
    assert "25 % of the time has no stack (unknown)" in " ".join(capsys.readouterr().out.split())
