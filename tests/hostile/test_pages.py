"""A user's pages that never come (page_server.py), in the memory of a process that root's tracer looks at, or of one that it does not even know.

The kernel lets nobody fork while it places uprobes and waits for such a user, and who waits for a page cannot be killed: so these run in an
emulated machine (make test-vm), where nothing but that machine can stand still.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

import pytrace_ebpf
from pytrace_ebpf.record.kernel import bpf_object, page_servers
from tests.bpf.conftest import COMMAND
from tests.conftest import PATIENCE_S, Target

NOBODY = 65534
SERVER = Path(__file__).with_name("page_server.py")
RESULTS = Path("/results")
# By that machine's own clock, which counts the instructions of its cores: what emulating them takes is not in it.
MOST_S = 10.0
PROBES = {"sched.c": "", "calls_usdt.c": "", "samples.c": "--sample", "native.c": "a_library"}  # what a test has in its name that needs them
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


@pytest.fixture(scope="session", autouse=True)
def programs(request: pytest.FixtureRequest) -> None:
    """What the tracer has clang compile, compiled before: that takes minutes here, longer than it waits."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bpf_object, "_PATIENCE_S", 3600.0)
        for source, word in PROBES.items():
            if any(word in item.name for item in request.session.items):
                bpf_object.compiled(source)


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


def skip_where_nothing_is_sampled(done: "subprocess.CompletedProcess[str]", words: Sequence[str]) -> None:
    """Linux 6.1 refuses the programs that read stacks."""
    if "--sample" in words and done.returncode == 4 and "the kernel refuses" in done.stderr:
        pytest.skip(done.stderr)


def note(request: pytest.FixtureRequest, **figures: object) -> None:
    """A figure for who asks, of a test that asserts none."""
    with (RESULTS / "figures.jsonl").open("a") as file:
        print(json.dumps({"test": request.node.name, "kernel": os.uname().release, **figures}), file=file)


def nothing_stuck() -> bool:
    """Whether no process of root's waits for such a page."""
    return not [each for each in page_servers.stuck() if Path(f"/proc/{each.pid}").stat().st_uid == 0]


EVERY = [("--source", "agent"), ("--source", "usdt"), ("--sample",)]
every_option = pytest.mark.parametrize("options", EVERY, ids="-".join)


def looked_at(kind: str, words: tuple[str, ...], tmp_path: Path, forks: Callable[[], tuple[int, int]], request: pytest.FixtureRequest) -> str:
    """What `attach` says of a process with such pages: that it cannot be traced, or it is; nothing of ours hangs, and the host forks on."""
    with pages(kind) as pid:
        done, seconds = attach("--pid", str(pid), "--duration", "1", "-o", str(tmp_path / "trace"), *words)
        assert nothing_stuck()
        count, longest = forks()
    note(request, seconds=seconds, forks=count, longest_ms=longest, said=done.stderr)
    skip_where_nothing_is_sampled(done, words)
    assert done.returncode in (0, 3), done.stderr  # by probes there is nothing that has to be read
    assert "Traceback" not in done.stderr
    assert count and longest < 1000 * MOST_S
    if done.returncode == 0:
        pytrace_ebpf.open(tmp_path / "trace").calls()
    return done.stderr


@pytest.mark.parametrize("options", [*EVERY, ()], ids=lambda options: "-".join(options) or "auto")
def test_an_interpreter_whose_memory_never_comes_holds_nobody_up(
    tmp_path: Path, forks: Callable[[], tuple[int, int]], options: tuple[str, ...], request: pytest.FixtureRequest
) -> None:
    looked_at("runtime", options, tmp_path, forks, request)
    assert "agent" not in options or not (tmp_path / "trace").exists()


@pytest.mark.parametrize("part", ["states", "frames", "codes", "names", "everything"])
@every_option
def test_what_is_read_of_a_stack_and_never_comes_holds_nobody_up(
    tmp_path: Path, forks: Callable[[], tuple[int, int]], options: tuple[str, ...], part: str, request: pytest.FixtureRequest
) -> None:
    looked_at(part, options, tmp_path, forks, request)


@pytest.mark.parametrize("part", ["runtime", "everything"])
@every_option
def test_memory_that_is_there_and_gone_again_holds_nobody_up(
    tmp_path: Path, forks: Callable[[], tuple[int, int]], options: tuple[str, ...], part: str, request: pytest.FixtureRequest
) -> None:
    looked_at(f"flicker-{part}", options, tmp_path, forks, request)


@pytest.mark.parametrize("options", [*EVERY, ()], ids=lambda options: "-".join(options) or "auto")
def test_an_interpreter_whose_file_never_comes_is_refused(
    tmp_path: Path, forks: Callable[[], tuple[int, int]], options: tuple[str, ...], request: pytest.FixtureRequest
) -> None:
    assert "which lies in a file system that a user's program serves (FUSE)" in looked_at("library", options, tmp_path, forks, request)
    assert not (tmp_path / "trace").exists()


def test_a_library_whose_file_never_comes_is_left_out(tmp_path: Path, forks: Callable[[], tuple[int, int]], request: pytest.FixtureRequest) -> None:
    looked_at("layer", ("--source", "usdt", "--layers", "torch"), tmp_path, forks, request)
    assert (tmp_path / "trace").exists()


@dataclass
class Attached:
    """How `attach` to a program of somebody else's ended."""

    code: int
    said: str
    more_s: float  # than without anybody who holds a lock
    longest_ms: int  # of all forks meanwhile


@pytest.fixture
def beside(
    target: Callable[..., Target], tmp_path: Path, forks: Callable[[], tuple[int, int]], request: pytest.FixtureRequest
) -> Callable[..., Attached]:
    """`attach` to an innocent program, first without and then beside somebody of that kind."""

    def look(kind: str, *options: str, tracer: Sequence[str] = COMMAND, by: str = "--pid") -> Attached:
        def once(name: str) -> tuple["subprocess.CompletedProcess[str]", float]:
            innocent = target("fib", "--wait")
            which = str(innocent.pid) if by == "--pid" else r"fib\.py"
            began = time.monotonic()
            words = [*tracer, "attach", by, which, "--duration", "1", "-o", str(tmp_path / name), *options]
            done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S)
            seconds = time.monotonic() - began
            innocent.kill()
            return done, seconds

        done, alone = once("alone")
        skip_where_nothing_is_sampled(done, options)
        assert done.returncode == 0, done.stderr
        with pages(kind):
            while page_servers.who_holds() is None:
                time.sleep(0.05)
            done, seconds = once("trace")
        count, longest = forks()
        note(request, alone=alone, seconds=seconds, forks=count, longest_ms=longest, said=done.stderr)
        assert count and "Traceback" not in done.stderr
        return Attached(done.returncode, done.stderr, seconds - alone, longest)

    return look


# As if he had come between the look and the kernel's turn.
BLIND = (
    sys.executable, "-c",
    "from pytrace_ebpf.record.kernel import page_servers; page_servers.who_holds = lambda: None; from pytrace_ebpf.cli.main import main; raise SystemExit(main())",
)  # fmt: skip


@pytest.mark.parametrize("kind", ["holder", "stubborn"])
def test_who_holds_his_own_memory_map_does_not_stop_the_forks_of_the_host(kind: str, beside: Callable[..., Attached]) -> None:
    ended = beside(kind, "--source", "usdt")
    assert ended.code == 4, ended.said
    assert re.search(r"process \d+ of user nobody holds its memory map", ended.said)
    assert ended.more_s < MOST_S and ended.longest_ms < 1000 * MOST_S


@pytest.mark.parametrize("kind", ["holder", "stubborn"])
@pytest.mark.parametrize("options", [("--source", "agent"), ("--sample",)], ids="-".join)
def test_who_holds_it_is_in_nobodys_way_where_there_are_no_probes(kind: str, options: tuple[str, ...], beside: Callable[..., Attached]) -> None:
    ended = beside(kind, *options)
    assert ended.code == 0, ended.said
    assert ended.more_s < MOST_S and ended.longest_ms < 1000 * MOST_S


def test_who_holds_it_keeps_no_process_from_being_found(beside: Callable[..., Attached]) -> None:
    ended = beside("holder", "--source", "agent", by="--match")
    assert ended.code == 0, ended.said
    assert ended.more_s < MOST_S and ended.longest_ms < 1000 * MOST_S


@pytest.mark.parametrize("kind", ["holder", "stubborn"])
def test_who_comes_to_hold_it_while_they_are_placed_is_disconnected(kind: str, beside: Callable[..., Attached]) -> None:
    ended = beside(kind, "--source", "usdt", tracer=BLIND)
    assert ended.code in ((0,) if kind == "holder" else (0, 4)), ended.said
    assert re.search(r"process \d+ of user nobody", ended.said)
    assert "it was disconnected" in ended.said
    assert ended.more_s < MOST_S and ended.longest_ms < 1000 * MOST_S


@pytest.mark.parametrize("kind", ["holder", "stubborn"])
def test_who_holds_it_once_probes_are_there_is_disconnected_when_they_go(
    kind: str, target: Callable[..., Target], tmp_path: Path, forks: Callable[[], tuple[int, int]], request: pytest.FixtureRequest
) -> None:
    innocent = target("fib", "--wait")
    tracer = subprocess.Popen(
        [*COMMAND, "attach", "--pid", str(innocent.pid), "--source", "usdt", "-o", str(tmp_path / "trace")], stderr=subprocess.PIPE, text=True
    )
    assert tracer.stderr is not None
    for line in tracer.stderr:
        if line.startswith("tracing process"):
            break
    with pages(kind):
        while page_servers.who_holds() is None:
            time.sleep(0.05)
        began = time.monotonic()
        tracer.send_signal(signal.SIGINT)
        said = tracer.communicate(timeout=PATIENCE_S)[1]
        seconds = time.monotonic() - began
        count, longest = forks()
    note(request, seconds=seconds, forks=count, longest_ms=longest, said=said)
    assert tracer.returncode == 0, said
    assert re.search(r"process \d+ of user nobody", said)
    assert "it was disconnected" in said
    assert count and seconds < MOST_S and longest < 1000 * MOST_S
