"""When a recording of this process counts as begun, and what is said where it does not begin."""

import re
import sys
from pathlib import Path

import pytest

from pytrace_ebpf import self_command
from pytrace_ebpf.errors import HostError
from pytrace_ebpf.self_recording import SelfRecording


@pytest.mark.parametrize("first", ["", "still waiting for the daemon, to begin recording process 7 (2 s)\\n"])
@pytest.mark.parametrize("begun", ["tracing process 7", "joined the recording of process 7, which goes on already"])
def test_it_has_begun_once_a_line_says_so(first: str, begun: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        self_command, "command", lambda *words: ["/bin/sh", "-c", f"printf '{first}{begun}\\n' >&2; trap 'exit 0' INT; while :; do sleep 0.1; done"]
    )
    recording = SelfRecording(tmp_path / "trace")
    recording.begin()
    recording._recorder.kill()  # type: ignore[union-attr] # SIGINT may be ignored here
    with pytest.raises(HostError):
        recording.end()


REFUSES = "print('a warning'); print('pytrace-ebpf: there is no room'); raise SystemExit(4)"
FAILS = "print('a warning', flush=True); {}['missing']"


@pytest.mark.parametrize(
    ("program", "said"), [(REFUSES, r"there is no room"), (FAILS, r"Traceback \(most recent call last\):\n(.|\n)*KeyError: 'missing'")]
)
def test_the_recorders_last_line_is_said_or_the_whole_traceback(program: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_command, "command", lambda *_: [sys.executable, "-c", program])
    with pytest.raises(HostError) as raised:
        SelfRecording(tmp_path / "trace").begin()
    assert re.fullmatch(said, str(raised.value))
