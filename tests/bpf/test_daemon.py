"""The daemon as an operator runs it: real processes of several users, on a real kernel."""

import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import pytrace_ebpf
from tests.bpf.conftest import COMMAND, wait_until
from tests.conftest import PATIENCE_S
from tests.daemons import Daemon
from tests.receiver import Receiver, form
from tests.unit.pprof_format import parse, samples

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="the daemon is root's")

NOBODY = 65534
# Computes and sleeps in a function of the name given, and says what it is at its end how much of the core it had.
WORKS = """
import sys, time
def work():
    sum(range(20000))
    time.sleep(0.005)
exec("def " + sys.argv[1] + "():\\n    while True: work()")
globals()[sys.argv[1]]()
"""


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Callable[[str], Daemon]]:
    started: list[Daemon] = []

    def start(configuration: str) -> Daemon:
        started.append(Daemon(tmp_path, configuration))
        return started[-1]

    yield start
    for each in started:
        each.close()


@pytest.fixture
def works() -> Iterator[Callable[..., "subprocess.Popen[bytes]"]]:
    """`works(function, tag, user)` starts a program that computes in a function of that name; `tag` is in its command line."""
    started: list[subprocess.Popen[bytes]] = []

    def start(function: str, tag: str, user: int = 0) -> "subprocess.Popen[bytes]":
        words = ["/usr/bin/python3", "-c", WORKS, function, tag]
        started.append(subprocess.Popen(words, user=user, group=user, extra_groups=[], cwd="/"))
        return started[-1]

    yield start
    for each in started:
        each.kill()
        each.wait()


def policy(tag: str, hidden: str, recorded: str = "nothing") -> str:
    return f"""
        window = "1s"
        otherwise = "ignore"
        [[rule]]
        command = "*{recorded}"
        action = "record"
        options = ["--source", "agent"]
        [[rule]]
        command = "*{hidden}"
        action = "ignore"
        [[rule]]
        command = "*{tag}"
        user = ["root", {NOBODY}]
        action = "sample"
    """


@pytest.mark.bpf
def test_processes_of_two_users_are_found_sampled_and_untouched_whatever_happens_to_the_daemon(
    daemon: Callable[[str], Daemon], works: Callable[..., "subprocess.Popen[bytes]"]
) -> None:
    tag = f"tag-{os.getpid()}-{time.monotonic_ns()}"
    first, hidden = works("first", tag), works("hidden", f"secret-{tag}")
    imitator = works("imitator", tag, user=NOBODY - 7)  # of a user whom no rule names
    running = daemon(policy(tag, f"secret-{tag}"))
    later = works("later", tag, NOBODY)
    wait_until(lambda: {"first", "work"} <= running.functions().get(first.pid, set()) and "later" in running.functions().get(later.pid, set()))
    assert running.ask("status").returncode == 0
    again = subprocess.run([*COMMAND, "daemon", "--config", str(running.file)], capture_output=True, text=True, timeout=PATIENCE_S)
    assert (again.returncode, f"as process {running.process.pid}" in again.stderr) == (4, True)

    before = running.functions()
    assert hidden.pid not in before and imitator.pid not in before
    running.process.send_signal(signal.SIGKILL)
    running.process.wait()
    assert running.ask("status").returncode == 4
    assert {pid: names & {"first", "later"} for pid, names in running.functions().items()} == {first.pid: {"first"}, later.pid: {"later"}}
    assert all(each.poll() is None for each in (first, later, hidden, imitator))

    running.start()
    wait_until(lambda: running.status().get("windows", 0) >= 2)
    running.configure("hz = 0")
    assert running.ask("reload").returncode == 2, "who asks is told first"
    running.process.send_signal(signal.SIGHUP)
    wait_until(lambda: "stays as it was" in (running.folder / "log").read_text())
    exact = works("exact", f"exact-{tag}")
    running.configure(policy(tag, "nothing", f"exact-{tag}"))
    assert running.ask("reload").returncode == 0
    wait_until(lambda: "hidden" in running.functions().get(hidden.pid, set()))
    wait_until(lambda: bool(list((running.folder / "rec").glob("*/events/*.parquet"))))
    wait_until(lambda: f"recording process {exact.pid} into {running.folder / 'rec'}" in running.ask("status").stdout)
    assert running.ask("stop").returncode == 0
    assert running.process.wait(PATIENCE_S) == 0
    assert all(each.poll() is None for each in (first, later, hidden, imitator, exact))
    recorded = pytrace_ebpf.open(next((running.folder / "rec").iterdir()))
    assert recorded.manifest["state"] == "complete", "it ends with the daemon"
    assert "work" in set(recorded.calls(["func_id"]).merge(recorded.functions(), on="func_id")["name"])
    trace = pytrace_ebpf.open(running.profile)
    assert set(trace.processes()["pid"]) == {first.pid, later.pid, hidden.pid, exact.pid}, "what is recorded is sampled, too"
    report = subprocess.run([*COMMAND, "report", str(running.profile), "--pid", str(later.pid)], capture_output=True, text=True, timeout=PATIENCE_S)
    assert report.returncode == 0 and "later" in report.stdout and "WRONG" not in report.stdout
    assert (running.profile.stat().st_mode & 0o777, (running.folder / "run" / "daemon.lock").stat().st_mode & 0o777) == (0o700, 0o600)


@pytest.mark.bpf
def test_what_it_samples_comes_to_a_server_and_to_prometheus(
    daemon: Callable[[str], Daemon], works: Callable[..., "subprocess.Popen[bytes]"]
) -> None:
    tag = f"tag-{os.getpid()}-{time.monotonic_ns()}"
    process = works("sent", tag)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    receiver = Receiver(200)
    try:
        running = daemon(f'metrics_port = {port}\n{policy(tag, "nothing")}\n[[push]]\nkind = "pyroscope"\nurl = "{receiver.url}"\n')
        receiver.wait()
        series = f'pytrace_ebpf_process_samples_total{{pid="{process.pid}",service="python"}}'
        wait_until(lambda: running.status()["push"][0]["sent"] > 0 and series in metrics(port))
        assert f"{receiver.url}: " in running.ask("status").stdout
        assert running.ask("stop").returncode == 0 and running.process.wait(PATIENCE_S) == 0
    finally:
        receiver.shutdown()
        receiver.server_close()
    path, headers, body = receiver.taken[0]
    assert path.startswith("/ingest?name=python&") and tag not in path
    profile = parse(form(headers["Content-Type"], body)["profile"])
    stacks = [[frame[0] for frame in stack] for _, _, stack in samples(profile)]
    assert any("sent" in stack for stack in stacks) and not any(tag in text for text in profile.string_table)


def metrics(port: int) -> str:
    """What Prometheus would be answered."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE_S) as answer:
        return str(answer.read().decode())
