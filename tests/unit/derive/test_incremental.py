"""Derived tables of a trace that grows: only new segments are read, and what comes of it is what one derivation of all of them gives."""

import io
import json
import os
import random
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import pytrace_ebpf
from pytrace_ebpf.cli.main import main
from pytrace_ebpf.derive.native.tensors import Tensors
from pytrace_ebpf.derive.sinks.cores import core_sums
from pytrace_ebpf.trace.derived import FOLDER, Pieces
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.trace.schema import MANIFEST, TABLES, CallKind
from pytrace_ebpf.view.by import BY
from tests.unit.analyze import test_requests as requested
from tests.unit.derive import test_memory as used
from tests.unit.derive import test_operators as native
from tests.unit.derive.test_calls_properties import SCENARIOS, seeds, story
from tests.unit.derive.test_sums import recorded_upto
from tests.unit.synthetic import Script, sample, write_trace
from tests.unit.view import test_exact_lines as exact

GROWING = ("waits", "calls", "tasks", "requests", "values", "statements", "operators", "memory", "lines")
ENTRY, RETURN, RESUME, YIELD = (int(kind) for kind in (CallKind.ENTRY, CallKind.RETURN, CallKind.RESUME, CallKind.YIELD))


def with_coroutines(path: Path) -> Path:
    """Coroutines that await others and a generator, cut between: suspended, running, and while one is closed by a call that goes on."""
    plain, generator, outer, inner = range(4)
    rows = [
        (1, ENTRY, plain, 8), (2, ENTRY, outer, 16), (3, ENTRY, generator, 24), (4, ENTRY, inner, 32), (6, YIELD, inner, 32), (7, YIELD, generator, 24),
        (8, YIELD, outer, 16), (20, RESUME, outer, 16), (21, RESUME, generator, 24), (22, RESUME, inner, 32), (32, RETURN, inner, 32),
        (33, YIELD, generator, 24), (34, YIELD, outer, 16), (40, RESUME, outer, 16), (41, RETURN, outer, 16), (42, ENTRY, inner, 40),
        (43, YIELD, inner, 40), (44, RETURN, plain, 8),
    ]  # fmt: skip
    functions = [(number, "/app/a.py", f"f{number}", f"f{number}", 1, "a", flags) for number, flags in enumerate((0, 0x20, 0x80, 0x80))]
    events = [(ts, 7, 7, kind, func, frame, 1) for ts, kind, func, frame in rows]
    return told_early(
        write_trace(
            path / "trace", events=events, observed=observed(events), client_calls=asked(events), functions=functions, cuts=[7, 31], end_ns=50
        )
    )


def observed(events: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """What each call and each resume was given, and what left it."""
    given, left = ("argument", 0, "x", "int"), ("return", -1, None, "str")
    begins = {ENTRY: given, RESUME: given, RETURN: left, YIELD: left}
    return [(ts, pid, tid, *begins[kind], f"{ts}", None, None, "complete") for ts, pid, tid, kind, *_ in events if kind in begins]


def asked(events: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """What each call asked."""
    return [(ts, pid, tid, "driver", f"SELECT {ts}", "complete") for ts, pid, tid, kind, *_ in events if kind == ENTRY]


def with_requests(path: Path, *, another_view: bool = False) -> Path:
    """Three of a service, which is cut between and in the middle of one; a view of its own answers the last, `another_view`."""
    last = requested.VIEW if not another_view else requested.HEALTH
    rows = requested.nested(
        (requested.SERVER, 10, 90, (requested.FLASK, 12, 88, (requested.DISPATCH, 62, 80, (requested.VIEW, 64, 78, (requested.HEALTH, 65, 70))))),
        (requested.SERVER, 100, 190, (requested.FLASK, 110, 180, (requested.DISPATCH, 120, 170, (requested.VIEW, 130, 160)))),
        (requested.SERVER, 200, 240, (requested.FLASK, 210, 230, (requested.DISPATCH, 215, 225, (last, 216, 220)))),
    )
    events = [(ts, 7, 7, kind, func, frame, 1) for ts, kind, func, frame in rows]
    return told_early(write_trace(path / "trace", events=events, functions=requested.FUNCTIONS, cuts=[95, 125], end_ns=250))


def with_operators(path: Path) -> Path:
    """Operators with their tensors; two are open where the trace is cut, and one is never called."""
    return told_early(native.trace(path / "trace", cuts=[26, 50], arguments=[*native.ARGUMENTS, (12, native.RELU, False, [[1]], ["int8"])]).directory)


def with_memory(path: Path) -> Path:
    """What is allocated in one segment is freed in another, calls that used some are open where the trace is cut, and one has no name yet."""
    allocations = [(10, 1, 5, 0, 0, 5), (20, 2, 100, 1, 40, 60), (30, 4, 1000, 0, 0, 1000), (40, 0, 0, 4, 1000, -1000), (50, 0, 0, 1, 60, -60)]
    events = [*used.EVENTS, used.event(65, ENTRY, -1, 9), used.event(90, RETURN, used.FIB, 9)]
    tables = {
        "allocations": [(ts, 7, 7, *counts, max(counts[1], counts[-1])) for ts, *counts in allocations],
        "faults": [used.fault(ts) for ts in range(5, 95, 6)],
        "native_blocks": [used.block(15, 1000), used.block(22, 100), used.block(45, -100, since=22)],
    }
    manifest = {**used.RECORDED, **used.SAMPLED, "options": {"memory": True}}
    return told_early(
        write_trace(path / "trace", events=events, functions=used.SAMPLE_FUNCTIONS, **tables, manifest=manifest, end_ns=100, cuts=[33, 72])
    )


def with_lines(path: Path, cuts: tuple[int, ...] = (140, 6000)) -> Path:
    """Lines that go on where the trace is cut, some of them while they call others."""
    life, more = exact.script(), {"manifest": exact.LINES, "functions": used.SAMPLE_FUNCTIONS}
    return told_early(write_trace(path / "trace", events=life.events, sched=life.sched, end_ns=life.now, cuts=cuts, **more))


def made(path: Path, name: str) -> Path:
    """A trace of three segments, with something of the table in each."""
    of = {
        "tasks": with_coroutines,
        "values": with_coroutines,
        "statements": with_coroutines,
        "requests": with_requests,
        "operators": with_operators,
        "memory": with_memory,
    }
    return (of | {"lines": with_lines}).get(name, lambda path: told_early(sample(path)))(path)


def told_early(path: Path) -> Path:
    """As a recorder reports threads: in the first segment in which they could be."""
    manifest = json.loads((path / MANIFEST).read_text())
    rows = [segment["rows"] for segment in manifest["segments"]]
    if len(rows) > 1 and rows[-1]["threads"]:
        (path / "threads" / f"part-{len(rows) - 1:05d}.parquet").rename(path / "threads" / "part-00000.parquet")
        rows[0]["threads"], rows[-1]["threads"] = rows[-1]["threads"], 0
    (path / MANIFEST).write_text(json.dumps(manifest))
    return path


def table(trace: Trace, name: str) -> pd.DataFrame:
    rows: pd.DataFrame = getattr(trace, name)()
    return rows


def anew(path: Path, name: str) -> pd.DataFrame:
    """The table as it is derived from nothing."""
    trace = without_past(pytrace_ebpf.open(path))
    trace._derived |= trace._make([TABLES[name]], (), keep=False)
    return table(trace, name)


def without_past(trace: Trace) -> Trace:
    trace.settled = lambda _: None  # type: ignore[method-assign]
    return trace


def read_of(trace: Trace) -> list[tuple[str, int]]:
    """The (table, segment) that are read from here on, of what grows with the length of a trace."""
    read: list[tuple[str, int]] = []
    part, parts, batches = trace.part, trace.parts, trace.batches

    def one(name: str, index: int, *more: Any) -> Any:
        read.append((name, index))
        return part(name, index, *more)

    def some(name: str, segments: Any, *more: Any) -> Any:
        read.extend((name, segment["index"]) for segment in segments)
        return parts(name, segments, *more)

    def by_batch(name: str, index: int, rows: int) -> Any:
        read.append((name, index))
        return batches(name, index, rows)

    trace.part, trace.parts, trace.batches = one, some, by_batch  # type: ignore[method-assign]
    return read


@pytest.mark.parametrize("name", GROWING)
def test_only_new_segments_are_read(tmp_path: Path, name: str) -> None:
    path = made(tmp_path, name)
    for count in (1, 2, 3):
        recorded_upto(path, count)
        trace = pytrace_ebpf.open(path)
        read = read_of(trace)
        found = table(trace, name)
        assert {index for _, index in read} == {count - 1} and len(found)
        pd.testing.assert_frame_equal(found, anew(path, name))
    assert not (path / FOLDER).exists() or not any(file.name.startswith(f"{name}-") for file in (path / FOLDER).iterdir())  # it grows no more


@pytest.mark.parametrize("name", sorted({*GROWING} - {"operators"}))  # made by hand below
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(seeds, st.sampled_from(SCENARIOS))
def test_it_is_what_one_derivation_gives(tmp_path_factory: pytest.TempPathFactory, name: str, seed: int, scenario: str) -> None:
    told, rng = story(seed, scenario), random.Random(seed)
    more: dict[str, Any] = {"observed": observed(told["events"])}
    if name == "memory":
        ts = sorted(rng.randrange(told["start_ns"], told["end_ns"]) for _ in range(60))
        more["faults"] = [(at, 50, rng.choice([row[2] for row in told["events"]] or [50]), used.GROWN, rng.randrange(-99, 99)) for at in ts]
        more["allocations"] = [(at, 50, 50, 1, 9, 1, 5, rng.randrange(-50, 50), rng.randrange(0, 60)) for at in ts]
        more["manifest"] = {**told.get("manifest", {}), **used.RECORDED, "options": {"memory": True}}
    if name == "lines":
        told["events"] = [each for row in told["events"] for each in (row, at_line(row, rng))[: 1 + (rng.random() < 0.5)]]
    path = told_early(write_trace(tmp_path_factory.mktemp("growing") / "trace", **told | more))
    for count in range(1, len(pytrace_ebpf.open(path).segments) + 1):
        recorded_upto(path, count)
        pd.testing.assert_frame_equal(table(pytrace_ebpf.open(path), name), anew(path, name))


def at_line(row: tuple[Any, ...], rng: random.Random) -> tuple[Any, ...]:
    """The thread of an event is at a line straight after it."""
    return (*row[:3], int(rng.choice([CallKind.LINE, CallKind.LINE, CallKind.STANDS])), -1, 0, rng.randrange(1, 5))


@pytest.mark.parametrize("at", [50, 111, 161, 700, 11_000, 12_000])
def test_lines_are_what_one_derivation_gives(tmp_path: Path, at: int) -> None:
    path = with_lines(tmp_path, (at, at + 150))
    for count in (1, 2, 3):
        recorded_upto(path, count)
        found = pytrace_ebpf.open(path).lines()
        pd.testing.assert_frame_equal(found, anew(path, "lines"))
    assert found["hits"].sum() == 7


@pytest.mark.parametrize("cuts", [(21, 22), (23, 31), (32, 41), (46, 54), (12, 56)])
def test_operators_are_what_one_derivation_gives(tmp_path: Path, cuts: tuple[int, ...]) -> None:
    path = told_early(native.trace(tmp_path / "trace", cuts=cuts).directory)
    for count in (1, 2, 3):
        recorded_upto(path, count)
        found = pytrace_ebpf.open(path).operators()
        pd.testing.assert_frame_equal(found, anew(path, "operators"))
    assert found["shapes"].notna().sum() == 4 and found["result_shapes"].notna().sum() == 3


def test_tensors_are_not_kept_once_their_calls_came(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many segments there are; those whose call was lost are."""
    held, given = [], Tensors.given
    events = [row for k in range(40) for row in ((10 * k + 1, ENTRY, native.RELU), (10 * k + 5, RETURN, native.RELU))]
    arguments = [(10 * k + 1, native.RELU, False, [[k]], ["int8"]) for k in range(40)]
    lost = (12, native.RELU, False, [[1]], ["int8"])

    def counting(self: Tensors, *more: Any, **which: Any) -> Any:
        held.append(sum(len(rows) for parts in self._rows.values() for rows in parts))
        return given(self, *more, **which)

    monkeypatch.setattr(Tensors, "given", counting)
    trace = native.trace(tmp_path, events, [*arguments, lost], cuts=range(10, 400, 10))
    assert [shapes[0][0] for shapes in trace.operators()["shapes"]] == list(range(40))
    assert len(held) >= 80 and max(held) <= 5


def test_of_sampled_cpu_time_the_last_segment_is_read_again(tmp_path: Path) -> None:
    """The curve through its last samples needs the next one."""
    ms = 1_000_000
    events = [(k * ms, 7, 7, k % 2, k // 2 % 3, 1000 + k // 2, 1) for k in range(40)]
    functions = [(number, "/app/a.py", f"f{number}", f"f{number}", 1, "a", 0) for number in range(3)]
    samples = [(k * ms, 7, 7, k * ms // 2, k * ms // 4) for k in range(0, 40, 3)]
    scheduling = {"scheduling": {"source": "cputime", "why": "perf was refused"}}
    path = write_trace(tmp_path / "t", events=events, functions=functions, cputime=samples, manifest=scheduling, cuts=[10 * ms, 20 * ms, 30 * ms])
    told_early(path)
    for count, expected in ((1, {0}), (2, {0, 1}), (3, {1, 2}), (4, {2, 3})):
        recorded_upto(path, count)
        trace = pytrace_ebpf.open(path)
        read = read_of(trace)
        found = trace.calls()
        assert {index for name, index in read if name == "events"} == expected
        assert found["on_cpu_ns"].notna().any()
        pd.testing.assert_frame_equal(found, anew(path, "calls"))


def test_requests_are_found_anew_once_another_function_answers_one(tmp_path: Path) -> None:
    """Of what was called before by others only, no calls were kept."""
    path = with_requests(tmp_path, another_view=True)
    for count, expected in ((1, {0}), (2, {1}), (3, {0, 1, 2})):
        recorded_upto(path, count)
        trace = pytrace_ebpf.open(path)
        trace.tree()
        read = read_of(trace)
        found = trace.requests()
        assert {index for _, index in read} == expected
        pd.testing.assert_frame_equal(found, anew(path, "requests"))


@pytest.mark.parametrize("by", sorted(set(BY) - {"opcode"}))
def test_no_report_reads_what_one_before_has_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str) -> None:
    path, read = told_early(sample(tmp_path)), set[tuple[str, int]]()
    part, parts, batches, log = Trace.part, Trace.parts, Trace.batches, Trace._log
    monkeypatch.setattr(Trace, "part", lambda self, name, index, *more: (read.add((name, index)), part(self, name, index, *more))[1])
    monkeypatch.setattr(
        Trace, "parts", lambda self, name, some, *more: (read.update((name, s["index"]) for s in some), parts(self, name, some, *more))[1]
    )
    monkeypatch.setattr(Trace, "batches", lambda self, name, index, rows: (read.add((name, index)), batches(self, name, index, rows))[1])
    monkeypatch.setattr(Trace, "_log", lambda self, name, *more: (read.add((name, -1)), log(self, name, *more))[1])
    for count in (1, 2, 3):
        recorded_upto(path, count)
        read.clear()
        assert main(["report", str(path), "--by", by]) == 0
        assert {index for name, index in read if name in ("events", "sched")} <= {count - 1}
        assert read


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(seeds, st.sampled_from(SCENARIOS))
def test_how_cores_were_used_is_what_one_pass_finds(tmp_path_factory: pytest.TempPathFactory, seed: int, scenario: str) -> None:
    path = told_early(write_trace(tmp_path_factory.mktemp("growing") / "trace", **story(seed, scenario)))
    for count in range(1, len(pytrace_ebpf.open(path).segments) + 1):
        recorded_upto(path, count)
        found, again = core_sums(pytrace_ebpf.open(path)), core_sums(pytrace_ebpf.open(path))
        with patch.object(Pieces, "read", return_value=None), patch.object(Pieces, "keep"):
            whole = core_sums(pytrace_ebpf.open(path))
        for name in ("threads", "at_a_time", "functions"):
            pd.testing.assert_frame_equal(getattr(found, name), getattr(whole, name))
            pd.testing.assert_frame_equal(getattr(found, name), getattr(again, name))


def damage(state: bytes, how: str) -> bytes:
    with np.load(io.BytesIO(state)) as file:
        arrays = dict(file)
    if how == "cut":
        return state[: len(state) // 2]
    if how == "nothing":
        return b""
    forged = {
        "numbers": {"threads": arrays["threads"][::-1] + 1},
        "engine": {"engine": arrays["engine"][:-1]},
        "missing": {},
        "other type": {name: np.full(rows.shape, b"x") for name, rows in arrays.items() if name not in ("threads", "engine")},
    }[how]
    left = {name: rows for name, rows in arrays.items() if how != "missing" or name in ("threads", "engine")}
    out = io.BytesIO()
    np.savez(out, **(left | forged))
    return out.getvalue()


@pytest.mark.parametrize("name", GROWING)
@pytest.mark.parametrize("how", ["cut", "nothing", "numbers", "engine", "missing", "other type"])
def test_a_state_that_is_none_is_not_gone_on_from(tmp_path: Path, name: str, how: str) -> None:
    path = made(tmp_path, name)
    recorded_upto(path, 2)
    table(pytrace_ebpf.open(path), name)
    (state,) = (path / FOLDER).glob(f"{name}-*")
    state.write_bytes(damage(state.read_bytes(), how))
    recorded_upto(path, 3)
    trace = pytrace_ebpf.open(path)
    read = read_of(trace)
    found = table(trace, name)
    assert {index for _, index in read} == {0, 1, 2}
    pd.testing.assert_frame_equal(found, anew(path, name))


@pytest.mark.parametrize("name", GROWING)
def test_where_files_cannot_be_linked_all_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(95, "not supported")

    path = made(tmp_path, name)
    recorded_upto(path, 2)
    table(pytrace_ebpf.open(path), name)
    recorded_upto(path, 3)
    monkeypatch.setattr(os, "link", refuse)
    pd.testing.assert_frame_equal(table(pytrace_ebpf.open(path), name), anew(path, name))


@pytest.mark.parametrize("name", GROWING)
def test_a_table_that_another_reader_derives_meanwhile_is_not_mixed_with_ours(tmp_path: Path, name: str) -> None:
    path = made(tmp_path, name)
    recorded_upto(path, 2)
    table(pytrace_ebpf.open(path), name)
    recorded_upto(path, 3)
    trace = pytrace_ebpf.open(path)
    take_over = trace.take_over

    def late(spec: Any, *more: Any) -> bool:
        if spec.name == name:
            table(without_past(pytrace_ebpf.open(path)), name)
        return take_over(spec, *more)

    trace.take_over = late  # type: ignore[method-assign]
    read = read_of(trace)
    found = table(trace, name)
    assert {index for _, index in read} == {0, 1, 2}
    pd.testing.assert_frame_equal(found, anew(path, name))


@pytest.mark.parametrize("name", GROWING)
def test_what_was_lost_and_is_told_late_is_in_what_was_derived_before(tmp_path: Path, name: str) -> None:
    path = told_early(sample(tmp_path))
    recorded_upto(path, 1)
    table(pytrace_ebpf.open(path), name)
    whole = json.loads((path / "whole.json").read_text())
    other = write_trace(tmp_path / "other", losses=[("sched_ring", 1010_000_000, 1011_000_000, 5)])
    (path / "losses").mkdir()
    (other / "losses" / "part-00000.parquet").rename(path / "losses" / "part-00001.parquet")
    whole["segments"][1]["rows"]["losses"] = 1
    (path / "whole.json").write_text(json.dumps(whole))
    recorded_upto(path, 2)
    trace = pytrace_ebpf.open(path)
    read = read_of(trace)
    found = table(trace, name)
    assert name in ("tasks", "requests", "values", "statements", "operators") or {index for _, index in read} == {0, 1}
    pd.testing.assert_frame_equal(found, anew(path, name))


def test_a_worker_that_makes_a_call_later_was_none(tmp_path: Path) -> None:
    """What a thread without calls does counts for who woke it; once it makes one that was never so."""
    ms = 1_000_000
    caller = Script(7, 7).snapshot().enter(0).run(10 * ms).leave().run(20 * ms)
    worker = Script(7, 8, cpu=1, now=ms).born(7).run(5 * ms).wait(20 * ms).enter(0).run(ms).leave()
    sched = sorted([*caller.sched, *worker.sched], key=lambda row: row[0])
    functions = [(0, "/app/a.py", "f", "f", 1, "a", 0)]
    path = write_trace(tmp_path / "trace", events=caller.events + worker.events, sched=sched, functions=functions, cuts=[15 * ms], end_ns=40 * ms)
    told_early(path)
    spent = []
    for count in (1, 2):
        recorded_upto(path, count)
        found = pytrace_ebpf.open(path).calls()
        pd.testing.assert_frame_equal(found, anew(path, "calls"))
        spent.append(found["worker_on_cpu_ns"][0])
    assert spent[0] > 0 == spent[1]
