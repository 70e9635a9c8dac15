"""Which rank of a made-up training comes last, by how much, and why; where ranks began to be recorded at other steps, too."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from pytrace_ebpf.analyze.steps.by_rank import by_rank, late, with_ranks
from pytrace_ebpf.cli.main import main
from pytrace_ebpf.trace.reader import Trace
from tests.unit.analyze.test_steps import GLOO, US, Script, backward, batch, begun, forward, opened, optimize
from tests.unit.synthetic import FUTEX, GIL, Row

PIDS = (10, 20, 30)
MS = 1_000 * US
PLANTED = {
    "data": ("data", "blocked_ns"),
    "work": ("forward", "on_cpu_ns"),
    "core": ("forward", "runq_wait_ns"),
    "gil": ("backward", "gil_wait_ns"),
    "sleep": ("other", "blocked_ns"),
}


def delayed(life: Script, why: str) -> Script:
    """A step up to where the others are waited for, which takes 3 ms longer."""
    batch(life, 3 * MS if why == "data" else 0)
    forward(life) if why not in ("work", "core") else life
    if why in ("work", "core"):
        life.enter(2).run(3 * MS) if why == "work" else life.enter(2).preempted(3 * MS, by=999)
        life.leave()
        forward(life)
    if why == "sleep":
        life.wait(3 * MS)
    life.enter(5).run(40)
    return life.gil(3 * MS) if why == "gil" else life


def trained(path: Path, why: str, last: int, steps: int = 12, skipped: int = 0, ranks: bool = True) -> Trace:
    """Three ranks, of which one comes last into each of its steps; all of them leave what they do together at once."""
    lives = [begun(pid) for pid in PIDS]
    for number in range(steps):
        for life in lives:
            delayed(life, why if life.pid == PIDS[last] else "")
        together = max(life.now for life in lives) + 100
        for life in lives:
            life.wait(together - life.now, syscall=FUTEX, address=0x8000, waker=life.pid + GLOO, queued=4).leave()
            optimize(life)
        if number + 1 == skipped:  # of one the recording begins here
            lives[0].events.clear()
            lives[0].sched.clear()
            lives[0].stack.clear()
            lives[0].snapshot().open(0)
    for life in lives:
        batch(life)
    processes: list[Row] = [(life.pid, 1, "/python3", "train.py", "3.11.2", "agent", *GIL, 0, None) for life in lives]
    if ranks:
        processes = [(*row, 0, None, None, None, None, None, 2 - at, 2 - at, 3, "run") for at, row in enumerate(processes)]
    return opened(path, *lives, processes=processes)


def found(trace: Trace) -> tuple[pd.DataFrame, pd.DataFrame]:
    rows = with_ranks(trace.steps(), trace.processes())
    came_late = late(rows)
    return came_late, by_rank(rows, came_late)


@pytest.mark.parametrize("last", range(3))
@pytest.mark.parametrize("why", PLANTED)
def test_the_late_rank_and_why(tmp_path: Path, why: str, last: int) -> None:
    came_late, table = found(trained(tmp_path, why, last))
    assert len(came_late) == 12 and set(came_late["rank"]) == {2 - last} and set(came_late["pid"]) == {PIDS[last]}
    assert {*zip(came_late["phase"], came_late["way"], strict=True)} == {PLANTED[why]}
    assert came_late["by_ns"].between(3 * MS - 10, 3 * MS + 50_000).all() and came_late["more_ns"].between(3 * MS - 10, 3 * MS + 50_000).all()
    assert table["rank"].tolist()[0] == 2 - last and table["late"].tolist() == [12, 0, 0] and set(table["steps"]) == {12}


def test_ranks_that_nobody_said_are_numbered_by_their_processes(tmp_path: Path) -> None:
    came_late, table = found(trained(tmp_path, "work", 1, ranks=False))
    assert set(came_late["rank"]) == {1} and sorted(table["rank"]) == [0, 1, 2]


def test_one_that_was_recorded_later_has_the_numbers_of_the_others(tmp_path: Path) -> None:
    came_late, _ = found(trained(tmp_path, "work", 1, skipped=4))
    assert len(came_late) == 8 and sorted(came_late["step"]) == list(range(4, 12)) and set(came_late["rank"]) == {1}


def test_ranks_that_come_together_and_a_program_of_one(tmp_path: Path) -> None:
    came_late, table = found(trained(tmp_path / "even", "", 0))
    assert not len(came_late) and table["late"].sum() == 0 and len(table) == 3
    assert not any(map(len, found(opened(tmp_path / "one", batch(optimize(backward(forward(batch(begun())))))))))


@pytest.mark.parametrize("width", [40, 100])
def test_the_report(tmp_path: Path, width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    trace = trained(tmp_path, "data", 0)
    monkeypatch.setenv("COLUMNS", str(width))
    assert main(["report", str(trace.directory), "--by", "rank"]) == 0
    said = capsys.readouterr().out
    assert max(map(len, said.splitlines())) <= width
    assert "Rank 2 comes last in 12 of 12 steps, by 3.00ms (median): blocked in data." in " ".join(said.split())
    assert main(["report", str(trace.directory), "--by", "rank", "--json"]) == 0
    facts: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert facts["rows"][0]["rank"] == 2 and len(facts["late"]) == 12
    assert sum(piece["ns"] for piece in facts["slowest"][0]["path"]["pieces"]) == facts["slowest"][0]["wall_ns"]


def test_the_report_without_ranks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = opened(tmp_path, begun().run(5))
    assert main(["report", str(trace.directory), "--by", "rank"]) == 0
    assert "No step was found in which ranks of a training communicate" in " ".join(capsys.readouterr().out.split())
