"""Small traces one can read on a screen, and the calls they must become."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import pytrace_ebpf
from pytrace_ebpf.trace.schema import CallKind, SchedKind
from tests.unit.synthetic import GIL, Row, Script, sample, write_trace

E, R, OPEN, RESET, UNWIND, RESUME, YIELD, *_ = (int(k) for k in CallKind)
IN, OUT, WAKING, MIGRATE, FORK, EXEC, EXIT, SNAPSHOT = (int(k) for k in SchedKind)
SPLIT = ["on_cpu_ns", "runq_wait_ns", "gil_wait_ns", "blocked_ns"]


def events(*rows: tuple[int, int, int, int], tid: int = 7) -> list[Row]:
    """(ts, kind, func, frame) of one thread."""
    return [(ts, 7, tid, kind, func, frame, 10 + ts) for ts, kind, func, frame in rows]


def tree(path: Path, rows: list[Row], **more: Any) -> list[str]:
    """The calls as lines: indented by depth, function, [start, end], status where not complete."""
    frame = pytrace_ebpf.open(write_trace(path, events=rows, **more)).calls()
    return [
        f"{'  ' * c.depth}{c.func_id} [{c.start_ns}, {c.end_ns}]" + ("" if c.status == "complete" else f" {c.status}") for c in frame.itertuples()
    ]


def test_nested_calls(tmp_path: Path) -> None:
    rows = events((1, E, 0, 16), (2, E, 1, 32), (3, R, 1, 32), (4, E, 2, 32), (5, R, 2, 32), (6, R, 0, 16))
    assert tree(tmp_path, rows) == ["0 [1, 6]", "  1 [2, 3]", "  2 [4, 5]"]


def test_the_line_is_the_returns(tmp_path: Path) -> None:
    frame = pytrace_ebpf.open(write_trace(tmp_path, events=events((1, E, 0, 16), (6, R, 0, 16)))).calls()
    assert frame["line"].tolist() == [16]


def test_frames_open_at_both_ends(tmp_path: Path) -> None:
    rows = events((3, OPEN, 0, 16), (3, OPEN, 1, 32), (4, R, 1, 32), (5, E, 2, 32))
    expected = ["0 [1, 20] open_at_start", "  1 [1, 4] open_at_start", "  2 [5, 20] open_at_end"]
    assert tree(tmp_path, rows, start_ns=1, end_ns=20) == expected


def test_returns_of_unlisted_frames_began_before_the_recording(tmp_path: Path) -> None:
    rows = events((3, E, 2, 48), (4, R, 2, 48), (5, R, 1, 32), (6, R, 0, 16))
    assert tree(tmp_path, rows, start_ns=1) == ["0 [1, 6] open_at_start", "  1 [1, 5] open_at_start", "    2 [3, 4]"]


def test_a_generator_resumed_by_throw_reports_only_its_return(tmp_path: Path) -> None:
    rows = events((1, E, 0, 16), (2, E, 1, 99), (3, R, 1, 99), (4, R, 1, 99), (5, R, 0, 16))
    assert tree(tmp_path, rows) == ["0 [1, 5]", "  1 [2, 3]", "  1 [3, 4] repaired"]


def test_an_exception_ends_a_call_as_a_return_does(tmp_path: Path) -> None:
    rows = events((1, E, 0, 16), (2, E, 1, 32), (3, UNWIND, 1, 32), (4, E, 2, 32), (5, R, 2, 32), (6, UNWIND, 0, 16))
    assert tree(tmp_path, rows) == ["0 [1, 6] unwound", "  1 [2, 3] unwound", "  2 [4, 5]"]


def test_an_exception_closes_what_is_above_as_lost_returns(tmp_path: Path) -> None:
    rows = events((1, E, 0, 16), (2, E, 1, 32), (5, UNWIND, 0, 16), (6, E, 2, 16), (7, R, 2, 16))
    assert tree(tmp_path, rows) == ["0 [1, 5] unwound", "  1 [2, 5] repaired", "2 [6, 7]"]


def test_a_lost_return_ends_with_the_call_around_it(tmp_path: Path) -> None:
    rows = events((1, E, 0, 16), (2, E, 1, 32), (5, R, 0, 16), (6, E, 2, 16), (7, R, 2, 16))
    assert tree(tmp_path, rows) == ["0 [1, 5]", "  1 [2, 5] repaired", "2 [6, 7]"]


def test_a_frame_that_is_entered_again_has_ended_though_the_levels_fit(tmp_path: Path) -> None:
    """Lost: the return of 0; later the entry of 2, whose return the levels would give to 0."""
    rows = events((1, E, 0, 16), (4, E, 1, 16), (5, R, 1, 16), (7, R, 2, 16), (8, E, 4, 16), (9, R, 4, 16))
    assert tree(tmp_path, rows) == ["0 [1, 4] repaired", "1 [4, 5]", "2 [5, 7] repaired", "4 [8, 9]"]


def test_a_frame_that_is_entered_again_has_ended_whatever_frames_came_between(tmp_path: Path) -> None:
    for inner in (17, 15, 0x10011, 0x7FFF0011):
        rows = events((1, E, 0, 16), (2, E, 3, inner), (3, R, 3, inner), (4, E, 1, 16), (5, R, 1, 16), (7, R, 2, 16))
        assert tree(tmp_path / str(inner), rows) == ["0 [1, 4] repaired", "  3 [2, 3]", "1 [4, 5]", "2 [5, 7] repaired"]


def test_a_frame_that_is_entered_again_has_ended_though_nothing_returns(tmp_path: Path) -> None:
    rows = events((1, E, 0, 16), (4, E, 1, 16), (6, E, 2, 32))
    expected = ["0 [1, 4] repaired", "1 [4, 9] open_at_end", "  2 [6, 9] open_at_end"]
    assert tree(tmp_path / "whole", rows, end_ns=9) == expected
    assert tree(tmp_path / "cut", rows, end_ns=9, cuts=(3, 5)) == expected


def test_a_lost_return_ends_when_its_frame_is_used_again(tmp_path: Path) -> None:
    rows = events((1, E, 0, 16), (2, E, 1, 32), (4, E, 2, 32), (5, R, 2, 32), (6, R, 0, 16))
    assert tree(tmp_path, rows) == ["0 [1, 6]", "  1 [2, 4] repaired", "  2 [4, 5]"]


def test_exec_unwinds_every_open_call(tmp_path: Path) -> None:
    rows = events((1, E, 0, 16), (2, E, 1, 32), (4, RESET, -1, 0), (5, E, 2, 16), (6, R, 2, 16))
    assert tree(tmp_path, rows) == ["0 [1, 4] unwound", "  1 [2, 4] unwound", "2 [5, 6]"]


def test_calls_over_a_loss(tmp_path: Path) -> None:
    """Within [10, 20] call 1 returned and call 3 began; what stood before and ended after is whole."""
    rows = events((1, E, 0, 16), (2, E, 1, 32), (5, E, 2, 48), (6, R, 2, 48), (25, R, 3, 64), (26, R, 0, 16), (27, E, 4, 16), (28, R, 4, 16))
    expected = ["0 [1, 26] in_loss", "  1 [2, 10] in_loss", "    2 [5, 6]", "  3 [10, 25] in_loss", "4 [27, 28]"]
    assert tree(tmp_path, rows, losses=[("call_ring", 10, 20, 2)]) == expected


def test_a_loss_of_something_else_leaves_calls_complete(tmp_path: Path) -> None:
    rows = events((1, E, 0, 16), (6, R, 0, 16))
    assert tree(tmp_path, rows, losses=[("function_ring", 2, 3, 1)]) == ["0 [1, 6]"]


def test_an_entry_without_a_name_takes_its_returns(tmp_path: Path) -> None:
    assert tree(tmp_path, events((1, E, -1, 16), (6, R, 3, 16))) == ["3 [1, 6]"]


def outermost(path: Path, rows: list[Row]) -> list[bool]:
    functions = [(k, "a.py", f"f{k}", f"f{k}", 1, "a") for k in range(4)]
    return pytrace_ebpf.open(write_trace(path, events=rows, functions=functions)).calls(columns=["outermost"])["outermost"].tolist()


def test_outermost_is_what_no_call_of_its_function_is_above(tmp_path: Path) -> None:
    rows = events(
        (1, E, 0, 16), (2, E, 1, 32), (3, E, 0, 48), (4, R, 0, 48), (5, R, 1, 32), (6, E, 1, 32), (7, R, 1, 32), (8, R, 0, 16), (9, E, 0, 16)
    )
    assert outermost(tmp_path, rows) == [True, True, False, True, True]


def test_whether_a_call_is_outermost_is_known_where_its_end_alone_names_it(tmp_path: Path) -> None:
    rows = events((1, E, 0, 16), (2, E, -1, 32), (3, R, 0, 32), (4, E, -1, 32), (5, R, 1, 32), (6, E, -1, 32), (7, R, -1, 32), (8, R, 0, 16))
    assert outermost(tmp_path, rows) == [True, False, True, True]


def test_self_times_are_without_the_children(tmp_path: Path) -> None:
    script = Script(7, 7, now=1000).snapshot().enter(0).run(10).wait(500, queued=20)
    script.enter(1).run(7).gil(300, queued=30).leave().gil(40, queued=2).preempted(5, by=9).leave()
    outer, inner = pytrace_ebpf.open(write_trace(tmp_path, events=script.events, sched=script.sched, start_ns=1000)).calls().to_dict("records")
    assert [outer[f"self_{name}"] for name in ("wall_ns", *SPLIT)] == [577, 10, 27, 40, 500]
    assert [inner[f"self_{name}"] for name in ("wall_ns", *SPLIT)] == [337, 7, 30, 300, 0]


def test_preempted_blocked_and_gil_are_distinguished(tmp_path: Path) -> None:
    script = Script(7, 7, now=1000).snapshot().run(10).enter(0).run(10)
    script.preempted(300, by=9, cpu=1).run(10)
    script.wait(5000, queued=20).run(10)
    script.gil(700, queued=30).run(10).leave().run(5)
    frame = pytrace_ebpf.open(write_trace(tmp_path, events=script.events, sched=script.sched, start_ns=1000)).calls()
    (call,) = frame.to_dict("records")
    assert [call[name] for name in SPLIT] == [40, 350, 700, 5000]
    assert sum(call[name] for name in SPLIT) == call["wall_ns"] == 6090
    assert [call[n] for n in ("preemptions", "waits", "migrations", "first_cpu", "last_cpu")] == [1, 2, 1, 0, 1]


def test_a_futex_outside_the_gil_is_a_lock(tmp_path: Path) -> None:
    script = Script(7, 7, now=1000).snapshot().enter(0).run(1).wait(50, syscall=202, address=GIL[1], queued=0).leave()
    call = pytrace_ebpf.open(write_trace(tmp_path, events=script.events, sched=script.sched, start_ns=1000)).calls().iloc[0]
    assert call[SPLIT].tolist() == [1, 0, 0, 50]


def test_unknown_scheduling_is_null_and_never_zero(tmp_path: Path) -> None:
    frame = pytrace_ebpf.open(write_trace(tmp_path, events=events((1, E, 0, 16), (6, R, 0, 16)))).calls()
    nulls = [*SPLIT, *(f"self_{name}" for name in SPLIT), "first_cpu", "last_cpu", "migrations", "preemptions", "waits"]
    assert frame[nulls].isna().all(axis=None)
    assert frame["wall_ns"].tolist() == [5]


def test_calls_over_lost_scheduling_are_null_until_the_thread_is_seen_again(tmp_path: Path) -> None:
    script = Script(7, 7, now=1000).snapshot()
    for _ in range(4):
        script.enter(0).run(40).leave().preempted(10, by=9)
    path = write_trace(tmp_path, events=script.events, sched=script.sched, start_ns=1000, losses=[("sched_ring", 1060, 1070, 5)])
    assert pytrace_ebpf.open(path).calls()["on_cpu_ns"].isna().tolist() == [False, True, False, False]


def test_what_a_thread_did_between_segments_is_not_forgotten(tmp_path: Path) -> None:
    """A call that blocks over segments in which its thread has no function events."""
    script = Script(7, 7, now=1000).snapshot().enter(0).run(10)
    script.wait(1000, queued=5, cpu=1).run(10).wait(2000, queued=5, cpu=0).run(10).leave()
    path = write_trace(tmp_path, events=script.events, sched=script.sched, start_ns=1000, cuts=(1500, 2017, 3000, 4000))
    (call,) = pytrace_ebpf.open(path).calls().to_dict("records")
    assert [call[name] for name in SPLIT] == [30, 10, 0, 3000]
    assert call["migrations"] == 2


def test_what_was_entered_last_before_a_gap_and_a_loss_keeps_its_times(tmp_path: Path) -> None:
    """Its end may lie in the loss; until that is known, the switches of two segments have passed."""
    rows = events((15, E, 0, 16), (45, E, 1, 32), (87, R, 0, 16))
    sched = [(10, 7, 7, SNAPSHOT, 0, 0, -1, 0, 0, 0), (51, 7, 7, OUT, 0, 0, -1, 0, 0, 0), (52, 7, 7, IN, 0, 0, -1, 0, 0, 0)]
    path = write_trace(tmp_path, events=rows, sched=sched, start_ns=10, cuts=(60, 67), losses=[("call_ring", 43, 81, 1)])
    calls = pytrace_ebpf.open(path).calls()
    assert calls[["start_ns", "end_ns"]].to_numpy().tolist() == [[15, 87], [45, 45]]
    assert calls[SPLIT].to_numpy().tolist() == [[71, 1, 0, 0], [0, 0, 0, 0]]


@pytest.fixture(scope="module")
def sampled(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    return pytrace_ebpf.open(sample(tmp_path_factory.mktemp("trace"))).calls()


def test_every_known_row_of_the_sample_sums_to_its_wall_time(sampled: pd.DataFrame) -> None:
    assert sampled["on_cpu_ns"].notna().all()
    assert (sampled[SPLIT].sum(axis=1) == sampled["wall_ns"]).all()
    assert (sampled[[f"self_{name}" for name in SPLIT]].sum(axis=1) == sampled["self_wall_ns"]).all()


def test_self_times_of_the_sample_sum_to_those_of_its_roots(sampled: pd.DataFrame) -> None:
    roots = sampled[sampled["depth"] == 0]
    assert sampled["self_wall_ns"].sum() == roots["wall_ns"].sum()
    assert sampled["self_on_cpu_ns"].sum() == roots["on_cpu_ns"].sum()


def test_many_short_threads(tmp_path: Path) -> None:
    rows = [
        row for tid in range(500) for row in events((1 + tid, E, 0, 16), (2 + tid, E, 1, 32), (3 + tid, R, 1, 32), (4 + tid, R, 0, 16), tid=tid + 7)
    ]
    frame = pytrace_ebpf.open(write_trace(tmp_path, events=rows, start_ns=0, cuts=(100, 250))).calls()
    assert len(frame) == 1000
    assert (frame["status"] == "complete").all()
    assert frame.groupby("tid")["wall_ns"].apply(list).map(lambda walls: walls == [3, 1]).all()


def test_recursion_to_a_great_depth(tmp_path: Path) -> None:
    depth = 70_000  # more than 16 bits of levels
    down = [(k, E, 0, 16 * k + 16) for k in range(depth)]
    up = [(2 * depth - k, R, 0, 16 * k + 16) for k in reversed(range(depth))]
    frame = pytrace_ebpf.open(write_trace(tmp_path, events=events(*down, *up), cuts=(1000, depth + 500))).calls()
    assert frame["depth"].tolist() == list(range(depth))
    assert (frame["parent_id"] == frame["call_id"] - 1).all()
    assert (frame["last_descendant_id"] == depth - 1).all()
    assert (frame["wall_ns"] == 2 * (depth - frame["depth"])).all()


def test_what_a_young_thread_had_open_began_with_the_thread(tmp_path: Path) -> None:
    # The agent dates what is open by its own start, also in a thread that was made just after it.
    sched = [(50, 1, 2, 4, 0, 1, -1, 0, 1, 1), (55, 1, 2, 0, 0, 0, -1, 0, 0, 0), (95, 1, 2, 1, 0, 1, 0, 0, 0, 0)]
    events = [(10, 1, 2, OPEN, 0, 1, 1), (60, 1, 2, E, 0, 2, 1), (70, 1, 2, R, 0, 2, 1), (80, 1, 2, R, 0, 1, 1)]
    threads = [(1, 1, "main", 0, None), (1, 2, "young", 50, None)]
    trace = pytrace_ebpf.open(write_trace(tmp_path / "t", events=events, sched=sched, threads=threads, end_ns=100))
    outer, inner = trace.calls().sort_values("call_id").to_dict("records")
    assert (outer["start_ns"], outer["end_ns"], outer["status"]) == (50, 80, "open_at_start")
    assert (outer["runq_wait_ns"], outer["on_cpu_ns"], inner["on_cpu_ns"]) == (5, 25, 10)
