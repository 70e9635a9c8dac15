"""A trace directory opened: what it reads, what it refuses."""

import errno
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import pytrace_ebpf
from pytrace_ebpf.errors import TraceError
from pytrace_ebpf.trace.declared import STREAMS
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.trace.schema import CALLS, MANIFEST, TABLES
from tests.unit.synthetic import sample, write_trace


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return sample(tmp_path / "trace")


def test_every_table_opens_with_its_columns(path: Path) -> None:
    trace = pytrace_ebpf.open(path)
    for name, table in TABLES.items():
        frame = getattr(trace, name)()
        assert list(frame.columns) == [c.name for c in table.columns]
        empty = (
            "losses",
            "profile",
            "left_out",
            "cputime",
            "neighbours",
            "external_switches",
            "rivals",
            "resources",
            "profile_waits",
            "tasks",
            "requests",
            "steps",
            "operators",
            "samples",
            "stacks",
            "values",
            "statements",
            "lines",
        )
        assert len(frame) or name in (*empty, *(table.name for stream in STREAMS for table in stream.tables))


def test_only_the_columns_asked_for(path: Path) -> None:
    trace = pytrace_ebpf.open(path)
    assert list(trace.calls(columns=["wall_ns", "depth"]).columns) == ["wall_ns", "depth"]
    with pytest.raises(KeyError, match="no column wal"):
        trace.calls(columns=["wal"])


def test_rows_are_built_elsewhere_where_the_disk_has_no_room(path: Path) -> None:
    trace, before = pytrace_ebpf.open(path), set(path.iterdir())
    make = trace._maker.make

    def full(trace: Trace, into: Mapping[str, Path], beside: Sequence[Any]) -> Any:
        if path in into["calls"].resolve().parents:
            (into["calls"] / "part-00000.parquet").write_bytes(b"half of it")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return make(trace, into, beside)

    trace._maker.make = full  # type: ignore[method-assign]
    assert len(trace.calls()) == len(trace.calls()) > 0 and set(path.iterdir()) == before


def test_filters_select_what_they_say(path: Path) -> None:
    trace = pytrace_ebpf.open(path)
    calls = trace.calls()
    assert calls["call_id"].is_monotonic_increasing
    low, high = 1_010_000_000, 1_015_000_000
    overlapping = calls[(calls["start_ns"] < high) & (calls["end_ns"] > low)]
    assert trace.calls(start_ns=low, end_ns=high)["call_id"].tolist() == overlapping["call_id"].tolist()
    assert trace.calls(tid=4001, depth=1)["call_id"].tolist() == calls[(calls["tid"] == 4001) & (calls["depth"] == 1)]["call_id"].tolist()
    events = trace.events()
    expected = events[(events["tid"] == 4002) & (events["ts"] >= low) & (events["ts"] < high)]
    assert trace.events(tid=4002, start_ns=low, end_ns=high)["ts"].tolist() == expected["ts"].tolist()


def test_segments_outside_the_window_are_not_opened(path: Path) -> None:
    (path / "sched" / "part-00000.parquet").write_bytes(b"not Parquet")
    trace = pytrace_ebpf.open(path)
    assert len(trace.sched(start_ns=1_020_000_000))
    with pytest.raises(TraceError, match=r"part-00000.*damaged"):
        trace.sched()


def test_layers_are_the_calls_by_depth(path: Path) -> None:
    trace = pytrace_ebpf.open(path)
    layers = trace.layers(4001)
    calls = trace.calls(tid=4001)
    assert len(layers) == calls["depth"].max() + 1
    assert [len(layer) for layer in layers] == calls.groupby("depth").size().tolist()
    assert layers[-1].equals(layers[len(layers) - 1])
    with pytest.raises(IndexError):
        layers[len(layers)]
    assert len(trace.layers(1)) == 0


def test_later_rows_of_a_key_replace_earlier_ones(tmp_path: Path) -> None:
    rows = [(0, "a.py", "f", "f", 1, "a"), (1, "a.py", "g", "g", 2, "a"), (0, "a.py", "f", "C.f", 1, "a")]
    assert pytrace_ebpf.open(write_trace(tmp_path, functions=rows)).functions()["qualname"].tolist() == ["C.f", "g"]


def test_the_derived_calls_are_kept_and_rebuilt_when_the_trace_grew(path: Path) -> None:
    pytrace_ebpf.open(path).calls()
    kept = sorted((path / "calls").iterdir())
    before = {p: p.stat().st_mtime_ns for p in kept}
    pytrace_ebpf.open(path).calls()
    assert {p: p.stat().st_mtime_ns for p in kept} == before
    manifest = json.loads((path / MANIFEST).read_text())
    manifest["segments"].pop()
    manifest |= {"state": "recording", "end_ns": None}
    (path / MANIFEST).write_text(json.dumps(manifest))
    assert pytrace_ebpf.open(path).calls()["end_ns"].max() == 1_040_000_000
    assert not list(path.glob(".calls-*"))


def test_a_directory_we_may_not_write_to_is_read_all_the_same(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.mkdir

    def refuse(name: str, *rest: int, dir_fd: int | None = None) -> None:
        if dir_fd is not None and os.path.samestat(os.fstat(dir_fd), path.stat()):
            raise PermissionError(13, "Permission denied")
        real(name, *rest, dir_fd=dir_fd)

    monkeypatch.setattr(os, "mkdir", refuse)
    assert len(pytrace_ebpf.open(path).calls()) == 136
    assert not (path / "calls").exists()


def test_parts_of_unlisted_segments_are_ignored(path: Path) -> None:
    (path / "events" / "part-00003.parquet").write_bytes(b"PAR1 cut off")
    assert len(pytrace_ebpf.open(path).events()) == 269


def test_an_empty_trace_has_empty_tables(tmp_path: Path) -> None:
    trace = pytrace_ebpf.open(write_trace(tmp_path, manifest={"segments": [], "end_ns": None, "state": "recording"}))
    assert trace.end_ns == trace.start_ns
    assert list(trace.calls().columns) == [c.name for c in CALLS.columns]
    assert len(trace.calls()) == len(trace.events()) == len(trace.threads()) == 0


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "is not a trace: it has no manifest.json"),
        ("{", "is damaged: it is not JSON"),
        ("[]", "written by something else"),
        ('{"format": "other"}', "written by something else"),
        ('{"format": "pytrace-ebpf", "format_version": 3}', "has trace format 3"),
        ('{"format": "pytrace-ebpf", "format_version": 1}', "is damaged: its state is missing"),
    ],
)
def test_what_is_not_a_trace_is_refused_in_one_sentence(tmp_path: Path, content: str | None, said: str) -> None:
    if content is not None:
        (tmp_path / MANIFEST).write_text(content)
    with pytest.raises(TraceError, match=said) as refused:
        pytrace_ebpf.open(tmp_path)
    assert "\n" not in str(refused.value)
    assert refused.value.exit_code == 5


def test_no_directory_at_all(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="is not a directory"):
        pytrace_ebpf.open(tmp_path / "nothing")


def test_the_read_half_needs_no_bcc() -> None:
    code = "import sys; sys.modules['bcc'] = None; import pytrace_ebpf.derive.sinks.calls, pytrace_ebpf.trace.reader; pytrace_ebpf.open"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).resolve().parents[3])
