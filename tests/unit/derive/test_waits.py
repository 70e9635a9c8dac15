"""The waits of made-up traces: what they were for, who ended them, which calls they were in, and that they add up."""

import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import pytrace_ebpf
from pytrace_ebpf.derive import one_pass
from pytrace_ebpf.derive.scheduling import wait_kinds
from pytrace_ebpf.derive.sinks import waits as module
from pytrace_ebpf.trace.schema import SYSCALL_UNKNOWN, WAIT_KINDS, CallKind, SchedKind
from tests.unit.derive.test_calls_properties import SCENARIOS, seeds, story
from tests.unit.innermost import innermost
from tests.unit.synthetic import GIL, SAMPLE_FUNCTIONS, Row, Script, sample, write_trace
from tests.waits_add_up import assert_waits_add_up

READ, SELECT, RECVFROM, WAIT4, FSYNC, FUTEX, NANOSLEEP, EPOLL_WAIT, UNLINK = 0, 23, 45, 61, 74, 202, 35, 232, 87
IN, OUT, WAKING, MIGRATE, FORK, EXEC, EXIT, SNAPSHOT = (int(k) for k in SchedKind)


def row(
    ts: int,
    kind: int,
    *,
    state: int = 0,
    cpu: int = 0,
    syscall: int = -1,
    address: int = 0,
    other: int = 0,
    holder: int = -1,
    tid: int = 7,
) -> Row:
    return (ts, 7, tid, kind, cpu, state, syscall, address, 7 if other else 0, other, holder)


def waits(path: Path, sched: list[Row], end_ns: int, **more: object) -> list[dict[str, object]]:
    frame = pytrace_ebpf.open(write_trace(path, sched=sched, end_ns=end_ns, **more)).waits()  # type: ignore[arg-type]
    frame = frame.drop(columns=["pid"]).astype(object)
    return frame.where(frame.notna(), None).to_dict("records")


@pytest.mark.parametrize(
    ("syscall", "address", "state", "kind", "name"),
    [
        (FUTEX, GIL[0] + 8, 1, "gil", "futex"),
        (FUTEX, GIL[1], 1, "lock", "futex"),
        (FUTEX, 1, 1, "stop-the-world", "futex"),
        (FUTEX, 0x7F0000001230 + 10, 1, "object-lock", "futex"),
        (READ, 10, 1, "io-read", "read"),
        (NANOSLEEP, 1, 1, "sleep", "nanosleep"),
        (SELECT, 0, 1, "sleep", "select"),
        (SELECT, 5, 1, "poll", "select"),
        (EPOLL_WAIT, 0, 1, "poll", "epoll_wait"),
        (READ, 0, 1, "io-read", "read"),
        (READ, 3, 2, "io-read", "read"),
        (FSYNC, 3, 2, "io-write", "fsync"),
        (RECVFROM, 3, 1, "net", "recvfrom"),
        (WAIT4, 99, 1, "wait-child", "wait4"),
        (-1, 0, 2, "page-fault", None),
        (-1, 0, 1, "other", None),
        (UNLINK, 1, 2, "other", "unlink"),
        (READ, 0, 4, "other", "read"),
    ],
)
def test_kinds(tmp_path: Path, syscall: int, address: int, state: int, kind: str, name: str | None) -> None:
    rows = [
        row(10, IN),
        row(20, OUT, state=state, syscall=syscall, address=address),
        row(50, WAKING, other=9),
        row(55, IN, cpu=1),
    ]
    (wait,) = waits(tmp_path, rows, 60)
    assert (wait["kind"], wait["syscall"]) == (kind, name)
    assert (wait["start_ns"], wait["blocked_until_ns"], wait["end_ns"]) == (20, 50, 55)
    assert (wait["waker_tid"], wait["cpu_before"], wait["cpu_after"]) == (9, 0, 1)
    assert wait["lock_address"] == (address if syscall == FUTEX and kind != "stop-the-world" else None)


def test_who_took_the_core(tmp_path: Path) -> None:
    (wait,) = waits(tmp_path, [row(10, IN), row(20, OUT, other=8), row(25, IN)], 60)
    assert (wait["kind"], wait["syscall"], wait["blocked_until_ns"], wait["waker_tid"]) == ("preempted", None, 20, 8)


def test_nobody_woke_it_where_a_timer_did(tmp_path: Path) -> None:
    (wait,) = waits(tmp_path, [row(10, IN), row(20, OUT, state=1, syscall=NANOSLEEP), row(50, WAKING), row(55, IN)], 60)
    assert (wait["waker_pid"], wait["waker_tid"]) == (0, 0)


def test_the_gils_holder_and_its_call(tmp_path: Path) -> None:
    holder, waiter = (
        Script(7, 8, now=10).snapshot().enter(0).run(5).enter(1).run(40),
        Script(7, 7, now=10).snapshot().enter(2).run(15),
    )
    waiter.gil(10, waker=8, queued=2).leave()
    sched = sorted([*holder.sched, *waiter.sched], key=lambda r: r[0])
    sched = [(*r[:10], 8) if r[3] == OUT else r for r in sched]
    trace = pytrace_ebpf.open(write_trace(tmp_path, events=[*holder.events, *waiter.events], sched=sched, end_ns=60))
    calls = trace.calls()
    (wait,) = trace.waits().to_dict("records")
    assert wait["kind"] == "gil" and wait["holder_tid"] == wait["waker_tid"] == 8
    assert calls.set_index("call_id")["func_id"][[wait["call_id"], wait["holder_call_id"]]].tolist() == [2, 1]


def test_a_new_threads_wait_for_a_core(tmp_path: Path) -> None:
    (wait,) = waits(tmp_path, Script(7, 8, now=10).born(by=7).sched, 30_000)
    assert (wait["kind"], wait["waker_tid"], wait["start_ns"], wait["blocked_until_ns"], wait["cpu_before"]) == (
        "other",
        7,
        10,
        10,
        None,
    )


def test_a_wait_that_outlasts_the_recording(tmp_path: Path) -> None:
    still, woken = waits(
        tmp_path,
        [row(10, OUT, state=1, syscall=READ), row(20, OUT, state=1, syscall=READ, tid=8), row(50, WAKING, tid=8)],
        60,
    )
    assert (still["blocked_until_ns"], still["end_ns"], still["cpu_after"]) == (60, 60, None)
    assert (woken["blocked_until_ns"], woken["end_ns"]) == (50, 60)


def test_up_to_a_loss_and_no_further(tmp_path: Path) -> None:
    rows = [row(10, OUT, state=1, syscall=READ), row(60, IN), row(70, OUT), row(80, IN)]
    found = waits(tmp_path, rows, 90, losses=[("sched_ring", 30, 50, 3)])
    assert [(wait["start_ns"], wait["end_ns"]) for wait in found] == [(10, 30), (70, 80)]


@pytest.mark.parametrize("at_once", [1, 1 << 17])
def test_losses_count_in_the_segment_that_they_begin_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    monkeypatch.setattr(one_pass, "_AT_ONCE", at_once)
    rows = [row(10, OUT, state=1, syscall=READ), row(60, IN), row(70, OUT), row(80, IN), row(90, OUT), row(120, SNAPSHOT), row(130, IN)]
    found = waits(tmp_path, rows, 140, losses=[("sched_ring", 30, 35, 3), ("sched_ring", 100, 110, 1)], cuts=[20, 40, 100, 125])
    assert [(wait["start_ns"], wait["end_ns"]) for wait in found] == [(10, 30), (70, 80), (90, 100)]


def test_what_the_rootless_source_cannot_tell_is_null(tmp_path: Path) -> None:
    rows = [
        row(10, OUT, state=1, syscall=SYSCALL_UNKNOWN),
        row(60, IN),
        row(70, OUT, syscall=SYSCALL_UNKNOWN),
        row(80, IN),
    ]
    slept, queued = waits(tmp_path, rows, 90)
    assert slept["kind"] == "other" and queued["kind"] == "preempted"
    unknown = ("syscall", "blocked_until_ns", "waker_pid", "waker_tid", "lock_address")
    assert [slept[name] for name in unknown] == [None] * 5
    assert (queued["waker_tid"], queued["blocked_until_ns"]) == (None, 70)


@pytest.mark.parametrize(("pieces", "at_once"), [(1, 1), (3, 1), (40, 1), (40, 5), (40, 1 << 17)])
def test_segments_change_nothing_nor_how_many_are_read_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pieces: int, at_once: int) -> None:
    monkeypatch.setattr(one_pass, "_AT_ONCE", at_once)
    whole = pytrace_ebpf.open(sample(tmp_path / "whole"))
    events, sched = (list(getattr(whole, name)().itertuples(index=False, name=None)) for name in ("events", "sched"))
    step = (whole.end_ns - whole.start_ns) // pieces
    cuts = [whole.start_ns + step * number for number in range(1, pieces)]
    cut = write_trace(
        tmp_path / "cut", events=events, sched=sched, start_ns=whole.start_ns, end_ns=whole.end_ns, cuts=cuts, functions=SAMPLE_FUNCTIONS
    )
    pd.testing.assert_frame_equal(pytrace_ebpf.open(cut).waits(), whole.waits())


def test_the_waits_of_a_call_add_up(tmp_path: Path) -> None:
    assert assert_waits_add_up(pytrace_ebpf.open(sample(tmp_path))) == 9


def test_what_a_call_waited_for_the_gil_is_added_up_by_hand_as_the_document_says(tmp_path: Path) -> None:
    document = (Path(__file__).parents[3] / "docs/how-it-works.md").read_text()
    (cell,) = (part.partition("```")[0] for part in document.split("```python\n")[1:] if "by_hand" in part)
    space: dict[str, Any] = {"trace": pytrace_ebpf.open(sample(tmp_path))}
    exec(cell, space)
    assert space["by_hand"] == space["call"].gil_wait_ns > 0


def test_only_what_is_asked_for(tmp_path: Path) -> None:
    trace = pytrace_ebpf.open(sample(tmp_path))
    waits = trace.waits()
    some = trace.waits(columns=["kind", "tid"], tid=4001, start_ns=1_010_000_000, end_ns=1_020_000_000)
    expected = waits[(waits["tid"] == 4001) & (waits["end_ns"] > 1_010_000_000) & (waits["start_ns"] < 1_020_000_000)]
    assert list(some.columns) == ["kind", "tid"] and 0 < len(some) == len(expected) < len(waits)


def test_every_call_named_is_one_that_linux_has() -> None:
    known = {name for number in range(600) if (name := wait_kinds.syscalls.name(number, "x86_64"))}
    elsewhere = {"_newselect", "waitpid", "recv", "send", "futex_wait", "futex_requeue", "epoll_pwait2"}
    assert set(wait_kinds.syscalls.KIND_OF) - elsewhere <= known
    assert set(wait_kinds.syscalls.KIND_OF.values()) <= set(range(len(WAIT_KINDS)))


def derived(path: Path, monkeypatch: pytest.MonkeyPatch, **limits: int) -> tuple[pd.DataFrame, list[int]]:
    """The waits of a trace, and how many were held at once."""
    held, take = [], module._Writer.write

    def write(self: module._Writer, waits: module.Rows, *rest: Any, **more: Any) -> module.Rows:
        held.append(len(waits))
        return take(self, waits, *rest, **more)

    with monkeypatch.context() as patched:
        for name, limit in limits.items():
            patched.setattr(one_pass if hasattr(one_pass, name) else module, name, limit)
        patched.setattr(module._Writer, "write", write)
        found = pytrace_ebpf.open(path).waits()
    shutil.rmtree(path / "waits")
    return found.astype({"syscall": object}), held


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(seeds, st.sampled_from(SCENARIOS))
def test_segment_by_segment_they_are_in_the_same_calls(tmp_path_factory: pytest.TempPathFactory, seed: int, scenario: str) -> None:
    path = write_trace(tmp_path_factory.mktemp("waits") / "trace", **story(seed, scenario))
    with pytest.MonkeyPatch.context() as patched:
        trace = pytrace_ebpf.open(path)
        if not len(trace.sched()):
            return
        one_by_one, at_once = derived(path, patched, _AT_ONCE=1)[0], derived(path, patched)[0]
    pd.testing.assert_frame_equal(one_by_one, at_once)
    found = innermost(trace, at_once["pid"], at_once["tid"], at_once["start_ns"].to_numpy())
    assert (found.call_id.tolist(), found.func_id.tolist()) == (at_once["call_id"].tolist(), at_once["func_id"].tolist())


@pytest.fixture
def long(tmp_path: Path) -> Path:
    """Two threads of 400 segments, and one that makes no calls."""
    scripts = [Script(7, tid, now=10).snapshot() for tid in (7, 8)]
    for script in scripts:
        script.enter(0)
        while script.now < 400_000:
            script.enter(1).run(400).wait(300, waker=15 - script.tid, queued=50).leave().run(50).gil(200, waker=9, queued=50)
    idle = Script(7, 9, now=10).snapshot()
    while idle.now < 400_000:
        idle.run(500).wait(500, waker=7, queued=50)
    sched = sorted((row for script in (*scripts, idle) for row in script.sched), key=lambda row: row[0])
    events = sorted((row for script in scripts for row in script.events), key=lambda row: row[0])
    return write_trace(tmp_path / "trace", events=events, sched=sched, functions=SAMPLE_FUNCTIONS, cuts=range(1000, 400_000, 1000))


def test_no_more_are_held_than_two_segments_have_and_those_of_which_no_call_is_known(long: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, _ = derived(long, monkeypatch)
    assert len(whole) > 1500 and (whole["func_id"][whole["tid"] != 9] >= 0).all() and (whole["func_id"][whole["tid"] == 9] == -1).all()
    one_by_one, held = derived(long, monkeypatch, _AT_ONCE=1)
    pd.testing.assert_frame_equal(one_by_one, whole)
    assert max(held) <= (whole["tid"] == 9).sum() + 30
    bounded, held = derived(long, monkeypatch, _AT_ONCE=1, _MOST_HELD=20)
    pd.testing.assert_frame_equal(bounded, whole)
    assert max(held) <= 50


@pytest.mark.parametrize(
    ("known_ns", "first", "second"),
    [
        (500, (0, 500, 500, 0), (500, 900, 950, 8)),  # blocked then: the thread that ends it does so later
        (920, (0, 900, 920, 8), (920, 920, 950, 8)),  # in the run queue
        (950, (0, 900, 950, 8), None),
    ],
)
def test_a_wait_is_of_the_open_call_from_when_calls_are_known(
    known_ns: int, first: tuple[int, ...], second: tuple[int, ...] | None, tmp_path: Path
) -> None:
    """Scheduling is recorded before calls are: a thread that does nothing all the time waits in what its stack says when that is first known."""
    sched = [row(0, OUT, state=1, syscall=FUTEX, address=0x9000), row(900, WAKING, other=8), row(950, IN), row(980, OUT, state=1, syscall=READ)]
    events = [(known_ns + 3, 7, 7, int(CallKind.OPEN), func, 16 * (func + 1), 1) for func in (1, 2)]
    processes = [(7, 1, "/usr/bin/python3", "python3 app.py", "3.11.2", "agent", *GIL, known_ns, None)]
    path = write_trace(tmp_path, sched=sched, events=events, functions=SAMPLE_FUNCTIONS, processes=processes, end_ns=1000, cuts=(300, 600))
    trace = pytrace_ebpf.open(path)
    found = trace.waits()
    parts = found[["start_ns", "blocked_until_ns", "end_ns", "waker_tid"]].astype(int).to_numpy().tolist()
    assert parts == [list(part) for part in (first, second, (980, 1000, 1000, 0)) if part]
    assert found["func_id"].tolist() == [-1, 2, 2][: len(parts)]
    assert_waits_add_up(trace)
