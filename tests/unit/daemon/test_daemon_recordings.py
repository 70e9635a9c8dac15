"""Recordings of rules: which traces came of them is said, and the oldest go."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from pytrace_ebpf.daemon import recordings as module
from pytrace_ebpf.daemon.configuration import Configuration
from pytrace_ebpf.daemon.recordings import Recordings
from pytrace_ebpf.daemon.retention import Clock, Retention
from pytrace_ebpf.errors import HostError
from tests.conftest import PATIENCE_S

SIZE = 400_000  # bytes of a trace
# Writes two traces, as a flight recorder does, and goes on until Ctrl-C.
ATTACH = f"""
for output; do :; done
trap 'exit 0' INT
for name in "$output" "$output-2"; do mkdir "$name"; head -c {SIZE} /dev/zero >"$name/part"; echo >"$name/manifest.json"; done
while :; do sleep 0.05; done
"""


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Recordings]:
    monkeypatch.setattr(module.self_command, "command", lambda *words: ["env", "--default-signal=INT", "/bin/sh", "-c", ATTACH, *words])
    recordings = Recordings(Configuration(recordings=tmp_path / "r", max_recordings=1, max_bytes=5 * SIZE // 2), Clock())
    yield recordings
    recordings.close()


def told(recordings: Recordings, many: int) -> Sequence[str]:
    """The next so many sentences."""
    said: list[str] = []
    end = time.monotonic() + PATIENCE_S
    while len(said) < many and time.monotonic() < end:
        said += recordings.take_said()
        time.sleep(0.01)
    return said


def test_each_trace_is_said_and_the_oldest_go_but_for_those_that_are_written(made: Recordings, tmp_path: Path) -> None:
    assert made.status()["bytes"] == 0
    (tmp_path / "r").mkdir(mode=0o700)
    (tmp_path / "r" / "notes").mkdir()
    (tmp_path / "r" / "20200101-000000-7").mkdir()
    made.begin(11, ())
    output = made.status()["going"]["11"]
    assert told(made, 2) == [f"a trace of process 11 is being written: {output}{suffix}" for suffix in ("", "-2")]
    assert made.status()["traces"] == {"11": [output, f"{output}-2"]}
    made.begin(12, ())
    assert (made.status()["refused"], made.status()["begun"], made.status()["removed"]) == (1, 1, 1), "that of 2020 is too old"
    made.close()
    assert made.take_said() == [f"the recording of process 11 is over: 2 traces, the last in {output}-2"]
    made.begin(13, ())
    told(made, 2)
    made._tidy_at = 0
    assert not made.take_said()
    going = made.status()["going"]["13"]
    assert {path.name for path in (tmp_path / "r").iterdir()} == {"notes", *(f"{Path(going).name}{suffix}" for suffix in ("", "-2"))}
    assert made.status()["bytes"] >= 2 * SIZE


def test_a_disk_that_is_almost_full_gets_no_recording(made: Recordings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Retention, "has_room", lambda self, size: False)
    with pytest.raises(HostError, match=f"process 11 is not recorded: less than a twentieth of the disk of {tmp_path / 'r'} is free"):
        made.begin(11, ())
    assert made.status()["begun"] == 0
