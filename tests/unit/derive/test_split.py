"""State intervals of threads from their scheduling events."""

from pathlib import Path

import pytest

import pytrace_ebpf
from pytrace_ebpf.derive.scheduling.split import timeline
from pytrace_ebpf.trace.schema import SchedKind
from tests.unit.synthetic import Row, Script, sample, write_trace

IN, OUT, WAKING, MIGRATE, FORK, EXEC, EXIT, SNAPSHOT = (int(k) for k in SchedKind)


def states(path: Path, rows: list[Row], end: int, losses: list[Row] | None = None) -> list[tuple[int, int, str]]:
    trace = pytrace_ebpf.open(write_trace(path, sched=rows, losses=losses or [], end_ns=end))
    frame = timeline(trace.sched(), trace.processes(), end, trace.losses())
    return list(frame[["start_ns", "end_ns", "state"]].itertuples(index=False, name=None))


def row(ts: int, kind: int, state: int = 0, cpu: int = 0) -> Row:
    return (ts, 7, 7, kind, cpu, state, -1, 0, 0, 0)


@pytest.mark.parametrize(
    ("state", "following", "expected"),
    [
        (0, OUT, "on_cpu"),
        (0x100, IN, "runq_wait"),
        (0, WAKING, "on_cpu"),
        (1, WAKING, "blocked"),
        (1, IN, "runq_wait"),
        (2, OUT, "on_cpu"),
    ],
)
def test_a_snapshot_is_read_by_what_follows(tmp_path: Path, state: int, following: int, expected: str) -> None:
    assert states(tmp_path, [row(10, SNAPSHOT, state), row(30, following)], 50)[0] == (10, 50 if following == WAKING and not state else 30, expected)


def test_a_snapshot_older_than_what_is_known_is_ignored(tmp_path: Path) -> None:
    assert states(tmp_path, [row(10, IN), row(12, SNAPSHOT, 1), row(30, OUT)], 40) == [(10, 30, "on_cpu"), (30, 40, "runq_wait")]


def test_a_wakeup_of_a_running_thread_changes_nothing(tmp_path: Path) -> None:
    assert states(tmp_path, [row(10, IN), row(20, WAKING), row(30, OUT, 1)], 40) == [(10, 30, "on_cpu"), (30, 40, "blocked")]


def test_nothing_after_exit(tmp_path: Path) -> None:
    assert states(tmp_path, [row(10, IN), row(20, EXIT), row(21, OUT, 0x80)], 40) == [(10, 20, "on_cpu")]


def test_unknown_from_a_loss_to_the_next_event(tmp_path: Path) -> None:
    rows = [row(10, IN), row(35, OUT), row(50, IN)]
    assert states(tmp_path, rows, 60, [("sched_ring", 20, 40, 3)]) == [(10, 20, "on_cpu"), (50, 60, "on_cpu")]


def test_who_woke_and_who_preempted(tmp_path: Path) -> None:
    script = Script(7, 7, now=10).snapshot().run(5).preempted(3, by=99).run(5).wait(10, syscall=0, waker=42).run(1)
    trace = pytrace_ebpf.open(write_trace(tmp_path, sched=script.sched))
    frame = timeline(trace.sched(), trace.processes(), script.now)
    assert frame["state"].tolist() == ["on_cpu", "runq_wait", "on_cpu", "blocked", "runq_wait", "on_cpu"]
    assert frame["other_tid"].tolist() == [0, 99, 0, 42, 0, 0]
    assert frame["syscall"].tolist() == [-1, -1, -1, 0, -1, -1]


def test_the_timeline_and_the_calls_agree(tmp_path: Path) -> None:
    trace = pytrace_ebpf.open(sample(tmp_path))
    spans = timeline(trace.sched(), trace.processes(), trace.end_ns)
    root = trace.calls(tid=4000, depth=0).iloc[0]
    spent = (spans["end_ns"] - spans["start_ns"])[spans["tid"] == 4000].groupby(spans["state"], observed=False).sum()
    assert spent.pop("off_cpu") == 0
    assert [root[f"{state}_ns"] for state in spent.index] == spent.tolist()
