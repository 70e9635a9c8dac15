"""Pictures of the last seconds, of segments whose threads are known to the nanosecond."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest

from pytrace_ebpf.analyze.live import live_states
from pytrace_ebpf.analyze.live.live_window import Window
from pytrace_ebpf.trace.schema import SchedKind
from pytrace_ebpf.trace.snapshot import OUTSIDE, TIMES, Snapshot, decode, encode
from tests.unit.synthetic import FUTEX, GIL, NANOSLEEP, Row, table_of

PERIOD, S = 10_000_000, 10**9
RECVFROM, EPOLL_WAIT = 45, 232
RUNS, SLEEPS = 0, 1  # states of tasks
FUNCTIONS = [
    (0, "app.py", "main", "main", 1, "app", 0, "python"),
    (1, "app.py", "work", "App.work", 5, "app", 0, "python"),
    (2, "libc.so.6", "sleep", "sleep", -1, "libc", 0, "native"),
]


def sched(ts: int, tid: int, kind: SchedKind, *, state: int = 0, syscall: int = -1, address: int = 0, other: int = 0, holder: int = -1) -> Row:
    return ts, 7, tid, int(kind), 0, state, syscall, address, 7 if other else 0, other, holder


def sample(ts: int, tid: int, stack: int, off: int = 0, missed: int = 0, state: int = -1) -> Row:
    return ts, 7, tid, 0, stack, -1, off, missed, state


def segment(rows: Sequence[Row] = (), samples: Sequence[Row] = (), stacks: Sequence[Row] = (), first: bool = False) -> dict[str, pa.Table]:
    found = {"sched": table_of("sched", rows), "samples": table_of("samples", samples), "stacks": table_of("stacks", stacks)}
    if first:
        threads = [(7, tid, name, 0, None, name) for tid, name in ((7, "main"), (8, "worker"))]
        found |= {"functions": table_of("functions", FUNCTIONS), "threads": table_of("threads", threads)}
        found["processes"] = table_of("processes", [(7, 1, "/usr/bin/python3", "python3 app.py", "3.11.2", "sample", *GIL, 0, None)])
    return found


def window(seconds: float = 10) -> Window:
    return Window(seconds, "x86_64", PERIOD)


STACKS = [(0, -1, 0, 2), (1, 0, 1, 6), (2, 1, 2, -1), (3, 1, 1, 7)]  # main; main, work; the same in sleep(); main, work, work


@pytest.fixture
def one() -> Snapshot:
    """main runs 0.4 s, sleeps 0.2 s, is queued 0.1 s and runs; worker runs 0.5 s and waits for the GIL, to the end of the segment and beyond."""
    seen = window()
    rows = [
        sched(0, 7, SchedKind.SNAPSHOT),
        sched(0, 8, SchedKind.SNAPSHOT),
        sched(S * 4 // 10, 7, SchedKind.OUT, state=SLEEPS, syscall=NANOSLEEP),
        sched(S * 5 // 10, 8, SchedKind.OUT, state=SLEEPS, syscall=FUTEX, address=GIL[0], holder=7),
        sched(S * 6 // 10, 7, SchedKind.WAKING, other=8),
        sched(S * 7 // 10, 7, SchedKind.IN),
    ]
    samples = [
        sample(S * 1 // 10, 7, 1),
        sample(S * 2 // 10, 7, 3, missed=1),
        sample(S * 3 // 10, 8, -1),
        sample(S * 7 // 10, 7, 2, off=S * 3 // 10),
        sample(S - 1, 8, 0, off=S * 5 // 10 - 1),
    ]
    seen.take(0, S, segment(rows, samples, STACKS, first=True), spent_ns=123)
    return seen.snapshot()


def times(row: dict[str, int], prefix: str = "") -> list[int]:
    return [row[prefix + name] for name in TIMES]


def test_threads_have_their_exact_split_and_what_they_are_in_now(one: Snapshot) -> None:
    assert [(row["tid"], row["name"]) for row in one.threads] == [(7, "main"), (8, "worker")], "as much each"
    by_tid = {row["tid"]: row for row in one.threads}
    assert times(by_tid[7]) == [S * 7 // 10, S // 10, 0, S * 2 // 10, 0]
    assert times(by_tid[8]) == [S // 2, 0, S // 2, 0, 0]
    assert (by_tid[7]["state"], by_tid[7]["kind"], by_tid[7]["syscall"], by_tid[7]["since_ns"]) == ("on_cpu", "", "", S * 3 // 10)
    assert (by_tid[8]["state"], by_tid[8]["kind"], by_tid[8]["syscall"], by_tid[8]["since_ns"]) == ("gil_wait", "gil", "futex", S // 2)
    assert by_tid[7]["func_id"] == 1 and by_tid[8]["func_id"] == 0
    assert by_tid[7]["gil_held_ns"] == 3 * PERIOD, "samples on a core in Python code"


def test_functions_have_what_samples_stand_for_each_once_and_native_code_is_its_callers(one: Snapshot) -> None:
    rows = {(row["tid"], row["func_id"]): row for row in one.functions}
    assert set(rows) == {(7, 0), (7, 1), (8, 0), (8, OUTSIDE)}
    asleep = [0, S // 10, 0, S * 2 // 10, 0]
    assert times(rows[7, 1]) == times(rows[7, 1], "self_") == [3 * PERIOD, *asleep[1:]], "recursion counts once"
    assert times(rows[7, 0]) == times(rows[7, 1]) and times(rows[7, 0], "self_") == [0] * 5
    assert times(rows[8, 0], "self_") == [0, 0, S // 2 - 1, 0, 0]
    assert times(rows[8, OUTSIDE]) == [PERIOD, 0, 0, 0, 0]
    assert {(row["func_id"], row["line"]): times(row)[0] for row in one.lines if row["tid"] == 7} == {(1, 6): PERIOD, (1, 7): 2 * PERIOD}
    assert one.names == {0: ("main", "app", "app.py", 1), 1: ("App.work", "app", "app.py", 5)}


def test_waits_say_what_for_and_who_ended_them(one: Snapshot) -> None:
    rows = {(row["tid"], row["kind"]): row for row in one.waits}
    assert set(rows) == {(7, "sleep"), (8, "gil")}
    slept = rows[7, "sleep"]
    assert (slept["syscall"], slept["func_id"], slept["by_tid"]) == ("clock_nanosleep", 1, 8)
    assert (slept["wait_ns"], slept["queue_ns"], slept["samples"]) == (S * 2 // 10, S // 10, 1)
    assert (rows[8, "gil"]["wait_ns"], rows[8, "gil"]["by_tid"]) == (S // 2 - 1, 0)


def test_a_picture_says_of_what_it_is_and_comes_through_a_line_as_it_was(one: Snapshot) -> None:
    facts = one.facts
    assert (facts.seconds_ns, facts.since_ns, facts.samples, facts.switches, facts.lost, facts.spent_ns) == (S, S, 5, 6, 0, 123)
    assert decode(encode(one)) == one and encode(one).isascii() and "\n" not in encode(one)


def test_a_thread_that_stays_away_counts_once_however_often_it_is_sampled() -> None:
    seen = window()
    seen.take(0, S, segment([sched(S // 10, 8, SchedKind.OUT, state=SLEEPS, syscall=NANOSLEEP)], first=True))
    seen.take(S, 2 * S, segment(samples=[sample(2 * S - 1, 8, 0, off=2 * S - 1 - S // 10)], stacks=[(0, -1, 0, 2)]))
    seen.take(2 * S, 3 * S, segment(samples=[sample(3 * S - 1, 8, 4, off=3 * S - 1 - S // 10)], stacks=[(4, -1, 0, 2)]))
    rows = [sched(3 * S + 10, 8, SchedKind.WAKING), sched(3 * S + 30, 8, SchedKind.IN)]
    seen.take(3 * S, 4 * S, segment(rows, [sample(3 * S + 30, 8, 5, off=3 * S + 30 - S // 10)], [(5, -1, 0, 2)]))
    (row,) = seen.snapshot().functions
    assert times(row) == [0, 20, 0, 3 * S + 10 - S // 10, 0]


SERVED = [
    (0, "app.py", "main", "main", 1, "app", 0, "python"),
    (1, "/usr/lib/python3/dist-packages/gunicorn/workers/gthread.py", "handle_request", "ThreadWorker.handle_request", 1, "gunicorn.workers.gthread", 0,
     "python"),
    (2, "/usr/lib/python3/dist-packages/flask/app.py", "dispatch_request", "Flask.dispatch_request", 1, "flask.app", 0, "python"),
    (3, "app.py", "pay", "pay", 40, "app", 0, "python"),
    (4, "app.py", "charge", "charge", 60, "app", 0, "python"),
]  # fmt: skip


def test_requests_are_told_by_who_answers_them() -> None:
    """main, handle_request, dispatch_request, pay, charge; of what answers nothing there is no row; a server without a framework answers itself."""
    seen = window()
    stacks = [(0, -1, 0, 2), (1, 0, 1, 6), (2, 1, 2, 7), (3, 2, 3, 8), (4, 3, 4, 9), (5, 0, 4, 9)]
    samples = [sample(S // 10, 7, 4), sample(S * 2 // 10, 8, 3), sample(S * 3 // 10, 7, 5), sample(S * 4 // 10, 7, 1)]
    rows = [sched(0, 7, SchedKind.SNAPSHOT), sched(0, 8, SchedKind.SNAPSHOT)]
    seen.take(0, S, segment(rows, samples, stacks, first=True) | {"functions": table_of("functions", SERVED)})
    found = {(row["tid"], row["func_id"]): times(row)[0] for row in seen.snapshot().requests}
    assert found == {(7, 3): PERIOD, (8, 3): PERIOD, (7, 1): PERIOD}


def test_a_short_wait_counts_for_those_that_were_not_sampled() -> None:
    seen = window()
    end = S + PERIOD // 4
    sleeps = sched(S, 8, SchedKind.OUT, state=SLEEPS, syscall=NANOSLEEP)
    rows = [sched(0, 8, SchedKind.SNAPSHOT), sleeps, sched(end, 8, SchedKind.WAKING), sched(end, 8, SchedKind.IN)]
    seen.take(0, 2 * S, segment(rows, [sample(S + PERIOD // 4, 8, 0, off=PERIOD // 4)], [(0, -1, 0, 2)], first=True))
    (row,) = seen.snapshot().functions
    assert times(row) == [0, 0, 0, PERIOD, 0]


def test_what_a_sample_knows_itself_needs_no_scheduling() -> None:
    seen = window()
    seen.take(0, S, segment(samples=[sample(S - 1, 8, 0, off=3 * PERIOD, state=2)], stacks=[(0, -1, 0, 2)], first=True))
    (row,) = seen.snapshot().functions
    assert times(row) == [0, 0, 3 * PERIOD, 0, 0]


def test_the_gil_is_held_off_the_core_too_and_not_by_native_code_that_lets_go_of_it() -> None:
    seen = window()
    rows = [
        sched(0, 7, SchedKind.SNAPSHOT),
        sched(0, 8, SchedKind.SNAPSHOT),
        sched(S // 2, 7, SchedKind.OUT, state=RUNS, holder=7),
        sched(S // 2 + 500, 7, SchedKind.IN),
        sched(S // 2 + 600, 7, SchedKind.OUT, state=SLEEPS, syscall=NANOSLEEP, holder=8),
        sched(S // 2 + 700, 7, SchedKind.IN),
    ]
    samples = [sample(100, 7, 1), sample(120, 8, 2), sample(S * 3 // 4, 8, 2), sample(S - 1, 8, 2)]
    rows += [sched(S - 50, 8, SchedKind.OUT, state=RUNS, holder=0), sched(S - 40, 8, SchedKind.IN)]
    seen.take(0, S, segment(rows, samples, STACKS, first=True))
    assert {row["tid"]: row["gil_held_ns"] for row in seen.snapshot().threads} == {7: PERIOD + 500, 8: PERIOD}


def test_native_code_beside_a_thread_that_lost_its_core_with_the_gil_does_not_have_it() -> None:
    seen = window()
    rows = [sched(0, 7, SchedKind.SNAPSHOT), sched(0, 8, SchedKind.SNAPSHOT)]
    rows += [sched(S // 4, 7, SchedKind.OUT, state=RUNS, holder=7), sched(S // 2, 7, SchedKind.IN)]
    samples = [sample(moment, 8, 2) for moment in (S // 4 - PERIOD, S // 4 + 2 * PERIOD, S // 2 - PERIOD, S * 3 // 4)]
    seen.take(0, S, segment(rows, samples, STACKS, first=True))
    assert {row["tid"]: row["gil_held_ns"] for row in seen.snapshot().threads} == {7: S // 4, 8: 2 * PERIOD}


def test_native_code_beside_a_thread_that_stays_on_its_core_and_was_seen_in_python_there_does_not_have_the_gil() -> None:
    """However seldom that one is sampled, as where a virtual machine's cores take turns."""
    seen = window()
    rows = [
        sched(0, 7, SchedKind.SNAPSHOT),
        sched(0, 8, SchedKind.SNAPSHOT),
        sched(S // 2, 7, SchedKind.OUT, state=SLEEPS, syscall=NANOSLEEP, holder=0),
    ]
    samples = [sample(S // 8, 7, 1), sample(3 * S // 8, 7, 2), *(sample(S * at // 16, 8, 2) for at in (1, 4, 5, 7, 10))]
    seen.take(0, S, segment(rows, samples, STACKS, first=True))
    held = {row["tid"]: row["gil_held_ns"] for row in seen.snapshot().threads}
    assert held[8] == 2 * PERIOD, "after both were in native code, and while the other one slept"


def test_what_is_older_than_the_window_drops_out_with_what_ended() -> None:
    seen = window(2)
    stack = [(0, -1, 0, 2)]
    seen.take(0, S, segment([sched(0, 7, SchedKind.SNAPSHOT), sched(0, 8, SchedKind.SNAPSHOT)], [sample(1, 7, 0)], stack, first=True))
    ended = {"threads": table_of("threads", [(7, 8, "worker", 0, S + 5, "worker")])}
    seen.take(S, 2 * S, segment([sched(S + 5, 8, SchedKind.EXIT)]) | ended)
    before = seen.snapshot()
    assert before.facts.seconds_ns == 2 * S and len(before.functions) == 1 and [row["ended"] for row in before.threads] == [False, True]
    seen.take(2 * S, 3 * S, segment())
    assert seen.snapshot().functions == [] and times(seen.snapshot().threads[0]) == [2 * S, 0, 0, 0, 0]
    seen.take(3 * S, 4 * S, segment())
    assert [row["tid"] for row in seen.snapshot().threads] == [7]


def test_a_process_that_ended_stays_as_the_last_of_all() -> None:
    seen = window(1)
    seen.take(0, S, segment(first=True))
    assert seen.pids == [7]
    gone = table_of("processes", [(7, 1, "/usr/bin/python3", "python3 app.py", "3.11.2", "sample", *GIL, 0, S + 1)])
    seen.take(S, 2 * S, {"processes": gone})
    seen.take(5 * S, 6 * S, {})
    assert [(row["pid"], row["ended"]) for row in seen.snapshot().processes] == [(7, True)] and seen.pids == []


def test_where_scheduling_was_lost_nothing_is_made_up() -> None:
    seen = window()
    lost = table_of("losses", [("sched_ring", S // 2, S // 2 + 10, 3), ("sample_native", 0, S, 9)])
    rows = [sched(0, 7, SchedKind.SNAPSHOT), sched(S // 4, 7, SchedKind.OUT, state=SLEEPS, syscall=NANOSLEEP)]
    seen.take(0, S, segment(rows, first=True) | {"losses": lost})
    seen.take(S, 2 * S, segment([sched(S + 100, 7, SchedKind.IN)]))
    found = seen.snapshot()
    assert found.facts.lost_ever == 3
    assert times(found.threads[0]) == [S // 4 + S - 100, 0, 0, S // 4, 0] and found.threads[0]["tid"] == 7


def test_the_gil_of_a_program_that_begins_is_learned() -> None:
    seen = window()
    blank = table_of("processes", [(7, 1, "python3", "python3", "3.11.2", "sample", 0, 0, 0, None)])
    wait = sched(S + 1, 8, SchedKind.OUT, state=SLEEPS, syscall=FUTEX, address=GIL[0], holder=7)
    seen.take(0, S, segment([sched(0, 8, SchedKind.SNAPSHOT)], first=True) | {"processes": blank})
    seen.take(S, 2 * S, segment([wait], first=True))
    assert next(row for row in seen.snapshot().threads if row["tid"] == 8)["gil_wait_ns"] == S - 1


def test_threads_that_ended_are_forgotten_and_the_others_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_states, "_MOST_GONE", 10)
    live = live_states.LiveStates("x86_64")
    for number in range(50):
        tid, at = 100 + number, number * 1000
        rows = [sched(at, 7, SchedKind.SNAPSHOT), sched(at, tid, SchedKind.SNAPSHOT), sched(at + 400, tid, SchedKind.EXIT)]
        found = live.segment(table_of("sched", rows), at + 1000)
        assert found[["tid", "start_ns", "end_ns"]].to_numpy().tolist() == [[7, at, at + 1000], [tid, at, at + 400]]
        assert found.loc[0, "began_ns"] == 0
    assert len(live._threads.keys) < 30
    assert np.isin(7 << 32 | 7, live._threads.keys)


OWN = [
    (0, "/app/shop.py", "main", "main", 1, "shop", 0, "python"),
    (1, "/app/shop.py", "pay", "pay", 5, "shop", 0, "python"),
    (2, "libc.so.6", "recv", "recv", -1, "libc", 0, "native"),
    (3, "/usr/lib/python3.11/concurrent/futures/thread.py", "_worker", "_worker", 69, "concurrent.futures.thread", 0, "python"),
]
WAITING = [(0, -1, 0, 2), (1, 0, 1, 6), (2, 1, 2, -1), (3, -1, 3, 70)]  # main, pay, recv; a worker of a pool


def test_findings_are_of_the_last_seconds_and_threads_without_work_are_none() -> None:
    seen = window(60)
    for at in range(20):
        rows = [sample((at + 1) * S - 1, 8, 3, off=S - 1, state=3)] + ([sample((at + 1) * S - 1, 7, 2, off=S - 1, state=3)] if at < 5 else [])
        seen.take(
            at * S, (at + 1) * S, segment(samples=rows, stacks=WAITING, first=not at) | ({"functions": table_of("functions", OWN)} if not at else {})
        )
        found = seen.snapshot().findings
        assert len(found) == (at < 14), at
        assert not found or (found[0].startswith("`pay` (shop.py:6) waits 100 % of the time,") and "for a connection (recv)" in found[0])
    picture = seen.snapshot()
    by_tid = {row["tid"]: row for row in picture.threads}
    assert by_tid[8]["idle_ns"] == by_tid[8]["blocked_ns"] or by_tid[8]["idle_ns"] > 19 * S
    functions = {row["func_id"]: row for row in picture.functions}
    assert functions[3]["idle_ns"] == functions[3]["blocked_ns"] > 0 and functions[1]["idle_ns"] == functions[1]["self_idle_ns"] == 0


def test_a_threads_state_and_function_are_of_one_moment() -> None:
    """It was seen as it came back from a sleep in `sleep()`, and has begun another wait since, of which nobody knows where."""
    seen = window()
    rows = [
        sched(0, 7, SchedKind.SNAPSHOT), sched(S // 10, 7, SchedKind.OUT, state=SLEEPS, syscall=NANOSLEEP), sched(S // 2, 7, SchedKind.WAKING),
        sched(S // 2, 7, SchedKind.IN), sched(S * 9 // 10, 7, SchedKind.OUT, state=SLEEPS, syscall=FUTEX, address=0x900),
    ]  # fmt: skip
    seen.take(0, S, segment(rows, [sample(S // 2 + 5, 7, 2, off=S * 4 // 10)], STACKS, first=True))
    row = next(row for row in seen.snapshot().threads if row["tid"] == 7)
    assert (row["state"], row["kind"], row["syscall"], row["since_ns"], row["func_id"]) == ("blocked", "sleep", "clock_nanosleep", S * 4 // 10, 1)
    seen.take(S, 2 * S, segment(samples=[sample(2 * S - 1, 7, 1, off=S)], stacks=STACKS))
    row = next(row for row in seen.snapshot().threads if row["tid"] == 7)
    assert (row["state"], row["kind"], row["syscall"], row["since_ns"], row["func_id"]) == ("blocked", "lock", "futex", S * 11 // 10, 1)


def test_a_function_whose_name_comes_later_is_nobody_and_a_wait_whose_frames_are_not_known_is_what_the_kernel_says() -> None:
    seen = window()
    rows = [sched(0, 8, SchedKind.SNAPSHOT), sched(1, 8, SchedKind.OUT, state=SLEEPS, syscall=NANOSLEEP)]
    stacks = [(0, -1, 0, 2), (1, 0, 1, 6), (2, -1, 99, 1)]
    seen.take(
        0,
        S,
        segment(rows, [sample(S - 1, 8, 1, off=S - 2), sample(S - 2, 7, 2, off=S - 3, state=3)], stacks, first=True)
        | {"functions": table_of("functions", OWN)},
    )
    assert [said.partition(" sleeps ")[0] for said in seen.snapshot().findings] == ["`pay` (shop.py:6)"]


def test_waits_say_what_is_behind_the_descriptor() -> None:
    """Also of a wait that begins in a segment before; of several descriptors the one that was ready."""
    seen = window()
    named = [
        (51, "tcp", "10.0.0.5:5432", "10.0.0.7:40000", False, 7, 4, 0, 0, 0, ""),
        (52, "epoll", "", "", False, 7, 5, 0, 0, 0, ""),
        (53, "tcp", "10.0.0.6:6379", "10.0.0.7:40001", False, 7, 6, 0, 0, 0, ""),
    ]
    first = [
        sched(0, 7, SchedKind.SNAPSHOT),
        (*sched(S // 10, 7, SchedKind.OUT, state=SLEEPS, syscall=EPOLL_WAIT), 52),
        (*sched(S // 2, 7, SchedKind.WAKING), 53),
        (*sched(S // 2, 7, SchedKind.IN), 0),
        (*sched(S * 9 // 10, 7, SchedKind.OUT, state=SLEEPS, syscall=RECVFROM), 51),
    ]
    first[0] = (*first[0], 0)
    tables = segment(first, [sample(S // 2 + 5, 7, 1, off=S * 4 // 10)], STACKS, first=True) | {"resources": table_of("resources", named)}
    seen.take(0, S, tables)
    later = [(*sched(S * 3 // 2, 7, SchedKind.WAKING), 0), (*sched(S * 3 // 2, 7, SchedKind.IN), 0)]
    seen.take(S, 2 * S, segment(later, [sample(S * 3 // 2 + 5, 7, 1, off=S * 6 // 10)], STACKS))
    rows = {(row["syscall"], row["resource"]): row["wait_ns"] // (S // 10) for row in seen.snapshot().waits}
    assert rows == {("epoll_wait", "redis 10.0.0.6:6379"): 4, ("recvfrom", "postgres 10.0.0.5:5432"): 6}
    assert any(", for postgres 10.0.0.5:5432 (" in each for each in seen.snapshot().findings), seen.snapshot().findings
