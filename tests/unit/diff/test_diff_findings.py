"""Findings of two sides: what is new, gone or of another size, first in the text and in JSON."""

import json
from pathlib import Path

import pytest

import pytrace_ebpf
from pytrace_ebpf.cli.main import main
from pytrace_ebpf.diff.findings import changed, lines
from pytrace_ebpf.diff.sides import both, traces_in
from tests.unit.analyze.test_findings import FUNCTIONS, HANDLE, HELD, MAIN, MS, OTHER, RECV, RECVFROM, RESOURCES, thread
from tests.unit.synthetic import Row, write_trace

EPHEMERAL = 9


def one_run(path: Path, port: int, asks: int, computes: int, sleeps: int = 0, steals: int = 0) -> Path:
    """ms in which `handle` waits for a peer at a port, `crunch` computes, `audit` sleeps, and `handle` has no core."""
    one = thread(7, MAIN).enter(HANDLE).run(MS).enter(RECV).wait(asks * MS, syscall=RECVFROM, resource=EPHEMERAL).leave()
    one = (one.preempted(steals * MS, by=999) if steals else one).leave().enter(OTHER).run(computes * MS).leave()
    one = one.enter(HELD).wait(sleeps * MS).leave() if sleeps else one
    one.leave()
    resources: list[Row] = [*RESOURCES, (EPHEMERAL, "tcp", f"127.0.0.1:{port}", "127.0.0.1:61000", False, 7, 3, 0, 0, 0)]
    return write_trace(path, events=one.events, sched=one.sched, functions=FUNCTIONS, resources=resources, end_ns=one.now + MS)


def test_what_is_new_gone_and_longer_is_said_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = one_run(tmp_path / "old", 44001, 40, 30, steals=20), one_run(tmp_path / "new", 51002, 90, 30, sleeps=30)
    assert main(["diff", str(old), str(new), "--per", "run"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "Findings that changed most, in a run:" and out[1].startswith(
        "1. 50.0ms more, 90.0ms instead of 40.0ms: `handle` (shop.py:51) waits"
    )
    said = " ".join(" ".join(out).split())
    assert "2. New, 30.0ms instead of 0: `audit` (shop.py:30) sleeps" in said and "3. Gone, 10.0µs instead of 20.0ms: Threads wait" in said
    assert "may be chance" not in said.partition("All calls")[0] and "crunch" not in said.partition("All calls")[0]
    assert main(["diff", str(old), str(new), "--per", "run", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["findings"]
    assert [(row["state"], row["rule"], row["function"], round(row["change_ns"] / MS), row["clear"]) for row in found] == [
        ("changed", "peer", "handle", 50, None), ("new", "sleep", "audit", 30, None), ("gone", "cores", "handle", -20, None),
    ]  # fmt: skip


def test_of_several_runs_what_overlaps_may_be_chance(tmp_path: Path) -> None:
    for number, (old, new, sleeps) in enumerate([(40, 60, 20), (50, 70, 21), (65, 80, 22)]):
        one_run(tmp_path / "old" / str(number), 40000 + number, old, 30)
        one_run(tmp_path / "new" / str(number), 50000 + number, new, 30, sleeps)
    sides = [[pytrace_ebpf.open(path) for path in traces_in(tmp_path / side)] for side in ("old", "new")]
    before, after, per = both(sides[0], sides[1], ("old", "new"), "run")
    table = changed(before, after)
    assert table[["state", "rule", "clear"]].to_numpy().tolist() == [["new", "sleep", True], ["changed", "peer", False]]
    assert table["before_ns"].iloc[1] == pytest.approx((40 + 50 + 65) / 3 * MS)
    assert any("may be chance" in line.plain for line in lines(table, per, 200))


def test_alike_sides_and_sides_without_findings_say_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    alike = one_run(tmp_path / "old", 44001, 40, 30), one_run(tmp_path / "new", 44002, 40, 30)
    calls = [write_trace(tmp_path / name, events=thread(7, MAIN).run(MS).leave().events, functions=FUNCTIONS, end_ns=2 * MS) for name in ("a", "b")]
    for old, new in (alike, calls):
        assert main(["diff", str(old), str(new)]) == 0
        assert "Findings" not in capsys.readouterr().out
