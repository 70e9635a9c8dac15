"""Whatever waits says for what: daemon, top and trace, where what they wait for is held up."""

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from pytrace_ebpf.daemon.api.permission import Permission
from pytrace_ebpf.record import waiting
from pytrace_ebpf.view.top.feed import Said
from tests.bpf.conftest import wait_until
from tests.bpf.test_top import Watch, watch
from tests.daemon_api import PROGRAM, RECORDER, Client, Program, opened
from tests.daemons import Daemon
from tests.hostile import PYTHON, USER

__all__ = ["watch"]  # fixture
pytestmark = [pytest.mark.bpf, pytest.mark.skipif(os.geteuid() != 0, reason="the daemon is root here")]

READER = "import parsing"
WAITS = f"{waiting.SAYS}the process without rights that reads what programs wrote"
WORD = "waits_for_its_reader"
# What execs what serves a request, after it was held up for longer than is waited silently.
LATE = "import os, sys, time; time.sleep(%f); os.execv(sys.argv[1], sys.argv[1:])" % (2 * waiting.LONG_S)


@contextmanager
def a_program_of_its_own(folder: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A Python whose file was never looked at, once it runs."""
    copy = shutil.copy(PYTHON, folder / "python3.11")
    with subprocess.Popen([copy, "-c", PROGRAM, WORD], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout and process.stdout.readline() == b"ready\n"
            yield process
        finally:
            process.kill()


@contextmanager
def readers_stopped(of: int) -> Iterator[None]:
    """Those that read for a process stand still, and more that come before they can have read anything; they go on at the end."""
    stopped, over = set[int](), threading.Event()

    def stop() -> None:
        for child in psutil.Process(of).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                if any(READER in word for word in child.cmdline()):
                    os.kill(child.pid, signal.SIGSTOP)
                    stopped.add(child.pid)

    def stop_all() -> None:
        while not over.wait(0.01):
            stop()

    stop()
    assert stopped
    stopping = threading.Thread(target=stop_all)
    stopping.start()
    try:
        yield
    finally:
        over.set()
        stopping.join()
        for pid in stopped:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def test_the_daemon_says_it_in_its_log_and_its_status(tmp_path: Path) -> None:
    running = Daemon(tmp_path, 'window = "1s"\n')
    try:
        with readers_stopped(running.process.pid), a_program_of_its_own(tmp_path) as program:
            found = list[str]()

            def is_said() -> bool:
                found.extend(running.status().get("waiting", []))
                return WAITS in (tmp_path / "log").read_text() and any(each.startswith(WAITS) for each in found)

            wait_until(is_said)
            assert program.poll() is None
        wait_until(lambda: not running.status()["waiting"])
    finally:
        running.close()


def test_top_says_it_while_it_shows_the_others(tmp_path: Path, watch: Watch) -> None:
    with a_program_of_its_own(tmp_path):
        _, child, news = watch(match=WORD)
        assert not (isinstance(first := next(news), Said) and first.sentence.startswith(WAITS))
        (tmp_path / "another").mkdir()
        with readers_stopped(child.pid), a_program_of_its_own(tmp_path / "another"):
            for each in news:
                if isinstance(each, Said) and each.sentence.startswith(WAITS):
                    return
    pytest.fail("the process that records ended")


def test_trace_says_it(public_path: Path) -> None:
    slowly = [sys.executable, "-c", LATE, *RECORDER]
    with opened(public_path, Permission(users=(str(USER),)), slowly) as where:
        program = Program()
        try:
            client = Client(where, program.pid, "trace", "--source", "agent", "--duration", "1")
            code, said = client.ended()
            assert code == 0, said
            assert f"{waiting.SAYS}the daemon, to begin recording process {program.pid}" in said
        finally:
            program.close()
