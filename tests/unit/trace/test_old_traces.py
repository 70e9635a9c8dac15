"""Traces that were written before a column was there open with what stands for it."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import pytrace_ebpf
from pytrace_ebpf.trace.schema import MANIFEST
from pytrace_ebpf.view.head import traced
from pytrace_ebpf.view.summary import summary
from tests.unit.synthetic import sample


@pytest.mark.parametrize(("table", "column"), [("sched", "holder_tid"), ("usage", "cpus")])
def test_a_column_that_was_not_there_yet(table: str, column: str, tmp_path: Path) -> None:
    directory = sample(tmp_path / "trace")
    for part in (directory / table).glob("*.parquet"):
        pq.write_table(pq.read_table(part).drop_columns([column]), part)
    trace = pytrace_ebpf.open(directory)
    rows = getattr(trace, table)()
    assert len(rows)
    if table == "sched":
        assert (rows[column] == -1).all()
        assert rows[column].dtype == "int32"
        assert (trace.sched(columns=[column], tid=int(rows["tid"].iloc[0]))[column] == -1).all()
    else:
        assert rows[column].isna().all()


def test_an_entry_that_has_its_own_functions_line(tmp_path: Path) -> None:
    now, before = (sample(tmp_path / name) for name in ("now", "before"))
    manifest = json.loads((before / MANIFEST).read_text())
    del manifest["entry_line"]
    (before / MANIFEST).write_text(json.dumps(manifest))
    assert pytrace_ebpf.open(now).calls()["call_line"].notna().any()
    trace = pytrace_ebpf.open(before)
    assert trace.calls()["call_line"].isna().all()
    sites = trace.call_sites()
    assert sites["call_line"].isna().all()
    assert sites["calls"].sum() == len(trace.calls())


def test_what_a_process_was_before(tmp_path: Path) -> None:
    directory = sample(tmp_path / "trace")
    for part in (directory / "processes").glob("*.parquet"):
        pq.write_table(pq.read_table(part).drop_columns(["earlier_commands"]), part)
    trace = pytrace_ebpf.open(directory)
    assert trace.processes()["earlier_commands"].isna().all()
    facts = summary(trace)
    assert facts["target"]["earlier_commands"] == [] and "which executed" not in traced(facts)
