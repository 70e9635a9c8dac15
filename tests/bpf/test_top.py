"""The live view as its users start it, on a real kernel: what it shows of a program of which it is known what it does, and what it leaves."""

import os
import pty
import select
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

import pytrace_ebpf
from pytrace_ebpf.cli import top
from pytrace_ebpf.record.rights import capabilities
from pytrace_ebpf.trace.snapshot import TIMES, Snapshot
from pytrace_ebpf.view.top.feed import SAVED, Connection, Ended, News, Said
from pytrace_ebpf.view.top.picked import picked
from pytrace_ebpf.view.top.selection import Choice
from tests.bpf.conftest import COMMAND
from tests.conftest import PATIENCE_S, Target

NOBODY = "65534"
Watch = Callable[..., tuple[Connection, "subprocess.Popen[bytes]", Iterator[News]]]


@pytest.fixture
def watch() -> Iterator[Watch]:
    """`watch(pid, ...)`: the process that records for a view, and what comes of it."""
    started: list[tuple[socket.socket, subprocess.Popen[bytes]]] = []

    def start(*pids: int, **wanted: Any) -> tuple[Connection, "subprocess.Popen[bytes]", Iterator[News]]:
        connection, child = top._start({"pids": pids, "match": None, "hz": 199.0, "last_s": 3.0, "follow": True} | wanted)
        connection.settimeout(PATIENCE_S)
        started.append((connection, child))
        source = Connection(connection)
        return source, child, source._news()

    yield start
    for connection, child in started:
        connection.close()
        child.kill()
        child.wait()


def pictures(news: Iterator[News]) -> Iterator[Snapshot]:
    return (each for each in news if isinstance(each, Snapshot))


def test_shares_are_those_of_a_program_of_which_they_are_known_until_it_ends(target: Callable[..., Target], watch: Watch) -> None:
    process = target("watched")
    _, child, news = watch(process.pid)
    # Once the window is full, and without the beginning, when not all threads were watched yet: pictures come as segments are closed.
    began = next(pictures(news)).facts.end_ns
    snapshot = next(each for each in pictures(news) if each.facts.seconds_ns >= 3 * 10**9 and each.facts.end_ns - each.facts.seconds_ns >= began)
    whole = snapshot.facts.seconds_ns
    threads = {row["name"]: row for row in snapshot.threads}
    assert {"MainThread", "alone", "asleep", "first", "second"} <= threads.keys()
    for row in threads.values():
        assert abs(sum(row[name] for name in TIMES) - whole) <= whole * 0.02, row
    assert threads["asleep"]["blocked_ns"] >= 0.98 * whole and threads["asleep"]["state"] == "blocked" and threads["asleep"]["kind"] == "lock"
    assert threads["asleep"]["since_ns"] >= 0.98 * whole
    fighters = [threads["first"], threads["second"]]
    for row in fighters:
        assert row["gil_wait_ns"] >= 0.02 * whole and row["blocked_ns"] <= 0.05 * whole, row
    held = sum(row["gil_held_ns"] for row in fighters)
    assert 0.5 * whole <= held <= 1.2 * whole
    assert threads["alone"]["on_cpu_ns"] > 0 and threads["alone"]["gil_held_ns"] <= 0.5 * whole
    # What samples say of the functions is what scheduling says of the threads.
    for name, function in (("alone", "alone"), ("first", "fight"), ("second", "fight"), ("asleep", "asleep")):
        own = {row["name"]: row for row in picked(snapshot, Choice(tid=threads[name]["tid"], own=False))}
        assert function in own, (name, list(own))
        exact = sum(threads[name][state] for state in TIMES)
        assert abs(own[function]["all_ns"] - exact) <= 0.25 * whole, (name, own[function]["all_ns"], exact)
        assert own[function]["work_ns"] <= own[function]["all_ns"]
    assert snapshot.findings and "`fight`" in " ".join(snapshot.findings)
    kinds = {row["kind"] for row in picked(snapshot, Choice(view="waits"))}
    assert {"gil", "lock"} <= kinds
    assert snapshot.facts.samples and snapshot.facts.switches and snapshot.facts.spent_ns
    process.go()
    *_, before, last = news
    assert last == Ended("what was watched has ended") and isinstance(before, Snapshot)
    assert [row["ended"] for row in before.processes] == [True] and before.threads
    assert child.wait(PATIENCE_S) == 0


def test_exact_calls_are_an_ordinary_trace_and_a_view_that_reads_nothing_holds_up_nobody(
    target: Callable[..., Target], watch: Watch, tmp_path: Path
) -> None:
    process, sleeper = target("spinner", "60"), target("spinner", "60")
    source, child, news = watch(process.pid)
    next(pictures(news))
    source.save([sleeper.pid], 1, str(tmp_path / "other"))
    assert Said("what was to be recorded has ended") in news, "only what is watched is recorded"
    source.save([process.pid], 1, str(tmp_path / "exact"))
    found = next(each for each in news if isinstance(each, Said) and str(tmp_path) in each.sentence)
    assert found.sentence.startswith(SAVED), found
    trace = pytrace_ebpf.open(tmp_path / "exact")
    assert len(trace.calls(columns=["call_id"])) > 0 and trace.manifest["target"]["pid"] == process.pid
    cpu = psutil.Process(child.pid)
    before, deadline = cpu.cpu_times().user, time.monotonic() + PATIENCE_S
    while cpu.cpu_times().user < before + 0.2 and time.monotonic() < deadline:  # it records on, though nobody reads
        time.sleep(0.1)
    assert [next(pictures(news)) for _ in range(4)][-1].facts.lost_ever == 0
    source.save([process.pid], 1, str(tmp_path / "exact"))
    refused = next(each for each in news if isinstance(each, Said) and str(tmp_path) in each.sentence)
    assert "is not empty" in refused.sentence


def test_what_cannot_be_watched_is_a_sentence(watch: Watch) -> None:
    source, child, _ = watch(1 << 21)
    first = source.first()
    assert isinstance(first, Ended) and first.code == 3 and "does not exist" in first.sentence
    assert child.wait(PATIENCE_S) == 0


class Terminal:
    """`pytrace-ebpf top` in a terminal of 100 by 30."""

    def __init__(self, *words: str, **environment: str) -> None:
        ours, theirs = pty.openpty()
        os.set_blocking(ours, False)
        with suppress(ImportError):
            import fcntl
            import struct
            import termios

            fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        env = os.environ | {"TERM": "xterm-256color", "LC_ALL": "C.UTF-8"} | environment
        self.process = subprocess.Popen([*COMMAND, "top", *words], stdin=theirs, stdout=theirs, stderr=theirs, env=env, start_new_session=True)
        os.close(theirs)
        self.descriptor, self.seen = ours, ""

    def until(self, text: str) -> str:
        """All that was drawn until this was."""
        deadline, begin = time.monotonic() + PATIENCE_S, len(self.seen)
        while text not in self.seen[begin:]:
            assert time.monotonic() < deadline, self.seen[-3000:]
            if select.select([self.descriptor], [], [], 1)[0]:
                try:
                    self.seen += os.read(self.descriptor, 1 << 16).decode(errors="replace")
                except OSError:
                    assert text in self.seen[begin:], self.seen[-3000:]
        return self.seen[begin:]

    def press(self, keys: str) -> None:
        os.write(self.descriptor, keys.encode())

    @property
    def child(self) -> psutil.Process:
        """The process that records."""
        return next(each for each in psutil.Process(self.process.pid).children() if "import live_view" in " ".join(each.cmdline()))

    def close(self) -> None:
        """Leave nothing behind."""
        self.process.kill()
        self.process.wait()
        os.close(self.descriptor)


@pytest.fixture
def terminal() -> Iterator[Callable[..., Terminal]]:
    started: list[Terminal] = []

    def start(*words: str, **environment: str) -> Terminal:
        started.append(Terminal(*words, **environment))
        return started[-1]

    yield start
    for each in started:
        each.close()


def status_of(process: int) -> str:
    return Path(f"/proc/{process}/status").read_text()


def test_it_is_drawn_without_privileges_and_where_it_is_killed_nothing_is_left(
    target: Callable[..., Target], terminal: Callable[..., Terminal]
) -> None:
    process = target("watched")
    seen = terminal("--pid", str(process.pid))
    seen.until("fight")
    assert all(line in status_of(seen.process.pid) for line in ("CapPrm:\t0000000000000000", "CapEff:\t0000000000000000", "NoNewPrivs:\t1"))
    assert f"CapBnd:\t{capabilities.bits(capabilities.LOADING):016x}" in status_of(seen.child.pid), "what records has what it needs"
    all_of_it = [seen.child, *seen.child.children(recursive=True)]
    seen.press("t")
    seen.until("asleep")
    seen.process.send_signal(signal.SIGKILL)
    assert psutil.wait_procs(all_of_it, PATIENCE_S)[1] == []
    process.go()
    process.done()


def test_it_is_drawn_as_who_called_sudo_and_says_where_what_records_was_killed(
    target: Callable[..., Target], terminal: Callable[..., Terminal]
) -> None:
    process = target("watched")
    seen = terminal(str(process.pid), SUDO_UID=NOBODY)
    seen.until("fight")
    assert all(line in status_of(seen.process.pid) for line in ("\t".join(["Uid:", *[NOBODY] * 4]), "CapPrm:\t0000000000000000"))
    all_of_it = [seen.child, *seen.child.children(recursive=True)]
    seen.child.send_signal(signal.SIGKILL)
    seen.until("has ended")
    seen.press("q")
    seen.until("\x1b[?1049l")  # the screen that was there before
    assert seen.process.wait(PATIENCE_S) == 4 and "Traceback" not in seen.seen
    assert psutil.wait_procs(all_of_it, PATIENCE_S)[1] == []
    process.go()
    process.done()
