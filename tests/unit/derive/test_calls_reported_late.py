"""Events that were handed over after the segment they were stamped in had been cut: their calls split as exactly as any."""

import json
import random
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import pytrace_ebpf
from pytrace_ebpf.trace.schema import CALLS, MANIFEST, CallKind
from tests.unit import reference
from tests.unit.derive.test_calls_properties import check_skip_list, plain, seeds, story, without_wakeups
from tests.unit.synthetic import Script, table_of, write_trace

NAMES = [c.name for c in CALLS.columns if c.name != "worker_on_cpu_ns"]
SPLIT = ["on_cpu_ns", "runq_wait_ns", "gil_wait_ns", "blocked_ns"]
ID = 7
LATE = 150  # when the thread of `two_calls` is preempted with an event at hand
CUTS = (200, 300, 400, 500)


def store(path: Path, rows: dict[str, Any], lies_in: list[int]) -> list[dict[str, Any]]:
    """The calls of a trace whose events lie in the segments `lies_in`, whatever their time."""
    write_trace(path, **rows)
    manifest = json.loads((path / MANIFEST).read_text())
    (path / "events").mkdir(exist_ok=True)
    for segment in manifest["segments"]:
        events = [r for r, index in zip(rows["events"], lies_in, strict=True) if index == segment["index"]]
        pq.write_table(table_of("events", sorted(events, key=lambda r: r[1:3])), path / "events" / f"part-{segment['index']:05d}.parquet")
        segment["rows"]["events"] = len(events)
    (path / MANIFEST).write_text(json.dumps(manifest))
    return plain(pytrace_ebpf.open(path).calls())


def segment_of(ts: int, cuts: list[int]) -> int:
    return sum(cut <= ts for cut in cuts)


def kept_back(rows: dict[str, Any], furthest: int, rng: random.Random) -> list[int]:
    """In which segment each event lies: some up to `furthest` later than their own, each thread's in its order."""
    lies_in, newest = [], dict.fromkeys([t[1] for t in rows["threads"]], 0)
    for row in rows["events"]:
        own = segment_of(row[0], rows["cuts"])
        lag = rng.randint(1, furthest) if row[3] != CallKind.OPEN and rng.random() < 0.15 else 0
        newest[row[2]] = max(newest[row[2]], min(own + lag, len(rows["cuts"])))
        lies_in.append(newest[row[2]])
    return lies_in


def two_calls(cut_during: int) -> dict[str, Any]:
    """A call within another, the thread preempted from LATE on, until after the cut number `cut_during` and some."""
    thread = Script(ID, ID, now=100).snapshot().enter(0).run(10).wait(20, queued=7).run(13).enter(1)
    assert thread.now == LATE
    thread.run(1).preempted(CUTS[cut_during] + 50 - thread.now, by=9, cpu=1).run(2).leave().run(3).leave()
    return {
        "events": thread.events, "sched": thread.sched, "threads": [(ID, ID, "t", 100, None)],
        "processes": [(ID, 1, "python3", "python3", "3.11.2", "agent", 0, 0, 100, None)], "start_ns": 100, "end_ns": 600, "cuts": list(CUTS),
    }  # fmt: skip


@pytest.mark.parametrize("cut_during", [0, 1])
def test_an_event_stored_a_segment_late_splits_as_the_reference_says(tmp_path: Path, cut_during: int) -> None:
    rows = two_calls(cut_during)
    late = [0, 1, 1 + cut_during, 1 + cut_during]
    calls = store(tmp_path, rows, late)
    assert [{n: c[n] for n in NAMES} for c in calls] == [{n: c[n] for n in NAMES} for c in reference.calls(**rows)]
    assert [calls[1][n] for n in SPLIT] == [3, CUTS[cut_during] + 50 - LATE - 1, 0, 0]


def test_what_began_before_all_that_is_kept_of_scheduling_is_null(tmp_path: Path) -> None:
    """The thread switched between the event and the segment before the one the event lies in."""
    rows = two_calls(0)
    rows["events"] = [*rows["events"][:2], *((r[0] + 200, *r[1:]) for r in rows["events"][2:])]
    calls = store(tmp_path, rows, [0, 3, 3, 3])
    assert [calls[1][n] for n in SPLIT] == [None] * 4
    assert calls[1]["wall_ns"] == rows["events"][2][0] - LATE
    assert calls[0]["self_on_cpu_ns"] is None
    outer = reference.calls(**rows)[0]
    assert {n: calls[0][n] for n in NAMES} == {n: outer[n] for n in NAMES} | {f"self_{n}": None for n in SPLIT}


def test_a_call_that_came_whole_before_all_that_is_kept_is_null(tmp_path: Path) -> None:
    """Both of its ends fall on one place of the timeline: the first, which is younger than they."""
    rows = two_calls(0)
    rows["events"][2] = (LATE + 1, *rows["events"][2][1:])
    assert [store(tmp_path, rows, [0, 3, 3, 3])[1][n] for n in SPLIT] == [None] * 4


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(seeds, st.sampled_from(("whole", "ends")), st.booleans())
def test_where_an_event_lies_does_not_matter(tmp_path_factory: pytest.TempPathFactory, seed: int, scenario: str, perf: bool) -> None:
    rows = story(seed, scenario)
    rows["sched"] = without_wakeups(rows["sched"]) if perf else rows["sched"]
    calls = store(tmp_path_factory.mktemp("late"), rows, kept_back(rows, 1, random.Random(seed)))
    assert [{n: c[n] for n in NAMES} for c in calls] == [{n: c[n] for n in NAMES} for c in reference.calls(**rows)]
    check_skip_list(calls)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(seeds, st.sampled_from(("whole", "ends")))
def test_however_late_an_event_is_nothing_said_is_wrong(tmp_path_factory: pytest.TempPathFactory, seed: int, scenario: str) -> None:
    rows = story(seed, scenario)
    calls = store(tmp_path_factory.mktemp("late"), rows, kept_back(rows, 4, random.Random(seed)))
    for call, truth in zip(calls, reference.calls(**rows), strict=True):
        assert all(call[n] in (truth[n], None) for n in NAMES)
    check_skip_list(calls)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(seeds, st.sampled_from(("loss", "damaged", "everything")))
@example(216, "loss")
@example(35, "everything")
def test_late_events_beside_losses_and_damage_make_no_call_end_before_it_began(
    tmp_path_factory: pytest.TempPathFactory, seed: int, scenario: str
) -> None:
    rows = story(seed, scenario)
    calls = store(tmp_path_factory.mktemp("late"), rows, kept_back(rows, 3, random.Random(seed)))
    check_skip_list(calls)
    assert all(call["wall_ns"] >= 0 for call in calls)


def test_a_window_has_the_events_of_its_time_wherever_they_lie(tmp_path: Path) -> None:
    rows = two_calls(1)
    store(tmp_path, rows, [0, 2, 2, 2])
    trace = pytrace_ebpf.open(tmp_path)
    assert trace.events(end_ns=CUTS[0])["ts"].tolist() == [100, LATE]
    assert trace.events(start_ns=LATE, end_ns=LATE + 1)["ts"].tolist() == [LATE]
