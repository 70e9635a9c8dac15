"""Sums that are kept segment by segment: together they are the whole, and a trace that grew derives only what is new."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import pytrace_ebpf
from pytrace_ebpf.cli.main import main
from pytrace_ebpf.derive import sums
from pytrace_ebpf.derive.checkpoints import FOLDER, Checkpoint, Checkpoints
from pytrace_ebpf.derive.sums import MOST_NODES
from pytrace_ebpf.trace.derived import _CHECK_BYTES, _check
from pytrace_ebpf.trace.frames import to_frame
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.trace.schema import MANIFEST, TREE
from tests.unit.derive.test_calls_properties import SCENARIOS, seeds, story
from tests.unit.derive.test_windows import trace_tree
from tests.unit.synthetic import sample, write_trace
from tests.unit.trees import grow


class Straight:
    """A trace whose tree is made in one go, of nothing that is kept."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace

    def tree(self) -> pd.DataFrame:
        return to_frame(grow(self._trace, MOST_NODES - 1), TREE)


def straight(trace: Trace) -> pd.DataFrame:
    return trace_tree(Straight(trace))  # type: ignore[arg-type]


def recorded_upto(path: Path, segments: int) -> None:
    """The manifest as it was when so many segments had been closed."""
    whole = path / "whole.json"
    if not whole.exists():
        whole.write_text((path / MANIFEST).read_text())
    manifest = json.loads(whole.read_text())
    if segments < len(manifest["segments"]):
        manifest |= {"state": "recording", "end_ns": None, "segments": manifest["segments"][:segments]}
    (path / MANIFEST).write_text(json.dumps(manifest))


def threads_told_early(path: Path) -> None:
    """As a recorder reports them: in the segment in which they were first seen."""
    (path / "threads" / "part-00002.parquet").rename(path / "threads" / "part-00000.parquet")
    manifest = json.loads((path / MANIFEST).read_text())
    rows = [segment["rows"] for segment in manifest["segments"]]
    rows[0]["threads"], rows[2]["threads"] = rows[2]["threads"], 0
    (path / MANIFEST).write_text(json.dumps(manifest))


def read_of(trace: Trace, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The segments whose events are read from here on."""
    read: list[int] = []
    batches = trace.batches

    def noting(name: str, index: int, rows: int) -> Any:
        read.append(index)
        return batches(name, index, rows)

    monkeypatch.setattr(trace, "batches", noting)
    return read


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(seeds, st.sampled_from(SCENARIOS))
def test_a_trace_that_grew_has_the_sums_of_one_read_at_once(tmp_path_factory: pytest.TempPathFactory, seed: int, scenario: str) -> None:
    path = write_trace(tmp_path_factory.mktemp("sums") / "trace", **story(seed, scenario))
    for count in range(1, len(pytrace_ebpf.open(path).segments) + 1):
        recorded_upto(path, count)
        trace = pytrace_ebpf.open(path)
        pd.testing.assert_frame_equal(trace_tree(trace), straight(trace))


def test_what_is_kept_is_not_derived_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sums, "BYTES_AN_EVENT", 1 << 20)
    path = sample(tmp_path)
    threads_told_early(path)
    for count in (1, 2, 3):
        recorded_upto(path, count)
        trace = pytrace_ebpf.open(path)
        read = read_of(trace, monkeypatch)
        trace.tree()
        assert read == [count - 1]
    assert [name.split("-")[:2] for name in Checkpoints(trace)._pieces.names()] == [["000000", "000000"], ["000001", "000001"], ["000002", "000002"]]
    again = pytrace_ebpf.open(path)
    read = read_of(again, monkeypatch)
    again.tree()
    assert read == []


def test_a_window_reads_its_own_segments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sums, "BYTES_AN_EVENT", 1 << 20)
    trace = pytrace_ebpf.open(sample(tmp_path))
    trace.tree()
    read = read_of(trace, monkeypatch)
    trace.window(1041_000_000, 1042_000_000).tree()
    assert read == [2]


def test_what_was_lost_is_known_late(tmp_path: Path) -> None:
    """A loss in the first segment that only the second one reports: the sums kept of the first are not used."""
    path = sample(tmp_path)
    recorded_upto(path, 1)
    pytrace_ebpf.open(path).tree()
    rows = {**json.loads((path / "whole.json").read_text())}
    loss = ("sched_ring", 1010_000_000, 1011_000_000, 5)
    other = write_trace(tmp_path / "other", losses=[loss])
    (path / "losses").mkdir()
    (other / "losses" / "part-00000.parquet").rename(path / "losses" / "part-00001.parquet")
    rows["segments"][1]["rows"]["losses"] = 1
    (path / "whole.json").write_text(json.dumps(rows))
    recorded_upto(path, 3)
    trace = pytrace_ebpf.open(path)
    found = trace_tree(trace)
    pd.testing.assert_frame_equal(found, straight(trace))
    assert found["unknown_ns"].sum() > 0


@pytest.mark.parametrize(
    "damage", [b"", b"{}", b'{"nodes": 1, "keys": 1, "sites": 1, "saved": 1}\nxx', b'{"nodes": -1, "keys": 1, "sites": 0, "saved": 200}\n', None]
)
def test_what_is_damaged_is_derived_again(tmp_path: Path, damage: bytes | None) -> None:
    path = sample(tmp_path)
    whole = trace_tree(pytrace_ebpf.open(path))
    names = sorted((path / FOLDER).iterdir())
    content = names[1].read_bytes()
    state = Checkpoint.unpacked(content[:-_CHECK_BYTES])
    assert state is not None
    forged = replace(state, saved=state.saved[:-1]).packed() if damage is None else damage
    names[1].write_bytes(forged + _check(forged))
    (path / "tree" / "part-00000.parquet").unlink()
    (path / "tree").rename(tmp_path / "gone")
    pd.testing.assert_frame_equal(trace_tree(pytrace_ebpf.open(path)), whole)
    pd.testing.assert_frame_equal(pytrace_ebpf.open(path).window(1041_000_000).tree(), pytrace_ebpf.open(path).window(1041_000_000).tree())


def test_where_nothing_can_be_written_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = sample(tmp_path)
    trace = pytrace_ebpf.open(path)
    monkeypatch.setattr(type(trace._files), "ours", property(lambda self: path not in (self.directory, *self.directory.parents)))
    assert len(trace.tree()) and len(trace.window(1041_000_000).tree())
    assert not (path / FOLDER).exists() and not (path / "tree").exists()


def test_a_checkpoint_comes_back_as_it_was(tmp_path: Path) -> None:
    trace = pytrace_ebpf.open(sample(tmp_path))
    trace.tree()
    for _, state in Checkpoints(trace).upto(3):
        again = Checkpoint.unpacked(state.packed())
        assert (
            again is not None
            and again.saved == state.saved
            and all(np.array_equal(getattr(again, name), getattr(state, name)) for name in ("nodes", "keys", "sites"))
        )


def test_a_report_of_a_trace_that_is_being_recorded_shows_what_is_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = sample(tmp_path)
    calls = []
    for count in (1, 2, 3):
        recorded_upto(path, count)
        assert main(["report", str(path), "--json"]) == 0
        facts = json.loads(capsys.readouterr().out)
        calls.append(facts["calls"])
        assert facts["wrong_sums"] == [] and facts["state"] == ("complete" if count == 3 else "recording")
    assert calls == sorted(set(calls))
