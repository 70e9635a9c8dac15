"""What the progress of a recording says: what tracing costs."""

import argparse
import io
import sys
import time
from types import SimpleNamespace

import pytest
from rich.console import Console

from pytrace_ebpf.options import recording
from pytrace_ebpf.record import waiting
from pytrace_ebpf.record.cost.cost import Price
from pytrace_ebpf.record.process.targets import Begun
from pytrace_ebpf.record.session import Status
from pytrace_ebpf.runs import recorded
from tests.conftest import PATIENCE_S


def status(seconds: float, price: Price | None) -> Status:
    return Status(seconds, 1000, 0, 0, price=price)


@pytest.mark.parametrize(
    ("price", "said", "dear"),
    [
        (Price(0.031, 0.06), "  tracing takes 3 % of the program's CPU time, 6 % of a core", False),
        (Price(0.3, 0.3), "  tracing takes 30 % of the program's CPU time, 30 % of a core; --budget bounds it", True),
        (Price(0.3, 0.3, 12, True), "  tracing takes 30 % of the program's CPU time, 30 % of a core, 12 functions left out", True),
        (Price(0.1, 0.02, 1, True), "  tracing takes 10 % of the program's CPU time, 2 % of a core, 1 function left out", False),
        (Price(0.1, 0.1, 0, True, True), "  tracing takes 10 % of the program's CPU time, 10 % of a core, paused", False),
        (Price(9.0, 0.02), "  tracing takes under 5 % of a core", False),  # of a program that does nothing
        (None, "", False),
    ],
)
def test_what_tracing_costs_is_said_and_much_is_a_warning(price: Price | None, said: str, dear: bool) -> None:
    assert recorded.cost(status(1, price)) == said
    assert recorded.is_dear(status(1, price)) == dear


@pytest.mark.parametrize("dear", [False, True])
def test_on_a_terminal_the_warning_is_in_colour(dear: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    screen = Console(file=out, force_terminal=True, width=200, color_system="standard")
    monkeypatch.setattr("rich.console.Console", lambda **_: screen)
    monkeypatch.setattr(out, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", out)
    with recorded.progress(False, "a hint") as show:
        show(status(1, Price(0.9 if dear else 0.1, 1.0)))
    assert "tracing takes" in out.getvalue()
    assert ("\x1b[33m  tracing takes" in out.getvalue()) == dear


@pytest.mark.parametrize("quiet", [False, True])
def test_the_first_lines(quiet: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    source = "usdt: '[/x-\\udcff]' " + "x" * 300
    recorded.beginning([Begun(1, source, "it will cost much")], (), quiet)
    said = sys.stderr.getvalue()
    assert said == ("" if quiet else f"tracing process 1 by {source}\nit will cost much\n")


def test_a_line_says_what_is_recorded() -> None:
    lines = {(calls, samples): recorded.line(Status(1, calls, 30, 0, samples=samples)).split() for calls in (0, 20) for samples in (0, 5)}
    tail = ["30", "scheduling", "events", "0", "lost"]
    assert lines[0, 0] == ["1.0", "s", "0", "call", "events", *tail]
    assert lines[20, 0] == ["1.0", "s", "20", "call", "events", *tail]
    assert lines[0, 5] == ["1.0", "s", "5", "samples", *tail]
    assert lines[20, 5] == ["1.0", "s", "20", "call", "events", "5", "samples", *tail]


def test_no_option_is_named_that_this_recording_would_refuse() -> None:
    words = argparse.ArgumentParser()
    recording.add_common_arguments(words)
    dear = status(1, Price(0.3, 0.3))
    assert recorded.cost(dear, recorded.cheaper(words.parse_args([]))).endswith("; --budget bounds it")
    assert recorded.cost(dear, recorded.cheaper(words.parse_args(["--sample"]))).endswith("; a lower --sample rate costs less")
    assert recorded.cost(dear, recorded.cheaper(words.parse_args(["--sample", "--source", "agent"]))).endswith("; --budget bounds it")
    assert recorded.cost(dear, recorded.cheaper(words.parse_args(["--trigger", "call f > 1s"]))).endswith("; --include and --exclude leave calls out")


def test_a_line_every_ten_seconds_says_it_too(capsys: pytest.CaptureFixture[str]) -> None:
    with recorded.progress(False, "a hint") as show:
        for second in range(1, 11):
            show(status(second, Price(0.9, 1.5)))
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "a hint"
    assert len(lines) == 2 and lines[1].endswith("0 lost  tracing takes 90 % of the program's CPU time, 150 % of a core; --budget bounds it")


class Terminal(io.StringIO):
    """A standard error that is one."""

    def isatty(self) -> bool:
        return True

    def wait_for(self, text: str, times: int = 1) -> None:
        """Until it was written so often."""
        end = time.monotonic() + PATIENCE_S
        while self.getvalue().count(text) < times:
            assert time.monotonic() < end, self.getvalue()
            time.sleep(0.001)


def test_seconds_go_on_while_nothing_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    screen, clock = Terminal(), [100.0]
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(recorded, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    with recorded.progress(False, "a hint") as show:
        show(status(1, None))
        screen.wait_for("   1.0 s")
        clock[0] += 5
        screen.wait_for("   6.0 s")


def test_that_it_begins_is_said_again_and_again_whatever_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    screen, clear = Terminal(), "\r\x1b[K"
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(recorded, "_STEP_S", 0.001)
    monkeypatch.setattr(waiting, "LONG_S", 0.0)
    with recorded.ticking("attaching", False), waiting.on("a disk"):
        screen.wait_for(f"{clear}attaching, 0 s; waiting for a disk, for 0 s", 3)
        recorded.say("a sentence")
    assert f"{clear}a sentence\n" in screen.getvalue() and screen.getvalue().endswith(clear)
    before = screen.getvalue()
    with recorded.ticking("attaching", quiet=True):
        pass
    recorded.say("another")
    assert screen.getvalue() == before + "another\n"
