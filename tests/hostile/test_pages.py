"""A user's pages that never come (page_server.py), in the memory of a process that root's tracer looks at, or of one that it does not even know.

The kernel lets nobody fork while it places uprobes and waits for such a user, and who waits for a page cannot be killed: so these run in an
emulated machine (make test-vm), where nothing but that machine can stand still.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pytrace_ebpf.record.kernel import page_servers
from tests.bpf.conftest import COMMAND
from tests.conftest import PATIENCE_S, Target

NOBODY = 65534
SERVER = Path(__file__).with_name("page_server.py")
RESULTS = Path("/results")
# Forks on and on, and says how often and how long the longest took, in ms, once its input is closed.
FORKS = """
import os, select, time
count, longest = 0, 0.0
print("ready", flush=True)
while not select.select([0], [], [], 0.01)[0]:
    began = time.monotonic()
    child = os.fork()
    if not child:
        os._exit(0)
    longest = max(longest, time.monotonic() - began)
    os.waitpid(child, 0)
    count += 1
print(count, round(longest * 1000), flush=True)
"""
pytestmark = [pytest.mark.emulated, pytest.mark.bpf]


class Forks:
    """Somebody else's forks meanwhile."""

    def __init__(self) -> None:
        self._process = subprocess.Popen([sys.executable, "-c", FORKS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"

    def end(self) -> tuple[int, int]:
        """How many there were, and ms of the longest."""
        count, longest = self._process.communicate(timeout=PATIENCE_S)[0].split()
        return int(count), int(longest)


@contextmanager
def pages(kind: str) -> Iterator[int]:
    """The user's process that has such pages."""
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", str(SERVER), kind], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
        user=NOBODY, group=NOBODY, extra_groups=[], start_new_session=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        word, pid = process.stdout.readline().split()
        assert word == "ready"
        yield int(pid)
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # who serves: the kernel ends what waits for it
        process.wait(PATIENCE_S)


@pytest.fixture
def forks() -> Iterator[Callable[[], tuple[int, int]]]:
    """Ends them; they begin at once."""
    begun = Forks()
    yield begun.end


def attach(*words: str) -> tuple["subprocess.CompletedProcess[str]", float]:
    """`attach`, to its end, and how long it took."""
    began = time.monotonic()
    done = subprocess.run([*COMMAND, "attach", *words], capture_output=True, text=True, timeout=PATIENCE_S)
    return done, time.monotonic() - began


def note(request: pytest.FixtureRequest, **figures: object) -> None:
    """A figure for who asks, of a test that asserts none."""
    with (RESULTS / "figures.jsonl").open("a") as file:
        print(json.dumps({"test": request.node.name, "kernel": os.uname().release, **figures}), file=file)


def nothing_stuck() -> bool:
    """Whether no process of root's waits for such a page."""
    return not [each for each in page_servers.stuck() if Path(f"/proc/{each.pid}").stat().st_uid == 0]


@pytest.mark.parametrize("options", [("--source", "agent"), ("--source", "usdt"), ("--sample",), ()], ids=lambda options: "-".join(options) or "auto")
def test_an_interpreter_whose_memory_never_comes_holds_nobody_up(
    tmp_path: Path, forks: Callable[[], tuple[int, int]], options: tuple[str, ...], request: pytest.FixtureRequest
) -> None:
    with pages("runtime") as pid:
        done, seconds = attach("--pid", str(pid), "--duration", "1", "-o", str(tmp_path / "trace"), *options)
        assert nothing_stuck()
        count, longest = forks()
    note(request, seconds=seconds, forks=count, longest_ms=longest, said=done.stderr)
    assert done.returncode in (0, 3), done.stderr  # by probes there is nothing that has to be read
    assert done.returncode == 3 or "agent" not in options
    assert "Traceback" not in done.stderr
    assert count


@pytest.mark.parametrize("options", [("--source", "agent"), ("--source", "usdt"), ("--sample",)], ids="-".join)
def test_memory_that_is_there_and_gone_again_holds_nobody_up(
    tmp_path: Path, forks: Callable[[], tuple[int, int]], options: tuple[str, ...], request: pytest.FixtureRequest
) -> None:
    with pages("flicker") as pid:
        done, seconds = attach("--pid", str(pid), "--duration", "1", "-o", str(tmp_path / "trace"), *options)
        assert nothing_stuck()
        count, longest = forks()
    note(request, seconds=seconds, forks=count, longest_ms=longest, said=done.stderr)
    assert done.returncode in (0, 3), done.stderr
    assert "Traceback" not in done.stderr
    assert count


def test_who_holds_his_own_memory_map_does_not_stop_the_forks_of_the_host(
    target: Callable[..., Target], tmp_path: Path, forks: Callable[[], tuple[int, int]], request: pytest.FixtureRequest
) -> None:
    innocent = target("fib", "--wait")
    with pages("holder") as pid:
        done, seconds = attach("--pid", str(innocent.pid), "--source", "usdt", "--duration", "1", "-o", str(tmp_path / "trace"))
        count, longest = forks()
    note(request, seconds=seconds, forks=count, longest_ms=longest, said=done.stderr)
    assert done.returncode == 4, done.stderr
    assert f"process {pid} of user nobody holds its memory map" in done.stderr
    assert count


def test_who_holds_it_once_probes_are_there_is_disconnected_when_they_go(
    target: Callable[..., Target], tmp_path: Path, forks: Callable[[], tuple[int, int]], request: pytest.FixtureRequest
) -> None:
    innocent = target("fib", "--wait")
    tracer = subprocess.Popen(
        [*COMMAND, "attach", "--pid", str(innocent.pid), "--source", "usdt", "-o", str(tmp_path / "trace")], stderr=subprocess.PIPE, text=True
    )
    assert tracer.stderr is not None
    assert tracer.stderr.readline().startswith("tracing process")
    with pages("holder") as pid:
        while page_servers.who_holds() is None:
            time.sleep(0.05)
        began = time.monotonic()
        tracer.send_signal(signal.SIGINT)
        said = tracer.communicate(timeout=PATIENCE_S)[1]
        seconds = time.monotonic() - began
        count, longest = forks()
    note(request, seconds=seconds, forks=count, longest_ms=longest, said=said)
    assert tracer.returncode == 0, said
    assert f"process {pid} of user nobody" in said
    assert "it was disconnected" in said
    assert count


def test_who_comes_to_hold_it_while_they_are_placed_is_disconnected(
    target: Callable[..., Target], tmp_path: Path, forks: Callable[[], tuple[int, int]], request: pytest.FixtureRequest
) -> None:
    innocent = target("fib", "--wait")
    # As if he had come between the look and the kernel's turn.
    blind = "from pytrace_ebpf.record.kernel import page_servers; page_servers.who_holds = lambda: None; from pytrace_ebpf.cli.main import main; raise SystemExit(main())"
    with pages("holder") as pid:
        while page_servers.who_holds() is None:
            time.sleep(0.05)
        began = time.monotonic()
        words = [sys.executable, "-c", blind, "attach", "--pid", str(innocent.pid), "--source", "usdt", "--duration", "1"]
        done = subprocess.run([*words, "-o", str(tmp_path / "trace")], capture_output=True, text=True, timeout=PATIENCE_S)
        seconds = time.monotonic() - began
        count, longest = forks()
    note(request, seconds=seconds, forks=count, longest_ms=longest, said=done.stderr)
    assert done.returncode == 0, done.stderr
    assert f"process {pid} of user nobody" in done.stderr
    assert "it was disconnected" in done.stderr
    assert count
