"""A stream is declared once: a made-up one, all in one folder, is recorded, read, reported and refused; and what real ones name is there."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

import pytrace_ebpf
from pytrace_ebpf.record.recorder import Recorder
from pytrace_ebpf.trace.declared import STREAMS
from pytrace_ebpf.trace.stream import Stream
from tests.unit.view.test_page import unpacked

REPOSITORY = Path(__file__).parents[3]
WORK = "sum(range(10**7)); import time; time.sleep(1)"


def run(*words: str) -> subprocess.CompletedProcess[str]:
    """pytrace-ebpf with the stream of tests/unit/beats/."""
    return subprocess.run([sys.executable, "-m", "tests.unit.beats", *words], cwd=REPOSITORY, capture_output=True, text=True)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("beats") / "trace"
    done = run("run", "--rootless", "-o", str(folder), "--beats-made-up", "100", "--", sys.executable, "-c", WORK)
    assert done.returncode == 0, done.stderr
    return folder


def test_its_rows_are_in_the_trace(recorded: Path) -> None:
    manifest = json.loads((recorded / "manifest.json").read_text())
    assert manifest["beats"] == {"tempo": 100} and manifest["options"]["beats_made_up"] == 100 and manifest["lost"] == {"beat_ring": 3}
    told = json.loads(run("info", str(recorded), "--json").stdout)
    assert told["tables"]["beats"]["rows"] > 5


def test_they_are_read_and_reported(recorded: Path) -> None:
    told = json.loads(run("report", str(recorded), "--by", "rhythm", "--json").stdout)
    rows = json.loads(run("info", str(recorded), "--json").stdout)["tables"]["beats"]["rows"]
    assert [row["beats"] for row in told["rows"]] == [rows]
    said = run("report", str(recorded), "--by", "rhythm").stdout
    assert "some beats" in said and "LOST 3 beats" in said and "nobody heard them" in said


def test_a_window_and_a_thread_can_be_asked_for(recorded: Path) -> None:
    program = (
        "import tests.unit.beats.__main__, pytrace_ebpf, sys; trace = pytrace_ebpf.open(sys.argv[1]); rows = trace.beats(); half = int(rows.ts.median());"
        "print([len(rows), len(trace.beats(end_ns=half)) + len(trace.beats(start_ns=half)), len(trace.beats(['ts'], pid=-5)),"
        "list(trace.beats(['number'])), len(trace.window(half).beats())])"
    )
    said = subprocess.run([sys.executable, "-c", program, str(recorded)], cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    rows, both, none, columns, later = json.loads(said.replace("'", '"'))
    assert (rows, none, columns) == (both, 0, ["number"]) and 0 < later < rows


def test_they_are_in_pages_and_timelines(recorded: Path) -> None:
    page, timeline = recorded.parent / "page.html", recorded.parent / "timeline"
    assert run("report", str(recorded), "--html", str(page)).returncode == 0
    assert [row["beats"] > 5 for row in unpacked(page)[0]["tables"]["rhythm"]["rows"]] == [True]
    assert run("export", str(recorded), "--to", "perfetto", "-o", str(timeline)).returncode == 0
    assert b"beats so far" in timeline.read_bytes()


def test_who_does_not_know_it_reads_the_rest(recorded: Path) -> None:
    trace = pytrace_ebpf.open(recorded)
    assert len(trace.events()) and not hasattr(trace, "beats")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("attach", "1", "--sample", "--beats-made-up"), "--beats-made-up cannot go with --sample without --source: no call is recorded"),
        (("attach", "1", "--source", "usdt", "--beats-made-up"), "--beats-made-up cannot go with --source usdt: only the agent hears them"),
        (("attach", "1", "--beats-made-up", "7", "--budget", "5%"), "--budget cannot go with --beats-made-up: beats of what is left out"),
        (("attach", "1", "--beats-of", "x"), "--beats-of has no effect without --beats-made-up; leave it out."),
        (("attach", "1", "--beats-made-up", "soon"), "--beats-made-up: soon is not a tempo; give beats a second"),
    ],
)
def test_it_is_refused_where_it_cannot_be_had(words: tuple[str, ...], said: str) -> None:
    done = run(*words)
    assert (done.returncode, done.stdout) == (2, "") and done.stderr.startswith(f"pytrace-ebpf: {said}") and done.stderr.count("\n") == 1


def test_help_pages_and_permission_follow() -> None:
    assert "--beats-made-up [TEMPO]" in run("run", "--help").stdout
    program = "import sys; sys.path.insert(0, 'scripts'); import tests.unit.beats.__main__, generate_docs; print(generate_docs.format_md(), generate_docs.architecture_md())"
    pages = subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    assert "## beats" in pages and "| `--beats-made-up`, `--beats-of` | [beats](format.md#beats) |" in pages
    program = "import tests.unit.beats.__main__; from pytrace_ebpf.daemon.api.permission import USERS_OPTIONS; print(USERS_OPTIONS)"
    allowed = subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    assert "'beats-made-up'" in allowed and "'beats-of'" in allowed


@pytest.mark.parametrize("stream", STREAMS, ids=lambda stream: stream.name)
def test_what_a_stream_names_is_there(stream: Stream) -> None:
    """A recorder and a report are named by strings, so that declaring them imports nothing."""
    if stream.recorder:
        module, _, name = stream.recorder.rpartition(".")
        assert issubclass(getattr(importlib.import_module(module), name), Recorder)
    if stream.report:
        assert callable(importlib.import_module(stream.report).found) and callable(importlib.import_module(stream.report).report)
    assert {counter.table for counter in stream.counters} <= {table.name for table in stream.tables}
    assert {*stream.brings} <= {each.name for each in STREAMS}
