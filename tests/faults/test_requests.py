"""`pytrace-ebpf request`: who asks, what records, or the daemon ends before its time, and its socket goes."""

import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytrace_ebpf
from tests.bpf.conftest import COMMAND, wait_until
from tests.bpf.test_samples_killed import family
from tests.conftest import PATIENCE_S
from tests.daemons import Daemon
from tests.faults.scene import Scene, has_calls


def asks(scene: Scene, pid: int, name: str = "asked", seconds: int = 40) -> "subprocess.Popen[str]":
    """`pytrace-ebpf request`, begun."""
    words = [*COMMAND, "request", "--socket", scene.folder / "run" / "daemon.sock", "--pid", str(pid), "--duration", str(seconds)]
    client = subprocess.Popen([*words, "--source", "usdt", "-o", scene.folder / name], stderr=subprocess.PIPE, text=True)
    scene.undo += [client.wait, client.kill]
    return client


def records(scene: Scene, daemon: Daemon, client: "subprocess.Popen[str]") -> int:
    """Wait until calls are written for the client; what records them."""
    wait_until(lambda: has_calls(scene.folder / "asked") or client.poll() is not None)
    assert client.poll() is None
    (recorder,) = [child for child in family(daemon.process.pid) if b"serving" in Path(f"/proc/{child}/cmdline").read_bytes()]
    scene.remember(recorder)
    return recorder


def ended(client: "subprocess.Popen[str]") -> str:
    """The last that it said."""
    return client.communicate(timeout=PATIENCE_S)[1].splitlines()[-1]


def test_who_asks_is_killed(scene: Scene) -> None:
    """Who asked for a trace is killed"""
    process = scene.program()
    daemon = scene.daemon()
    client = asks(scene, process.pid)
    records(scene, daemon, client)
    client.kill()
    wait_until(lambda: pytrace_ebpf.open(scene.folder / "asked").manifest["state"] == "complete")
    assert len(pytrace_ebpf.open(scene.folder / "asked").calls())
    scene.lose(events=sum(pytrace_ebpf.open(scene.folder / "asked").manifest["lost"].values()))


def test_what_records_is_killed(scene: Scene) -> None:
    """What records for who asked is killed"""
    process = scene.program()
    daemon = scene.daemon()
    client = asks(scene, process.pid)
    os.kill(records(scene, daemon, client), signal.SIGKILL)
    killed_ns = time.monotonic_ns()
    scene.says(ended(client))
    assert client.returncode == 4
    trace = pytrace_ebpf.open(scene.folder / "asked")
    assert len(trace.calls())
    scene.lose(s_of_calls=(killed_ns - trace.end_ns) / 1e9)
    assert asks(scene, process.pid, "again", 1).wait(PATIENCE_S) == 0


def test_the_daemon_is_killed(scene: Scene) -> None:
    """The daemon is killed while it records for who asked"""
    process = scene.program()
    daemon = scene.daemon()
    client = asks(scene, process.pid)
    records(scene, daemon, client)
    scene.kill(daemon)
    scene.says(ended(client))
    assert len(pytrace_ebpf.open(scene.folder / "asked").calls())


def test_the_socket_is_removed(scene: Scene) -> None:
    """The daemon's socket is removed"""
    process = scene.program()
    daemon = scene.daemon()
    place = scene.folder / "run" / "daemon.sock"
    place.unlink()
    wait_until(lambda: place.exists() and (scene.folder / "log").read_text())
    scene.says((scene.folder / "log").read_text().splitlines()[-1])
    assert asks(scene, process.pid, "again", 1).wait(PATIENCE_S) == 0
    scene.sampled(daemon)
    scene.lose(s_of_samples=scene.gap_s(process, daemon))


def test_the_socket_is_replaced(scene: Scene) -> None:
    """A file of somebody else's is where the daemon's socket was"""
    process = scene.program()
    daemon = scene.daemon()
    place = scene.folder / "run" / "daemon.sock"
    place.unlink()
    place.write_text("precious")
    said = ended(asks(scene, process.pid))
    scene.says(said.replace(str(process.pid), "N"))
    scene.sampled(daemon)
    assert place.read_text() == "precious"


def test_who_asks_never_reads(scene: Scene) -> None:
    """Who asks for a trace is stopped, and reads no answer"""
    process = scene.program()
    daemon = scene.daemon()
    client = asks(scene, process.pid, seconds=2)
    records(scene, daemon, client)
    client.send_signal(signal.SIGSTOP)
    wait_until(lambda: pytrace_ebpf.open(scene.folder / "asked").manifest["state"] == "complete")
    scene.sampled(daemon)
    client.send_signal(signal.SIGCONT)
    assert client.wait(PATIENCE_S) == 0
    scene.lose(s_of_samples=scene.gap_s(process, daemon))


def test_connections_that_say_nothing(scene: Scene) -> None:
    """Connections are opened until the daemon takes no more, and say nothing"""
    process = scene.program()
    daemon = scene.daemon()
    flood = [socket.socket(socket.AF_UNIX) for _ in range(40)]
    for each in flood:
        each.connect(str(scene.folder / "run" / "daemon.sock"))
    client = asks(scene, process.pid)
    scene.says(ended(client))
    assert client.returncode == 4
    for each in flood:
        each.close()
    assert asks(scene, process.pid, "again", 1).wait(PATIENCE_S) == 0
    scene.sampled(daemon)
    scene.lose(s_of_samples=scene.gap_s(process, daemon))
