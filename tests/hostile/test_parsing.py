"""What a target wrote is parsed without rights, in bounded time, and believed in its shape only: an unprivileged user's means against root."""

import contextlib
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pytrace_ebpf
from pytrace_ebpf.errors import TargetError
from pytrace_ebpf.record.cpython import frames
from pytrace_ebpf.record.cpython.qualnames import for_process
from pytrace_ebpf.record.parsing import sandbox
from pytrace_ebpf.record.parsing.sandbox import Sandbox, UnansweredError
from pytrace_ebpf.record.process.pinned import Descriptor, Pinned
from pytrace_ebpf.record.process.target import inspect
from pytrace_ebpf.record.rights.program_files import ProgramFiles
from tests.bpf.conftest import COMMAND, wait_until
from tests.conftest import PATIENCE_S

NOBODY = 65534
PYTHON = "/usr/bin/python3.11"
SOURCE = "class A:\n    def f(self): pass\n"
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="the tracer is root here, and its targets are not")

WAITS = "print('ready', flush=True); input()"
# An open frame that says it is of the file argv[1], by a code object whose qualified name nobody believes.
CALLS_ITSELF = """
import sys
code = compile("def f():\\n    print('ready', flush=True); input()\\nf()", sys.argv[1], "exec")
f = code.co_consts[0].replace(co_qualname="nothing")
exec(code.replace(co_consts=(f, *code.co_consts[1:])))
"""
# 2,000 thread states behind its own, all of the thread that there is, each with the same 99,000 frames (CPython 3.11).
FORGES = """
import ctypes, struct, threading
STATES, FRAMES, SIZE = 2000, 99000, 80
state = ctypes.pythonapi.PyThreadState_Get
state.restype = ctypes.c_void_p
mine = state()
keep = frames = ctypes.create_string_buffer(FRAMES * SIZE)
first = ctypes.addressof(frames)
for at in range(FRAMES):
    struct.pack_into("<Q", frames, at * SIZE + 32, id(state))
    struct.pack_into("<Q", frames, at * SIZE + 48, first + (at + 1) * SIZE if at + 1 < FRAMES else 0)
cframe = ctypes.create_string_buffer(struct.pack("<QQ", 0, first))
states = ctypes.create_string_buffer(STATES * 256)
for at in range(STATES):
    here = ctypes.addressof(states) + at * 256
    struct.pack_into("<Q", states, at * 256 + 8, here + 256 if at + 1 < STATES else 0)
    struct.pack_into("<Q", states, at * 256 + 56, ctypes.addressof(cframe))
    struct.pack_into("<Q", states, at * 256 + 160, threading.get_native_id())
ctypes.c_uint64.from_address(mine + 8).value = ctypes.addressof(states)
print("ready", flush=True)
import os
os.read(0, 1)
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder of the unprivileged user's, with a Python of his own and a source in it."""
    with tempfile.TemporaryDirectory(prefix="hostile-") as name:
        path = Path(name)
        shutil.copy(PYTHON, path / "python")
        (path / "source.py").write_text(SOURCE)
        for each in (path, *path.iterdir()):
            os.chown(each, NOBODY, NOBODY)
        yield path


@contextlib.contextmanager
def running(folder: Path, source: str, *args: str, python: str = "python") -> "Iterator[subprocess.Popen[bytes]]":
    """His Python, ready."""
    process = subprocess.Popen(
        [os.fsencode(folder) + b"/" + os.fsencode(python), "-I", "-S", "-c", source, *args], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        user=NOBODY, group=NOBODY, extra_groups=[], env={"PYTHONHOME": "/usr"}, cwd=folder,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def asked() -> Iterator[Sandbox]:
    """A process without rights that tries what confined_tasks.py says."""
    process = Sandbox("tests.hostile.confined_tasks")
    yield process
    process.close()


def status_of(pid: int | None) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}


def opened(path: Path) -> Descriptor:
    return Descriptor(os.open(path, os.O_RDONLY))


# -- the process without rights ------------------------------------------------------


def test_it_has_no_rights_at_all(asked: Sandbox, folder: Path) -> None:
    said = asked.ask("attempts", {}, [opened(folder / "source.py")], dict[str, str], PATIENCE_S)
    assert set(said.values()) <= {"Operation not permitted", "Bad file descriptor"}, said
    status = status_of(asked.pid)
    assert {*status["Uid"].split(), *status["Gid"].split()}.isdisjoint({"0", str(NOBODY)})
    assert status["Groups"] == ""
    assert {int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {0}
    assert (status["NoNewPrivs"], status["Seccomp"], status["Threads"]) == ("1", "2", "1")
    assert Path(f"/proc/{asked.pid}/environ").read_bytes().split(b"\0") == [b"OPENBLAS_NUM_THREADS=1", b""]
    for kind in ("net", "ipc", "mnt", "uts"):
        assert os.readlink(f"/proc/{asked.pid}/ns/{kind}") != os.readlink(f"/proc/self/ns/{kind}")  # noqa: PTH115
    assert os.listdir(f"/proc/{asked.pid}/root") == []  # noqa: PTH208
    assert os.getsid(asked.pid or 0) == asked.pid
    limits = Path(f"/proc/{asked.pid}/limits").read_text().splitlines()
    assert [line.split()[-3:-1] for line in limits if line.startswith(("Max file size", "Max processes", "Max core"))] == [["0", "0"]] * 3


def test_the_user_nobody_cannot_signal_it(asked: Sandbox, folder: Path) -> None:
    assert asked.ask("echo", {"value": 1}, [], int, PATIENCE_S) == 1
    tries = "import os, sys\ntry: os.kill(int(sys.argv[1]), 9)\nexcept PermissionError: print('ready', flush=True); input()"
    with running(folder, tries, str(asked.pid)):
        assert asked.ask("echo", {"value": 2}, [], int, PATIENCE_S) == 2


@pytest.mark.parametrize(
    ("task", "given", "why"),
    [
        ("hang", {}, "had no answer in 1 s"),
        ("end", {}, "ended meanwhile"),
        ("echo", {"value": "text"}, "answered nonsense"),
        ("echo", {"value": 1 << 70}, "answered nonsense"),
        ("nothing", {}, "reading it failed"),
        ("memory", {}, "takes more memory"),
        ("garbage", {"content": "ffffffff"}, "answered nonsense"),
        ("garbage", {"content": "02000000" + b"[[".hex()}, "answered nonsense"),
        ("garbage", {"content": "02000000" + b"[]".hex()}, "answered nonsense"),
        ("garbage", {"content": struct.pack("<I", 1 << 20).hex()}, "had no answer in 1 s"),
        ("refuse", {}, "'?[31mx'"),
    ],
)
def test_no_answer_is_a_sentence_and_the_next_question_gets_a_new_process(asked: Sandbox, task: str, given: dict[str, Any], why: str) -> None:
    assert asked.ask("echo", {"value": 1}, [], int, PATIENCE_S) == 1
    with pytest.raises(ValueError) as raised:
        asked.ask(task, given, [], int, 1)
    assert why.replace("?", "\\x1b") in str(raised.value) and str(raised.value).isprintable()
    assert asked.ask("echo", {"value": 2}, [], int, PATIENCE_S) == 2


def test_a_killed_process_is_replaced_before_the_next_question(asked: Sandbox) -> None:
    assert asked.ask("echo", {"value": 1}, [], int, PATIENCE_S, "target") == 1
    before = asked.pid
    assert before is not None
    os.kill(before, signal.SIGKILL)
    os.waitid(os.P_PID, before, os.WEXITED | os.WNOWAIT)
    assert asked.ask("echo", {"value": 2}, [], int, PATIENCE_S, "target") == 2
    assert asked.pid != before


def test_a_stopped_process_ends_with_a_killed_tracer(folder: Path) -> None:
    """Stopped by root, that is: no other user may send it signals."""
    starts = "from pytrace_ebpf.record.parsing.sandbox import parsers; parsers.start(); print(parsers.pid, flush=True); input()"
    tracer = subprocess.Popen([sys.executable, "-c", starts], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert tracer.stdout is not None
    parser = int(tracer.stdout.readline())
    wait_until(lambda: status_of(parser)["Seccomp"] == "2")
    os.kill(parser, signal.SIGSTOP)
    wait_until(lambda: status_of(parser)["State"].startswith("T"))
    tracer.kill()
    tracer.communicate()
    wait_until(lambda: _has_ended(parser))


def test_a_target_that_fails_again_and_again_is_not_parsed_any_more(asked: Sandbox) -> None:
    for _ in range(3):
        with pytest.raises(UnansweredError, match="ended meanwhile"):
            asked.ask("end", {}, [], int, PATIENCE_S, "target")
    before = asked.pid
    with pytest.raises(UnansweredError, match="again and again"):
        asked.ask("echo", {"value": 1}, [], int, PATIENCE_S, "target")
    assert asked.pid == before
    assert asked.ask("echo", {"value": 1}, [], int, PATIENCE_S, "another") == 1


# -- files that a target names -------------------------------------------------------


def test_a_target_reaches_its_own_files_also_when_it_has_ended(folder: Path) -> None:
    with running(folder, WAITS) as process:
        qualname = for_process(Pinned(process.pid), "/usr/lib/python3.11")
    for name in (str(folder / "source.py"), "source.py", f"../{folder.name}/source.py"):
        assert qualname(name, 2, "f") == "A.f"
    assert (
        qualname("<frozen os>", Path("/usr/lib/python3.11/os.py").read_text().split("    def copy(self)")[0].count("\n") + 1, "copy")
        == "_Environ.copy"
    )


def test_what_only_root_may_read_is_not_read(folder: Path) -> None:
    secret = folder / "secret.py"
    secret.write_text(SOURCE)
    secret.chmod(0o600)
    private = folder / "private"
    private.mkdir(0o700)
    (private / "source.py").write_text(SOURCE)
    (folder / "link.py").symlink_to(secret)
    (folder / "magic.py").symlink_to(f"/proc/self/fd/{os.open(secret, os.O_RDONLY)}")
    with running(folder, WAITS) as process:
        files = ProgramFiles(Pinned(process.pid))
        for name in ("secret.py", "link.py", "magic.py", "private/source.py", "/etc/shadow", "/proc/1/environ", f"/proc/{os.getpid()}/mem"):
            assert files.open(name, 1 << 20) is None, name
        assert files.open("source.py", 1 << 20) is not None
    assert status_of(os.getpid())["Uid"].split() == ["0"] * 4  # it was another thread that gave up root's rights


def test_a_root_user_of_a_chroot_stays_in_it(folder: Path) -> None:
    (folder / "etc").mkdir()
    (folder / "etc" / "passwd").symlink_to("/../../etc/passwd")
    process = subprocess.Popen(["sleep", "100"], cwd=folder)
    try:
        pinned = Pinned(process.pid)
        files = ProgramFiles(pinned)
        files._root = Descriptor(os.open(folder, os.O_PATH))
        assert files.open("/etc/passwd", 1 << 20) is None
        assert files.open("/../../etc/hostname", 1 << 20) is None
        assert files.open("/source.py", 1 << 20) is not None
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def traps(folder: Path) -> list[str]:
    """Names that a reader could hang in, or that are more than it can hold."""
    os.mkfifo(folder / "fifo.py")
    (folder / "zero.py").symlink_to("/dev/zero")
    with (folder / "huge.py").open("wb") as file:
        file.truncate(8 << 30)
    (folder / "loop.py").symlink_to("loop.py")
    return [str(folder / f"{name}.py") for name in ("fifo", "zero", "huge", "loop")] + [str(folder), "/dev/tty", "x" * 5000, "a\0b", "\udcff"]


def test_traps_have_no_names(folder: Path, traps: list[str]) -> None:
    with running(folder, WAITS) as process:
        qualname = for_process(Pinned(process.pid), "/usr/lib/python3.11")
        assert [qualname(name, 1, "f") for name in traps] == [None] * len(traps)
        assert qualname("source.py", 2, "f") == "A.f"


def test_a_source_that_is_a_bomb_has_no_names(folder: Path) -> None:
    for name, text in (
        ("deep", "(" * 100_000),
        ("wide", "a" + ".b" * 900_000),
        ("long", "def " + "f" * 1000 + "():\n" * 1500),
        ("coded", "# coding: punycode\n"),
    ):
        (folder / f"{name}.py").write_text(text)
    nested = "".join(f"{' ' * depth}def {'f' * 15000}():\n" for depth in range(90)) + " " * 90 + "pass\n"
    (folder / "nested.py").write_text(nested)
    with running(folder, WAITS) as process:
        qualname = for_process(Pinned(process.pid), "/usr/lib/python3.11")
        for name in ("deep", "wide", "long", "coded", "nested"):
            assert qualname(f"{name}.py", 1, "g") is None
    with running(folder, WAITS) as process:
        assert for_process(Pinned(process.pid), "/usr/lib/python3.11")("source.py", 2, "f") == "A.f"


@pytest.mark.bpf
def test_an_open_frame_of_a_pipe_does_not_hold_the_tracer_up(folder: Path, traps: list[str], tmp_path: Path) -> None:
    with running(folder, CALLS_ITSELF, traps[0]) as process:
        words = [*COMMAND, "attach", "--pid", str(process.pid), "--source", "usdt", "--duration", "1", "-o", str(tmp_path / "trace")]
        tracer = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S)
    assert tracer.returncode == 0, tracer.stderr
    functions = pytrace_ebpf.open(tmp_path / "trace").functions()
    assert set(functions.loc[functions["file"] == traps[0], "qualname"]) == {"<module>", "nothing"}


# -- memory and executables ----------------------------------------------------------


def test_forged_thread_states_end_in_time(folder: Path) -> None:
    with running(folder, FORGES) as process:
        target = inspect(process.pid)
        sandbox.parsers.start()
        before = sandbox.parsers.pid
        stacks = frames.open_frames(target)
        assert sandbox.parsers.pid == before  # it came to an end by itself
    assert set(stacks) == {process.pid}
    assert 0 < len(stacks[process.pid]) <= 99_000


def _break(content: bytearray, how: str) -> None:
    section_headers, count = struct.unpack_from("<Q", content, 40)[0], struct.unpack_from("<H", content, 60)[0]
    if how == "nowhere":
        struct.pack_into("<Q", content, 40, 1 << 63)
    elif how == "no names":
        struct.pack_into("<H", content, 62, 0xFFFF)
    elif how == "huge":
        for at in range(count):
            struct.pack_into("<QQ", content, section_headers + at * 64 + 24, 64, (1 << 64) - 1)
    elif how == "all strings":
        content[section_headers : section_headers + 64 * count] = b"\xff" * 64 * count


@pytest.mark.parametrize("how", ["nowhere", "no names", "huge", "all strings"])
def test_an_interpreter_with_broken_section_headers_is_a_sentence(folder: Path, how: str) -> None:
    content = bytearray((folder / "python").read_bytes())
    _break(content, how)
    (folder / "python").write_bytes(content)
    with running(folder, WAITS) as process, pytest.raises(TargetError, match=f"process {process.pid} runs .*"):
        inspect(process.pid)


@pytest.mark.bpf
def test_children_whose_names_are_no_text_are_recorded(folder: Path, tmp_path: Path) -> None:
    shutil.copy(PYTHON, os.fsencode(folder) + b"/pyth\xffn")
    # Each calls exec some moment after its fork: maybe while the tracer attaches to it as to a copy.
    words = "b'pyth\\xffn', [b'\\xff', '-I', '-S', '-c', 'import sys; sys.stdin.read()']"
    child = f"(time.sleep(n / 1000), os.execv({words}))"
    source = f"import os, time\nprint('ready', flush=True); input()\nfor n in range(8): os.fork() or {child}\ninput()"
    with running(folder, source) as process:
        command = [*COMMAND, "attach", "--pid", str(process.pid), "--source", "usdt", "-o", str(tmp_path / "trace")]
        tracer = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert tracer.stderr is not None
        assert any("tracing process" in line for line in tracer.stderr)
        assert process.stdin is not None
        process.stdin.write(b"\n")
        process.stdin.flush()
        wait_until(lambda: list(pytrace_ebpf.open(tmp_path / "trace").processes()["executable"]).count(str(folder / "pyth\ufffdn")) == 8)
        process.communicate(b"\n")
        said = tracer.communicate(timeout=PATIENCE_S)[1]
    assert tracer.returncode == 0, said


# -- the second Ctrl-C ---------------------------------------------------------------


@pytest.mark.bpf
@pytest.mark.usefixtures("none_ignored")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_ends_a_tracer_that_waits_for_an_answer(folder: Path, tmp_path: Path, number: signal.Signals) -> None:
    with running(folder, WAITS) as process:
        words = [*COMMAND, "attach", "--pid", str(process.pid), "--source", "usdt", "-o", str(tmp_path / "trace")]
        tracer, parser = subprocess.Popen(words, stderr=subprocess.PIPE), 0
        try:
            parser = _wait_for(lambda: _child_that_parses(tracer.pid))
            os.kill(parser, signal.SIGSTOP)
            _wait_for(lambda: _catches(tracer.pid, signal.SIGHUP))  # the last one that it comes to await
            tracer.send_signal(number)
            _wait_for(lambda: not _catches(tracer.pid, number))  # the first was delivered
            tracer.send_signal(number)
            assert tracer.wait(PATIENCE_S) == -number
            assert process.poll() is None
        finally:
            if parser:  # perhaps stopped before it could ask to end with the tracer
                with contextlib.suppress(ProcessLookupError):
                    os.kill(parser, signal.SIGKILL)
            tracer.kill()
            tracer.communicate()


def _catches(pid: int, number: signal.Signals) -> bool:
    return bool(int(status_of(pid)["SigCgt"], 16) >> number - 1 & 1)


def _has_ended(pid: int) -> bool:
    try:
        return status_of(pid)["State"].startswith("Z")  # as long as nobody asks for its exit code
    except OSError:
        return True


def _child_that_parses(pid: int) -> int:
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        with contextlib.suppress(OSError):
            if b"import parsing" in Path(f"/proc/{child}/cmdline").read_bytes():
                return int(child)
    return 0


def _wait_for(condition: Any) -> int:
    deadline = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    return int(found)
