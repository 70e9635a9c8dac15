"""Processes of a user that match what root traces by --match, and are not what they seem."""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import pytrace_ebpf
from pytrace_ebpf.record.process import matching
from pytrace_ebpf.record.process.matching import Matching
from pytrace_ebpf.record.process.target import Target
from tests.bpf.test_targets import NOBODY, Stepping, calls_of, record, stepping, word
from tests.hostile.test_process import SWAPS, folder, running, setuid

__all__ = ["folder", "record", "setuid", "stepping", "word"]  # fixtures
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="the tracer is root here, and its targets are not")

# Writes argv[1] over its own command line, as setproctitle does.
FORGES = """
import os, sys
fields = open("/proc/self/stat").read().rpartition(")")[2].split()
with open("/proc/self/mem", "r+b", buffering=0) as memory:
    memory.seek(int(fields[45]))
    memory.write(sys.argv[1][::-1].encode() + b"\\0")
print("ready", flush=True)
input()
"""


@pytest.fixture
def sleeper(word: str) -> Iterator["subprocess.Popen[bytes]"]:
    """A program of the user's that calls itself a Python."""
    with subprocess.Popen([f"/usr/bin/python3 {word}", "60"], executable="/bin/sleep", user=NOBODY, group=NOBODY, extra_groups=[]) as process:
        yield process
        process.kill()


@pytest.fixture(autouse=True)
def _as_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """What this one starts is not left out as the tracer's own."""
    monkeypatch.setattr(matching, "is_ours", lambda pid: False)


@pytest.mark.bpf
@pytest.mark.parametrize(("source", "opened"), [("usdt", 1), ("usdt", 2), ("agent", 2)])
def test_a_match_that_becomes_a_setuid_program_is_released(
    source: str, opened: int, folder: Path, setuid: Path, word: str, stepping: Callable[..., Stepping], record: Callable
) -> None:
    python = stepping(word)
    recorder = record("--match", word, "--source", source, "--duration", "6")
    python.step()
    with running(folder, SWAPS, str(folder / "python"), str(setuid), str(opened), word) as hostile:
        recorder.finish()
        assert hostile.poll() is None
        assert "pytrace" not in Path(f"/proc/{hostile.pid}/maps").read_text()
    assert recorder.process.stderr and "Traceback" not in recorder.process.stderr.read()
    trace = pytrace_ebpf.open(recorder.directory)
    assert trace.manifest["state"] == "complete" and calls_of(trace, "step") == {python.pid: 10}


def test_a_program_that_calls_itself_a_python_is_not_traced(word: str, sleeper: "subprocess.Popen[bytes]") -> None:
    assert word.encode() in Path(f"/proc/{sleeper.pid}/cmdline").read_bytes()
    assert Matching(word).there() == []


def test_a_forged_command_line_decides_only_which_processes_are_inspected(folder: Path, word: str) -> None:
    with running(folder, FORGES, word[::-1]) as forger:
        ((pid, found),) = Matching(word).there()
        assert pid == forger.pid and isinstance(found, Target)
        assert found.process.credentials.owner == NOBODY and found.executable == str(folder / "python")


def test_each_process_is_inspected_once(folder: Path, word: str) -> None:
    looking = Matching(word)
    with running(folder, "print('ready', flush=True); input()", word) as first:
        assert [pid for pid, _ in looking.there()] == [first.pid]
        with running(folder, "print('ready', flush=True); input()", word) as second:
            assert [pid for pid, _ in looking.there()] == [second.pid]
