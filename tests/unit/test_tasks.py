"""Coroutines from hand-made traces: resumes joined, across segments, with parents and tasks; and `report --by task` of them."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from rich.console import Console
from synthetic import Row, write_trace

import pytrace_ebpf
from pytrace_ebpf.analyze.tasks.by_task import by_task, longest_hold
from pytrace_ebpf.trace.schema import CallKind
from pytrace_ebpf.view import tasks as view

E, R, _, _, UNWIND, RESUME, YIELD = (int(kind) for kind in CallKind)
PLAIN, GENERATOR, MAIN, HANDLER, NUMBERS = range(5)
FUNCTIONS = [
    (PLAIN, "/app/aio.py", "plain", "plain", 1, "aio", 0),
    (GENERATOR, "/app/aio.py", "__await__", "__await__", 11, "aio", 0x20),
    (MAIN, "/app/aio.py", "main", "main", 21, "aio", 0x80),
    (HANDLER, "/app/aio.py", "handler", "handler", 31, "aio", 0x80),
    (NUMBERS, "/app/aio.py", "numbers", "numbers", 41, "aio", 0x200),
]


def trace(path: Path, *rows: tuple[int, int, int, int], tid: int = 7, **more: Any) -> Any:
    """Of events (ts, kind, function, frame) of one thread."""
    events: list[Row] = [(ts, 7, tid, kind, func, frame, 10 + ts) for ts, kind, func, frame in rows]
    return pytrace_ebpf.open(write_trace(path, events=events, functions=FUNCTIONS, **more))


def tasks(path: Path, *rows: tuple[int, int, int, int], **more: Any) -> list[str]:
    """Coroutines as lines: function, [start, end], resumes, run + awaited, status; < the parent's, in its task's."""
    found = trace(path, *rows, **more).tasks()
    assert (found["run_ns"] + found["awaited_ns"] == found["end_ns"] - found["start_ns"]).all()
    name = {c.coroutine_id: f"{FUNCTIONS[c.func_id][2]}{c.start_ns}" for c in found.itertuples()}
    return [
        f"{FUNCTIONS[c.func_id][2]} [{c.start_ns}, {c.end_ns}] {c.resumes}: {c.run_ns}+{c.awaited_ns} {c.status}"
        + (f" < {name[c.parent_id]} in {name[c.task_id]}" if c.parent_id >= 0 else "")
        for c in found.itertuples()
    ]


TWICE = (
    (1, E, HANDLER, 16), (3, YIELD, HANDLER, 16),
    (10, RESUME, HANDLER, 16), (14, YIELD, HANDLER, 16),
    (20, RESUME, HANDLER, 16), (21, R, HANDLER, 16),
    (30, E, HANDLER, 16), (32, YIELD, HANDLER, 16), (40, RESUME, HANDLER, 16), (45, UNWIND, HANDLER, 16),
)  # fmt: skip


@pytest.mark.parametrize("cuts", [(), (2,), (5,), (12,), (2, 5, 12, 20, 25, 31, 33, 42)])
def test_resumes_are_joined_and_a_frame_that_is_used_again_is_another(tmp_path: Path, cuts: tuple[int, ...]) -> None:
    expected = ["handler [1, 21] 3: 7+13 complete", "handler [30, 45] 2: 7+8 unwound"]
    assert tasks(tmp_path, *TWICE, cuts=cuts) == expected


@pytest.mark.parametrize("cuts", [(), (5,), (3, 5, 7, 9, 25)])
def test_who_awaits_whom(tmp_path: Path, cuts: tuple[int, ...]) -> None:
    rows = (
        (1, E, MAIN, 16), (2, E, GENERATOR, 32), (3, E, HANDLER, 48), (4, YIELD, HANDLER, 48), (6, YIELD, GENERATOR, 32), (8, YIELD, MAIN, 16),
        (20, RESUME, MAIN, 16), (21, RESUME, GENERATOR, 32), (22, RESUME, HANDLER, 48), (23, R, HANDLER, 48), (24, R, GENERATOR, 32),
        (26, E, NUMBERS, 48), (27, R, NUMBERS, 48),
        (28, E, PLAIN, 48), (29, E, HANDLER, 64), (30, YIELD, HANDLER, 64), (31, R, PLAIN, 48),  # an eager task
        (32, R, MAIN, 16), (40, RESUME, HANDLER, 64), (41, R, HANDLER, 64),
    )  # fmt: skip
    assert tasks(tmp_path, *rows, cuts=cuts) == [
        "main [1, 32] 2: 19+12 complete",
        "handler [3, 23] 2: 2+18 complete < main1 in main1",
        "numbers [26, 27] 1: 1+0 complete < main1 in main1",
        "handler [29, 41] 2: 2+10 complete",
    ]


def test_one_that_never_pauses_is_whole(tmp_path: Path) -> None:
    rows = ((1, E, HANDLER, 16), (2, R, HANDLER, 16), (5, E, HANDLER, 16), (7, R, HANDLER, 16))
    assert tasks(tmp_path, *rows) == ["handler [1, 2] 1: 1+0 complete", "handler [5, 7] 1: 2+0 complete"]


def test_open_at_both_ends_abandoned_and_generators_left_out(tmp_path: Path) -> None:
    rows = (
        (10, RESUME, MAIN, 16), (12, R, MAIN, 16),
        (20, E, HANDLER, 32), (21, YIELD, HANDLER, 32), (30, E, HANDLER, 32), (33, YIELD, HANDLER, 32),
        (40, E, GENERATOR, 48), (41, YIELD, GENERATOR, 48),
    )  # fmt: skip
    assert tasks(tmp_path, *rows, start_ns=0, end_ns=90) == [
        "main [0, 12] 1: 2+10 open_at_start",
        "handler [20, 21] 1: 1+0 abandoned",
        "handler [30, 90] 1: 3+57 open_at_end",
    ]


def test_a_throw_that_was_not_told_goes_on_with_what_was_suspended(tmp_path: Path) -> None:
    rows = (
        (1, E, PLAIN, 96), (2, E, HANDLER, 16), (3, YIELD, HANDLER, 16), (8, YIELD, HANDLER, 16), (9, R, PLAIN, 96),
        (20, E, HANDLER, 16), (21, R, HANDLER, 16),
    )  # fmt: skip
    first, second = tasks(tmp_path, *rows)
    assert first.startswith("handler [2, 8] 2: ") and first.endswith("unwound")
    assert second == "handler [20, 21] 1: 1+0 complete"


def test_a_trace_without_coroutines_or_from_before_these_were_told(tmp_path: Path) -> None:
    assert tasks(tmp_path / "none", (1, E, PLAIN, 16), (2, R, PLAIN, 16)) == []
    old = pytrace_ebpf.open(write_trace(tmp_path / "old", functions=[f[:6] for f in FUNCTIONS]))
    assert not len(old.tasks())


def test_by_function(tmp_path: Path) -> None:
    found = trace(tmp_path, *TWICE).tasks()
    (row,) = by_task(found).to_dict("records")
    expected = {"coroutines": 2, "tasks": 2, "resumes": 5, "run_ns": 14, "awaited_ns": 21, "longest_ns": 20, "held_ns": 5}
    assert {name: row[name] for name in expected} == expected
    assert longest_hold(found) == (HANDLER, 5)
    assert row["unknown_ns"] == 14 and pd.isna(row["on_cpu_ns"])  # no switches were recorded


@pytest.mark.parametrize("width", [60, 80, 99])
def test_the_report_fits(tmp_path: Path, width: int) -> None:
    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        for part in view.report({"scheduling": {"source": "bpf"}}, view.rows(trace(tmp_path, *TWICE)), width, False, 20):
            console.print(part)
    title, *lines = capture.get().splitlines()
    headings = 2 if width == 60 else 1  # names above their figures
    assert len(lines) == 2 * headings and max(map(len, (title, *lines))) <= width
    assert title.startswith("Coroutines by time run   1 of 1") and "awaited" in lines[headings - 1]
    assert " 21ns " in lines[-1] and "handler" in lines[headings]
