"""What is said where the recorder of one's own process does not begin."""

import re
import sys
from pathlib import Path

import pytest

from pytrace_ebpf import itself
from pytrace_ebpf.errors import HostError
from pytrace_ebpf.own import OwnRecording

REFUSES = "print('a warning'); print('pytrace-ebpf: there is no room'); raise SystemExit(4)"
FAILS = "print('a warning', flush=True); {}['missing']"


@pytest.mark.parametrize(
    ("program", "said"), [(REFUSES, r"there is no room"), (FAILS, r"Traceback \(most recent call last\):\n(.|\n)*KeyError: 'missing'")]
)
def test_the_recorders_last_line_is_said_or_the_whole_traceback(program: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(itself, "command", lambda *_: [sys.executable, "-c", program])
    with pytest.raises(HostError) as raised:
        OwnRecording(tmp_path / "trace").begin()
    assert re.fullmatch(said, str(raised.value))
