"""How processes ended: in `processes`, in the report, in the last line of attach."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import pytrace_ebpf
from tests.bpf.conftest import COMMAND, Recorder
from tests.conftest import PATIENCE_S

WAITS = "import sys, os, signal; print('ready', flush=True); sys.stdin.readline(); "
EATS = WAITS + "a = []\nwhile True: a.append(bytearray(1 << 20))"
LIMIT = 96 << 20
GROUPS = (Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup"))


@pytest.fixture
def group() -> Iterator[Path]:
    """A control group with little memory."""
    place, name = next(
        ((folder, file) for folder, file in zip(GROUPS, ("memory.limit_in_bytes", "memory.max"), strict=True) if folder.is_dir()), (None, "")
    )
    if place is None or (name == "memory.max" and "memory" not in (place / "cgroup.subtree_control").read_text()):
        pytest.skip("no control group of memory can be made here")
    folder = place / f"pytrace-ebpf-test-{os.getpid()}"
    try:
        folder.mkdir()
        (folder / name).write_text(str(LIMIT))
    except OSError as error:
        pytest.skip(f"no control group of memory can be made here ({error})")
    yield folder
    folder.rmdir()


def started(program: str, group: Path | None = None) -> "subprocess.Popen[str]":
    joins = (lambda: (group / "cgroup.procs").write_text(str(os.getpid()))) if group else None
    process = subprocess.Popen(["/usr/bin/python3.11", "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, preexec_fn=joins)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


def go(process: "subprocess.Popen[str]") -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.close()
    process.wait(PATIENCE_S)


def said(recorder: Recorder) -> str:
    """The last line of attach."""
    assert recorder.process.stderr is not None
    lines = recorder.process.stderr.read().splitlines()
    recorder.finish()
    return lines[-1]


def report(trace: Path) -> str:
    return subprocess.run([*COMMAND, "report", str(trace)], capture_output=True, text=True, check=True, env={**os.environ, "COLUMNS": "200"}).stdout


HOW = pytest.mark.parametrize("how", [("--source", "usdt"), ("--source", "agent"), ("--sample",)], ids=["usdt", "agent", "sample"])


@HOW
def test_that_the_kernel_killed_it_for_want_of_memory_is_said_first(how: tuple[str, ...], group: Path, attach: Callable[..., Recorder]) -> None:
    process = started(EATS, group)
    recorder = attach(process.pid, *how)
    go(process)
    assert process.returncode == -signal.SIGKILL
    sentence = f"Process {process.pid} (python3.11) was killed by the kernel: out of memory (its control group's limit is 96 MiB)"
    assert said(recorder) == sentence
    row = pytrace_ebpf.open(recorder.directory).processes().set_index("pid").loc[process.pid]
    assert (row["exit_signal"], row["oom_killed"], row["memory_limit_bytes"]) == (signal.SIGKILL, True, LIMIT)
    assert " ".join(report(recorder.directory).split()).startswith(sentence)


@HOW
def test_so_it_is_of_a_program_that_was_started_and_of_its_child(how: tuple[str, ...], group: Path, run: Callable[..., tuple]) -> None:
    program = (
        "import os\nif pid := os.fork(): os.waitpid(pid, 0)\na = []\nwhile True: a.append(bytearray(1 << 20))"  # the child first, then its creator
    )
    enters = f'echo 0 > {group}/cgroup.procs; exec "$@"'
    directory, ended = run(["sh", "-c", enters, "sh", "/usr/bin/python3.11", "-c", program], *how)
    assert ended.returncode == 128 + signal.SIGKILL
    rows = pytrace_ebpf.open(directory).processes().sort_values("start_ns")
    assert list(rows["oom_killed"]) == [True, True] and list(rows["memory_limit_bytes"]) == [LIMIT, LIMIT]
    names = ", ".join(f"{pid} (python3.11)" for pid in sorted(rows["pid"]))
    killed = f"Processes {names} were killed by the kernel: out of memory (their control group's limit is 96 MiB)"
    assert " ".join(report(directory).split()).startswith(f"{killed}. ")
    assert ended.stderr.splitlines()[-1] == killed


@pytest.mark.parametrize(
    ("does", "code", "number", "words"),
    [
        ("sys.exit(3)", 3, 0, "ended with exit code 3"),
        ("", 0, 0, "ended with exit code 0"),
        ("os.kill(os.getpid(), signal.SIGTERM)", None, signal.SIGTERM, "was ended by signal 15 (SIGTERM)"),
        ("import threading; threading.Thread(target=os._exit, args=(4,)).start(); signal.pause()", 4, 0, "ended with exit code 4"),
    ],
    ids=["returns a code", "returns", "is killed", "ends from a thread"],
)
def test_how_it_ended(does: str, code: int | None, number: int, words: str, attach: Callable[..., Recorder]) -> None:
    process = started(WAITS + does)
    recorder = attach(process.pid, "--source", "usdt")
    go(process)
    assert said(recorder) == f"Process {process.pid} (python3.11) {words}"
    row = pytrace_ebpf.open(recorder.directory).processes().set_index("pid").loc[process.pid].astype(object)
    assert (row["exit_code"] if code is not None else None, row["exit_signal"], row["oom_killed"]) == (code, number, False)
    assert words in report(recorder.directory)


def test_children_that_end_at_once_have_their_ends(run: Callable[..., tuple]) -> None:
    program = "import os\nfor code in (5, 6, 7):\n    if not (pid := os.fork()): os._exit(code)\n    os.waitpid(pid, 0)"
    directory, ended = run(["/usr/bin/python3.11", "-c", program], "--source", "agent")
    assert ended.returncode == 0 and "exit code" not in ended.stderr
    processes = pytrace_ebpf.open(directory).processes()
    assert sorted(processes["exit_code"]) == [0, 5, 6, 7] and processes["end_ns"].notna().all()


def test_what_is_known_without_ebpf(tmp_path: Path) -> None:
    words = [*COMMAND, "run", "--rootless", "-q", "-o", str(tmp_path / "trace"), "--", sys.executable, "-c", "raise SystemExit(9)"]
    assert subprocess.run(words, capture_output=True, timeout=PATIENCE_S).returncode == 9
    row = pytrace_ebpf.open(tmp_path / "trace").processes().iloc[0].astype(object)
    assert (row["exit_code"], row["exit_signal"]) == (9, 0) and row[["oom_killed"]].isna().all()
