"""The daemon, or a process of its, is killed, stopped or starved."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

import pytrace_ebpf
from pytrace_ebpf.cli.main import main
from tests.bpf.conftest import COMMAND, of_thread, wait_until
from tests.bpf.test_samples_killed import family
from tests.conftest import PATIENCE_S
from tests.faults.memory_limit import MemoryLimit
from tests.faults.scene import Scene, has_calls

STARTS_S = 2.0  # in which a daemon begins to sample
STOPPED_S = 60.0


@pytest.mark.cheap
def test_killed(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    """The daemon is killed at any moment, and started again"""
    process = scene.program()
    daemon = scene.daemon()
    scene.sampled(daemon)
    time.sleep(scene.moments.uniform(0, 1.5))
    scene.kill(daemon)
    killed_s, written = time.time(), scene.windows(process, daemon)
    scene.lose(s_of_samples=killed_s - written["end_ns"].max() / 1e9)
    assert len(written) >= 2
    (hour,) = daemon.profile.iterdir()
    assert main(["info", str(hour)]) == 0
    scene.says(next(line for line in capsys.readouterr().out.splitlines() if "cut" in line or "not finished" in line))
    daemon.start()
    scene.sampled(daemon)
    assert len(scene.windows(process, daemon)) > len(written)


def test_what_parses_is_killed(scene: Scene) -> None:
    """The daemon's process that parses what programs wrote is killed"""
    first = scene.program()
    daemon = scene.daemon()
    scene.sampled(daemon)
    children = family(daemon.process.pid)
    assert children
    scene.remember(daemon.process.pid)
    for child in children:
        os.kill(child, signal.SIGKILL)
    second = scene.program()
    wait_until(lambda: "fib" in daemon.functions().get(second.pid, ()))
    scene.lose(s_of_samples=scene.gap_s(first, daemon))
    assert scene.lost["s_of_samples"] == 0


def test_a_recording_by_rule_is_killed(scene: Scene) -> None:
    """What records for a rule is killed"""
    scene.program()
    daemon = scene.daemon("record")
    wait_until(lambda: any(map(has_calls, (scene.folder / "rec").glob("*"))))
    (recorder,) = [child for child in family(daemon.process.pid) if b"attach" in Path(f"/proc/{child}/cmdline").read_bytes()]
    scene.remember(recorder)
    os.kill(recorder, signal.SIGKILL)
    wait_until(lambda: daemon.status()["recordings"]["failed"] == 1)
    trace = pytrace_ebpf.open(next((scene.folder / "rec").iterdir()))
    assert trace.manifest["state"] == "recording" and len(trace.calls())
    scene.says(next(line for line in daemon.ask("status").stdout.splitlines() if "recording" in line and "ended early" in line))
    scene.lose(s_of_calls=max(0.0, time.monotonic() - trace.end_ns / 1e9))


def test_stopped_for_a_minute(scene: Scene) -> None:
    """The daemon is stopped (SIGSTOP) for a minute"""
    process = scene.program()
    daemon = scene.daemon()
    scene.sampled(daemon)
    before = daemon.status()
    daemon.process.send_signal(signal.SIGSTOP)
    time.sleep(STOPPED_S)
    daemon.process.send_signal(signal.SIGCONT)
    scene.sampled(daemon, 3)
    wait_until(lambda: daemon.status()["uptime_s"] > before["uptime_s"] + STOPPED_S)
    after, rows = daemon.status(), scene.windows(process, daemon)
    covered_s = float((rows["end_ns"] - rows["start_ns"]).sum()) / 1e9
    assert scene.gap_s(process, daemon) == 0 and covered_s > STOPPED_S, "it reads what the rings held meanwhile"
    scene.lose(events=after["lost"] - before["lost"])
    scene.says(next(line for line in daemon.ask("status").stdout.splitlines() if "events lost" in line).split(": ")[1])
    assert rows["samples"].sum() > 0


def test_out_of_memory(scene: Scene) -> None:
    """The daemon's control group has too little memory, and the kernel ends it; started again with more"""
    scene.program()
    daemon = scene.daemon()
    assert daemon.ask("stop").returncode == 0
    daemon.process.wait(PATIENCE_S)
    with MemoryLimit(64 << 20) as limit:
        words = [*limit.within, *COMMAND, "daemon", "--config", str(daemon.file)]
        ended = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S)
    assert ended.returncode in (-signal.SIGKILL, 4), ended.stderr
    daemon.start()
    scene.sampled(daemon)
    scene.lose(s_of_samples=0)


def test_a_wrong_configuration(scene: Scene) -> None:
    """The configuration is broken, and the daemon is to read it again"""
    process = scene.program()
    daemon = scene.daemon()
    scene.sampled(daemon)
    daemon.file.write_text("hz = [")
    daemon.process.send_signal(signal.SIGHUP)
    wait_until(lambda: "stays as it was" in (scene.folder / "log").read_text())
    scene.says((scene.folder / "log").read_text().splitlines()[-1])
    daemon.configure('window = "1s"\n')
    scene.sampled(daemon)
    scene.lose(s_of_samples=scene.gap_s(process, daemon))
    assert scene.lost["s_of_samples"] == 0


def test_two_daemons(scene: Scene) -> None:
    """A second daemon is started"""
    process = scene.program()
    daemon = scene.daemon()
    scene.sampled(daemon)
    again = subprocess.run([*COMMAND, "daemon", "--config", str(daemon.file)], capture_output=True, text=True, timeout=PATIENCE_S)
    assert again.returncode == 4
    scene.says(again.stderr)
    scene.sampled(daemon)
    scene.lose(s_of_samples=scene.gap_s(process, daemon))
    assert scene.lost["s_of_samples"] == 0


def test_all_that_run_are_killed(scene: Scene) -> None:
    """Every program that the daemon samples is killed at once"""
    programs = [scene.program() for _ in range(5)]
    daemon = scene.daemon()
    scene.sampled(daemon)
    for each in programs:
        scene.may_end(each)
        each.kill()
    wait_until(lambda: daemon.status()["sampled"] == 0)
    assert all(not of_thread(Path(f"/proc/{each.pid}"), "exe") for each in programs)
    last = scene.program()
    wait_until(lambda: {each.pid for each in (*programs, last)} <= daemon.functions().keys())
    scene.lose(s_of_samples=0)
