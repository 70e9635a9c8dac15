"""How a trace ends that may not grow on: at its size, on a disk that others fill, where writing fails; it is whole each time."""

import errno
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pytest

import pytrace_ebpf
from pytrace_ebpf.errors import UsageError
from pytrace_ebpf.record.output.description import new_manifest
from pytrace_ebpf.record.output.directory import Output
from pytrace_ebpf.record.output.writer import Writer
from tests.unit.synthetic import table_of

SECOND = 1_000_000_000


def manifest() -> dict[str, Any]:
    counted = {"sources": [], "events": {}, "lost": {}, "cost": {}}
    return new_manifest(0, {"pid": 1, "command": "", "executable": "", "python_version": None}, ["test"], {}) | counted


def segment(number: int) -> dict[str, pa.Table]:
    """1,000 rows of a second, of at least some kB."""
    rows = [(number * SECOND + row * 7919 % 1000, 1, 1, row % 2, row % 13, row * 31 % 977, row) for row in range(1000)]
    return {"events": table_of("events", rows)}


def written(path: Path, count: int, **asked: Any) -> Writer:
    """A trace of so many segments."""
    writer = Writer(path, manifest(), **asked)
    for number in range(count):
        writer.segment(number * SECOND, (number + 1) * SECOND, segment(number), {})
    writer.close({"state": "complete", "end_ns": count * SECOND})
    return writer


def test_nothing_ends_a_trace_that_has_room(tmp_path: Path) -> None:
    writer = written(tmp_path / "trace", 3, max_size=1 << 30)
    assert writer.full is None and not writer.failed
    trace = pytrace_ebpf.open(tmp_path / "trace")
    assert trace.manifest["ended"] is None and len(trace.events()) == 3000
    assert sorted(each.name for each in (tmp_path / "trace").iterdir() if each.is_file()) == ["manifest.json", "segments.jsonl"]


def test_at_its_size_a_trace_is_full_and_what_was_handed_over_is_written(tmp_path: Path) -> None:
    writer = written(tmp_path / "trace", 3, max_size=1000)
    assert writer.full is not None and "--max-size" in writer.full and not writer.failed
    trace = pytrace_ebpf.open(tmp_path / "trace")
    assert trace.manifest["ended"] == writer.full and len(trace.events()) == 3000


@pytest.mark.parametrize(
    ("free", "full"), [([1 << 40] * 9, False), ([2000] * 9, True), ([1 << 40, 1 << 40, 1 << 20], True), ([1 << 40, 300 << 20], False)]
)
def test_without_a_size_half_of_what_is_free_is_and_something_is_left_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: list[int], full: bool
) -> None:
    size = 1 << 42 if free[0] > 2000 else 4000
    left = iter(free)
    last = free[-1]
    monkeypatch.setattr(Output, "free", lambda self: (next(left, last), size))
    assert (written(tmp_path / "trace", 4).full is not None) == full


def test_a_disk_that_is_nearly_full_is_not_begun_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Output, "free", lambda self: (100 << 20, 1 << 40))
    with pytest.raises(UsageError, match="105 MB are free"):
        Writer(tmp_path / "trace", manifest())
    assert not (tmp_path / "trace").exists()
    written(tmp_path / "trace", 1, max_size=1 << 20)


@pytest.mark.parametrize("at", [0, 1, 2])
def test_what_was_written_before_a_failure_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    create = Output.create

    def fail(self: Output, folder: str, name: str) -> BinaryIO:
        file = create(self, folder, name)
        if name == f"part-{at:05}.parquet":
            file.close()
            raise OSError(errno.ENOSPC, "No space left on device")
        return file

    monkeypatch.setattr(Output, "create", fail)
    writer = written(tmp_path / "trace", 4)
    assert writer.failed and writer.full == "the trace could not be written any further (No space left on device)"
    trace = pytrace_ebpf.open(tmp_path / "trace")
    assert trace.manifest["state"] == "complete" and trace.manifest["ended"] == writer.full
    assert len(trace.segments) == at and trace.end_ns == at * SECOND and len(trace.events()) == 1000 * at


@pytest.mark.parametrize("can_take_back", [True, False])
def test_a_segment_that_stays_listed_keeps_its_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_take_back: bool) -> None:
    """As where its directory becomes read-only between the list and the manifest: the one can be written, the other not, and then neither."""
    replace = Output.replace

    def refuse(*_: Any) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    def fail(self: Output, name: str, content: bytes) -> None:
        if (self.path / "events" / "part-00001.parquet").exists():
            refuse()
        replace(self, name, content)

    monkeypatch.setattr(Output, "replace", fail)
    if not can_take_back:
        monkeypatch.setattr("pytrace_ebpf.record.output.journal.os.ftruncate", refuse)
    writer = written(tmp_path / "trace", 3)
    whole = 1 if can_take_back else 2
    assert writer.failed and writer.segments == whole
    assert len(pytrace_ebpf.open(tmp_path / "trace").events()) == 1000 * whole


def test_a_trace_that_comes_to_nothing_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    for path in (tmp_path / "trace", tmp_path / "own"):
        Writer(path, manifest()).abandon()
    assert [each.name for each in tmp_path.rglob("*")] == ["own"]
