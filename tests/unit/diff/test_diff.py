"""Two sides compared: functions whose lines moved, sums and their certainty, the report, the page and the exit code."""

import io
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

import pytrace_ebpf
from pytrace_ebpf.cli import main
from pytrace_ebpf.diff import report as view
from pytrace_ebpf.diff.aligned import aligned
from pytrace_ebpf.diff.causes import waited
from pytrace_ebpf.diff.changes import BY, VALUES, chance, changes, names_of, whole_change
from pytrace_ebpf.diff.findings import changed
from pytrace_ebpf.diff.judge import judge
from pytrace_ebpf.diff.sides import Side, both, traces_in
from pytrace_ebpf.errors import TraceError, UsageError
from pytrace_ebpf.experiment.paths import CALLS, PARTS, TIMES, by_path, of_tree
from tests.unit.synthetic import Row, Script, write_trace

MS = 1_000_000
MAIN, PARSE, QUERY, OLD, NEW, EVIL = range(6)
NAMES = ("main", "parse", "DB.query", "old", "new", "</script><script>alert(1)\x1b[2J")
ASKED = {"by": "function", "sort": "self", "value": "wall", "per": "run"}


def one_run(path: Path, parse: int, query: int, last: int = OLD, shift: int = 0, command: str = "run") -> Path:
    """main: parse (`parse` ms on a core) twice, query (`query` ms blocked), and `last` (1 ms); every line `shift` further down."""
    functions: list[Row] = [(i, "/app/shop.py", name, name, 10 * i + 1 + shift, "shop") for i, name in enumerate(NAMES)]
    script = Script(10, 10).snapshot().enter(MAIN).run(MS)
    for _ in range(2):
        script.enter(PARSE).run(parse * MS // 2).leave()
    script.enter(QUERY).wait(query * MS - 5_000).leave().enter(last).run(MS).leave().leave()
    processes = [(10, 1, "/usr/bin/python3", "python3 shop.py", "3.11.2", "usdt", 0, 0, 0, script.now + MS)]
    return write_trace(
        path, events=script.events, sched=script.sched, functions=functions, processes=processes, end_ns=script.now + 2 * MS,
        manifest={"argv": ["pytrace-ebpf", command]},
    )  # fmt: skip


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """before: parse 100, 90, 110 ms, query 20, old; after, 7 lines further down: parse 200, 190, 210, query 21, 19, 20, new."""
    root = tmp_path_factory.mktemp("diff")
    for i, parse in enumerate((100, 90, 110), 1):
        one_run(root / "before" / str(i), parse, 20)
        one_run(root / "after" / str(i), parse + 100, (21, 19, 20)[i - 1], NEW, shift=7)
    return root


@cache
def sides(root: Path, before: str = "before", after: str = "after", per: str | None = None) -> tuple[Side, Side]:
    old, new = ([pytrace_ebpf.open(path) for path in traces_in(root / name)] for name in (before, after))
    return both(old, new, (before, after), per)[:2]


def row_of(table: pd.DataFrame, name: str) -> dict[str, Any]:
    (row,) = table[table["qualname"] == name].to_dict("records")
    return row


def run(*words: str) -> int:
    return main.main(words)


def shown(old: Side, new: Side, width: int, **asked: Any) -> str:
    asked = ASKED | asked
    table, whole = changes(old, new, asked["by"], asked["sort"], asked["value"]), whole_change(old, new, asked["value"])
    screen = Console(width=width + 1, record=True, file=io.StringIO())
    screen.print(view.report(old, new, table, whole, changed(old, new), asked, width, False, 20))
    return screen.export_text()


# -- functions of two versions -------------------------------------------------------


def functions(*rows: tuple[str, int], module: str = "m") -> pd.DataFrame:
    return pd.DataFrame({"function_layer": "python", "module": module, "qualname": [n for n, _ in rows], "first_line": [line for _, line in rows]})


def test_functions_of_one_name_are_found_by_how_far_those_around_them_moved() -> None:
    old = functions(("top", 1), ("<lambda>", 10), ("<lambda>", 20), ("f", 30), ("<lambda>", 40), ("<lambda>", 50))
    new = functions(("top", 1), ("<lambda>", 10), ("<lambda>", 20), ("f", 45), ("<lambda>", 55), ("<lambda>", 65))
    assert aligned(old, new)["first_line"].tolist() == new["first_line"].tolist()


def test_of_functions_that_went_none_is_taken_for_another() -> None:
    old = functions(("f", 5), ("<lambda>", 10), ("<lambda>", 20), ("gone", 90))
    new = functions(("f", 5), ("<lambda>", 20), ("<lambda>", 30), ("<lambda>", 40))
    assert aligned(old, new)["first_line"].tolist() == [5, 30, 20, 90]
    alone = aligned(functions(("<lambda>", 10), ("<lambda>", 20)), functions(("<lambda>", 10)))
    assert alone["first_line"].tolist() == [10, 20]
    moved = aligned(functions(("f", 1), ("g", 10), ("g", 20)), functions(("f", 11), ("g", 20)))
    assert moved["first_line"].tolist() == [11, 20, -20]  # the second g is not the one that stands there now


def test_of_thousands_of_one_name_those_at_the_same_line_are_found() -> None:
    many = functions(*(("f", line) for line in range(3_000)))
    assert aligned(many, many)["first_line"].tolist() == many["first_line"].tolist()


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 60)), unique=True, max_size=12), st.integers(0, 40))
def test_what_moved_as_a_whole_is_found_whole(rows: list[tuple[str, int]], shift: int) -> None:
    rows = [*rows, ("anchor", 0)]
    moved = functions(*((name, line + shift) for name, line in rows))
    assert aligned(functions(*rows), moved)["first_line"].tolist() == moved["first_line"].tolist()


# -- sums ----------------------------------------------------------------------------


def test_paths_of_the_tree_are_those_of_the_calls(traces: Path) -> None:
    for path in traces_in(traces / "after"):
        trace = pytrace_ebpf.open(path)
        of_rows = by_path(trace.calls(columns=list(CALLS)), trace.functions())
        found = of_tree(trace.tree(), trace.functions())
        own = [f"self_{name}" for name in TIMES if name != "worker_on_cpu_ns"]
        names = ["path_id", "parent_path_id", "depth", "qualname", "calls", *(name for name in TIMES if name != "worker_on_cpu_ns"), *own]
        pd.testing.assert_frame_equal(found[names], of_rows[names], check_dtype=False)


def test_a_change_is_of_means_with_the_least_and_greatest_difference(traces: Path) -> None:
    table = changes(*sides(traces), "function", "self", "wall")
    parse = row_of(table, "parse")
    assert (parse["before_wall_ns"], parse["after_wall_ns"], parse["change_ns"]) == (100 * MS, 200 * MS, 100 * MS)
    assert (parse["low_ns"], parse["high_ns"], parse["clear"], parse["before_calls"]) == (80 * MS, 120 * MS, True, 2)
    assert parse["after_on_cpu_ns"] - parse["before_on_cpu_ns"] == 100 * MS
    assert table["qualname"].iloc[0] == "parse" and parse["first_line"] == 18  # of the new version
    query = row_of(table, "DB.query")
    assert query["change_ns"] == 0 and not query["clear"]
    assert row_of(table, "old")["after_wall_ns"] == 0 and row_of(table, "new")["before_calls"] == 0
    assert row_of(table, "old")["clear"] and row_of(table, "old")["change_ns"] == -MS


@pytest.mark.parametrize("by", BY)
@pytest.mark.parametrize("value", VALUES)
def test_parts_add_up_and_own_times_are_the_whole(traces: Path, by: str, value: str) -> None:
    old, new = sides(traces)
    table = changes(old, new, by, "self", value)
    for side, name in ((old, "before"), (new, "after")):
        parts = table[[f"{name}_{part}" for part in PARTS]].sum(axis=1)
        assert np.allclose(parts.to_numpy(float), table[f"{name}_wall_ns"].to_numpy(float))
        if by != "operator":
            assert table[f"{name}_{value}_ns"].sum() == pytest.approx(side.whole[f"{value}_ns"])
            assert table[f"{name}_calls"].sum() == side.calls
    assert by == "operator" or table["change_ns"].sum() == pytest.approx(whole_change(old, new, value)["change_ns"])


def test_of_one_run_each_nothing_is_known_to_be_clear(traces: Path) -> None:
    old, new = sides(traces, "before/1", "after/2")
    table = changes(old, new, "function", "total", "wall")
    assert table["clear"].isna().all() and whole_change(old, new, "wall")["clear"] is None and chance(old, new) is None
    assert row_of(table, "main")["change_ns"] == 89 * MS  # parse 90 more, query 1 less
    assert chance(*sides(traces)) == pytest.approx(0.1)


def test_recordings_of_a_piece_are_compared_by_the_second(tmp_path: Path) -> None:
    short, long = one_run(tmp_path / "short", 100, 20, command="attach"), one_run(tmp_path / "long", 1_000, 20, command="attach")
    old, new, per = both([pytrace_ebpf.open(short)], [pytrace_ebpf.open(long)], ("short", "long"), None)
    assert per == "second"
    row = row_of(changes(old, new, "function", "self", "wall"), "parse")
    for side, ms in ((old, 100), (new, 1_000)):
        name = "before" if side is old else "after"
        assert row[f"{name}_wall_ns"] == pytest.approx(ms * MS / side.runs[0].seconds)
        assert row[f"{name}_calls"] == pytest.approx(2 / side.runs[0].seconds)
    assert both([pytrace_ebpf.open(short)], [pytrace_ebpf.open(long)], ("short", "long"), "run")[0].whole["wall_ns"] < 130 * MS


def test_only_what_is_clearly_slower_is_over_the_limit(traces: Path) -> None:
    old, new = sides(traces)
    judged = judge(old, new, "function", "self", "wall", 0.05)
    assert judged.together and judged.rows["qualname"].tolist() == ["parse"] and judged.sure == [True, True] and judged.slower
    judged = judge(old, new, "function", "self", "wall", 0.9)
    assert not judged.found and not judged.slower
    judged = judge(new, old, "function", "self", "wall", 0.001)
    assert not judged.together and judged.rows["qualname"].tolist() == ["old"]  # 1 ms of 221
    assert judged.sure == [False]  # with the sides the other way round parse is slower by more, which of three runs each is chance enough
    assert judge(old, new, "function", "self", "on_cpu", 0.05).rows["qualname"].tolist() == ["parse"]
    assert not judge(old, new, "function", "self", "blocked", 0.01).slower  # query: 20 ms against 19 to 21
    assert judge(old, old, "function", "self", "wall", 0.5).none and not judge(old, old, "function", "self", "wall", 0.0).none


def test_of_too_few_runs_nothing_is_sure(traces: Path) -> None:
    judged = judge(*sides(traces, "before/1", "after/1"), "function", "self", "wall", 0.05)
    assert judged.sure is None and judged.found and not judged.slower and not judged.none


# -- what is shown -------------------------------------------------------------------


@pytest.mark.parametrize("width", [40, 79, 120, 200])
@pytest.mark.parametrize("by", BY)
def test_the_report_fits_and_says_what_changed(traces: Path, width: int, by: str) -> None:
    said = shown(*sides(traces), width, by=by)
    assert max(map(len, said.splitlines())) <= width + 1
    words = " ".join(said.split())
    assert "instead of 122ms: 82 % more (100ms more on a core), beyond the spread of the repeats." in words
    if by in ("function", "path"):
        assert re.search(r"parse` changes most: 100ms more of its own time \(100ms more on a core\), with as many calls, beyond the spread", words)
        assert "once in 10 rows" in words


def test_what_each_function_has_more_or_less_is_said_with_its_sign(traces: Path) -> None:
    rows = {line.split()[-2]: line.split()[:4] for line in shown(*sides(traces), 200, by="function").splitlines() if "/app/shop.py:" in line}
    assert rows["parse"] == ["+100ms", "+82", "%", "100ms"] and rows["old"] == ["-1.00ms", "-0.8", "%", "1.00ms"]


def test_the_sentence_of_nothing_changed(traces: Path) -> None:
    said = " ".join(shown(*sides(traces, "before", "before"), 200).split())
    assert "take 122ms, which is what they took before (122ms)." in said and "changes most" not in said


def test_a_program_that_is_called_more_often_or_not_any_more(traces: Path) -> None:
    old, new = sides(traces, "before/1", "after/1")
    table = changes(old, new, "function", "self", "wall")
    rows = table[table["qualname"].isin(["old", "new"])]
    said = view.sentence(old, new, rows, whole_change(old, new, "wall"), ASKED)
    assert "changes most" not in said  # 1 ms of 122 is not worth a sentence
    grown = view.sentence(old, new, rows.assign(change_ns=rows["change_ns"] * 50), whole_change(old, new, "wall"), ASKED)
    assert "it was not called before" in grown or "it is not called any more" in grown


def joined(path: Path, work: int) -> Path:
    """main waits for a thread that works so many ms."""
    functions: list[Row] = [
        (0, "/app/a.py", "main", "main", 1, "a"),
        (1, "/app/a.py", "join", "join", 5, "a"),
        (2, "/app/a.py", "score", "score", 9, "a"),
    ]
    other = Script(10, 11).snapshot().enter(2).run(work * MS).leave()
    script = Script(10, 10).snapshot().enter(0).run(MS).enter(1).wait(work * MS + work * MS // 10, waker=11).leave().leave()
    events, sched = (sorted([*mine, *others]) for mine, others in ((script.events, other.events), (script.sched, other.sched)))
    return write_trace(path, events=events, sched=sched, functions=functions, end_ns=script.now + 2 * MS)


def test_the_sentence_names_the_cause_and_not_who_waits_for_it(tmp_path: Path) -> None:
    for i in range(3):
        joined(tmp_path / "before" / str(i), 10)
        joined(tmp_path / "after" / str(i), 30)
    old, new = sides(tmp_path, per="run")
    table = waited(old, new, changes(old, new, "function", "self", "wall"))
    said = view.sentence(old, new, table, whole_change(old, new, "wall"), ASKED)
    assert "`score` changes most: 20.0ms more of its own time (20.0ms more on a core)" in said
    assert said.endswith("beyond the spread of the repeats. `join` waits 22.0ms longer for the program's other threads.")
    assert table.set_index("qualname")["waited_ns"].to_dict() == {"join": 22 * MS, "score": 0, "main": 0}


# -- the command ---------------------------------------------------------------------


def test_the_exit_code_says_that_it_got_slower(traces: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = str(traces / "before"), str(traces / "after")
    assert run("diff", before, after) == 0
    assert run("diff", before, after, "--fail-over", "5%") == 1
    said = "slower by more than 5.0 % of all time on a core: all calls together (+100ms), parse (+100ms); of comparisons of one and the same program"
    assert f"{said} at most 5.0 % say so.\n" in capsys.readouterr().err
    assert run("diff", before, after, "--fail-over", "0.99") == 0
    assert run("diff", after, before, "--fail-over", "5 %") == 0
    assert run("diff", before, after, "--fail-over", "5%", "--value", "blocked") == 0


def test_single_runs_fail_only_where_that_is_insisted_on(traces: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("diff", str(traces / "before" / "1"), str(traces / "after" / "1"), "--fail-over", "5%")
    assert run(*words) == 0
    assert "parse (+100ms); fewer than 3 runs of each side cannot tell that from chance, so it does not count" in capsys.readouterr().err
    assert run(*words, "--single-run") == 1


@pytest.mark.parametrize("by", BY)
def test_json_has_everything(traces: Path, by: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("diff", str(traces / "before"), str(traces / "after"), "--json", "--by", by, "--top", "0") == 0
    said = json.loads(capsys.readouterr().out)
    assert [len(said[side]["runs"]) for side in ("before", "after")] == [3, 3] and said["chance"] == 0.1 and said["per"] == "run"
    assert said["whole"]["clear"] and said["whole"]["change_ns"] == 100 * MS
    old, new = sides(traces)
    table = changes(old, new, by, "self", "wall")
    assert [row["name"] for row in said["rows"]] == names_of(old, new, table, by)
    assert by != "path" or "main > parse" in [row["name"] for row in said["rows"]]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("nothing", "after"), 5, "is neither a trace nor a directory with traces"),
        (("before", "after", "--fail-over", "much"), 2, "--fail-over much is not a share; give one such as 5%."),
        (("before", "after", "--fail-over", "-5%"), 2, "--fail-over"),
        (("before", "after", "--top", "-1"), 2, "--top -1 is negative"),
        (("before",), 2, "diff compares two sides, and 1 was named"),
        (("before", "after", "--single-run"), 2, "--single-run has no effect without --fail-over"),
        (("before", "after", "--runs", "5"), 2, "--runs has no effect without --until-sure"),
        (("--until-sure", "--runs", "2", "--", "true", "--", "true"), 2, "--runs 2 are too few"),
        (("--until-sure", "--", "true"), 2, "--until-sure needs two programs to start"),
        (("before", "after", "--html", "no/such/page.html"), 2, "cannot be written"),
        (("before", "after", "--by", "moon"), 2, "moon is not a value of --by"),
    ],
)
def test_bad_input_is_one_sentence(
    traces: Path, words: tuple[str, ...], code: int, said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(traces)
    assert run("diff", *words) == code
    told = capsys.readouterr().err
    assert told.startswith("pytrace-ebpf: ") and said in told and told.count("\n") == 1


def test_samples_are_not_compared_with_calls(traces: Path) -> None:
    old, new = ([pytrace_ebpf.open(path) for path in traces_in(traces / name)] for name in ("before", "after"))
    for trace in old:
        trace.manifest["sources"] = []
        trace.manifest["sampling"] = {"period_ns": MS}
    with pytest.raises(UsageError, match="before has samples and after has calls"):
        both(old, new, ("before", "after"), None)


def sampled_run(path: Path, parse: int, query: int) -> Path:
    """So many samples of parse and of query on a core, and 800 of main."""
    functions: list[Row] = [(i, "/app/shop.py", name, name, 10 * i + 1, "shop") for i, name in enumerate(NAMES)]
    counts = {MAIN: 800, PARSE: parse, QUERY: query}
    stacks = [func for func, count in counts.items() for _ in range(count)]
    return write_trace(
        path, functions=functions, stacks=[(0, -1, MAIN, 1), (1, 0, PARSE, 12), (2, 0, QUERY, 22)],
        samples=[(MS * (at + 1), 10, 10, 0, stack, 100) for at, stack in enumerate(stacks)], end_ns=2_000 * MS,
        manifest={"sampling": {"period_ns": MS}, "sources": [{"pid": 10, "source": "sample", "why": "asked"}]},
    )  # fmt: skip


def test_a_change_that_samples_are_too_few_for_may_be_chance(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """100 samples of 1,000 have a standard error of 9.5, so a difference has one of some 13."""
    for i, more in enumerate((0, 1), 1):
        sampled_run(tmp_path / "before" / str(i), 100 + more, 100 + more)
        sampled_run(tmp_path / "after" / str(i), 108 + more, 200 + more)
    one = sides(tmp_path, "before/1", "after/1")
    table = changes(*one, "function", "self", "on_cpu")
    parse, query = (row_of(table, name) for name in ("parse", "DB.query"))
    per_second = 1 / 2  # of a recording of two seconds
    assert parse["error_ns"] == pytest.approx(13.8 * MS * per_second, rel=0.05) and parse["change_ns"] == pytest.approx(8 * MS * per_second)
    assert parse["clear"] is False or not parse["clear"]
    assert pd.isna(query["clear"]) and query["change_ns"] == pytest.approx(100 * MS * per_second)
    several = sides(tmp_path)
    rows = changes(*several, "function", "self", "wall").set_index("qualname")
    assert rows["clear"]["DB.query"] and not rows["clear"]["parse"]  # whose runs are apart
    assert rows["error_ns"]["parse"] == pytest.approx(parse["error_ns"] / 2**0.5, rel=0.02)
    assert judge(*several, "function", "self", "wall", 0.005).rows["qualname"].tolist() == ["DB.query"]
    assert run("diff", str(tmp_path / "before" / "1"), str(tmp_path / "after" / "1"), "--fail-over", "0.5%", "--single-run") == 1
    assert "parse" not in capsys.readouterr().err
    assert "two standard errors" in " ".join(shown(*one, 120).split())


def test_exact_calls_have_no_error(traces: Path) -> None:
    assert changes(*sides(traces), "function", "self", "wall")["error_ns"].isna().all() and whole_change(*sides(traces), "wall")["error_ns"] is None


def test_a_directory_of_runs_is_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for name in ("10", "9", "x"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "manifest.json").touch()
    (tmp_path / "empty").mkdir()
    assert [path.name for path in traces_in(tmp_path)] == ["x", "9", "10"]
    with pytest.raises(TraceError):
        traces_in(tmp_path / "empty")


def test_names_that_a_program_chose_do_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    for name in ("a", "b"):
        one_run(tmp_path / name, 10 if name == "a" else 500, 10, EVIL)
    assert run("diff", str(tmp_path / "a"), str(tmp_path / "b"), "--html", str(page), "--top", "0") == 0
    assert "\x1b[2J" not in capsys.readouterr().out
    text = page.read_text()
    assert text.count("</script>") == 1 and "\x1b" not in text


def test_the_page_has_every_path_with_both_sides(traces: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert run("diff", str(traces / "before"), str(traces / "after"), "--html", str(page)) == 0
    found = re.search(r"const diff = (\{.*\});\n", page.read_text())
    assert found
    data = json.loads(found[1])
    names = [data["functions"][of][0] for _, of, *_ in data["nodes"]]
    assert sorted(names) == sorted(["main", "parse", "DB.query", "old", "new"])
    parent, _, calls, total, own = data["nodes"][names.index("parse")]
    assert names[parent] == "main" and calls == [2, 2]
    assert [side[:2] for side in total] == [[100 * MS, 100 * MS], [200 * MS, 200 * MS]] and own == total
    assert [side[0] for side in data["nodes"][names.index("new")][3]] == [0, MS]
    assert data["whole"][1][0] == 222 * MS
