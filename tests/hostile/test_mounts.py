"""A user who is root in a mount namespace of his own, and moves mounts into the tracer's way at every step, against the tracer as root."""

import os
import secrets
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from pytrace_ebpf import self_command
from pytrace_ebpf.errors import HostError
from pytrace_ebpf.record.agent import keeper_client
from pytrace_ebpf.record.agent.directory import AgentDirectory
from pytrace_ebpf.record.process.pinned import Pinned
from pytrace_ebpf.record.rights.folders import is_in_memory
from pytrace_ebpf.workers.keeper import _is_answered_for
from tests.bpf.conftest import COMMAND
from tests.conftest import PATIENCE_S
from tests.hostile.test_agent import NOBODY, PYTHON
from tests.unit.agent_pythons import built

OWN = ("unshare", "--user", "--map-root-user", "--mount", "--propagation", "private")
POSSIBLE = os.geteuid() == 0 and subprocess.run([*OWN, "true"], user=NOBODY, group=NOBODY, extra_groups=[], capture_output=True).returncode == 0
pytestmark = [built, pytest.mark.bpf, pytest.mark.skipif(not POSSIBLE, reason="the tracer is root here, and users may have namespaces of their own")]

PLACES = "/tmp", "/var/tmp", "/dev/shm", "/run"
# Binds root's directory over the tracer's directories and over the places for them, or takes it away again, as each line of input says; or, `alone`, by
# itself over each directory of the tracer's as soon as it is there, in a thread for each core.
MOVES = f"""
import ctypes, glob, os, sys, threading
libc = ctypes.CDLL(None, use_errno=True)
precious, how = sys.argv[1:]
mounted = []
def bind(place):
    if libc.mount(precious.encode(), place.encode(), None, 4096, None) == 0:
        mounted.append(place)
        return True
def on(places):
    for place in [*glob.glob("/tmp/pytrace-ebpf-*"), *glob.glob("/dev/shm/pytrace-ebpf-*"), *places]:
        bind(place)
def off():
    while mounted:
        libc.umount2(mounted.pop().encode(), 2)
def alone(place):
    watch = libc.inotify_init1(0)
    assert libc.inotify_add_watch(watch, place.encode(), 0x100) > 0  # IN_CREATE
    print("watches", flush=True)
    while True:
        name = os.read(watch, 4096)[16:].split(b"\\0")[0].decode()
        if "pytrace-ebpf-" in name and bind(f"{{place}}/{{name}}"):
            print("moved", flush=True)
def step(): return 1
if how == "alone":
    for place in ("/tmp", "/dev/shm"):
        threading.Thread(target=alone, args=(place,), daemon=True).start()
elif how in {PLACES}:
    on([how])
elif how == "left":
    os.mkdir("/tmp/pytrace-ebpf-deadbeef.arenas")
    bind("/tmp/pytrace-ebpf-deadbeef.arenas")
    os.mkdir("/dev/shm/pytrace-ebpf-deadbeef")
    bind("/dev/shm/pytrace-ebpf-deadbeef")
print("ready", flush=True)
for line in sys.stdin:
    if line == "end\\n":
        break
    off()
    if line == "on\\n":
        on({PLACES})
    for _ in range(1000):
        step()
    print("done", flush=True)
"""


@pytest.fixture
def precious(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory of root's that every user may look into, with files that are called as the tracer's are."""
    folder = Path("/var/lib") / f"precious-{os.getpid()}"
    folder.mkdir(0o755)
    for name in ("agent.so", "options", "begin.py", "lock", "failure", "1.0.arena", "kept"):
        (folder / name).write_text("of root's")
    (folder / "within").mkdir()
    yield folder
    for path in folder.iterdir():
        path.rmdir() if path.is_dir() else path.unlink()
    folder.rmdir()


def state(folder: Path) -> dict[str, tuple[int, ...] | str]:
    """All that could have been changed of it; opening a file may not change so much as its lock."""
    every = {path: path.stat() for path in (folder, *folder.iterdir())}
    return {str(path): (each.st_uid, each.st_gid, each.st_mode, each.st_nlink, each.st_mtime_ns, each.st_ctime_ns) for path, each in every.items()}


class Mover:
    """Such a user's process, which is to be traced."""

    def __init__(self, precious: Path, how: str) -> None:
        # An empty /tmp and /dev/shm of its own: what it leaves there is gone with it.
        script = 'mount -t tmpfs none /tmp; mount -t tmpfs none /dev/shm; chmod 1777 /tmp /dev/shm; exec "$@"'
        words = [*OWN, "sh", "-c", script, "sh", PYTHON, "-I", "-S", "-c", MOVES, str(precious), how]
        self.process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, user=NOBODY, group=NOBODY, extra_groups=[], bufsize=1
        )
        while self.said() != "ready":
            pass

    def said(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "it ended"
        return line.strip()

    def ask(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        while self.said() != "done":
            pass

    def close(self) -> str:
        """What it said since; it ends."""
        with suppress(subprocess.TimeoutExpired):
            return str(self.process.communicate("end\n", PATIENCE_S)[0])
        self.process.kill()
        return str(self.process.communicate()[0])


@pytest.fixture
def move(precious: Path) -> Iterator[Callable[[str], Mover]]:
    started: list[Mover] = []

    def start(how: str) -> Mover:
        started.append(Mover(precious, how))
        return started[-1]

    yield start
    for each in started:
        each.process.kill()
        each.process.communicate()


@pytest.mark.parametrize("how", ["left", "alone", *PLACES])
def test_nothing_of_roots_is_changed_whatever_is_mounted_where(how: str, move: Callable[[str], Mover], precious: Path, tmp_path: Path) -> None:
    mover, before = move(how), state(precious)
    for number in range(3):
        words = [*COMMAND, "attach", "--pid", str(mover.process.pid), "--source", "agent", "-o", str(tmp_path / f"{number}"), "--duration", "0.5"]
        tracer = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S)
        assert tracer.returncode in (0, 3, 4), tracer.stderr
        assert "Traceback" not in tracer.stderr
        if how == "left":  # which keeps nobody from being traced
            assert tracer.returncode == 0, tracer.stderr
    said = mover.close()
    assert how != "alone" or "moved" in said  # else it has not tried
    assert (mover.process.returncode, state(precious)) == (0, before)


# Said before the keeper does what the event is called after, and it waits for the answer.
SAYS = """
import socket, sys
connection, within = socket.socket(socket.AF_UNIX), []
connection.connect({name!r})
def hook(event, arguments):
    if within or event.partition(".")[0] not in ("open", "os", "fcntl"):
        return
    within.append(True)
    connection.sendall(b".")
    assert connection.recv(1)
    within.clear()
def begin():
    sys.addaudithook(hook)
"""


class Steps:
    """Calls `at(number)` before each step that a keeper takes once it has its rights."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        name = f"\0pytrace-steps-{secrets.token_hex(4)}"
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(name)
        self.listener.listen()
        self.at: Callable[[int], None] = lambda number: None
        self.count = 0
        real = self_command._work

        def observed(worker: str, path: Sequence[str]) -> str:
            if worker != "keeper":
                return real(worker, path)
            return SAYS.format(name=name) + real(worker, path).replace("; ", "\n").replace(
                "keeper.main(", "become = keeper._become\nkeeper._become = lambda rights: (become(rights), begin())\nkeeper.main("
            )

        monkeypatch.setattr(self_command, "_work", observed)
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self) -> None:
        while True:
            connection, _ = self.listener.accept()
            self.count = 0
            with suppress(OSError):
                while connection.recv(1):
                    self.at(self.count)
                    self.count += 1
                    connection.sendall(b".")


def one_session(process: Pinned) -> None:
    """All that is asked of a keeper."""
    with suppress(HostError):
        directory = AgentDirectory([("arena_bytes", 1 << 20)], process)
        for name, _ in directory.arenas():
            directory.forget(name)
        directory.failure()
        directory.remove()


def test_nothing_of_roots_is_changed_by_mounts_between_any_two_steps(
    move: Callable[[str], Mover], precious: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mover, before, steps = move("asked"), state(precious), Steps(monkeypatch)
    process = Pinned(mover.process.pid)
    one_session(process)
    most = steps.count
    assert most > 50
    for number in range(0, most, 2):  # for two steps each, so that between each two something is mounted, and is taken away
        steps.at = lambda at, number=number: mover.ask("on" if at == number else "off") if number <= at <= number + 2 else None  # type: ignore[misc]
        one_session(process)
        mover.ask("off")
    for begins in range(2):
        steps.at = lambda at, begins=begins: mover.ask("off" if (at + begins) % 2 else "on")  # type: ignore[misc]
        one_session(process)
        mover.ask("off")
    assert state(precious) == before


def test_a_keeper_that_never_answers_holds_up_nobody(move: Callable[[str], Mover], monkeypatch: pytest.MonkeyPatch) -> None:
    mover, steps, never = move("asked"), Steps(monkeypatch), threading.Event()
    monkeypatch.setattr(keeper_client, "_PATIENCE_S", 0.5)
    steps.at = lambda at: None if at < 30 else never.wait(PATIENCE_S) and None
    began = time.monotonic()
    with pytest.raises(HostError, match="got no answer"):
        AgentDirectory([("arena_bytes", 1 << 20)], Pinned(mover.process.pid))
    assert time.monotonic() - began < PATIENCE_S / 2
    never.set()


def test_a_file_that_a_program_may_serve_is_known_by_asking_the_kernel_alone() -> None:
    in_memory = os.memfd_create("tried")
    with open("/proc/version") as served, open(PYTHON) as of_a_disk:  # noqa: PTH123 - descriptors
        assert [is_in_memory(file) for file in (in_memory, served.fileno(), of_a_disk.fileno())] == [True, False, False]
        assert not _is_answered_for(served.fileno())
    os.close(in_memory)
