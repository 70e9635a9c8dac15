"""A target that becomes another program, or another user's, while the tracer, root, looks at it; and what of it root runs again."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytrace_ebpf.errors import TargetError
from pytrace_ebpf.record.agent.inject.ptrace import Stopped
from pytrace_ebpf.record.process.memory import MemoryFault
from pytrace_ebpf.record.process.pinned import Pinned
from pytrace_ebpf.record.process.target import inspect
from pytrace_ebpf.record.rights import unprivileged
from pytrace_ebpf.record.source_selection.calibrate import FibChild
from tests.bpf.conftest import COMMAND
from tests.conftest import PATIENCE_S

NOBODY = 65534
PYTHON = "/usr/bin/python3.11"
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="the tracer is root here, and its targets are not")

SETUID = '#include <unistd.h>\nint main(void) { write(1, "swapped\\n", 8); pause(); }\n'
# Becomes the setuid program argv[2] when its own file, argv[1], is opened for the argv[3]th time.
SWAPS = """
import ctypes, os, sys
libc = ctypes.CDLL(None)
watch = libc.inotify_init()
libc.inotify_add_watch(watch, sys.argv[1].encode(), 0x20)
print("ready", flush=True)
for _ in range(int(sys.argv[3])):
    os.read(watch, 16)
os.execv(sys.argv[2], [sys.argv[2]])
"""
WAITS = "print('ready', flush=True); input()"
# What lowered.start() let it keep, as a JSON object.
TELLS = """
import json, os
fields = dict(line.split(":", 1) for line in open("/proc/self/status"))
try:
    terminal = os.open("/dev/tty", os.O_RDWR)
except OSError:
    terminal = None
said = {"uids": fields["Uid"].split(), "gids": fields["Gid"].split(), "groups": fields["Groups"].split(),
    "capabilities": [int(fields[name], 16) for name in ("CapPrm", "CapEff", "CapInh", "CapAmb")],
    "no_new_privs": fields["NoNewPrivs"].strip(), "environment": sorted(os.environ), "terminal": terminal,
    "own_session": os.getsid(0) == os.getpid(), "cwd": os.getcwd(), "executable": os.readlink("/proc/self/exe"),
    "descriptors": sorted(int(name) for name in os.listdir("/proc/self/fd"))[:-1]}
print(json.dumps(said))
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder of the unprivileged user's, with a Python of his own in it."""
    with tempfile.TemporaryDirectory(prefix="hostile-") as name:
        path = Path(name)
        shutil.copy(PYTHON, path / "python")
        for each in (path, path / "python"):
            os.chown(each, NOBODY, NOBODY)
        yield path


@contextlib.contextmanager
def running(folder: Path, source: str, *args: str, user: int = NOBODY) -> "Iterator[subprocess.Popen[str]]":
    """His Python, ready."""
    process = subprocess.Popen(
        [folder / "python", "-I", "-S", "-c", source, *args], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        user=user, group=user, extra_groups=[], env={"PYTHONHOME": "/usr"},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def setuid(folder: Path) -> Path:
    """A program of root's that anybody may run with root's rights."""
    path = folder / "setuid"
    subprocess.run(["gcc", "-x", "c", "-o", path, "-"], input=SETUID, text=True, check=True)
    os.chown(path, 0, 0)
    path.chmod(0o4755)
    return path


@pytest.mark.bpf
@pytest.mark.parametrize("opened", range(1, 4))
def test_a_process_that_becomes_a_setuid_program_is_released(folder: Path, setuid: Path, tmp_path: Path, opened: int) -> None:
    with running(folder, SWAPS, str(folder / "python"), str(setuid), str(opened)) as process:
        words = [*COMMAND, "attach", "--pid", str(process.pid), "--source", "usdt", "--duration", "1", "-o", str(tmp_path / "trace")]
        tracer = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S)
        assert process.poll() is None
    assert tracer.returncode in (0, 3), tracer.stderr
    assert "Traceback" not in tracer.stderr
    if tracer.returncode == 3:  # else it was still itself when recording began
        assert f"process {process.pid}" in tracer.stderr
        assert not (tmp_path / "trace").exists()


def test_a_pinned_process_that_called_exec_is_detected(folder: Path, setuid: Path) -> None:
    with running(folder, f"import os; print('ready', flush=True); input(); os.execv({str(setuid)!r}, ['x'])") as process:
        target = inspect(process.pid)
        assert target.runtime is not None
        assert target.memory.u64(target.runtime)
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "swapped\n"
        with pytest.raises(TargetError, match="became another program"):
            target.process.check()
        with pytest.raises(TargetError, match="became another program"):
            FibChild(target)
        with pytest.raises(TargetError, match="became another program"), Stopped(target.process, process.pid):
            raise AssertionError("it stands still, to be changed")
        assert Path(f"/proc/{process.pid}/stat").read_text().rpartition(") ")[2][0] not in "tT", "it is let go of"
        with pytest.raises(MemoryFault):
            target.memory.u64(target.runtime)
        with pytest.raises(MemoryFault):
            target.memory.write(target.runtime, b"12345678")
        with pytest.raises(TargetError, match="is not a Python"):
            inspect(process.pid)


def test_a_pinned_process_that_changed_its_user_is_detected(folder: Path) -> None:
    source = f"import os; print('ready', flush=True); input(); os.setuid({NOBODY}); print('done', flush=True); input()"
    with running(folder, source, user=0) as process:
        pinned = Pinned(process.pid)
        pinned.check()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "done\n"
        with pytest.raises(TargetError, match="changed its user"):
            pinned.check()


def test_a_pinned_process_is_not_the_next_one_with_its_pid(folder: Path) -> None:
    with running(folder, WAITS) as process:
        pinned = Pinned(process.pid)
    assert pinned.has_ended()
    with pytest.raises(TargetError, match="ended"):
        pinned.check()
    with pytest.raises(OSError, match="No such process"):
        pinned.read("maps")


def test_what_is_run_again_has_the_targets_rights_and_nothing_of_roots(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "of root's")
    kept = os.open("/etc/shadow", os.O_RDONLY)
    os.set_inheritable(kept, True)
    try:
        with running(folder, WAITS) as process:
            pinned = Pinned(process.pid)
            (folder / "python").unlink()  # what has the name now is not what was pinned
            (folder / "python").write_text("#!/bin/sh\nid >/dev/null\n")
            child = unprivileged.start(pinned, ["python", "-I", "-S", "-c", TELLS], {"LD_PRELOAD": ""}, 20)
            said = json.loads(child.communicate(timeout=PATIENCE_S)[0])
    finally:
        os.close(kept)
    nobody = [str(NOBODY)] * 4
    assert said["executable"] == f"{folder / 'python'} (deleted)"
    del said["executable"]
    assert set(said.pop("environment")) <= {"LC_ALL", "LD_PRELOAD", "PATH"}
    assert said == {
        "uids": nobody, "gids": nobody, "groups": [], "capabilities": [0, 0, 0, 0], "no_new_privs": "1",
        "terminal": None, "own_session": True, "cwd": "/", "descriptors": [0, 1, 2],
    }  # fmt: skip


def test_a_confined_target_is_not_run_again(folder: Path) -> None:
    # Landlock cannot be seen from outside, but who is under it gave up gaining rights.
    confine = "import ctypes; ctypes.CDLL(None).prctl(38, 1, 0, 0, 0); "
    with running(folder, confine + WAITS) as process, pytest.raises(TargetError, match="confined"):
        FibChild(inspect(process.pid))


def test_the_cost_of_an_interpreter_that_never_answers_is_unknown(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytrace_ebpf.record.source_selection.calibrate._PATIENCE_S", 0.2)
    with running(folder, WAITS) as process:
        target = inspect(process.pid)
        with FibChild(target) as child:
            os.kill(child.pid, signal.SIGSTOP)
            with pytest.raises(TargetError, match="no answer"):
                child.ns_per_call()


@pytest.mark.parametrize("answer", ["nan", "inf", "-1", "1e300", "nonsense", "1" * 100_000, ""])
def test_an_answer_that_is_no_time_is_ignored(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, answer: str) -> None:
    liar = tmp_path / "liar.py"
    liar.write_text(f"input(); print({answer!r}, flush=True)")
    monkeypatch.setattr("pytrace_ebpf.record.source_selection.calibrate._CHILD", liar)
    with running(folder, WAITS) as process, FibChild(inspect(process.pid)) as child, pytest.raises(TargetError):
        child.ns_per_call()


def test_an_executable_whose_name_is_no_text_is_traced(folder: Path) -> None:
    name = os.fsencode(folder) + b"/python-\xff"
    (folder / "python").rename(os.fsdecode(name))
    process = subprocess.Popen([name, "-I", "-S", "-c", WAITS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={"PYTHONHOME": "/usr"})
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        target = inspect(process.pid)
        assert target.executable == f"{folder}/python-\N{REPLACEMENT CHARACTER}"
        with FibChild(target) as child:
            assert child.ns_per_call() > 0
    finally:
        process.kill()
        process.communicate()
