"""Coroutines from hand-made traces: resumes joined, across segments, with parents and tasks; and `report --by task` of them."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

import pytrace_ebpf
from pytrace_ebpf.analyze.tasks.by_task import by_task, longest_hold
from pytrace_ebpf.derive.one_pass import run
from pytrace_ebpf.derive.sinks.tasks import Tasks
from pytrace_ebpf.trace.schema import CallKind
from pytrace_ebpf.view import tasks as view
from tests.unit.synthetic import Row, write_trace

E, R, _, _, UNWIND, RESUME, YIELD, *_ = (int(kind) for kind in CallKind)
PLAIN, GENERATOR, MAIN, HANDLER, NUMBERS = range(5)
FUNCTIONS = [
    (PLAIN, "/app/aio.py", "plain", "plain", 1, "aio", 0),
    (GENERATOR, "/app/aio.py", "__await__", "__await__", 11, "aio", 0x20),
    (MAIN, "/app/aio.py", "main", "main", 21, "aio", 0x80),
    (HANDLER, "/app/aio.py", "handler", "handler", 31, "aio", 0x80),
    (NUMBERS, "/app/aio.py", "numbers", "numbers", 41, "aio", 0x200),
]
ACQUIRE, ENTER, SLEEP, WAIT_FOR = range(5, 9)
LIBRARY = [
    (ACQUIRE, "/usr/lib/python3.13/asyncio/locks.py", "acquire", "Lock.acquire", 1, "asyncio.locks", 0x80),
    (ENTER, "/usr/lib/python3.13/asyncio/locks.py", "__aenter__", "_ContextManagerMixin.__aenter__", 11, "asyncio.locks", 0x80),
    (SLEEP, "/usr/lib/python3.13/asyncio/tasks.py", "sleep", "sleep", 1, "asyncio.tasks", 0x80),
    (WAIT_FOR, "/usr/lib/python3.13/asyncio/tasks.py", "wait_for", "wait_for", 11, "asyncio.tasks", 0x80),
]


def trace(path: Path, *rows: tuple[int, int, int, int], tid: int = 7, **more: Any) -> Any:
    """Of events (ts, kind, function, frame) of one thread."""
    events: list[Row] = [(ts, 7, tid, kind, func, frame, 10 + ts) for ts, kind, func, frame in rows]
    return pytrace_ebpf.open(write_trace(path, events=events, functions=FUNCTIONS + LIBRARY, **more))


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


def awaiting(chain: list[int], *times: int) -> list[tuple[int, int, int, int]]:
    """Events of coroutines that await each other, outermost first: entered, suspended and resumed at `times` in turn, and left at the last."""
    rows = [(times[0], E, function, 16 * place + 16) for place, function in enumerate(chain)]
    for number, ts in enumerate(times[1:-1]):
        inner_first = list(enumerate(chain))[:: 1 if number % 2 else -1]
        rows += [(ts, RESUME if number % 2 else YIELD, function, 16 * place + 16) for place, function in inner_first]
    return rows + [(times[-1], R, function, 16 * place + 16) for place, function in reversed(list(enumerate(chain)))]


def waits(path: Path, *rows: tuple[int, int, int, int]) -> dict[tuple[str, str], tuple[int, int]]:
    """(by whom, what): (how often, how long)."""
    found = view.found(trace(path, *rows), pd.DataFrame(), {})[1]["awaited"]
    return {(row["qualname"], row["awaited"]): (row["waits"], row["awaited_ns"]) for row in found}


def test_waits_are_named_by_what_the_program_awaited(tmp_path: Path) -> None:
    rows = [
        *awaiting([MAIN, HANDLER, ENTER, ACQUIRE], 1, 5, 25, 30),  # `async with lock`
        *awaiting([HANDLER, WAIT_FOR, ACQUIRE], 40, 41, 45, 46, 49, 50),
        *awaiting([HANDLER, WAIT_FOR], 60, 61, 70, 71),  # what it awaits is a task of its own, as before 3.12
        *awaiting([ACQUIRE], 60, 61, 70, 71),
        *awaiting([MAIN, SLEEP], 80, 82, 90, 91),
        *awaiting([MAIN], 100, 101, 104, 105),  # a future
    ]
    assert waits(tmp_path, *rows) == {
        ("handler", "Lock.acquire"): (3, 27),
        ("handler", "asyncio.wait_for"): (1, 9),
        ("main", "asyncio.sleep"): (1, 8),
        ("main", None): (1, 3),
    }


def test_what_a_generator_awaits_counts_and_its_pauses_between_values_do_not(tmp_path: Path) -> None:
    rows = [
        (1, E, MAIN, 16), (2, E, NUMBERS, 32), (3, E, SLEEP, 48), (4, YIELD, SLEEP, 48), (4, YIELD, NUMBERS, 32), (4, YIELD, MAIN, 16),
        (14, RESUME, MAIN, 16), (14, RESUME, NUMBERS, 32), (14, RESUME, SLEEP, 48), (15, R, SLEEP, 48), (16, YIELD, NUMBERS, 32),  # a value
        (20, YIELD, MAIN, 16), (50, RESUME, MAIN, 16), (60, RESUME, NUMBERS, 32), (61, R, NUMBERS, 32), (62, R, MAIN, 16),
    ]  # fmt: skip
    assert waits(tmp_path, *rows) == {("numbers", "asyncio.sleep"): (1, 10), ("main", None): (1, 30)}


@pytest.mark.parametrize("width", [60, 80, 99])
def test_the_report_fits(tmp_path: Path, width: int) -> None:
    found, console = trace(tmp_path, *TWICE, *awaiting([MAIN, SLEEP], 50, 52, 60, 61)), Console(width=width, color_system=None)
    table, more = view.found(found, pd.DataFrame(), {})
    with console.capture() as capture:
        for part in view.report({"scheduling": {"source": "bpf"}} | more, table, width, False, 1):
            console.print(part)
    lines = capture.get().splitlines()
    headings = 2 if width == 60 else 1  # names above their figures
    awaited = lines.index("") + 1
    assert awaited == 1 + 2 * headings + 1 and max(map(len, lines)) <= width
    assert lines[0].startswith("Coroutines by time run   1 of 3") and "awaited" in lines[headings]
    assert " 21ns " in lines[awaited - 2] and "handler" in lines[1 + headings]
    assert lines[awaited].startswith("What coroutines awaited   1 of 2")
    assert "(a future or a" in lines[-1] and "handler" in lines[-1] and " 21ns " in lines[-1]


def test_calls_of_a_greenlet_that_was_switched_away_from(tmp_path: Path) -> None:
    """They yield from the innermost one on, and what calls on meanwhile, or never is suspended, has no row."""
    assert tasks(
        tmp_path / "trace",
        (1, E, MAIN, 16), (2, E, PLAIN, 24), (3, YIELD, PLAIN, 24), (3, YIELD, MAIN, 16),
        (4, E, PLAIN, 32), (5, R, PLAIN, 32),
        (8, RESUME, MAIN, 16), (8, RESUME, PLAIN, 24), (9, R, PLAIN, 24), (12, R, MAIN, 16),
    ) == ["main [1, 12] 2: 6+5 complete", "plain [2, 9] 2: 2+5 complete < main1 in main1"]  # fmt: skip


def pieces_of(tmp_path: Path, *rows: tuple[int, int, int, int], functions: list[Any], cuts: list[int]) -> tuple[Tasks, list[int], Any]:
    """What follows coroutines at the end, how many calls it was handed in each segment, and what came out."""
    events: list[Row] = [(ts, 7, 7, kind, func, frame, 1) for ts, kind, func, frame in rows]
    made = pytrace_ebpf.open(write_trace(tmp_path, events=events, functions=functions, cuts=cuts))
    into = tmp_path / "made"
    into.mkdir()
    stream, handed = Tasks(made, into), []
    part = stream.part
    stream.part = lambda calls: (handed.append(len(calls)), part(calls))[1]  # type: ignore[method-assign,assignment]
    run(made, stream)
    return stream, handed, made.tasks()


def test_what_began_in_a_call_that_has_ended_is_kept_no_longer(tmp_path: Path) -> None:
    """A hundred segments of coroutines, each begun in a call of its own of a plain function, and a few in calls that are still open."""
    rows: list[tuple[int, int, int, int]] = [(1, E, PLAIN, 16), (2, E, HANDLER, 32), (3, YIELD, HANDLER, 32)]
    cuts = [10]
    for segment in range(1, 101):
        at = 10 * segment
        rows += [
            (at + 1, E, PLAIN, 48),
            (at + 2, E, MAIN, 64),
            (at + 3, YIELD, MAIN, 64),
            (at + 4, R, PLAIN, 48),
            (at + 5, RESUME, MAIN, 64),
            (at + 6, R, MAIN, 64),
        ]
        cuts.append(at + 10)
    rows += [(2000, RESUME, HANDLER, 32), (2001, R, HANDLER, 32), (2002, R, PLAIN, 16)]
    stream, _, found = pieces_of(tmp_path, *rows, functions=FUNCTIONS, cuts=cuts)
    assert sum(pairs.shape[1] for each in stream._open.values() for pairs in each) <= 1 and not stream._began  # in the outermost plain call
    assert len(found) == 101 and (found["parent_id"] == -1).all()


def test_of_generators_alone_no_row_is_made_and_beside_coroutines_none_is_kept(tmp_path: Path) -> None:
    rows = [
        row
        for at in range(0, 1000, 10)
        for row in ((at + 1, E, PLAIN, 16), (at + 2, E, GENERATOR, 32), (at + 3, YIELD, GENERATOR, 32), (at + 4, R, PLAIN, 16))
    ]
    cuts = list(range(100, 1000, 100))
    stream, handed, found = pieces_of(tmp_path / "alone", *rows, functions=FUNCTIONS[:2], cuts=cuts)
    assert handed == [] and not len(found)
    rows += [(1001, E, HANDLER, 48), (1002, R, HANDLER, 48)]
    stream, handed, found = pieces_of(tmp_path / "beside", *rows, functions=FUNCTIONS, cuts=cuts)
    assert sum(handed) == 101 and len(found) == 1 and not len(stream._suspended) and not stream._open


def test_a_greenlet_where_nothing_is_a_coroutine_is_met_late_and_nothing_is_missing(tmp_path: Path) -> None:
    """A plain call that yields, within a generator within one that yields, too: the generator's calls matter then, also those of segments before."""
    rows = (
        (1, E, PLAIN, 16), (2, E, GENERATOR, 32), (3, E, PLAIN, 48), (4, YIELD, PLAIN, 48), (5, YIELD, GENERATOR, 32), (6, YIELD, PLAIN, 16),
        (20, RESUME, PLAIN, 16), (21, RESUME, GENERATOR, 32), (22, RESUME, PLAIN, 48), (23, R, PLAIN, 48), (24, R, GENERATOR, 32), (25, R, PLAIN, 16),
    )  # fmt: skip
    events: list[Row] = [(ts, 7, 7, kind, func, frame, 1) for ts, kind, func, frame in rows]
    found = []
    for name, cuts in (("whole", ()), ("cut", (2, 4, 10, 21, 24))):
        for functions in (FUNCTIONS[:2], FUNCTIONS):  # where a coroutine might have been, all is looked at from the beginning
            folder = tmp_path / f"{name}-{len(functions)}"
            found.append(pytrace_ebpf.open(write_trace(folder, events=events, functions=functions, cuts=cuts)).tasks())
    for each in found[1:]:
        pd.testing.assert_frame_equal(each, found[0])
    assert found[0]["parent_id"].tolist() == [-1, found[0]["coroutine_id"][0]]


@pytest.mark.parametrize("seed", range(20))
def test_where_a_trace_is_cut_changes_nothing(tmp_path: Path, seed: int) -> None:
    """Coroutines, generators and plain functions that begin within each other at random, on frames that are used again."""
    rng = np.random.default_rng(seed)
    rows: list[tuple[int, int, int, int]] = []
    stack: list[tuple[int, int]] = []
    waiting: list[tuple[int, int]] = []
    for ts in range(1, 400):
        turn = rng.random()
        taken = {frame for _, frame in stack}
        if stack and (turn < 0.45 or len(stack) > 6):
            func, frame = stack.pop()
            yields = func != PLAIN and rng.random() < 0.6
            rows.append((ts, YIELD if yields else R, func, frame))
            waiting += [(func, frame)] if yields else []
        elif waiting and turn < 0.65:
            func, frame = waiting.pop(int(rng.integers(len(waiting))))
            if frame in taken:
                continue  # its frame was used again: it was abandoned
            stack.append((func, frame))
            rows.append((ts, RESUME, func, frame))
        else:
            func, frame = int(rng.integers(0, 5)), 16 * int(rng.integers(1, 20))
            if frame in taken:
                continue
            waiting = [each for each in waiting if each[1] != frame]
            stack.append((func, frame))
            rows.append((ts, E, func, frame))
    whole = trace(tmp_path / "whole", *rows).tasks()
    for number, count in enumerate((1, 7, 100)):
        cuts = tuple(sorted(set(map(int, rng.integers(2, 399, count)))))
        pd.testing.assert_frame_equal(trace(tmp_path / str(number), *rows, cuts=cuts).tasks(), whole)
