"""The layered sequence: entries lead to those they contain, and nothing that lies elsewhere is read on the way."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest

import pytrace_ebpf
from pytrace_ebpf.analyze.functions import call_sequence
from pytrace_ebpf.derive.calls import rows as call_rows
from pytrace_ebpf.trace import index
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.trace.schema import CALLS
from tests.unit.synthetic import SAMPLE_FUNCTIONS, Script, reseal, sample, write_trace

NAMES = {row[0]: row[3] for row in SAMPLE_FUNCTIONS}


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    return pytrace_ebpf.open(sample(tmp_path / "trace"))


def every(entries: call_sequence.Entries) -> Iterator[call_sequence.Entry]:
    for each in entries:
        yield each
        yield from every(each.children())


@pytest.mark.parametrize("tid", (4000, 4001, 4002))
def test_walking_down_meets_every_call_once_and_in_order(trace: Trace, tid: int) -> None:
    calls = trace.calls(tid=tid)
    walked = list(every(call_sequence.outermost(trace, tid)))
    assert [e.call_id for e in walked] == calls["call_id"].tolist()
    assert [e.name for e in walked] == calls["func_id"].map(NAMES).tolist()
    assert [(e.start_ns, e.end_ns, e.depth) for e in walked] == list(zip(calls["start_ns"], calls["end_ns"], calls["depth"], strict=True))
    assert [e.cost["wall_ns"] for e in walked] == calls["wall_ns"].tolist()
    for each in walked:
        if all(part is not None for part in each.cost.values()):
            assert 2 * each.cost["wall_ns"] == sum(part or 0 for part in each.cost.values())  # type: ignore[operator]


def test_an_entry_knows_the_ones_above_and_beside_it(trace: Trace) -> None:
    (run, *_) = call_sequence.outermost(trace, 4001)
    steps = run.children()
    assert [s.name for s in steps] == ["Worker.step"] * 4 and run.parent() is None
    assert steps[0].next().call_id == steps[1].call_id and steps[-1].next() is None  # type: ignore[union-attr]
    assert steps[2].parent().call_id == run.call_id  # type: ignore[union-attr]
    assert steps[2].siblings().table.equals(steps.table)
    assert run.siblings().table.equals(call_sequence.outermost(trace, 4001).table)
    assert steps.longest().cost["wall_ns"] == max(s.cost["wall_ns"] or 0 for s in steps)
    assert [s.call_id for s in steps[1:3]] == [steps[1].call_id, steps[2].call_id]
    assert call_sequence.entry(trace, steps[1].call_id).start_ns == steps[1].start_ns


def test_what_is_not_there_says_so(trace: Trace) -> None:
    assert len(call_sequence.outermost(trace, 1)) == 0
    with pytest.raises(ValueError, match="no entry"):
        call_sequence.outermost(trace, 1).longest()
    with pytest.raises(KeyError, match="no call 8669"):
        call_sequence.entry(trace, 77 << 50)
    leaf = next(e for e in every(call_sequence.outermost(trace, 4001)) if not e.below)
    assert len(leaf.children()) == 0


def wide(path: Path, turns: int = 6) -> Trace:
    """One thread: main calls step `turns` times, each in a segment of its own and with 60 calls in two levels below it."""
    ms = 1_000_000
    script = Script(10, 10).snapshot().enter(1)
    cuts = []
    for _ in range(turns):
        script.run(ms).enter(3)
        for _ in range(20):
            script.enter(2).run(500)
            for _ in range(2):
                script.enter(4).run(1_000).leave()
            script.leave()
        script.leave()
        cuts.append(script.now + ms // 2)
    script.run(ms).leave()
    write_trace(path, events=script.events, sched=script.sched, functions=SAMPLE_FUNCTIONS, cuts=cuts)
    return pytrace_ebpf.open(path)


def spoil(trace: Trace, low: int, high: int) -> tuple[int, int]:
    """Overwrite all row groups of the calls without a call_id in low..high, and hold none of them. Returns (spoilt, whole)."""
    spoilt = whole = 0
    trace._index(CALLS)._held.clear()
    for part in sorted((trace.directory / "calls").glob("part-*.parquet")):
        file = pq.ParquetFile(part)
        content = bytearray(part.read_bytes())
        for number in range(file.metadata.num_row_groups):
            if any(low <= i <= high for i in file.read_row_group(number, columns=["call_id"])["call_id"].to_pylist()):
                whole += 1
                continue
            spoilt += 1
            group = file.metadata.row_group(number)
            for column in (group.column(i) for i in range(group.num_columns)):
                start = column.dictionary_page_offset or column.data_page_offset
                content[start : start + column.total_compressed_size] = b"\xff" * column.total_compressed_size
        part.write_bytes(content)
    return spoilt, whole


@pytest.mark.parametrize("turn", (0, 3, 5))
def test_walking_down_one_entry_reads_nothing_of_its_siblings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, turn: int) -> None:
    monkeypatch.setattr(call_rows, "ROW_GROUP", 16)
    trace = wide(tmp_path / "trace")
    step = call_sequence.outermost(trace, 10)[0].children()[turn]
    expected = list(every(step.children()))
    assert step.name == "Worker.step" and len(expected) == 60
    spoilt, whole = spoil(trace, step.call_id, step.call_id + step.below)
    assert spoilt > 4 * whole
    assert [e.call_id for e in every(step.children())] == [e.call_id for e in expected]
    run = step.children()[10]
    assert run.next().call_id == step.children()[11].call_id  # type: ignore[union-attr]
    with pytest.raises(pytrace_ebpf.errors.TraceError):
        call_sequence.outermost(trace, 10)[0].children()


def test_of_a_deep_call_only_its_own_row_groups_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_rows, "ROW_GROUP", 8)
    trace = wide(tmp_path / "trace", turns=2)
    run = call_sequence.outermost(trace, 10)[0].children()[1].children()[15]
    spoilt, whole = spoil(trace, run.call_id + 1, run.call_id + run.below)
    assert whole <= 2 and spoilt > 12
    assert [e.name for e in run.children()] == ["fib", "fib"]


def two_threads(path: Path) -> Trace:
    """Two that take turns within each segment, so that a row group has calls of both."""
    scripts = [Script(10, tid).snapshot().enter(1) for tid in (10, 11)]
    cuts = []
    for _ in range(12):
        for script, other in (scripts, scripts[::-1]):
            for _ in range(4):
                script.run(500).enter(2).run(500).leave()
            other.run(script.now - other.now)
        cuts.append(scripts[0].now)
    for script in scripts:
        script.leave()
    events, sched = ([row for script in scripts for row in getattr(script, name)] for name in ("events", "sched"))
    write_trace(path, events=events, sched=sorted(sched, key=lambda row: row[0]), functions=SAMPLE_FUNCTIONS, cuts=cuts)
    return pytrace_ebpf.open(path)


@pytest.mark.parametrize("known", (True, False))
def test_a_call_is_found_by_its_id_among_those_of_other_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: bool) -> None:
    """By what each row group's threads have in it; where that does not stand there, by looking through all that might."""
    monkeypatch.setattr(call_rows, "ROW_GROUP", 8)
    monkeypatch.setattr(call_rows, "_MOST_SPANS", 64 if known else 1)
    trace = two_threads(tmp_path / "trace")
    calls = trace.calls()
    assert len(calls) == 98
    groups = trace._index(CALLS)
    for row in calls.itertuples():
        found = call_sequence.entry(trace, row.call_id)
        assert (found.call_id, found.tid, found.start_ns) == (row.call_id, row.tid, row.start_ns)
    chosen = [int(groups._within({"call_id": (call_id, call_id)}).sum()) for call_id in calls["call_id"]]
    assert max(chosen) <= 2 if known else max(chosen) > 10
    assert not groups._within({"call_id": (77 << 50, 77 << 50)}).any()


@pytest.mark.parametrize("each", ("[1]", "[[1]]", "[[1, 99999999999999999999]]", '[["a", 2]]', "[[1, 2], [3]]", '{"a": 1}', "]", None))
def test_what_says_where_calls_are_is_not_believed_where_it_is_no_such_thing(tmp_path: Path, each: str | None) -> None:
    trace = wide(tmp_path / "trace", turns=2)
    trace.calls(["call_id"], ids=(0, 0))
    for part in (trace.directory / "calls").glob("part-*.parquet"):
        table = pq.read_table(part)
        said = "[" + ", ".join([each] * -(-len(table) // 20)) + "]" if each else "[]"
        pq.write_table(table.replace_schema_metadata({index.SPANS: said}), part, row_group_size=20)
    reseal(trace.directory / "calls")
    with pytest.raises(pytrace_ebpf.errors.TraceError):
        call_sequence.entry(pytrace_ebpf.open(trace.directory), 0)


def test_steps_within_a_row_group_decode_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_rows, "ROW_GROUP", 16)
    decoded: list[int] = []
    read_from = index.ds.FileSystemDataset
    monkeypatch.setattr(index.ds, "FileSystemDataset", lambda fragments, *more: decoded.append(len(fragments)) or read_from(fragments, *more))
    trace = wide(tmp_path / "trace")
    run = call_sequence.outermost(trace, 10)[0].children()[1].children()[15]
    first = run.children()[0]
    decoded.clear()
    walked = [run.children()[1], first.next(), *(run.children() for _ in range(9))]
    assert walked[0].call_id == walked[1].call_id and not decoded  # type: ignore[union-attr]
    groups = len(trace._index(CALLS)._held)
    assert [e.call_id for e in every(call_sequence.outermost(trace, 10))] == trace.calls(tid=10)["call_id"].tolist()
    assert decoded and groups <= len(trace._index(CALLS)._held) <= index._MOST_HELD


def test_how_many_levels_a_thread_has_stands_in_the_statistics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_rows, "ROW_GROUP", 8)
    trace = wide(tmp_path / "trace", turns=2)
    trace.calls(["call_id"], ids=(0, 0))
    _, whole = spoil(trace, -2, -1)
    assert not whole and len(trace.layers(10)) == 4


@pytest.mark.parametrize("rows", (2, 3, 5, 1000))
def test_a_thread_has_its_own_levels_where_others_share_its_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    monkeypatch.setattr(call_rows, "ROW_GROUP", rows)
    trace = pytrace_ebpf.open(sample(tmp_path / "trace"))
    depths = trace.calls(["tid", "depth"]).groupby("tid")["depth"].max()
    assert depths.nunique() > 1
    assert {tid: len(trace.layers(tid)) for tid in depths.index} == (depths + 1).to_dict()


def test_calls_of_a_range_of_ids(trace: Trace) -> None:
    ids = trace.calls(columns=["call_id"])["call_id"]
    some = trace.calls(columns=["call_id"], ids=(int(ids[3]), int(ids[9])))["call_id"]
    pd.testing.assert_series_equal(some, ids[3:10].reset_index(drop=True))


def test_the_document_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sample(tmp_path / "trace")
    monkeypatch.chdir(tmp_path)
    document = (Path(__file__).parents[3] / "docs/call-sequence.md").read_text()
    space: dict[str, Any] = {}
    for cell in (part.partition("```")[0] for part in document.split("```python\n")[1:]):
        if "operators" not in cell:  # this trace has none
            exec(cell, space)
    assert space["entry"].below == 0 and list(space["named"]) == ["python"]
