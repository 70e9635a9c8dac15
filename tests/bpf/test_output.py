"""Files on disk: the trace belongs to the user who called sudo; and what a full disk does to a recording."""

import os
import pwd
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import pytrace_ebpf
from tests.bpf.conftest import COMMAND
from tests.conftest import PATIENCE_S


def test_the_program_and_the_trace_belong_to_the_invoking_user(public_path: Path) -> None:
    user = pwd.getpwnam("nobody")
    os.chown(public_path, user.pw_uid, user.pw_gid)
    program = "import os; print(os.getuid(), os.getgid(), os.environ['USER'])"
    ended = subprocess.run(
        [*COMMAND, "run", "-o", str(public_path / "trace"), "--", "/usr/bin/python3.11", "-c", program],
        env=os.environ | {"SUDO_UID": str(user.pw_uid), "SUDO_GID": str(user.pw_gid)},
        capture_output=True, text=True, timeout=PATIENCE_S,
    )  # fmt: skip
    assert ended.stdout.split() == [str(user.pw_uid), str(user.pw_gid), "nobody"], ended.stderr
    written = [public_path / "trace", *(public_path / "trace").rglob("*")]
    assert {path.stat().st_uid for path in written} == {user.pw_uid}
    assert {stat.S_IMODE(path.stat().st_mode) for path in written} == {0o700, 0o600}
    assert len(pytrace_ebpf.open(public_path / "trace").functions())


@contextmanager
def small_disk(at: Path, size: str) -> Iterator[Path]:
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(at)], check=True)
    try:
        yield at
    finally:
        subprocess.run(["umount", "-l", str(at)], check=True)


def test_a_full_disk_ends_the_recording_in_one_sentence_and_the_program_goes_on(tmp_path: Path) -> None:
    with small_disk(tmp_path, "64k"):
        ended = subprocess.run(
            [*COMMAND, "run", "-q", "--max-size", "1G", "-o", str(tmp_path / "trace"), "--", "/usr/bin/python3.11", "-c", "import json, asyncio, unittest; exit(7)"],
            capture_output=True, text=True, timeout=PATIENCE_S,
        )  # fmt: skip
        trace = pytrace_ebpf.open(tmp_path / "trace")
        assert trace.manifest["state"] == "complete" and "No space left" in trace.manifest["ended"]
        assert len(trace.events()) == sum(segment["rows"]["events"] for segment in trace.segments)
    assert ended.returncode == 7
    assert ended.stderr.count("\n") == 1 and "No space left" in ended.stderr, ended.stderr


# Calls until a file is there, so that whatever ends a recording comes before.
_UNTIL = """
import os, sys
def fib(n): return n if n < 2 else fib(n - 1) + fib(n - 2)
print("ready", flush=True)
while not os.path.exists(sys.argv[1]): fib(16)
sys.exit(9)
"""


def test_what_was_written_before_the_disk_was_full_is_a_whole_trace(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    with small_disk(tmp_path / "disk", "9m") as disk:  # several seconds, of which the first is whole before
        program = subprocess.Popen(["/usr/bin/python3.11", "-c", _UNTIL, tmp_path / "end"], stdout=subprocess.PIPE)
        assert program.stdout and program.stdout.readline() == b"ready\n"
        words = ["attach", "--pid", str(program.pid), "--source", "agent", "--max-size", "1G", "-o", str(disk / "trace")]
        ended = subprocess.run([*COMMAND, *words], capture_output=True, text=True, timeout=PATIENCE_S)
        (tmp_path / "end").touch()
        assert program.wait() == 9
        assert ended.returncode == 4 and "No space left" in ended.stderr, ended.stderr
        trace = pytrace_ebpf.open(disk / "trace")
        assert trace.segments and trace.end_ns == trace.segments[-1]["end_ns"]
        assert len(trace.events()) == sum(segment["rows"]["events"] for segment in trace.segments)


@pytest.mark.parametrize("source", ["usdt", "agent"])
def test_at_its_size_a_recording_ends_and_the_program_does_not(tmp_path: Path, source: str) -> None:
    words = ["run", "--source", source, "--max-size", "100k", "-o", str(tmp_path / "trace")]
    tracer = subprocess.Popen(
        [*COMMAND, *words, "--", "/usr/bin/python3.11", "-c", _UNTIL, str(tmp_path / "end")],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert tracer.stderr is not None
    said = "".join(iter(tracer.stderr.readline, "the program goes on untraced\n"))
    assert "has reached 0.1 MB (--max-size)" in said
    (tmp_path / "end").touch()
    tracer.communicate(timeout=PATIENCE_S)
    assert tracer.returncode == 9
    trace = pytrace_ebpf.open(tmp_path / "trace")
    assert trace.manifest["state"] == "complete" and "--max-size" in trace.manifest["ended"]
    assert len(trace.calls())
    assert "ENDED EARLY" in subprocess.run([*COMMAND, "info", str(tmp_path / "trace")], capture_output=True, text=True, check=True).stdout
