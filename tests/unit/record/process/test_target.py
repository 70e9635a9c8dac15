"""What inspect() and truthful() say of live processes, of those that are no Python, and of replaced files."""

import os
import shutil
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pytrace_ebpf.errors import TargetError
from pytrace_ebpf.record.process.target import Target, inspect
from pytrace_ebpf.record.source_selection.selection import choose, truthful
from tests.unit.live_pythons import interpreters, minor_of, running

PYTHONS = interpreters()
STILL = """
import threading, time
threading.Thread(target=time.sleep, args=(100,), daemon=True).start()
print('ready', flush=True)
time.sleep(100)
"""
# Prints "ready" once two threads fight for the GIL.
FIGHT = """
import threading
def spin():
    while True: pass
threading.Thread(target=spin, daemon=True).start()
print('ready', flush=True)
spin()
"""


@pytest.fixture
def own() -> Target:
    """The Python that runs the tests."""
    return inspect(os.getpid())


@pytest.mark.parametrize("name", PYTHONS)
def test_a_live_python(name: str) -> None:
    with running(PYTHONS[name], STILL) as pid:
        target = inspect(pid)
        assert target.python_version is not None
        assert target.python_version[:2] == (3, minor_of(name))
        assert target.ppid == os.getpid()
        assert len(target.threads) == 2
        assert target.layout is not None
        assert f"python3.{minor_of(name)}" in target.binary_name
        assert target.runtime is not None
        if target.binary.debug_offsets:
            size = 64
            assert target.memory.read(target.runtime, size) == target.binary.debug_offsets[:size]


@pytest.mark.parametrize("name", PYTHONS)
def test_the_gil_range_holds_the_futex_that_a_waiting_thread_waits_on(name: str) -> None:
    with running(PYTHONS[name], FIGHT) as pid:
        target = inspect(pid)
        first, end = target.gil_range()
        assert end - first in (192, 208)
        for _ in range(100_000):
            for tid in target.threads:
                number, *arguments = Path(f"/proc/{pid}/task/{tid}/syscall").read_text().split()
                if number == "202":
                    assert first <= int(arguments[0], 16) < end
                    return
    raise AssertionError("no thread ever waited for the GIL")


def test_the_tracers_own_python(own: Target) -> None:
    assert own.python_version == sys.version_info[:3]
    assert own.executable == str(Path(sys.executable).resolve())
    assert not own.in_container


def test_a_python_whose_file_was_replaced_is_read_from_the_mapped_file(tmp_path: Path) -> None:
    name, command = next(((n, c) for n, c in PYTHONS.items() if len(c) == 1 and "pyenv" not in n), (None, [""]))
    if name is None:
        pytest.skip("no Python outside pyenv and the root filesystems: a copy would not find its library")
    copy = tmp_path / "python"
    shutil.copy(command[0], copy)
    with running([str(copy)], STILL, PYTHONHOME="/usr") as pid:
        before = inspect(pid)
        copy.unlink()
        copy.write_text("something else")
        after = inspect(pid)
    assert after == before
    assert after.executable == str(copy)


def test_a_library_that_was_deleted_is_read_from_the_mapped_file(tmp_path: Path) -> None:
    name = next((n for n in PYTHONS if "pyenv" in n), None)
    if name is None:
        pytest.skip("no pyenv Python with a libpython")
    if os.geteuid() != 0:
        pytest.skip("opening /proc/PID/map_files needs root")
    program = Path(PYTHONS[name][0]).resolve()
    library = next(program.parent.parent.glob("lib/libpython3.*.so.1.0"))
    shutil.copy(library, tmp_path)
    home = str(program.parent.parent)
    with running([str(program)], STILL, PYTHONHOME=home, LD_LIBRARY_PATH=str(tmp_path)) as pid:
        before = inspect(pid)
        assert before.binary_name == str(tmp_path / library.name)
        (tmp_path / library.name).unlink()
        after = inspect(pid)
        assert after == before
        assert Path(after.binary_file.path).read_bytes() == library.read_bytes()


@pytest.mark.parametrize(
    ("name", "sentence"), [("sleep", r"runs \S+, which is not a Python"), ("pypy3.10-c", r"runs PyPy \(\S+\), and only CPython can be traced")]
)
def test_not_a_python(name: str, sentence: str, tmp_path: Path) -> None:
    program = shutil.copy("/bin/sleep", tmp_path / name)
    process = subprocess.Popen([program, "100"])
    try:
        with pytest.raises(TargetError, match=f"process {process.pid} {sentence}"):
            inspect(process.pid)
    finally:
        process.kill()
        process.wait()


def test_a_zombie() -> None:
    process = subprocess.Popen(["true"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    with pytest.raises(TargetError, match="zombie"):
        inspect(process.pid)
    process.wait()
    with pytest.raises(TargetError, match="does not exist"):
        inspect(process.pid)


def test_a_kernel_thread() -> None:
    if Path("/proc/2/comm").read_text() != "kthreadd\n":
        pytest.skip("process 2 is not the kernel's here (a container)")
    with pytest.raises(TargetError, match="thread of the kernel"):
        inspect(2)


def test_a_thread_id_names_its_process() -> None:
    with running([sys.executable], STILL) as pid:
        thread = next(tid for tid in inspect(pid).threads if tid != pid)
        with pytest.raises(TargetError, match=f"thread of process {pid}"):
            inspect(thread)


@pytest.mark.parametrize("pid", [-1, 0, 2**22 + 1, 2**40])
def test_no_such_process(pid: int) -> None:
    with pytest.raises(TargetError, match="does not exist"):
        inspect(pid)


def test_a_process_that_ends_meanwhile_is_a_target_error() -> None:
    for _ in range(30):
        process = subprocess.Popen([sys.executable, "-S", "-c", "pass"])
        try:
            while True:
                inspect(process.pid)
        except TargetError as error:
            assert "\n" not in str(error)
        process.wait()


@pytest.mark.parametrize(
    ("version", "probes", "jit", "serves", "words"),
    [
        ((3, 9, 2), ("function__entry", "function__return"), False, True, "for every call"),
        ((3, 10, 0), (), False, False, "--with-dtrace"),
        ((3, 11, 2), ("function__entry", "function__return"), False, False, "`line` probe"),
        ((3, 11, 2), ("function__entry", "function__return", "line"), False, True, "semaphore of `line`"),
        ((3, 13, 5), ("audit", "gc__start"), False, False, "in any build"),
        ((3, 15, 2), ("function__entry", "function__return"), False, True, "repair"),
        ((3, 15, 2), ("function__entry", "function__return"), True, False, "JIT"),
        (None, ("function__entry", "function__return"), False, False, "cannot be found out"),
    ],
)
def test_truthful(own: Target, version: tuple[int, int, int] | None, probes: tuple[str, ...], jit: bool, serves: bool, words: str) -> None:
    binary = replace(own.binary, probes=dict.fromkeys(probes, ()))
    answer, sentence = truthful(replace(own, python_version=version, binary=binary, jit=jit))
    assert answer == serves
    assert words in sentence


def test_what_the_probes_do_not_serve_names_the_agent(own: Target) -> None:
    target = replace(own, python_version=(3, 12, 0), binary=replace(own.binary, probes={}))
    with pytest.raises(TargetError, match="use --source agent"):
        choose(target, "usdt", launched=False)
    assert choose(target, "auto", launched=False).source == "agent"


def test_the_jit_is_read_from_the_environment() -> None:
    name = next((n for n in PYTHONS if minor_of(n) >= 13), None)
    if name is None:
        pytest.skip("no Python 3.13 or later")
    for value, jit in (("1", True), ("0", False)):
        with running(PYTHONS[name], STILL, PYTHON_JIT=value) as pid:
            assert inspect(pid).jit == jit


def test_a_program_for_another_machine(tmp_path: Path) -> None:
    from pytrace_ebpf.record.parsing.elf import read_binary

    header = bytearray(Path(sys.executable).resolve().read_bytes())
    struct.pack_into("<H", header, 18, 183)  # e_machine = EM_AARCH64
    other = tmp_path / "python"
    other.write_bytes(header)
    with other.open("rb") as file, pytest.raises(ValueError, match="not x86-64"):
        read_binary(file)
