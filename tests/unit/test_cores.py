"""How a program used its cores, on schedules made up to be added up by hand."""

import pandas as pd

from pytrace_ebpf.analyze import cores, split

TIMELINE = pd.DataFrame(
    # Thread 1 is on core 0, moves to core 1; thread 2 is on core 1 and then, while 1 has it, off.
    [(7, 1, 0, 40, "on_cpu", 0), (7, 1, 40, 50, "runq_wait", 1), (7, 1, 50, 100, "on_cpu", 1), (7, 2, 10, 50, "on_cpu", 1), (7, 2, 50, 100, "blocked", 1)],
    columns=["pid", "tid", "start_ns", "end_ns", "state", "cpu"],
)  # fmt: skip
# main(0..100) calls step(20..30) on core 0, step(35..60) across the move; thread 2: other(10..50).
CALLS = pd.DataFrame(
    [
        (1, -1, 3, 7, 1, 10, 0, 100, 90, 65, 0, 1),
        (2, 1, 2, 7, 1, 11, 20, 30, 10, 10, 0, 0),
        (3, 1, 3, 7, 1, 11, 35, 60, 15, 15, 0, 1),
        (4, -1, 4, 7, 2, 12, 10, 50, 40, 40, 1, 0),
    ],
    columns=["call_id", "parent_id", "last_descendant_id", "pid", "tid", "func_id", "start_ns", "end_ns", "on_cpu_ns", "self_on_cpu_ns", "first_cpu", "migrations"],
).assign(wall_ns=lambda c: c["end_ns"] - c["start_ns"]).astype({"on_cpu_ns": "Int64", "self_on_cpu_ns": "Int64", "first_cpu": "Int16", "migrations": "Int32"})  # fmt: skip


def test_so_many_cores_for_so_long() -> None:
    spent = cores.parallelism(TIMELINE, 0, 110)
    assert dict(zip(spent["cores"], spent["ns"], strict=True)) == {0: 10 + 0, 1: 10 + 10 + 50, 2: 30}
    assert spent["ns"].sum() == 110


def test_cores_busy_within_a_call() -> None:
    assert cores.busy_ns(CALLS, TIMELINE).tolist() == [130, 20, 5 + 15 + 10, 70]


def test_each_function_has_its_own_time_on_each_core() -> None:
    table = cores.by_function(CALLS, TIMELINE)
    found = {(f, c): ns for f, c, ns in zip(table["func_id"], table["cpu"], table["self_on_cpu_ns"], strict=True) if ns}
    assert found == {(10, 0): 40 - 10 - 5, (10, 1): 50 - 10, (11, 0): 10 + 5, (11, 1): 10, (12, 1): 40}
    assert sum(found.values()) == split.on_cores(TIMELINE).eval("end_ns - start_ns").sum()
    assert table.set_index("func_id")["busy_cores"].drop_duplicates().round(3).to_dict() == {10: 1.3, 12: 1.75, 11: round(50 / 35, 3)}


def test_who_moved_and_who_was_pushed() -> None:
    waits = pd.DataFrame(
        [(1, 40, 50, "preempted", 99, 0, 1), (3, 70, 75, "preempted", 2, 1, 1), (3, 80, 85, "preempted", 0, 1, 0), (-1, 1, 2, "lock", 2, 1, 0)],
        columns=["call_id", "start_ns", "end_ns", "kind", "waker_tid", "cpu_before", "cpu_after"],
    ).astype({"waker_tid": "Int32", "cpu_before": "Int16", "cpu_after": "Int16"})
    moved = cores.migrations(waits, CALLS)
    assert sorted(moved.itertuples(index=False, name=None)) == [(-1, 1, 0, 1), (10, 0, 1, 1), (11, 1, 0, 1)]
    threads = pd.DataFrame({"pid": [7, 7], "tid": [1, 2], "name": ["a", "b"]})
    neighbours = pd.DataFrame({"pid": [98], "tid": [99], "name": ["hog"]})
    pushed = cores.preemptions(waits, threads, neighbours).set_index("tid")
    assert pushed["name"].fillna("?").to_dict() == {99: "hog", 2: "b", 0: "?"}
    assert pushed["ns"].to_dict() == {99: 10, 2: 5, 0: 5}
    assert pushed["traced"].to_dict() == {99: False, 2: True, 0: False}
