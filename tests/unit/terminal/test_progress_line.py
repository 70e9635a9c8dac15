"""The line that says how far deriving is: on a terminal, from the first second on, and gone at the end."""

import io
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import rich.progress
from rich.console import Console
from rich.text import Text

import pytrace_ebpf
from pytrace_ebpf.terminal import progress
from tests.unit.synthetic import sample


def said(path: Path, terminal: bool) -> str:
    out = io.StringIO()
    trace = pytrace_ebpf.open(path)
    with progress.shown("Reading", Console(file=out, force_terminal=terminal, width=80)) as trace.progress:
        trace.waits()
        trace.tree()
    return out.getvalue()


def test_slow_work_is_shown_on_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "AFTER_S", 0.0)
    text = said(sample(tmp_path), terminal=True)
    assert "Rebuilding calls" in text and text.endswith("\x1b[2K")  # the line is erased


def test_without_a_known_total_no_share_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    made, lines = [], []

    class Line(rich.progress.Progress):
        def start(self) -> None:
            """Nothing is drawn."""

        def add_task(self, *words: Any, **how: Any) -> Any:
            made.append(self)
            return super().add_task(*words, **how)

    monkeypatch.setattr(rich.progress, "Progress", Line)
    with progress.shown("Reading", Console(file=io.StringIO(), force_terminal=True, width=80)) as tell:
        for what, share in (("Rebuilding", 0.25), ("Summing", None), ("Rebuilding", 0.5)):
            tell(what, share)
            (task,) = made[-1].tasks
            lines.append((task.description, task.total, task.completed))
    assert lines == [("Rebuilding", 1.0, 0.25), ("Summing", None, 0), ("Rebuilding", 1.0, 0.5)]


def test_a_pipe_is_no_terminal_whatever_force_color_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "AFTER_S", 0.0)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr(sys, "stderr", out := io.StringIO())
    with progress.shown("Reading") as report, progress.turns(1) as begin:
        report("Reading", 0.5)
        begin("a", "")
    assert out.getvalue() == ""


def test_quick_work_is_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "AFTER_S", 1000.0)
    assert said(sample(tmp_path), terminal=True).strip() == ""


def test_without_a_terminal_nothing_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "AFTER_S", 0.0)
    assert said(sample(tmp_path), terminal=False) == ""


@pytest.mark.parametrize("terminal", [True, False])
def test_turns_keep_a_line_of_each(terminal: bool) -> None:
    out = io.StringIO()
    with progress.turns(2, Console(file=out, force_terminal=terminal, width=80, legacy_windows=False)) as begin:
        begin("a, repeat 1 of 1", "2 runs")
        begin("b, repeat 1 of 1", "1/2  a  1.00 s   about 1.00s left")
        begin("", "2/2  b  1.00 s")
    kept = [line.rstrip() for line in Text.from_ansi(out.getvalue()).plain.splitlines()]
    assert [line for line in kept if "repeat" not in line and line] == ["2 runs", "1/2  a  1.00 s   about 1.00s left", "2/2  b  1.00 s"] or terminal
    assert ("repeat" in out.getvalue()) <= terminal


def test_the_line_is_gone_before_anything_is_printed(tmp_path: Path) -> None:
    """A command on a terminal, which the line of progress shares with what is printed."""
    program = f"from pytrace_ebpf.cli import main; from pytrace_ebpf.terminal import progress; progress.AFTER_S = 0.0; main.main(['report', {str(sample(tmp_path / 'trace'))!r}])"
    ours, theirs = os.openpty()
    with subprocess.Popen([sys.executable, "-c", program], stdout=theirs, stderr=theirs, stdin=theirs, env={**os.environ, "TERM": "xterm"}):
        os.close(theirs)
        said = b""
        with suppress(OSError):  # its end
            while part := os.read(ours, 1 << 16):
                said += part
    os.close(ours)
    before, _, after = said.partition(b"Threads were at work")
    assert b"Re" in before and before.rpartition(b"\n")[2].replace(b"\x1b[1m", b"").endswith(b"\x1b[2K")
    assert b"Rebuilding" not in after and b"by self time" in after
