"""`report --by wait`: sums by kind and lock, the main function and partner of each, within any width."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from rich.console import Console

import pytrace_ebpf
from pytrace_ebpf.view import waits
from tests.unit.synthetic import SAMPLE_FUNCTIONS, Script, sample, write_trace

FUTEX = 202


def found(trace: Any) -> pd.DataFrame:
    return waits.found(trace, trace.calls(columns=["call_id", "func_id"]), {})[0]


def rows(trace: Any) -> list[dict[str, Any]]:
    return list(found(trace).to_dict("records"))


def shown(table: pd.DataFrame, width: int) -> list[str]:
    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        for part in waits.report({"scheduling": {"source": "bpf"}}, table, width, False, 20):
            console.print(part)
    return capture.get().splitlines()


def test_totals_are_those_of_the_waits(tmp_path: Path) -> None:
    trace = pytrace_ebpf.open(sample(tmp_path))
    table, all_waits = pd.DataFrame(rows(trace)), trace.waits()
    assert table["total_ns"].sum() == (all_waits["end_ns"] - all_waits["start_ns"]).sum()
    assert table["queued_ns"].sum() == (all_waits["end_ns"] - all_waits["blocked_until_ns"]).sum()
    assert table["waits"].sum() == len(all_waits)
    assert table["total_ns"].is_monotonic_decreasing


def test_the_main_function_and_the_main_partner(tmp_path: Path) -> None:
    script = (
        Script(7, 7, now=10).snapshot().enter(2).wait(500, syscall=FUTEX, address=0x9000, waker=8).wait(70, syscall=FUTEX, address=0xA000, waker=8)
    )
    script.enter(3).wait(200, syscall=FUTEX, address=0x9000, waker=9).leave().leave().exit()
    threads = [(7, 7, "main", 0, None), (7, 8, "other", 0, None), (7, 70, "pytrace-agent", 0, None)]
    ours = Script(7, 70, now=10).snapshot().wait(9_000).exit()
    sched = sorted([*script.sched, *ours.sched], key=lambda r: r[0])
    trace = pytrace_ebpf.open(write_trace(tmp_path, events=script.events, sched=sched, functions=SAMPLE_FUNCTIONS, threads=threads))
    first, second = rows(trace)
    assert (first["lock_address"], second["lock_address"]) == (0x9000, 0xA000)
    assert (first["waits"], first["qualname"], first["func_ns"], first["longest_ns"]) == (2, "Worker.run", 5_500, 5_500)
    assert (first["partner_tid"], first["partner_name"], first["partner_ns"]) == (8, "other", 5_500)
    assert "other 8 51 %" in "\n".join(shown(pd.DataFrame([first, second]), 99))
    nearly = {**first, "partner_ns": first["total_ns"] - 5}  # 100 % would say nothing
    assert shown(pd.DataFrame([nearly]), 99)[-1].rstrip().endswith("other 8")


@pytest.mark.parametrize("width", [60, 80, 99])
def test_no_line_is_too_long(tmp_path: Path, width: int) -> None:
    trace = pytrace_ebpf.open(sample(tmp_path))
    lines = shown(found(trace), width)
    assert len(lines) > 4 and max(map(len, lines)) <= width


def test_where_nothing_was_recorded(tmp_path: Path) -> None:
    assert rows(pytrace_ebpf.open(write_trace(tmp_path))) == []
