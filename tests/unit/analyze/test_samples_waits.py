"""Samples of threads off the core by what they waited for: each nanosecond in one row, by the program's function that called a library's."""

import json
from pathlib import Path

import pytest

from pytrace_ebpf.analyze.samples.by_wait import by_wait
from pytrace_ebpf.cli.main import main
from pytrace_ebpf.trace.states import SYSCALL_UNKNOWN
from tests.unit.analyze.test_findings_of_samples import (
    BLOCKED,
    EVAL,
    GET,
    GIL,
    HANDLE,
    MAIN,
    MS,
    ONCE,
    POLL,
    QUEUED,
    RECV,
    RESOURCES,
    START,
    WAIT,
    Samples,
)  # fmt: skip

RECVFROM, FUTEX, EPOLL_WAIT = 45, 202, 232


def samples() -> Samples:
    made = Samples()

    def add(state: int, ms: int, times: int, path: tuple[int, ...], call: int = SYSCALL_UNKNOWN, resource: int = 0) -> None:
        before = len(made.rows)
        made.add(7, state, ms, *path, times=times)
        made.rows[before:] = [(*row, None, call, resource) for row in made.rows[before:]]

    add(0, 10, 50, (MAIN, HANDLE))
    add(BLOCKED, 100, 6, (MAIN, HANDLE, EVAL, RECV), RECVFROM, 51)
    add(BLOCKED, 5, 4, (MAIN, HANDLE, EVAL, RECV), RECVFROM, 51)  # each stands for a period of 10 ms
    add(BLOCKED, 100, 3, (MAIN, HANDLE, GET, WAIT), FUTEX)
    add(BLOCKED, 100, 2, (MAIN, ONCE, POLL), EPOLL_WAIT)
    add(GIL, 10, 7, (MAIN, HANDLE, EVAL), FUTEX)
    add(QUEUED, 10, 5, (MAIN,))
    add(BLOCKED, 100, 1, (START,))
    add(BLOCKED, 30, 1, (MAIN,), -1)
    return made


def test_each_wait_is_in_one_row(tmp_path: Path) -> None:
    trace = samples().trace(tmp_path, resources=RESOURCES)
    table = by_wait(trace)
    rows = {
        (row["kind"], row["syscall"], row["resource"], row["primitive_func_id"], row["func_id"]): (row["total_ns"] // MS, row["samples"])
        for row in table.astype(object).where(table.notna(), None).to_dict("records")
    }
    assert rows == {
        ("net", "recvfrom", "postgres 10.0.0.5:5432", -1, HANDLE): (640, 10),
        ("lock", "futex", None, GET, HANDLE): (300, 3),
        ("poll", "epoll_wait", None, -1, MAIN): (200, 2),
        ("other", None, None, -1, -1): (100, 1),
        ("gil", None, None, -1, HANDLE): (70, 7),
        ("page-fault", None, None, -1, MAIN): (30, 1),
        ("run queue", None, None, -1, MAIN): (50, 5),
    }
    assert table["total_ns"].is_monotonic_decreasing
    errors = table.set_index("kind")["error_ns"]
    assert errors["net"] == round((4 * 0.5 * (10 * MS) ** 2) ** 0.5) and errors["lock"] == 0


def test_a_report_of_samples_by_wait(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = samples().trace(tmp_path, resources=RESOURCES)
    assert main(["report", str(trace.directory), "--by", "wait"]) == 0
    shown = capsys.readouterr().out
    assert "postgres 10.0.0.5:5432 (recvfrom)" in shown and "Queue.get" in shown and "± is one standard error" in shown
    assert main(["report", str(trace.directory), "--by", "wait", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["qualname"] for row in rows if row["primitive"] == "queue.Queue.get" or row["primitive"] == "Queue.get"] == ["handle"]


def test_a_trace_of_before_says_the_states(tmp_path: Path) -> None:
    """Samples that say neither call nor resource."""
    made = Samples().add(7, BLOCKED, 100, MAIN, HANDLE, EVAL, RECV, times=2).add(7, GIL, 10, MAIN, HANDLE, times=3)
    rows = by_wait(made.trace(tmp_path))
    assert dict(zip(rows["kind"], rows["total_ns"], strict=True)) == {"other": 200 * MS, "gil": 30 * MS} and rows["resource"].isna().all()
