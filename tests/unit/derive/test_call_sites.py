"""Call sites: the sums by caller, line and callee are those of a slow walk over the calls, however they come about; and what a report shows of them."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings

import pytrace_ebpf
from pytrace_ebpf.cli.main import main
from pytrace_ebpf.derive import sums
from pytrace_ebpf.derive.checkpoints import FOLDER
from pytrace_ebpf.derive.sinks import call_sites
from pytrace_ebpf.trace.frames import to_frame
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.trace.schema import CALL_SITES, EVENTS, MANIFEST, CallKind
from tests.unit.derive.test_calls_properties import FUNCTIONS, PID, SCENARIOS, all_reported, seeds, st, story
from tests.unit.synthetic import sample, write_trace

Site = tuple[int, int, int]
SUMS = ("calls", "total_ns", "unknown_ns", "self_ns")


def slowly(calls: pd.DataFrame) -> dict[Site, list[int]]:
    """SUMS by site, of the rows of calls one by one."""
    rows = {row["call_id"]: row for row in calls.astype(object).where(calls.notna(), None).to_dict("records")}

    def site(row: dict[str, Any]) -> Site:
        caller = rows.get(row["parent_id"], {"func_id": -1})["func_id"]
        return caller, -1 if row["call_line"] is None else row["call_line"], row["func_id"]

    def above(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        while row := rows.get(row["parent_id"]):
            yield row

    found: dict[Site, list[int]] = {}
    for row in rows.values():
        sums_ = found.setdefault(site(row), [0] * len(SUMS))
        whole = not any(site(other) == site(row) for other in above(row))
        sums_[0] += 1
        sums_[1] += row["wall_ns"] * whole
        sums_[2] += row["wall_ns"] * (whole and row["on_cpu_ns"] is None)
        sums_[3] += row["self_wall_ns"]
    return found


def of(sites: pd.DataFrame) -> dict[Site, list[int]]:
    keys = zip(sites["caller_id"], sites["call_line"].fillna(-1), sites["func_id"], strict=True)
    return dict(zip(keys, sites[list(SUMS)].to_numpy().tolist(), strict=True))


def named(rows: dict[str, Any]) -> dict[str, Any]:
    """A story all of whose events name a function, and whose lines are few."""
    events = [(*row[:4], max(row[4], 0), row[5], row[6] % 4) for row in rows["events"]]
    return rows | {"events": events, "functions": FUNCTIONS}


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(seeds, st.sampled_from(SCENARIOS))
def test_sums_are_those_of_the_calls(tmp_path_factory: pytest.TempPathFactory, seed: int, scenario: str) -> None:
    rows = named(all_reported(story(seed, scenario)))
    if any(row[3] == CallKind.RESET for row in rows["events"]):
        return
    trace = pytrace_ebpf.open(write_trace(tmp_path_factory.mktemp("sites") / "trace", **rows))
    assert of(trace.call_sites()) == slowly(trace.calls())
    window = trace.window(150, 260)
    assert of(window.call_sites()) == slowly(window.calls())


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(seeds, st.sampled_from(SCENARIOS))
def test_what_is_kept_segment_by_segment_adds_up(tmp_path_factory: pytest.TempPathFactory, seed: int, scenario: str) -> None:
    path = write_trace(tmp_path_factory.mktemp("sites") / "trace", **named(story(seed, scenario)))
    once = of(pytrace_ebpf.open(path).call_sites())
    for name in ("tree", "call_sites"):
        shutil.rmtree(path / name, ignore_errors=True)
    assert of(pytrace_ebpf.open(path).call_sites()) == once
    with patch.object(sums, "BYTES_AN_EVENT", 1 << 20):
        shutil.rmtree(path / "call_sites"), shutil.rmtree(path / FOLDER)
        assert of(pytrace_ebpf.open(path).call_sites()) == once
        shutil.rmtree(path / "call_sites")
        assert of(pytrace_ebpf.open(path).call_sites()) == once


def test_sites_need_no_room_in_the_tree(tmp_path: Path) -> None:
    trace = pytrace_ebpf.open(write_trace(tmp_path / "trace", **named(story(3, "ends"))))
    few = to_frame(call_sites.table(sums.sums_of(trace, 1).sites), CALL_SITES)
    assert of(few) == of(trace.call_sites())


def test_a_trace_may_name_any_number_of_lines(tmp_path: Path) -> None:
    """Beyond what is kept, calls go by function alone, and none is lost."""
    count = (1 << 18) + 1000
    rows = [np.repeat(np.arange(count), 2), *np.repeat(np.int64([PID, 1]), 2 * count).reshape(2, -1)]
    kinds, frames = np.tile([CallKind.ENTRY, CallKind.RETURN], count), np.full(2 * count, 32)
    outer = [(0, PID, 1, int(CallKind.ENTRY), 0, 16, -1)]
    path = write_trace(tmp_path / "trace", events=outer, functions=FUNCTIONS, start_ns=0, end_ns=count)
    columns = [*rows, kinds, np.ones(2 * count), frames, np.repeat(np.arange(count) + 1, 2)]
    events = pa.table([pa.array(column, field.type, safe=False) for column, field in zip(columns, EVENTS.arrow, strict=True)], schema=EVENTS.arrow)
    (part,) = (path / "events").glob("*.parquet")
    pq.write_table(pa.concat_tables([pq.read_table(part), events]), part)
    manifest = json.loads((path / MANIFEST).read_text())
    manifest["segments"][0]["rows"]["events"] += 2 * count
    (path / MANIFEST).write_text(json.dumps(manifest))
    sites = pytrace_ebpf.open(path).call_sites()
    assert len(sites) <= (1 << 18) + 2
    assert sites["calls"].sum() == count + 1


def deep(path: Path) -> Trace:
    """One function that calls itself 500 deep, in turn from two lines."""
    events = [(100 + k, PID, 1, int(CallKind.ENTRY), 0, 16 + k, 1 + k % 2) for k in range(500)]
    events += [(600 + k, PID, 1, int(CallKind.RETURN), 0, 16 + 499 - k, 3) for k in range(500)]
    functions = [(0, str(path / "f.py"), "f", "f", 1, "f")]
    (path / "f.py").write_text("def f(n):\n    f(n); f()\n\n")
    return pytrace_ebpf.open(write_trace(path / "trace", events=events, functions=functions, start_ns=90, end_ns=2000))


def test_recursion_counts_once_for_each_line(tmp_path: Path) -> None:
    trace = deep(tmp_path)
    assert {key: value[:2] for key, value in of(trace.call_sites()).items()} == {
        (-1, -1, 0): [1, 1099 - 100], (0, 2, 0): [250, 1098 - 101], (0, 1, 0): [249, 1097 - 102],
    }  # fmt: skip


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(list(words)) == 0
    return capsys.readouterr().out


def test_a_report_by_line_shows_the_source(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    out = shown(capsys, "report", "--by", "line", str(deep(tmp_path).directory))
    assert "f(n); f()" in out and f"{tmp_path}/f.py:1" in out
    rows = json.loads(shown(capsys, "report", "--by", "line", "--json", str(tmp_path / "trace")))["rows"]
    assert [(row["caller_qualname"], row["call_line"], row["qualname"], row["calls"]) for row in rows] == [
        ("f", 2, "f", 250), ("f", 1, "f", 249), (None, None, "f", 1),
    ]  # fmt: skip


def test_functions_name_the_line_that_most_of_their_time_was_called_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = {"sources": [{"pid": PID, "source": "agent", "why": "asked for"}]}
    rows = named(story(7, "whole")) | {"manifest": sources}
    path = write_trace(tmp_path / "trace", **rows)
    trace = pytrace_ebpf.open(path)
    top = {row["func_id"]: row for row in json.loads(shown(capsys, "report", "--json", "--top", "0", str(path)))["rows"]}
    sites = trace.call_sites().dropna(subset="call_line")
    assert len(sites)
    for func_id, own in sites.groupby("func_id"):
        best = own[own["self_ns"] == own["self_ns"].max()]
        names = dict(trace.functions().set_index("func_id")["qualname"])
        assert (top[func_id]["caller_qualname"], top[func_id]["call_line"]) in {
            (names[row["caller_id"]], row["call_line"]) for row in best.to_dict("records") if row["caller_id"] >= 0
        }
    for columns, expected in (("100", False), ("180", True)):
        monkeypatch.setenv("COLUMNS", columns)
        assert ("called most from" in shown(capsys, "report", str(path))) is expected


def test_lines_that_a_source_does_not_know(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = sample(tmp_path)
    manifest = json.loads((path / MANIFEST).read_text())
    (path / MANIFEST).write_text(json.dumps(manifest | {"entry_line": None}))
    assert "The lines are not known" in shown(capsys, "report", "--by", "line", str(path))
