"""One flipped bit anywhere in what was recorded: the trace is damaged, and says so, or the figures are the same."""

import json
import os
import random
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

import pytrace_ebpf
from pytrace_ebpf.cli import main
from pytrace_ebpf.record.output.writer import Writer
from pytrace_ebpf.trace import parts
from pytrace_ebpf.trace.schema import MANIFEST, SEGMENTS, TABLES
from tests.unit.synthetic import sample

FLIPS, SEED = int(os.environ.get("PYTRACE_FLIPS", "60")), 28


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace of three segments as a recorder writes it."""
    folder = tmp_path_factory.mktemp("flips")
    old = pytrace_ebpf.open(sample(folder / "old"))
    manifest = json.loads((folder / "old" / MANIFEST).read_text()) | {"format_version": 2, "state": "recording", "end_ns": None}
    manifest.pop("segments")
    writer = Writer(folder / "trace", manifest)
    for segment in old.segments:
        batches = {name: list(old.batches(name, segment["index"], 1 << 20)) for name, spec in TABLES.items() if not spec.derived}
        tables = {name: pa.concat_tables(some) for name, some in batches.items() if some}
        writer.segment(segment["start_ns"], segment["end_ns"], tables, {})
    writer.close({"state": "complete", "end_ns": old.end_ns})
    return folder / "trace"


def said(trace: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Exit code and figures of a report from nothing that is kept."""
    code = main.main(["report", str(trace), "--json", "--top", "0"])
    return code, capsys.readouterr().out


def test_a_flipped_bit_is_no_other_figure(recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, figures = said(shutil.copytree(recorded, tmp_path / "whole"), capsys)
    assert code == 0 and json.loads(figures)["rows"]
    rng = random.Random(SEED)
    files = sorted(path.relative_to(recorded) for path in recorded.rglob("*") if path.is_file())
    sizes = [(recorded / path).stat().st_size for path in files]
    outcomes = []
    for number in range(FLIPS):
        trace = shutil.copytree(recorded, tmp_path / "trace")
        # as often in the list and in the manifest as in all parts together
        path = Path((MANIFEST, SEGMENTS)[number // 2 % 2]) if number % 2 else rng.choices(files, sizes)[0]
        content = bytearray((trace / path).read_bytes())
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        (trace / path).write_bytes(content)
        parts._known.clear()
        code, found = said(trace, capsys)
        found = found.replace(str(trace), str(tmp_path / "whole"))
        assert code == 5 or (code, found) == (0, figures), (path, number)
        outcomes.append(code)
        shutil.rmtree(trace)
    assert outcomes.count(5) > FLIPS // 3


def test_verify_reads_everything_and_an_old_trace_opens(recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["info", str(recorded), "--verify"]) == 0 and "all of it is as it was recorded" in capsys.readouterr().out
    trace = shutil.copytree(recorded, tmp_path / "trace")
    part = max((trace / "sched").iterdir(), key=lambda path: path.stat().st_size)
    content = bytearray(part.read_bytes())
    content[len(content) // 2] ^= 1
    part.write_bytes(content)
    parts._known.clear()
    assert main.main(["info", str(trace), "--verify"]) == 5 and str(part) in capsys.readouterr().err
    assert main.main(["info", str(sample(tmp_path / "old")), "--verify"]) == 0 and "has none" in capsys.readouterr().out


def test_a_part_that_is_a_hole_of_a_terabyte_is_damaged(recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = shutil.copytree(recorded, tmp_path / "trace")
    part = next((trace / "sched").iterdir())
    content = part.read_bytes()
    with part.open("wb") as file:
        file.truncate(1 << 40)
        file.seek((1 << 40) - len(content))
        file.write(content)
    assert main.main(["report", str(trace)]) == 5 and str(part) in capsys.readouterr().err
