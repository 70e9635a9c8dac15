"""Long recordings: what is written for each segment stays small, and where old segments are dropped, what is left is whole."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pytrace_ebpf
from pytrace_ebpf.errors import DroppedError, TraceError
from pytrace_ebpf.record.options import Keep
from pytrace_ebpf.record.output import merging, retention
from pytrace_ebpf.record.output.journal import Journal
from pytrace_ebpf.record.output.writer import Writer
from pytrace_ebpf.terminal.reading import answer
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.trace.schema import MANIFEST, SEGMENTS, CallKind
from tests.sums_hold import assert_calls_nest, assert_sums_hold
from tests.unit.record.output.test_writer import SECOND, manifest
from tests.unit.synthetic import GIL, Script, table_of

PID = 7
SPLIT = ["on_cpu_ns", "runq_wait_ns", "gil_wait_ns", "blocked_ns"]


def functions(count: int) -> list[tuple[Any, ...]]:
    return [(func, "/app/work.py", f"f{func}", f"f{func}", 10 * func + 1, "work") for func in range(count)]


def work(tid: int, seconds: int) -> Script:
    """Two calls that never return, and below them some thousand that do every kind of thing."""
    script = Script(PID, tid, cpu=tid % 2).snapshot().enter(0).run(1_000).enter(1)
    turn = 0
    while script.now < seconds * SECOND:
        turn += 1
        script.enter(2 + turn % 5).run(7_000_000 + turn % 3)
        if turn % 4 == 0:
            script.wait(30_000_000, waker=tid)
        elif turn % 4 == 1:
            script.enter(2).gil(11_000_000).leave()
        elif turn % 4 == 2:
            script.preempted(3_000_000, by=99, cpu=turn % 2)
        script.run(1_000).leave()
    return script


def segments(scripts: list[Script], seconds: int) -> list[dict[str, pa.Table]]:
    """By second what a recorder would hand over: each function, thread and process when it is first met."""
    known: set[int] = set()
    cut = []
    for second in range(seconds):
        events = [row for script in scripts for row in script.events if row[0] // SECOND == second]
        sched = sorted((row for script in scripts for row in script.sched if row[0] // SECOND == second), key=lambda row: row[0])
        new = [row for row in functions(7) if row[0] in {event[4] for event in events} - known]
        known |= {row[0] for row in new}
        tables = {"events": events, "sched": sched, "functions": new, "neighbours": [(99, 98, "other")] if second == 1 else []}
        if second == 0:
            tables["processes"] = [(PID, 1, "/usr/bin/python3", "python3 app.py", "3.11.2", "usdt", *GIL, 0, None)]
            tables["threads"] = [(PID, script.tid, f"thread-{script.tid}", 0, None) for script in scripts]
        cut.append({name: table_of(name, rows) for name, rows in tables.items() if rows})
    return cut


def recorded(path: Path, cut: list[dict[str, pa.Table]], keep: Keep | None = None, length_ns: int = SECOND, **news: Any) -> Writer:
    writer = Writer(path, manifest(), keep=keep)
    for number, tables in enumerate(cut):
        writer.segment(number * length_ns, (number + 1) * length_ns, tables, {})
    writer.close({"state": "complete", "end_ns": len(cut) * length_ns} | news)
    return writer


def with_rows(folder: Path) -> set[str]:
    """The parts in a folder that are not just an empty table's columns."""
    return {path.name for path in folder.iterdir() if pq.read_metadata(path).num_rows}


def rows(calls: pd.DataFrame) -> list[dict[str, Any]]:
    """What is the same of a call wherever a trace begins: in the order of time."""
    names = ["tid", "func_id", "start_ns", "end_ns", "depth", *SPLIT, "self_wall_ns", "migrations", "preemptions", "waits", "status"]
    return calls[names].astype(object).sort_values(["tid", "start_ns", "depth"]).to_dict("records")


@pytest.mark.parametrize("keep", [Keep(seconds=10), Keep(size=240_000)])
def test_what_is_kept_is_a_whole_trace_that_begins_later(tmp_path: Path, keep: Keep) -> None:
    scripts = [work(tid, 40) for tid in (PID, 8, 9)]
    scripts[2].events = [row for row in scripts[2].events if row[0] < 35 * SECOND]  # it waits on
    cut = segments(scripts, 40)
    recorded(tmp_path / "whole", cut)
    recorded(tmp_path / "kept", cut, keep)
    whole, kept = pytrace_ebpf.open(tmp_path / "whole"), pytrace_ebpf.open(tmp_path / "kept")
    since = kept.start_ns
    assert 5 * SECOND < since <= 34 * SECOND and kept.end_ns == whole.end_ns
    if keep.seconds:
        assert since > 28 * SECOND

    def later(trace: Any) -> list[dict[str, Any]]:
        calls = trace.calls()
        return rows(calls[calls["start_ns"] >= since][lambda c: c["status"] != "open_at_start"])

    assert later(kept) == later(whole) and len(later(kept)) > 1000
    calls, before = kept.calls(), whole.calls()
    opened = calls[calls["status"] == "open_at_start"]
    open_then = before[(before["start_ns"] < since) & (before["end_ns"] > since)]
    assert sorted(zip(opened["tid"], opened["depth"], opened["func_id"], opened["end_ns"], strict=True)) == sorted(
        zip(open_then["tid"], open_then["depth"], open_then["func_id"], open_then["end_ns"], strict=True)
    )
    assert set(opened["start_ns"]) == {since} and set(calls["func_id"]) <= set(kept.functions()["func_id"])
    assert not calls[SPLIT].isna().any(axis=None)
    assert_sums_hold(kept)
    assert kept.neighbours()["name"].tolist() == ["other"] and len(kept.threads()) == 3
    dropped = kept.manifest["dropped"]
    assert dropped["segments"] == len(whole.segments) - len(kept.segments) + 1 and dropped["bytes"] > 0
    for folder in ("events", "sched", "usage", "threads", "functions"):
        assert with_rows(tmp_path / "kept" / folder) == {part.name for part in kept._parts(folder)}
    for edge in (since, since + 1, since + SECOND):
        window = kept.window(edge, None)
        assert_calls_nest(window.calls())
        assert window.tree()["calls"].sum() == len(window.calls())


def test_with_a_size_to_keep_a_trace_never_gets_larger(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "trace", manifest(), keep=Keep(size=150_000))
    for number, tables in enumerate(segments([work(PID, 60)], 60)):
        writer.segment(number * SECOND, (number + 1) * SECOND, tables, {})
        for pending in writer._pending:
            pending.result()
        size = sum(path.stat().st_size for path in (tmp_path / "trace").rglob("*.parquet"))
        assert size <= 155_000 and (number < 50 or 110_000 < size <= 150_000)  # some kB more where it first begins anew
    writer.close({"state": "complete", "end_ns": 60 * SECOND})


def test_what_threads_and_processes_that_ended_left_is_dropped_too(tmp_path: Path) -> None:
    cut: list[dict[str, pa.Table]] = []
    for number in range(60):
        tid = 100 + number
        ended = [(PID, tid, "worker", number * SECOND, number * SECOND + 9)]
        events = [(number * SECOND + 1, PID, tid, CallKind.ENTRY, 0, 1, 1)]  # whose return never came
        cut.append({"threads": table_of("threads", ended), "events": table_of("events", events)})
    cut[0]["functions"] = table_of("functions", functions(1))
    recorded(tmp_path / "trace", cut, Keep(seconds=8))
    trace = pytrace_ebpf.open(tmp_path / "trace")
    assert trace.threads()["tid"].tolist() == trace.events()["tid"].tolist()
    assert len(trace.threads()) < 12 and trace.functions()["qualname"].tolist() == ["f0"]


def test_a_moment_to_which_something_later_is_older_is_no_beginning(tmp_path: Path) -> None:
    """Rows may be handed over late; a trace begins where none of what follows is from before."""
    cut = [{"events": table_of("events", [((number * 10 - 1) * SECOND // 10, PID, PID, CallKind.ENTRY, 0, number, 1)])} for number in range(1, 40)]
    for number in (20, 21, 22):  # each has a row of the second before
        cut[number] = {"events": table_of("events", [(number * SECOND - 5, PID, PID, CallKind.ENTRY, 0, 99, 1)])}
    recorded(tmp_path / "trace", cut[:32], Keep(seconds=10))
    trace = pytrace_ebpf.open(tmp_path / "trace")
    assert trace.start_ns == 20 * SECOND - SECOND or (trace.events()["ts"] >= trace.start_ns).all()


@pytest.mark.parametrize("count", [3, 4, 16, 70, 79])
def test_small_parts_become_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    for module in (merging, retention):
        monkeypatch.setattr(module, "GROUP", 4)
    cut = []
    for number in range(count):
        name = "a" if number % 100 else "b"
        cut.append(
            {
                "usage": table_of("usage", [(number, "core", -1, core, float(number), 0.0, 0.0, *[None] * 5) for core in (0, 1)]),
                "processes": table_of("processes", [(PID, 1, "/usr/bin/python3", name, "3.11.2", "usdt", 0, 0, 0, None)]),
                "functions": table_of("functions", [functions(count)[number]]) if number % 3 == 0 else table_of("functions", []),
            }
        )
    recorded(tmp_path / "trace", cut)
    trace = pytrace_ebpf.open(tmp_path / "trace")
    for name in ("usage", "processes", "functions"):
        files = with_rows(tmp_path / "trace" / name)
        assert sorted(files) == sorted(part.name for part in trace._parts(name))
        assert len(files) <= 3 + 3 + count // 16
    assert trace.usage()["ts"].tolist() == [number for number in range(count) for _ in (0, 1)]
    assert trace.functions()["func_id"].tolist() == list(range(0, count, 3))
    assert trace.processes()["command"].tolist() == ["a" if (count - 1) % 100 else "b"]
    assert sum(rows for rows, _ in trace.sizes("usage")) == 2 * count


def test_the_manifest_does_not_grow_and_a_line_is_written_once(tmp_path: Path) -> None:
    sizes, lines = [], b""
    writer = Writer(tmp_path / "trace", manifest())
    for number in range(150):
        writer.segment(number, number + 1, {"usage": table_of("usage", [(number, "core", -1, 0, 0.0, 0.0, 0.0, *[None] * 5)])}, {})
        for pending in writer._pending:
            pending.result()
        sizes.append((tmp_path / "trace" / MANIFEST).stat().st_size)
        before, lines = lines, (tmp_path / "trace" / SEGMENTS).read_bytes()
        assert lines.startswith(before) and len(pytrace_ebpf.open(tmp_path / "trace").segments) == number + 1
    assert len(set(sizes)) == 1
    writer.close({"state": "complete", "end_ns": 150})


def test_wherever_a_recorder_was_killed_the_segments_that_are_listed_open(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    recorded(path, segments([work(PID, 12)], 12), state="recording", end_ns=None)
    whole = (path / SEGMENTS).read_bytes()
    for size in (*range(0, len(whole), 41), len(whole)):
        (path / SEGMENTS).write_bytes(whole[:size])
        trace = pytrace_ebpf.open(path)
        assert len(trace.segments) == whole[:size].count(b"\n")
        assert trace.end_ns == len(trace.segments) * SECOND
    (path / SEGMENTS).write_bytes(whole[: whole.index(b"\n") * 5])
    assert len(pytrace_ebpf.open(path).calls())


DAMAGES = {
    "no list": None,
    "no JSON": b"{\n",
    "no object": b"[1]\n",
    "twice": b'{"index":0,"start_ns":0,"end_ns":1,"rows":{}}\n' * 2,
    "no end": b'{"index":0,"start_ns":0,"rows":{}}\n',
    "negative rows": b'{"index":0,"start_ns":0,"end_ns":1,"rows":{"events":-1}}\n',
    "absurd number": b'{"index":0,"start_ns":0,"end_ns":1' + b"0" * 400 + b',"rows":{}}\n',
    "merged backwards": b'{"merged":"usage","first":3,"last":1,"rows":1}\n',
    "merged of another table": b'{"merged":"../events","first":0,"last":1,"rows":1}\n',
    "merged across": b'{"merged":"usage","first":0,"last":5,"rows":1}\n{"merged":"usage","first":3,"last":9,"rows":1}\n',
    "deep": b"[" * 100_000 + b"\n",
    "not UTF-8": b'{"\xff":1}\n',
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_list_is_refused_in_one_sentence(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "trace"
    recorded(path, segments([work(PID, 2)], 2))
    (path / SEGMENTS).unlink()
    if (content := DAMAGES[damage]) is not None:
        (path / SEGMENTS).write_bytes(content)
    with pytest.raises(TraceError, match=SEGMENTS) as refused:
        pytrace_ebpf.open(path)
    assert str(refused.value).count("\n") == 0


def test_a_list_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    recorded(path, segments([work(PID, 2)], 2))
    (path / SEGMENTS).rename(tmp_path / "list")
    (path / SEGMENTS).symlink_to(tmp_path / "list")
    with pytest.raises(TraceError, match="cannot be read"):
        pytrace_ebpf.open(path)


@pytest.mark.parametrize("at", range(0, 12, 3))
def test_a_disk_that_fills_up_while_parts_are_merged_or_dropped_leaves_a_whole_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    cut = segments([work(PID, 30)], 30)
    real, left = {"add": Journal.add, "replace": Journal.replace}, [at]

    def fail(which: str) -> Callable[[Journal, Any], None]:
        def write(self: Journal, lines: Any) -> None:
            lines = list(lines)
            if which == "replace" or "merged" in lines[0]:
                left[0] -= 1
                if left[0] < 0:
                    raise OSError(28, "No space left on device")
            real[which](self, lines)

        return write

    for name in real:
        monkeypatch.setattr(Journal, name, fail(name))
    writer = recorded(tmp_path / "trace", cut, Keep(seconds=5))
    assert writer.failed and "No space left" in (writer.full or "")
    trace = pytrace_ebpf.open(tmp_path / "trace")
    assert trace.end_ns == trace.segments[-1]["end_ns"] and len(trace.segments) > 1
    assert_sums_hold(trace)


def test_a_trace_of_the_first_version_opens(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    cut = segments([work(PID, 3)], 3)
    recorded(path, cut)
    calls = pytrace_ebpf.open(path).calls()
    first = json.loads((path / MANIFEST).read_text()) | {"format_version": 1}
    first["segments"] = [json.loads(line) for line in (path / SEGMENTS).read_text().splitlines()]
    (path / MANIFEST).write_text(json.dumps(first))
    (path / SEGMENTS).unlink()
    assert pytrace_ebpf.open(path).calls().equals(calls)


def test_what_is_dropped_while_it_is_read_is_no_damage(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    recorded(path, segments([work(PID, 12)], 12), Keep(seconds=3), state="recording", end_ns=None)
    trace = pytrace_ebpf.open(path)
    for table in ("events", "sched"):
        (path / table / trace._parts(table)[0].name).unlink()
    for read in (trace.calls, trace.sched, lambda: trace.sizes("events")):
        with pytest.raises(TraceError, match=r"was dropped meanwhile .* try again"):
            read()
    (path / "events" / trace._parts("events")[0].name).write_bytes(b"")
    with pytest.raises(TraceError, match="damaged"):
        trace.events()


@pytest.mark.parametrize(("drops", "answers"), [(0, True), (4, True), (5, False)])
def test_a_report_that_comes_too_late_for_a_segment_begins_again(tmp_path: Path, drops: int, answers: bool) -> None:
    path, asked = tmp_path / "trace", []
    recorded(path, segments([work(PID, 3)], 3))

    def question(trace: Trace) -> int:
        asked.append(trace)
        if len(asked) <= drops:
            raise DroppedError("a part was dropped meanwhile: try again.")
        return len(trace.calls())

    if answers:
        assert answer(str(path), question) == len(pytrace_ebpf.open(path).calls())
        assert len(set(map(id, asked))) == drops + 1
    else:
        with pytest.raises(DroppedError):
            answer(str(path), question)


def test_the_manifest_of_a_whole_trace_lists_its_segments_too(tmp_path: Path) -> None:
    cut = segments([work(PID, 12)], 12)
    recorded(tmp_path / "whole", cut)
    listed = json.loads((tmp_path / "whole" / MANIFEST).read_text())["segments"]
    assert listed == pytrace_ebpf.open(tmp_path / "whole").segments and len(listed) == 12
    recorded(tmp_path / "kept", cut, Keep(seconds=3))
    assert "segments" not in json.loads((tmp_path / "kept" / MANIFEST).read_text())
