"""Which exceptions left which functions: counted by line, type and text, and whether a call below had been left by it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

import pytrace_ebpf
from pytrace_ebpf.analyze.observed import exceptions as module
from pytrace_ebpf.analyze.observed.exceptions import FEW, SEVERAL, exceptions
from pytrace_ebpf.cli.main import main
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.trace.schema import CallKind
from pytrace_ebpf.view import errors as view
from tests.unit.synthetic import Script, write_trace

PID, OUTER, MIDDLE, INNER, IN_C, IMPORT = 10, 1, 2, 3, 4, 5
AGENT = {"sources": [{"pid": PID, "source": "agent", "why": ""}]}
BY_PROBES = {"sources": [{"pid": PID, "source": "usdt", "why": ""}], "options": {"observed": {"args": ["shop"], "redact": []}}}


class Raising(Script):
    """A thread whose calls exceptions leave."""

    def raises(self, line: int) -> "Raising":
        func, frame = self.stack.pop()
        self.events.append((self.now, self.pid, self.tid, CallKind.UNWIND, func, frame, line))
        return self


def call(script: Raising, func: int, line: int) -> None:
    script.run(3).enter(func)
    script.events[-1] = (*script.events[-1][:6], line)


def raised(script: Raising, kind: str, value: str | None) -> tuple[Any, ...]:
    return (script.now, PID, 1, "raised", -1, None, kind, value, None, None, "complete")


def chain(times: int, texts: int = 1, typed: bool = True, middle_line: int = 21) -> tuple[dict[str, Any], Raising]:
    """OUTER calls MIDDLE at line 11, that INNER at line 21, which raises at 31; MIDDLE passes it on, and OUTER catches it."""
    script, observed = Raising(PID, 1, now=1000), []
    script.snapshot().run(5).enter(OUTER)
    for number in range(times):
        call(script, MIDDLE, 11)
        call(script, INNER, 21)
        script.run(7).raises(31)
        observed.append(raised(script, "KeyError", f"text {number % texts}"))
        script.run(2).raises(middle_line)
        observed.append(raised(script, "KeyError", f"text {number % texts}"))
    script.run(5).leave()
    functions = [
        (number, "/app/shop.py", name, name, 10 * number, "shop", 0) for number, name in ((OUTER, "outer"), (MIDDLE, "middle"), (INNER, "inner"))
    ]
    return {"events": script.events, "sched": script.sched, "functions": functions, "observed": observed if typed else []}, script


def opened(tmp_path: Path, rows: dict[str, Any], **more: Any) -> Trace:
    return pytrace_ebpf.open(write_trace(tmp_path / "trace", **rows, start_ns=900, end_ns=10**6, **({"manifest": AGENT} | more)))


def table(trace: Trace) -> dict[tuple[Any, ...], tuple[int, ...]]:
    rows = exceptions(trace)
    return {(row.func_id, row.line, row.type, row.text): (row.times, row.raised, row.wall_ns) for row in rows.replace({np.nan: None}).itertuples()}


@pytest.mark.parametrize("cuts", [(), (1010, 1016, 1030), range(1003, 1090, 3)])
@pytest.mark.parametrize("middle_line", [21, -1])
def test_an_exception_is_raised_once_and_passed_on(cuts: Any, middle_line: int, tmp_path: Path) -> None:
    rows, _ = chain(6, middle_line=middle_line)
    found = table(opened(tmp_path, rows, cuts=cuts))
    assert found == {(INNER, 31, "KeyError", "text 0"): (6, 6, 42), (MIDDLE, middle_line, "KeyError", "text 0"): (6, 0, 72)}


@pytest.mark.parametrize("middle_line", [21, -1, 25])
def test_without_types_the_lines_tell(middle_line: int, tmp_path: Path) -> None:
    rows, _ = chain(6, typed=False, middle_line=middle_line)
    found = table(opened(tmp_path, rows))
    assert found == {(INNER, 31, None, None): (6, 6, 42), (MIDDLE, middle_line, None, None): (6, 6 if middle_line == 25 else 0, 72)}


def test_another_type_is_raised_anew(tmp_path: Path) -> None:
    rows, _ = chain(3)
    rows["observed"] = [(*row[:6], "ValueError" if number % 2 else "KeyError", *row[7:]) for number, row in enumerate(rows["observed"])]
    assert {key[2]: times[:2] for key, times in table(opened(tmp_path, rows)).items()} == {"KeyError": (3, 3), "ValueError": (3, 3)}


@pytest.mark.parametrize("typed", [True, False])
@pytest.mark.parametrize("cuts", [(), range(1003, 1090, 3)])
def test_what_passes_through_c_and_an_import_is_passed_on(cuts: Any, typed: bool, tmp_path: Path) -> None:
    script, observed = Raising(PID, 1, now=1000), []
    script.snapshot().run(5).enter(OUTER)
    for _ in range(3):
        for func, line in ((MIDDLE, 11), (IN_C, 21), (IMPORT, 0), (INNER, 0)):
            call(script, func, line)
        script.run(7).raises(31)
        observed.append(raised(script, "KeyError", "x"))
        script.run(1).raises(0)
        script.run(1).raises(0)
        script.run(2).raises(21)
        observed.append(raised(script, "KeyError", "x"))
    script.run(5).leave()
    rows, _ = chain(1)
    functions = [*rows["functions"], (IN_C, "", "sum", "sum", -1, "<c>", 0, "c"), (IMPORT, "", "import a", "import a", -1, "", 0, "import")]
    trace = opened(
        tmp_path, {"events": script.events, "sched": script.sched, "functions": functions, "observed": observed if typed else []}, cuts=cuts
    )
    said = ("KeyError", "x") if typed else (None, None)
    assert {key: sums[:2] for key, sums in table(trace).items()} == {(INNER, 31, *said): (3, 3), (MIDDLE, 21, *said): (3, 0)}


@pytest.mark.parametrize("texts", [FEW, FEW + 1])
def test_of_many_texts_none_is_told(texts: int, tmp_path: Path) -> None:
    rows, _ = chain(40, texts=texts)
    found = exceptions(opened(tmp_path, rows, cuts=range(1100, 1400, 50)))
    assert found["times"].sum() == 80 and set(found["text"]) == ({f"text {n}" for n in range(FEW)} if texts == FEW else {SEVERAL})
    assert len(found) == (2 * FEW if texts == FEW else 2)


@pytest.mark.parametrize(("width", "source"), [(40, AGENT), (80, BY_PROBES), (160, AGENT)])
def test_the_report_names_them(width: int, source: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows, _ = chain(5)
    trace = opened(tmp_path, rows, manifest=source)
    empty, facts = view.found(trace, trace.calls(), {})
    console = Console(width=width, force_terminal=False)
    with console.capture() as shown:
        for part in view.report(facts, empty, width, False, 20):
            console.print(part)
    assert max(map(len, shown.get().splitlines())) <= width and "KeyError: text" in shown.get()
    assert width == 40 or "shop.py:31" in shown.get()
    assert main(["report", str(trace.directory), "--errors", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)["exceptions"]
    assert [(row["qualname"], row["line"], row["type"], row["times"], row["raised"]) for row in said] == [
        ("middle", 21, "KeyError", 5, 0),
        ("inner", 31, "KeyError", 5, 5),
    ]


@pytest.mark.parametrize("typed", [True, False])
def test_where_no_type_is_known_the_report_says_what_records_them(typed: bool, tmp_path: Path) -> None:
    rows, _ = chain(2, typed=typed)
    trace = opened(tmp_path, rows)
    empty, facts = view.found(trace, trace.calls(), {})
    console = Console(width=100, force_terminal=False)
    with console.capture() as shown:
        for part in view.report(facts, empty, 100, False, 20):
            console.print(part)
    assert ("--args PATTERN" in shown.get()) is not typed


def test_what_a_loop_catches_is_not_kept_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many different ones left the calls of a function that goes on."""
    held, passed = list[int](), module._passed
    monkeypatch.setattr(module, "_passed", lambda rows, open_: (held.append(len(open_) - len(rows)), passed(rows, open_))[1])
    rows, script = chain(300, texts=300)
    found = table(opened(tmp_path, rows, cuts=range(1030, script.now, 60)))
    assert sum(times for times, *_ in found.values()) == 600 and found[MIDDLE, 21, "KeyError", SEVERAL][:2] == (300, 0)
    assert len(held) > 60 and max(held) <= module._OF_A_CALLER + 10


def test_a_source_that_does_not_know_says_so(tmp_path: Path) -> None:
    rows, _ = chain(1)
    trace = pytrace_ebpf.open(write_trace(tmp_path / "trace", **rows, start_ns=900, end_ns=10**6))
    _, facts = view.found(trace, trace.calls(), {})
    assert facts["exceptions"] is None
    lines = [str(part) for part in view.report(facts, pd.DataFrame(), 100, False, 5)]
    assert any("--source agent" in line for line in lines)
