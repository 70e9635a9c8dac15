"""Values join their calls in whatever segment these end, and calls are summed by them as a slow reference does."""

import io
import random
from collections import defaultdict
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from rich.console import Console

import pytrace_ebpf
from pytrace_ebpf.analyze.observed import by_arguments as module
from pytrace_ebpf.analyze.observed.by_arguments import FEW, OTHERS, RESUMED, UNSEEN, by_arguments
from pytrace_ebpf.cli.main import main
from pytrace_ebpf.errors import TraceError
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.trace.schema import CallKind
from pytrace_ebpf.trace.states import SPLIT
from pytrace_ebpf.view import args as view
from pytrace_ebpf.view.summary import summary
from tests.unit.synthetic import Script, write_trace

PID, FUNCTIONS = 10, 4
RESULTS = {"return": "-> ", "yield": "yields ", "raised": "raises "}


def function(number: int) -> tuple[Any, ...]:
    return (number, "/app/shop.py", f"f{number}", f"f{number}", 10 * number + 1, "shop", 0)


def some(chosen: random.Random, different: int) -> tuple[str, str | None, list[int] | None, str | None, str]:
    """type, value, shape, dtype, status; and of a value `different` many."""
    number = chosen.randrange(different)
    return chosen.choice([
        ("int", str(number), None, None, "complete"), ("str", f"text {number}", [7], None, "complete"), ("list", None, [number], None, "complete"),
        ("ndarray", None, [number, 3], "float32", "complete"), ("Tensor", None, [], "int64", "complete"), ("NoneType", "None", None, None, "complete"),
        ("str", None, None, None, "redacted"), ("str", "x" * 50 + str(number), [999], None, "cut"), ("Cart", None, None, None, "complete"),
    ])  # fmt: skip


def told(row: tuple[Any, ...]) -> tuple[str, str]:
    """As it is distinguished, and by its type alone."""
    what, _, name, kind, value, shape, dtype, status = row[3:]
    lead = f"{name}: " if what == "argument" else RESULTS[what]
    plain = lead + ("None" if kind == "NoneType" else kind) + (" (redacted)" if status == "redacted" else "")
    if dtype:
        return f"{plain}[{dtype} {'x'.join(map(str, shape)) or '()'}]", f"{plain}[{dtype} {len(shape)}d]"
    if kind == "NoneType" or (value is None and shape is None):
        return plain, plain
    if value is None:
        return f"{plain}[{'x'.join(map(str, shape))}]", plain
    mark = "'" if kind == "str" else ""
    return f"{plain} = {mark}{value[:40]}{mark}{'…' if len(value) > 40 or status == 'cut' else ''}", plain


def story(seed: int, different: int) -> tuple[dict[str, Any], list[tuple[int, list[Any]]]]:
    """What write_trace takes, and of each call that has an end its function and its rows of `observed`."""
    chosen, scripts, observed, finished = random.Random(seed), [], [], []
    for tid in (1, 2):
        script, open_ = Script(PID, tid, cpu=tid, now=1000 + tid).snapshot(), []
        for _ in range(120):
            script.run(chosen.randrange(1, 50))
            if len(open_) < 6 and chosen.random() < 0.55:
                func = chosen.randrange(FUNCTIONS)
                script.enter(func)
                given = [(script.now, PID, tid, "argument", place, f"a{place}", *some(chosen, different)) for place in range(func)]
                observed += given
                open_.append((func, given))
            elif open_:
                func, given = open_.pop()
                script.leave()
                came = (script.now, PID, tid, chosen.choice(list(RESULTS)), -1, None, *some(chosen, different))
                observed.append(came)
                finished.append((func, [came, *given]))
        scripts.append(script)
    rows = {
        "events": [row for script in scripts for row in script.events],
        "sched": sorted(row for script in scripts for row in script.sched),
        "functions": [function(number) for number in range(FUNCTIONS)],
        "observed": sorted(observed, key=lambda row: row[0]),
    }
    return rows, finished


def slowly(finished: list[tuple[int, list[Any]]]) -> dict[tuple[int, str, str], int]:
    """Calls by (function, arguments, outcome)."""
    values = defaultdict(set)
    for func, rows in finished:
        for row in rows:
            values[func, row[4]].add(told(row)[0])
    counted: dict[tuple[int, str, str], int] = defaultdict(int)
    for func, rows in finished:
        outcome, *arguments = [told(row)[len(values[func, row[4]]) > FEW] for row in rows]
        counted[func, ", ".join(arguments), outcome] += 1
    return dict(counted)


def opened(tmp_path: Path, rows: dict[str, Any], **more: Any) -> Trace:
    return pytrace_ebpf.open(write_trace(tmp_path / "trace", **rows, **more))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("different", [3, 30])
def test_calls_are_told_apart_as_the_slow_reference_does(seed: int, different: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, finished = story(seed, different)
    monkeypatch.setattr(module, "MOST_ROWS", 10**6)
    last = max(row[0] for row in rows["events"])
    cuts = sorted(random.Random(seed).sample(range(1001, last), 5))
    trace = opened(tmp_path, rows, start_ns=900, end_ns=last + 1000, cuts=cuts)
    table = by_arguments(trace)
    ended = table[table["outcome"] != ""]  # else open at the end
    assert {(int(r.func_id), r.arguments, r.outcome): int(r.count) for r in ended.itertuples()} == slowly(finished)
    calls = trace.calls()
    took = calls.groupby("func_id")[["wall_ns", "self_wall_ns", *SPLIT]].sum()
    whole = table[table["func_id"] > 0].groupby("func_id")[["wall_ns", "self_ns", *SPLIT]].sum()  # of f0 nothing is known until it ends
    assert whole.to_numpy().tolist() == took.loc[whole.index].to_numpy().tolist()
    assert (table["each_ns"] == table["wall_ns"] // table["count"]).all()
    assert (table[list(SPLIT)].sum(axis=1) + table["unknown_ns"] == table["wall_ns"]).all()


def test_every_value_joins_its_call(tmp_path: Path) -> None:
    rows, _ = story(1, 3)
    last = max(row[0] for row in rows["events"])
    trace = opened(tmp_path, rows, start_ns=900, end_ns=last + 1000, cuts=range(1100, last, 150))
    values = trace.values()
    joined = values.merge(trace.calls(), on="call_id")
    assert len(joined) == len(values) == len(rows["observed"]) and joined["call_id"].is_monotonic_increasing
    moment = joined["start_ns"].where(joined["what"] == "argument", joined["end_ns"])
    found = zip(moment, joined["pid"], joined["tid"], joined["what"], joined["position"], joined["type"], strict=True)
    assert sorted(found) == sorted((*row[:5], row[6]) for row in rows["observed"])
    assert (
        trace.sql("select count(*) n from values join calls using (call_id) where what = 'argument'")["n"][0] == (values["what"] == "argument").sum()
    )
    assert trace.sql("select count(*) n from observed")["n"][0] == len(values)


def test_values_of_no_call_are_left_out(tmp_path: Path) -> None:
    script = Script(PID, 1, now=1000).snapshot().run(5).enter(1).run(10).leave()
    row = ("argument", 0, "a", "int", "1", None, None, "complete")
    observed = [(1001, PID, 1, *row), (1005, PID, 1, *row), (1005, PID, 2, *row), (1005, 11, 1, *row), (1015, PID, 1, *row)]
    trace = opened(tmp_path, {"events": script.events, "sched": script.sched, "functions": [function(1)], "observed": observed}, start_ns=900)
    assert trace.values()["call_id"].tolist() == trace.calls()["call_id"].tolist() and len(trace.values()) == 1


def test_calls_without_arguments_say_why(tmp_path: Path) -> None:
    script = Script(PID, 1, now=1000).snapshot().open(1).run(10).enter(2)
    resumed = len(script.events)
    script.run(5).leave().run(5).enter(2).run(5).leave().run(5).leave()
    script.events[resumed + 1] = (*script.events[resumed + 1][:3], CallKind.RESUME, *script.events[resumed + 1][4:])
    ends = [row[0] for row in script.events if row[3] == CallKind.RETURN]
    observed = [(ts, PID, 1, "return", -1, None, "int", "1", None, None, "complete") for ts in ends]
    trace = opened(
        tmp_path, {"events": script.events, "sched": script.sched, "functions": [function(1), function(2)], "observed": observed}, start_ns=1000
    )
    table = by_arguments(trace).set_index(["func_id", "arguments"])["count"]
    assert table.to_dict() == {(1, UNSEEN): 1, (2, ""): 1, (2, RESUMED): 1}


def test_a_function_has_a_bounded_number_of_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, _ = story(2, 5)
    monkeypatch.setattr(module, "MOST_ROWS", 5)
    trace = opened(tmp_path, rows, start_ns=900, end_ns=10**6)
    table = by_arguments(trace)
    assert table.groupby("func_id").size().max() <= 5 + 1 and OTHERS in set(table["arguments"])
    assert table["count"].sum() == trace.values()["call_id"].nunique()


@pytest.mark.parametrize("width", [40, 60, 100, 200])
def test_no_line_is_wider_than_asked(width: int, tmp_path: Path) -> None:
    rows, _ = story(3, 30)
    options = {"observed": {"args": ["shop"], "redact": []}}
    trace = opened(tmp_path, rows, start_ns=900, end_ns=10**6, manifest={"options": options})
    table, more = view.found(trace, pd.DataFrame(), {})
    console = Console(width=width, record=True, file=io.StringIO())
    for part in view.report(summary(trace) | more, table, width, False, 50):
        console.print(part)
    lines = console.export_text().splitlines()
    assert max(map(len, lines)) <= width and any("f3(a0: " in line for line in lines)


def test_info_says_that_values_are_inside(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows, _ = story(3, 3)
    trace = opened(tmp_path, rows, start_ns=900, end_ns=10**6, manifest={"options": {"observed": {"args": ["shop\x1b"], "redact": ["*token*"]}}})
    assert main(["info", str(trace.directory)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "values what shop" in said and "given and returned; only the types of what is called *token*" in said and "\x1b" not in said


@pytest.mark.parametrize("observed", [{"args": "shop"}, {"args": [1], "redact": []}, [], 5])
def test_a_manifest_whose_patterns_are_none_is_damaged(observed: Any, tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="observed"):
        opened(tmp_path, {}, manifest={"options": {"observed": observed}})


def test_a_trace_without_values_says_so(tmp_path: Path) -> None:
    rows, _ = story(4, 3)
    trace = opened(tmp_path, rows | {"observed": []}, start_ns=900, end_ns=10**6)
    table, more = view.found(trace, pd.DataFrame(), {})
    (line,) = view.report(summary(trace) | more, table, 80, False, 50)
    assert "--args" in str(line) and not len(table)
