"""When a recording of this process counts as begun."""

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


def test_what_it_said_last_is_why_it_has_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_command, "command", lambda *words: ["/bin/sh", "-c", "echo waiting; echo 'pytrace-ebpf: this cannot be'; exit 3"])
    with pytest.raises(HostError, match=r"^this cannot be$"):
        SelfRecording(tmp_path / "trace").begin()
