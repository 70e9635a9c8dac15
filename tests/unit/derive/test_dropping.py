"""Sums of a recording that drops old segments (`--retain`): states from before are gone on from, and what comes of it is what one derivation gives."""

import json
import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import pytrace_ebpf
from pytrace_ebpf.derive import sums
from pytrace_ebpf.derive.checkpoints import FOLDER, Checkpoint, Checkpoints
from pytrace_ebpf.errors import TraceError
from pytrace_ebpf.rebuild.engine import Engine
from pytrace_ebpf.record.output.horizon import Horizon
from pytrace_ebpf.trace.derived import _CHECK_BYTES, _check
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.trace.schema import FORMAT_VERSION, MANIFEST, SEGMENTS, TABLES
from tests.unit.derive.test_calls_properties import SCENARIOS, seeds, story
from tests.unit.derive.test_incremental import read_of, told_early
from tests.unit.derive.test_sums_properties import LOST, program
from tests.unit.derive.test_windows import trace_tree
from tests.unit.record.output.test_long_recordings import functions, work
from tests.unit.record.output.test_writer import SECOND
from tests.unit.synthetic import write_trace

BEGINNINGS = 1000
"""Segments with which a trace begins anew have the numbers from here on."""


class Recording:
    """A whole trace, whose directory is brought to what a recorder would have left there at some time."""

    def __init__(self, path: Path) -> None:
        self.path, self._manifest = path, json.loads((path / MANIFEST).read_text())
        self.segments: list[dict[str, Any]] = self._manifest["segments"]

    def _tables(self, number: int) -> dict[str, pa.Table]:
        segment = self.segments[number]
        named = {name: self.path / name / f"part-{segment['index']:05d}.parquet" for name, rows in segment["rows"].items() if rows}
        return {name: pq.read_table(part, schema=TABLES[name].arrow) for name, part in named.items()}

    def at(self, first: int, upto: int) -> Trace:
        """As it is once the segments up to `upto` are there, and those before `first` were dropped."""
        listed = self.segments[first:upto]
        if first:
            listed = [self._beginning(first), *listed]
        over = upto == len(self.segments)
        (self.path / SEGMENTS).write_text("".join(json.dumps(segment) + "\n" for segment in listed))
        news = {
            "format_version": FORMAT_VERSION,
            "segments": None,
            "state": "complete" if over else "recording",
            "end_ns": self._manifest["end_ns"] if over else None,
        }
        news |= {"dropped": {"segments": first, "bytes": 1}} if first else {}
        (self.path / MANIFEST).write_text(json.dumps(self._manifest | news))
        return pytrace_ebpf.open(self.path)

    def _beginning(self, first: int) -> dict[str, Any]:
        horizon, end_ns = Horizon(), self.segments[first - 1]["end_ns"]
        for number in range(first):
            horizon.take(self._tables(number))
        tables = horizon.beginning(end_ns) | {"functions": self._tables(0).get("functions", TABLES["functions"].arrow.empty_table())}
        for name, rows in tables.items():
            (self.path / name).mkdir(exist_ok=True)
            pq.write_table(rows, self.path / name / f"part-{BEGINNINGS + first:05d}.parquet")
        return {"index": BEGINNINGS + first, "start_ns": end_ns, "end_ns": end_ns, "rows": {name: len(rows) for name, rows in tables.items()}}


def derived(trace: Trace) -> tuple[pd.DataFrame, ...]:
    """What is made of the sums, in an order that does not depend on how."""
    sites = trace.call_sites()
    return trace_tree(trace), trace.thread_times(), sites.sort_values([*sites.columns[:3]], ignore_index=True)


def anew(trace: Trace, path: Path) -> tuple[pd.DataFrame, ...]:
    """The same of a copy of the trace that nothing was kept of."""
    derived_too = {FOLDER, *(name for name, table in TABLES.items() if table.derived)}
    shutil.copytree(trace.directory, path, ignore=lambda _, names: derived_too & set(names))
    return derived(pytrace_ebpf.open(path))


def assert_same(found: tuple[pd.DataFrame, ...], expected: tuple[pd.DataFrame, ...]) -> None:
    for one, other in zip(found, expected, strict=True):
        pd.testing.assert_frame_equal(one, other)


def assert_what_is_left_is_whole(path: Path, rng: random.Random, rows: dict[str, Any]) -> None:
    """It is read before anything is dropped, and after each of two drops."""
    start, end = rows["start_ns"] + 1, rows["end_ns"]
    rows["cuts"] = sorted({rng.randrange(start, max(start + 2, end)) for _ in range(16)} - {end})
    recording = Recording(told_early(write_trace(path / "trace", **rows)))
    count = len(recording.segments)
    first, upto = 0, max(1, count * 2 // 3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sums, "BYTES_AN_EVENT", 1 << 20)
        recording.at(first, upto).tree()
        first, upto = rng.randint(0, max(0, min(upto - 1, count // 4))), rng.randint(upto, count)
        assert_same(derived(recording.at(first, upto)), anew(recording.at(first, upto), path / "once"))
        first = rng.randint(first, min(upto - 1, count // 2))
        assert_same(derived(recording.at(first, count)), anew(recording.at(first, count), path / "twice"))


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(seeds, st.sampled_from(SCENARIOS))
@example(1025, "half")  # a thread that was known and never seen
@example(3024, "everything")  # what a thread did last was something else before the drop
def test_what_is_left_has_the_sums_of_one_derivation(tmp_path_factory: pytest.TempPathFactory, seed: int, scenario: str) -> None:
    assert_what_is_left_is_whole(tmp_path_factory.mktemp("dropping"), random.Random(seed), story(seed, scenario))


@pytest.mark.parametrize("how", LOST)
def test_so_it_has_of_a_longer_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """And states are gone on from, whatever was lost."""
    gone_on, rebase = [], Engine.rebase

    def noting(engine: Engine, before: Engine, after: Engine) -> bool:
        gone_on.append(rebase(engine, before, after))
        return gone_on[-1]

    monkeypatch.setattr(Engine, "rebase", noting)
    for seed in range(3):
        assert_what_is_left_is_whole(tmp_path / str(seed), random.Random(seed), program(seed, how, 1 + seed, 300))
    assert sum(gone_on) > 3


def busy(path: Path, seconds: int, threads: tuple[int, ...] = (7, 8, 9)) -> Recording:
    """A second a segment: calls that never return, below them some hundred that do, and one thread that waits for good from the third second on."""
    scripts = [work(tid, seconds) for tid in threads]
    scripts[-1].events, scripts[-1].sched = ([row for row in rows if row[0] < 3 * SECOND] for rows in (scripts[-1].events, scripts[-1].sched))
    events = [row for script in scripts for row in script.events if row[0] < seconds * SECOND]
    sched = sorted((row for script in scripts for row in script.sched if row[0] < seconds * SECOND), key=lambda row: row[0])
    cuts = [second * SECOND for second in range(1, seconds)]
    return Recording(told_early(write_trace(path / "trace", events=events, sched=sched, functions=functions(7), cuts=cuts, end_ns=seconds * SECOND)))


@pytest.mark.parametrize("how", ["report", "recorder"])
def test_after_a_drop_only_new_segments_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """And those of the new beginning, up to where no thread waits in the run queue that it comes from: there first one is read."""
    monkeypatch.setattr(sums, "BYTES_AN_EVENT", 1 << 20)
    recording, last = busy(tmp_path, 20), 0
    for first, upto in ((0, 8), (0, 9), (3, 10), (4, 12), (5, 13), (9, 19), (9, 20)):
        trace = recording.at(first, upto)
        found = read_of(trace)
        sums.keep_up(trace) if how == "recorder" else trace.tree()
        read = [index for name, index in found if name == "events"]
        again = [index for index in read if index < last]
        assert [index for index in read if last <= index < BEGINNINGS] == list(range(last, upto))
        assert set(again) <= {first} and len(again) <= 1
        assert [index - BEGINNINGS for index in read if index >= BEGINNINGS] in ([], [first])
        assert_same(derived(recording.at(first, upto)), anew(recording.at(first, upto), tmp_path / f"{first}-{upto}"))
        last = upto
    assert Checkpoints(pytrace_ebpf.open(recording.path)).reach == 12


@pytest.mark.parametrize("how", ["cut", "of another", "other segments", "no sums"])
def test_an_earlier_state_that_is_none_is_not_gone_on_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    monkeypatch.setattr(sums, "BYTES_AN_EVENT", 1 << 20)
    recording = busy(tmp_path, 8, (7, 8))
    recording.at(0, 7).tree()
    files = sorted((recording.path / FOLDER).iterdir())
    states = [Checkpoint.unpacked(file.read_bytes()[:-_CHECK_BYTES]) for file in files]
    state, other = states[5], states[6]
    assert state and other
    forged = {
        "cut": replace(state, saved=state.saved[:-5]),
        "of another": replace(state, saved=other.saved),
        "other segments": replace(state, place=replace(state.place, segments="0")),
        "no sums": replace(state, nodes=state.nodes[::-1]),
    }[how]
    files[5].write_bytes(forged.packed() + _check(forged.packed()))
    trace = recording.at(2, 8)
    assert_same(derived(trace), anew(recording.at(2, 8), tmp_path / "anew"))
    assert {name.split("-")[1] for name in trace.pieces(FOLDER).names()} == {f"{place:06d}" for place in range(len(trace.segments))}


def test_what_is_kept_does_not_grow_with_what_was_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sums, "BYTES_AN_EVENT", 1 << 20)
    recording, sizes = busy(tmp_path, 30), []
    for first in range(1, 20, 2):
        trace = recording.at(first, first + 10)
        trace.tree()
        files = list((recording.path / FOLDER).iterdir())
        assert len(files) == len(trace.segments) == 11
        sizes.append(sum(file.stat().st_size for file in files))
    assert max(sizes) < 2 * sizes[0]


def test_a_report_that_comes_too_late_for_a_segment_takes_nothing_from_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The recording drops what it is about to read."""
    monkeypatch.setattr(sums, "BYTES_AN_EVENT", 1 << 20)
    recording = busy(tmp_path, 8, (7, 8))
    recording.at(0, 6).tree()
    late = recording.at(2, 8)
    late.batches = late.parts = lambda *_: (_ for _ in ()).throw(TraceError("was dropped meanwhile"))  # type: ignore[method-assign, assignment]
    with pytest.raises(TraceError, match="meanwhile"):
        late.tree()
    trace = recording.at(2, 8)
    read = read_of(trace)
    trace.tree()
    assert {index for name, index in read if name == "events" and index < BEGINNINGS} <= {2, 6, 7}
