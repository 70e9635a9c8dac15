"""The critical path of made-up programs: what it is by its definition, nanosecond by nanosecond, and of some that are known by hand."""

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pytrace_ebpf
from pytrace_ebpf.analyze.critical_path.asked import of_calls
from pytrace_ebpf.analyze.critical_path.path import path
from pytrace_ebpf.analyze.critical_path.rows import AWAIT, ON_CPU, RUN_QUEUE, summed
from pytrace_ebpf.cli.main import main
from pytrace_ebpf.trace.schema import SchedKind
from tests.unit.derive.test_calls_properties import SCENARIOS, story
from tests.unit.synthetic import FUTEX, NANOSLEEP, SAMPLE_FUNCTIONS, Row, sample, write_trace

END = 400


@dataclass
class Wait:
    """[start, until) blocked, [until, end) in the run queue; `by`: the thread that ended it."""

    start: int
    until: int
    end: int
    by: int = 0


@dataclass
class Thread:
    """A thread of process `pid`: its waits, and its calls as (ts, func) of entries and (ts, None) of returns."""

    pid: int
    tid: int
    waits: list[Wait] = field(default_factory=list)
    events: list[tuple[int, int | None]] = field(default_factory=list)

    def at(self, ts: int) -> tuple[str, Wait | None]:
        """What it does in the nanosecond from ts on."""
        for wait in self.waits:
            if wait.start <= ts < wait.end:
                return ("blocked" if ts < wait.until else RUN_QUEUE), wait
        return ON_CPU, None

    def function(self, ts: int) -> int:
        """Of the innermost call then."""
        stack = [-1]
        for when, func in self.events:
            if when <= ts:
                stack = stack[:-1] if func is None else [*stack, func]
        return stack[-1]


def made_up(number: int) -> list[Thread]:
    """Some threads of two processes whose waits are ended by one that has a core then, or by nobody."""
    dice = np.random.default_rng(number)
    threads = [Thread(1 + tid % 2, 10 + tid) for tid in range(4)]
    for thread in threads:
        ts = int(dice.integers(1, 20))
        while ts < END - 60:
            start, until = ts, ts + int(dice.integers(1, 40))
            thread.waits.append(Wait(start, until, until + int(dice.integers(1, 6))))
            ts = thread.waits[-1].end + int(dice.integers(1, 30))
        ts = int(dice.integers(1, 8))
        depth = 0
        while ts < END - 20:
            enters = depth == 0 or (depth < 4 and dice.random() < 0.5)
            thread.events.append((ts, int(dice.integers(0, 6)) if enters else None))
            depth += 1 if enters else -1
            ts += int(dice.integers(0, 15))
        thread.events += [(END - 10 + place, None) for place in range(depth)]
    for thread in threads:
        for wait in thread.waits:
            running = [other.tid for other in threads if other is not thread and other.at(wait.until - 1)[0] == other.at(wait.until)[0] == ON_CPU]
            wait.by = int(dice.choice([0, *running])) if running else 0
    return threads


def written(folder: Path, threads: list[Thread]) -> Any:
    """Their trace, opened."""
    events, sched = rows_of(threads)
    return pytrace_ebpf.open(write_trace(folder, events=events, sched=sched, functions=SAMPLE_FUNCTIONS, end_ns=END, cuts=(END // 3, END // 2)))


def rows_of(threads: list[Thread]) -> tuple[list[Row], list[Row]]:
    """Their events and switches."""
    sched: list[Row] = []
    events: list[Row] = []
    of = {thread.tid: thread.pid for thread in threads}
    for thread in threads:
        sched.append((0, thread.pid, thread.tid, SchedKind.SNAPSHOT, 0, 0, -1, 0, 0, 0, -1, 0))
        for wait in thread.waits:
            syscall = FUTEX if wait.by else NANOSLEEP
            sched.append((wait.start, thread.pid, thread.tid, SchedKind.OUT, 0, 1, syscall, 0x9000 if wait.by else 0, 0, 0, -1, 0))
            sched.append((wait.until, thread.pid, thread.tid, SchedKind.WAKING, 0, 0, -1, 0, of.get(wait.by, 0), wait.by, -1, 0))
            sched.append((wait.end, thread.pid, thread.tid, SchedKind.IN, 0, 0, -1, 0, 0, 0, -1, 0))
        stack: list[tuple[int, int]] = []
        for place, (ts, func) in enumerate(thread.events):
            if func is not None:
                stack.append((func, thread.tid * 1000 + place))
            name, frame = stack[-1] if func is not None else stack.pop()
            events.append((ts, thread.pid, thread.tid, 0 if func is not None else 1, name, frame, 1))
    return events, sorted(sched, key=lambda row: row[0])


def expected(threads: list[Thread], tid: int, start: int, end: int) -> list[tuple[int, str, int, str | None]]:
    """By the definition, of each nanosecond of [start, end): the thread whose time it is, what that does, in which function, and instead of which wait."""
    by_tid = {thread.tid: thread for thread in threads}
    out: list[tuple[int, str, int, str | None]] = []

    def walk(thread: Thread, lo: int, hi: int, through: str | None, led: bool) -> None:
        ts = lo
        while ts < hi:
            state, wait = thread.at(ts)
            if wait and state == "blocked" and wait.by and wait.until <= hi - led:
                walk(by_tid[wait.by], ts, wait.until, "lock", True)
                ts = wait.until
                continue
            kind = ("lock" if wait.by else "sleep") if wait and state == "blocked" else state
            out.append((thread.tid, kind, thread.function(ts if not wait else wait.start), through))
            ts += 1

    walk(by_tid[tid], start, end, None, False)
    return out


def by_ns(rows: Any) -> list[tuple[int, str, int, str | None]]:
    """Rows of Trace.critical_path() of one item as expected() has them."""
    out = []
    for row in rows.to_dict("records"):
        through = row["through"] if isinstance(row["through"], str) else None
        out += [(row["tid"], row["kind"], row["func_id"], through)] * (row["end_ns"] - row["start_ns"])
    return out


@pytest.mark.parametrize("number", range(25))
def test_of_made_up_programs(tmp_path: Path, number: int) -> None:
    threads = made_up(number)
    trace = written(tmp_path / "trace", threads)
    items, sums = of_calls(trace, ["run"]), Counter[tuple[str, int, str | None]]()
    assert len(items)
    rows = trace.critical_path(function="run")
    for item, asked in enumerate(items.to_dict("records")):
        wanted = expected(threads, asked["tid"], asked["start_ns"], asked["end_ns"])
        own = rows[rows["item"] == item]
        assert (own["start_ns"].to_numpy()[1:] == own["end_ns"].to_numpy()[:-1]).all()
        assert by_ns(own) == wanted
        sums.update((kind, function, through) for _, kind, function, through in wanted)
    table = summed(trace, path(trace, items))
    found = table.groupby([table["kind"], table["func_id"], table["through"].fillna("")])["ns"].sum().to_dict()
    assert found == {(kind, function, through or ""): ns for (kind, function, through), ns in sums.items()}


def test_a_request_waits_for_a_thread_that_waits_for_a_child(tmp_path: Path) -> None:
    """main: 10 of work, a queue until 80; worker: reads a pipe from 20 to 60; child of another process: sleeps from 25 to 50, and is queued for 4."""
    main = Thread(1, 1, [Wait(10, 80, 82, by=2)], [(0, 1), (90, None)])
    worker = Thread(1, 2, [Wait(20, 60, 61, by=9)], [(0, 2), (95, None)])
    child = Thread(5, 9, [Wait(25, 50, 54)], [(0, 5), (95, None)])
    trace = written(tmp_path / "trace", [main, worker, child])
    rows = trace.critical_path(function="main")
    told = [tuple(row) for row in rows[["pid", "tid", "kind", "func_id", "start_ns", "end_ns"]].to_numpy()]
    assert told == [
        (1, 1, ON_CPU, 1, 0, 10),
        (1, 2, ON_CPU, 2, 10, 20),
        (5, 9, ON_CPU, 5, 20, 25),
        (5, 9, "sleep", 5, 25, 50),
        (5, 9, RUN_QUEUE, 5, 50, 54),
        (5, 9, ON_CPU, 5, 54, 60),
        (1, 2, RUN_QUEUE, 2, 60, 61),
        (1, 2, ON_CPU, 2, 61, 80),
        (1, 1, RUN_QUEUE, 1, 80, 82),
        (1, 1, ON_CPU, 1, 82, 90),
    ]
    assert list(rows["through_func_id"]) == [-1, 1, 2, 2, 2, 2, 1, 1, -1, -1]


def test_who_is_said_to_end_a_wait_while_asleep_is_not_followed(tmp_path: Path) -> None:
    """Each is said to have ended the other's wait at the same moment: damage, which ends all the same."""
    first, second = Thread(1, 1, [Wait(10, 50, 52, by=2)], [(0, 1), (90, None)]), Thread(1, 2, [Wait(20, 50, 53, by=1)], [(0, 2), (90, None)])
    rows = written(tmp_path / "trace", [first, second]).critical_path(function="main")
    assert [tuple(row) for row in rows[["tid", "kind", "start_ns", "end_ns"]].to_numpy()] == [
        (1, ON_CPU, 0, 10), (2, ON_CPU, 10, 20), (2, "lock", 20, 50), (1, RUN_QUEUE, 50, 52), (1, ON_CPU, 52, 90),
    ]  # fmt: skip


def test_the_whole_run_where_there_are_no_requests(tmp_path: Path) -> None:
    threads = made_up(3)
    main = threads[0]
    main.tid = main.pid = 1
    rows = written(tmp_path / "trace", threads).critical_path()
    assert (rows["item"] == 0).all() and (rows["end_ns"] - rows["start_ns"]).sum() == END
    assert rows["start_ns"].iloc[0] == 0 and rows["request_id"].isna().all()


def test_before_a_thread_was_made_its_maker_has_the_time(tmp_path: Path) -> None:
    """main waits from 5 to 60 for what a grandchild does, which its child makes at 30, and which has a core from 32 on."""
    main = Thread(1, 1, [Wait(5, 60, 61, by=9)], [(0, 1), (70, None)])
    child, grandchild = Thread(6, 8, [], [(0, 2), (95, None)]), Thread(7, 9)
    events, sched = rows_of([main, child])
    made = [(30, SchedKind.FORK), (30, SchedKind.WAKING), (32, SchedKind.IN)]
    sched += [(ts, 7, 9, kind, 0, 0, -1, 0, 6 if kind != SchedKind.IN else 0, 8 if kind != SchedKind.IN else 0, -1, 0) for ts, kind in made]
    sched = [(*row[:8], 7, *row[9:]) if row[9] == 9 else row for row in sched]  # who wakes main is of process 7
    threads = [(each.pid, each.tid, f"thread-{each.tid}", 30 if each is grandchild else 0, None) for each in (main, child, grandchild)]
    folder = write_trace(
        tmp_path / "trace", events=events, sched=sorted(sched, key=lambda row: row[0]), functions=SAMPLE_FUNCTIONS, threads=threads, end_ns=END
    )
    rows = pytrace_ebpf.open(folder).critical_path(function="main")
    assert [tuple(row) for row in rows[["tid", "kind", "start_ns", "end_ns"]].to_numpy()] == [
        (1, ON_CPU, 0, 5), (8, ON_CPU, 5, 30), (9, RUN_QUEUE, 30, 32), (9, ON_CPU, 32, 60), (1, RUN_QUEUE, 60, 61), (1, ON_CPU, 61, 70),
    ]  # fmt: skip


def test_a_suspended_coroutine_waits_for_what_ended_the_loops_wait(tmp_path: Path) -> None:
    """handler is suspended from 10 to 80: the loop polls until 50, when a worker wakes it, and runs another task until 75; and from 90 to 100: a timer."""
    enter, leave, resume, pause = 0, 1, 5, 6
    functions: list[Row] = [*SAMPLE_FUNCTIONS, (7, "/app/aio.py", "handler", "handler", 1, "aio", 0x80)]
    of_loop = [
        *((0, enter, 7, 16), (10, pause, 7, 16), (60, enter, 3, 32), (75, leave, 3, 32)),
        *((80, resume, 7, 16), (90, pause, 7, 16), (100, resume, 7, 16), (110, leave, 7, 16)),
    ]
    loop, worker = Thread(1, 1, [Wait(15, 50, 55, by=2), Wait(92, 98, 99)]), Thread(1, 2, [Wait(20, 30, 31)], [(0, 4), (200, None)])
    events, sched = rows_of([loop, worker])
    events += [(ts, 1, 1, kind, func, frame, 1) for ts, kind, func, frame in of_loop]
    polls = [(*row[:6], 232, 0, *row[8:]) if row[2] == 1 and row[3] == SchedKind.OUT else row for row in sched]
    trace = pytrace_ebpf.open(write_trace(tmp_path / "trace", events=events, sched=polls, functions=functions, end_ns=END))
    rows = trace.critical_path(function="handler")
    told = [tuple(row) for row in rows[["tid", "kind", "func_id", "start_ns", "end_ns"]].to_numpy()]
    assert told == [
        (1, ON_CPU, 7, 0, 10),
        (2, ON_CPU, 4, 10, 20),
        (2, "sleep", 4, 20, 30),
        (2, RUN_QUEUE, 4, 30, 31),
        (2, ON_CPU, 4, 31, 50),
        (1, RUN_QUEUE, -1, 50, 55),
        (1, ON_CPU, -1, 55, 60),
        (1, ON_CPU, 3, 60, 75),  # the other task
        (1, ON_CPU, -1, 75, 80),
        (1, ON_CPU, 7, 80, 90),
        (1, AWAIT, 7, 90, 98),
        (1, RUN_QUEUE, -1, 98, 99),
        (1, ON_CPU, -1, 99, 100),
        (1, ON_CPU, 7, 100, 110),
    ]


@pytest.mark.parametrize("number", range(1, 13))
def test_pieces_are_as_long_as_what_they_are_of_whatever_was_recorded(tmp_path: Path, number: int) -> None:
    """Generators and coroutines, losses, threads that come and go: also where events are damaged and resumes overlap."""
    trace = pytrace_ebpf.open(write_trace(tmp_path / "trace", **story(number, SCENARIOS[number % len(SCENARIOS)]) | {"functions": SAMPLE_FUNCTIONS}))
    items, rows = of_calls(trace, ["*"]), trace.critical_path(function="*")
    length = (rows["end_ns"] - rows["start_ns"]).groupby(rows["item"]).sum()
    assert length.tolist() == (items["end_ns"] - items["start_ns"]).tolist()
    assert (rows["start_ns"].to_numpy()[1:] == rows["end_ns"].to_numpy()[:-1])[rows["item"].to_numpy()[1:] == rows["item"].to_numpy()[:-1]].all()


def test_the_report_shows_sums_and_single_paths(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = str(sample(tmp_path / "trace"))
    assert main(["report", trace, "--function", "Worker.run", "--slowest", "2"]) == 0
    told = capsys.readouterr().out
    assert "of 2 calls " in told and " in Worker.run, " in told and "thread, through" in told
    assert main(["report", trace, "--by", "path", "--json", "--top", "0"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["path"]["of"] == "run" and facts["path"]["ns"] == sum(row["ns"] for row in facts["rows"]) and facts["what_if"] is None
    assert main(["report", trace, "--by", "path", "--json", "--function", "Worker.*", "--slowest", "3"]) == 0
    for one in json.loads(capsys.readouterr().out)["longest"]:
        assert one["ns"] == sum(piece["ns"] for piece in one["pieces"])
    assert main(["report", trace, "--function", "none"]) == 2
    assert capsys.readouterr().err == "pytrace-ebpf: --function none fits none of the 7 functions of this trace.\n"


def test_of_some_threads_the_path_leads_through_all(tmp_path: Path) -> None:
    threads = made_up(1)
    trace = written(tmp_path / "trace", threads)
    thread = threads[2]
    window = trace.window(pid=thread.pid, tid=thread.tid)
    items, rows = of_calls(window, ["run"]), window.critical_path(function="run")
    assert len(items) and set(items["tid"]) == {thread.tid} and len(set(rows["tid"])) > 1
    for item, asked in enumerate(items.to_dict("records")):
        assert by_ns(rows[rows["item"] == item]) == expected(threads, thread.tid, asked["start_ns"], asked["end_ns"])
