"""The flight recorder without a kernel: its language, what it holds, how it is reported."""

import argparse
import copy
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import pytrace_ebpf
from pytrace_ebpf.errors import TraceError
from pytrace_ebpf.options import trigger
from pytrace_ebpf.record.flight.conditions import Condition, Flight
from pytrace_ebpf.record.flight.held import Held, Segment
from pytrace_ebpf.record.flight.watch import Watch
from pytrace_ebpf.record.options import Keep
from pytrace_ebpf.trace.schema import CallKind, SchedKind
from pytrace_ebpf.view.head import unmeasured
from pytrace_ebpf.view.summary import summary
from pytrace_ebpf.view.trigger import trigger_lines
from tests.unit.synthetic import sample, table_of

SECOND, MS = 10**9, 10**6
PID = 7


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("call app.handle > 200ms", ("call", "app.handle", 200 * MS, 0)),
        ("  call   app.f.<locals>.g>1.5s ", ("call", "app.f.<locals>.g", 1500 * MS, 0)),
        ("call */app.py > 1m30s", ("call", "*/app.py", 90 * SECOND, 0)),
        ("raises app.*", ("raises", "app.*", 0, 0)),
        ("loop>100ms", ("loop", "", 100 * MS, 0)),
        ("gil > 30%", ("gil", "", 300 * MS, SECOND)),
        ("runq > 12.5% over 5s", ("runq", "", 625 * MS, 5 * SECOND)),
        ("snap", ("snap", "", 0, 0)),
    ],
)
def test_what_is_waited_for(text: str, expected: tuple[Any, ...]) -> None:
    assert trigger.condition(text) == Condition(" ".join(text.split()), *expected)


@pytest.mark.parametrize(
    ("text", "at", "said"),
    [
        ("", 1, "one of call, raises, loop, gil, runq, snap is expected"),
        ("lop > 1s", 1, "one of call, raises, loop, gil, runq, snap is expected; did you mean loop?"),
        ("call", 5, "a function is expected, like app.handle"),
        ("call > 1s", 6, "a function is expected, like app.handle"),
        ("call app.f", 11, "> and a time are expected"),
        ("call app.f 1s", 14, "> and a time are expected"),
        ("call app.f g > 1s", 12, "> and a time are expected, after one function"),
        ("call app.f > soon", 14, "a time is expected, like 200ms or 1.5s"),
        ("call app.f > 0", 14, "a time is expected, like 200ms or 1.5s"),
        ("call app.f >", 13, "a time is expected, like 200ms or 1.5s"),
        ("raises", 7, "a function is expected, like app.handle"),
        ("raises f g", 10, "the end is expected"),
        ("loop 1s", 6, "> and a time are expected"),
        ("loop > 1x", 8, "a time is expected, like 200ms or 1.5s"),
        ("gil > 30", 7, "a share is expected, like 30%"),
        ("gil > 0%", 7, "a share is expected, like 30%"),
        ("gil > 100%", 7, "a share is expected, like 30%"),
        ("gil > 30% for 5s", 11, "the end, or over and a time, is expected"),
        ("gil > 30% over 5ms", 15, "a time of at least 10ms is expected"),
        ("snap now", 6, "the end is expected"),
    ],
)
def test_what_is_wrong_with_a_condition_is_said_with_its_place(text: str, at: int, said: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError) as error:
        trigger.condition(text)
    assert str(error.value) == f"{text!r} is not a condition: at character {at} {said}"


def segment(number: int, rows: int = 2) -> Segment:
    """A second in which call `number` begins, and none ends; of a function that it has for the first time."""
    ts = number * SECOND
    tables = {
        "events": table_of("events", [(ts + k, PID, PID, CallKind.ENTRY, number, 16 * (ts + k), 1) for k in range(rows)]),
        "functions": table_of("functions", [(number, "/app.py", "f", "f", 1, "app", 0, "python")]),
        "threads": table_of("threads", [(PID, PID, "main", 0, None)] if not number else []),
    }
    opened = table_of(
        "events", [(ts + SECOND, PID, PID, CallKind.OPEN, k, 16 * (k * SECOND + each), 1) for k in range(number + 1) for each in range(2)]
    )
    return Segment(ts, ts + SECOND, tables, opened)


def test_what_is_held_are_the_last_seconds_and_what_was_open_before() -> None:
    held = Held(Keep(seconds=3.0))
    for number in range(3):
        held.add(segment(number))
    assert held.beginning() is None and len(held.segments) == 3
    for number in range(3, 200):
        held.add(segment(number))
    assert [each.start_ns // SECOND for each in held.segments] == [197, 198, 199] and not held.is_short
    beginning = held.beginning()
    assert beginning and beginning.start_ns == beginning.end_ns == 197 * SECOND
    tables = {name: table.to_pylist() for name, table in beginning.tables.items()}
    assert [row["func_id"] for row in tables["functions"]] == list(range(197))
    opened = tables["events"]
    assert [row["func_id"] for row in opened] == [k for k in range(197) for _ in range(2)] and {row["ts"] for row in opened} == {197 * SECOND}
    assert {row["kind"] for row in opened} == {CallKind.OPEN} and tables["threads"][0]["start_ns"] == 197 * SECOND


@pytest.mark.parametrize("seconds", [None, 100.0])
def test_what_is_held_is_bounded_by_memory(seconds: float | None) -> None:
    held = Held(Keep(seconds, size=300_000))
    for number in range(50):
        held.add(segment(number, 1000))
    assert 150_000 < sum(each.bytes for each in held.segments) <= 300_000
    assert held.is_short == (seconds is not None) and held.segments[-1].start_ns == 49 * SECOND


def test_what_is_held_begins_where_nothing_later_is_older() -> None:
    held = Held(Keep(seconds=2.0))
    for number in range(4):
        held.add(segment(number))
    late = segment(4)
    late.tables = {**late.tables, "events": table_of("events", [(3 * SECOND - 5, PID, PID, CallKind.ENTRY, 0, 16, 1)])}
    held.add(late)  # it has a row that is older than where segment 3 begins
    assert held.segments[0].start_ns == 2 * SECOND
    held.add(segment(5))
    assert held.segments[0].start_ns == 2 * SECOND
    held.add(segment(6))
    assert held.segments[0].start_ns == 5 * SECOND


def row(func_id: int, file: str, module: str, qualname: str, flags: int = 0, layer: str = "python") -> tuple[Any, ...]:
    return func_id, file, qualname, qualname, 1, module, flags, layer


@pytest.mark.parametrize(
    ("condition", "about"),
    [
        ("call app.handle > 1s", {0}),
        ("call app > 1s", {0, 1}),
        ("raises app.Shop.*", {1}),
        ("call */other.py > 1s", {2}),
        ("call time.sleep > 1s", {3}),
        ("loop > 1s", {4, 5}),
    ],
)
def test_functions_are_named_as_args_names_them(condition: str, about: set[int]) -> None:
    watch = Watch(Flight((trigger.condition(condition),), 1, 1, 1))
    rows = [
        row(0, "/srv/app.py", "app", "handle"),
        row(1, "/srv/app.py", "app", "Shop.handle"),
        row(2, "/srv/other.py", "other", "handle"),
        row(3, "", "<c>", "time.sleep", layer="c"),
        row(4, "/usr/lib/python3.11/asyncio/events.py", "asyncio.events", "Handle._run"),
        row(5, "/srv/coro.py", "coro", "answer", 0x80),
    ]
    assert watch.take(Segment(0, 1, {"functions": table_of("functions", rows)})) == []
    assert set(watch._names) == about and not watch.never_met()


CALL = {"condition": "call shop.price > 1s", "ts": 1500 * MS, "pid": 1, "tid": 2, "func_id": 3, "name": "shop.price", "count": 1}
TRIGGER = {**CALL, "start_ns": 500 * MS, "more": [], "unlisted": 0, "skipped": {}}


def trace_with(path: Path, trigger: Any) -> Any:
    directory = sample(path)
    manifest = json.loads((directory / "manifest.json").read_text())
    start = manifest["start_ns"]
    for each in [trigger, *trigger.get("more", [])] if isinstance(trigger, dict) else []:
        each |= {name: each[name] + start for name in ("ts", "start_ns", "end_ns") if isinstance(each.get(name), int)}
    (directory / "manifest.json").write_text(json.dumps(manifest | {"trigger": trigger}))
    return pytrace_ebpf.open(directory)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (TRIGGER, "SET OFF by call shop.price > 1s: shop.price in thread 2 of process 1 had taken 1.00s and went on, from 500ms on."),
        (TRIGGER | {"end_ns": 1750 * MS}, "shop.price in thread 2 of process 1 took 1.25s, from 500ms on."),
        (
            TRIGGER | {"condition": "gil > 30%", "name": "", "end_ns": 1500 * MS, "waited_ns": 400 * MS},
            "SET OFF by gil > 30%: thread 2 of process 1 waited 400ms of the 1.00s before 1.50s.",
        ),
        (
            {"condition": "snap", "ts": 2 * SECOND, "pid": -1, "tid": -1, "func_id": -1, "name": "", "count": 1, "more": [], "unlisted": 0, "skipped": {}},
            "SET OFF by snap, 2.00s after the beginning.",
        ),
        (TRIGGER | {"more": [CALL, CALL | {"condition": "loop > 1s"}], "unlisted": 1200}, "call shop.price > 1s, loop > 1s came true after it. 1,200 more are not listed."),
        (TRIGGER | {"skipped": {"loop > 1s": 3}}, "Since the trace before, loop > 1s (3 times) came true too early for a trace (--every)."),
    ],
)  # fmt: skip
def test_the_first_words_of_a_report_say_what_set_it_off(found: dict[str, Any], said: str, tmp_path: Path) -> None:
    facts = summary(trace_with(tmp_path / "trace", copy.deepcopy(found))) | {"window": None, "wall_ns": 10 * SECOND}
    lines = trigger_lines(facts, 100)
    assert lines[0].plain.startswith("SET OFF by ") and said in " ".join(line.plain for line in lines)
    Console(width=80).print(*lines)
    assert "measured when a flight recorder ends" in unmeasured(facts)
    assert (found["tid"] < 0) == (not any("To see it alone add: --from " in line.plain and "--tid 2" in line.plain for line in lines))


@pytest.mark.parametrize(
    "damage", [{"ts": -(10**18)}, {"name": 7}, {"tid": 1 << 40}, {"more": [{"condition": "x"}]}, {"skipped": {"x": "y"}}, {"start_ns": "soon"}]
)
def test_a_trigger_that_nobody_wrote_is_damage(damage: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="trigger"):
        trace_with(tmp_path / "trace", {**TRIGGER, **damage, **({"more": damage["more"]} if "more" in damage else {})})


def test_what_is_held_can_begin_within_a_segment_also_where_a_later_one_has_older_rows() -> None:
    held, at = Held(Keep(seconds=9.0)), 2 * SECOND + 1
    for number in range(4):
        held.add(segment(number))
    late = segment(4)
    late.tables = {
        **late.tables,
        "events": table_of("events", [(2 * SECOND, 8, 8, CallKind.ENTRY, 3, 16, 1), (at + 5, 8, 8, CallKind.ENTRY, 4, 32, 1)]),
        "sched": table_of(
            "sched", [(ts, tid, tid, SchedKind.IN, 1, 0, -1, 0, 0, 0, 0, 0) for ts, tid in ((2 * SECOND, 8), (at + 3, 9), (at - 9, 10))]
        ),
        "threads": table_of(
            "threads", [(8, 8, "ends later", SECOND, at + 9), (9, 9, "begins later", at + 2, at + 8), (10, 10, "has ended", SECOND, at - 5)]
        ),
    }
    held.segments[2].tables = {**held.segments[2].tables, **{name: late.tables.pop(name) for name in ("sched", "threads")}}
    held.add(late)
    held.begin_at(at)
    beginning = held.beginning()
    assert beginning and beginning.start_ns == beginning.end_ns == at
    events = beginning.tables["events"].to_pylist()
    assert [(row["tid"], row["func_id"]) for row in events] == [(PID, 0), (PID, 0), (PID, 1), (PID, 1), (PID, 2), (8, 3)]
    assert {(row["ts"], row["kind"]) for row in events} == {(at, CallKind.OPEN)}
    assert [row["func_id"] for row in beginning.tables["functions"].to_pylist()] == [0, 1, 2]
    there = {row["name"]: row["end_ns"] for row in beginning.tables["threads"].to_pylist()}
    assert there == {"main": None, "ends later": None}, "what ends later had not ended"
    assert [(row["ts"], row["tid"], row["kind"]) for row in beginning.tables["sched"].to_pylist()] == [(at, 8, SchedKind.IN)]
    assert [(each.start_ns, each.end_ns) for each in held.segments] == [(at, 3 * SECOND), (3 * SECOND, 4 * SECOND), (4 * SECOND, 5 * SECOND)]
    left = [[row["ts"] for row in each.tables["events"].to_pylist()] for each in held.segments]
    assert left == [[at], [3 * SECOND, 3 * SECOND + 1], [at + 5]]
    assert [[row["func_id"] for row in each.tables["functions"].to_pylist()] if "functions" in each.tables else [] for each in held.segments] == [
        [],
        [3],
        [4],
    ]
