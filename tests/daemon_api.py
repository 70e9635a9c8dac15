"""A daemon's API for tests, and programs of a user without rights that come to it."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytrace_ebpf import self_command
from pytrace_ebpf.daemon.api.listener import Listener
from pytrace_ebpf.daemon.api.permission import Permission
from tests.conftest import PATIENCE_S, REPOSITORY, without_rights
from tests.hostile import PYTHON, USER

RECORDER = self_command.worker("daemon_recorder")
# Calls work() 1,000 times for each line that it reads.
PROGRAM = """
import sys

def work():
    pass

def turn():
    for _ in range(1000):
        work()

def main():
    for line in sys.stdin:
        turn()
        print("done", flush=True)

print("ready", flush=True)
main()
"""


@dataclass
class Service:
    """What else the daemon does, in a word."""

    asked: list[str] = field(default_factory=list)

    def status(self) -> dict[str, Any]:
        self.asked.append("status")
        return {"sampled": 3}

    def reload(self) -> None:
        self.asked.append("reload")

    def stop(self) -> None:
        self.asked.append("stop")


@dataclass
class Open:
    """An open API, a directory of the user's, and what the daemon was asked for."""

    api: Listener
    socket: Path
    home: Path
    service: Service


@contextmanager
def opened(folder: Path, permission: Permission, command: Sequence[str] = RECORDER) -> Iterator[Open]:
    """An API with its socket in `folder`, which every user comes to."""
    home = folder / "home"
    home.mkdir()
    os.chown(home, USER, USER)
    service = Service()
    api = Listener(folder / "run" / "daemon.sock", permission, service, command)
    api.open()
    try:
        yield Open(api, folder / "run" / "daemon.sock", home, service)
    finally:
        api.close()


class Program:
    """PROGRAM, or another one, as a user."""

    def __init__(self, text: str = PROGRAM, user: int = USER, group: int = USER, words: Sequence[str] = (PYTHON,)) -> None:
        """Start it, and wait until it is ready."""
        self.process = subprocess.Popen(
            [*words, "-c", text],
            user=user,
            group=group,
            extra_groups=[],
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self._expect("ready")

    @property
    def pid(self) -> int:
        return self.process.pid

    def turn(self) -> None:
        """Let it call work() 1,000 times."""
        assert self.process.stdin
        self.process.stdin.write("\n")
        self._expect("done")

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()

    def _expect(self, word: str) -> None:
        assert self.process.stdout
        assert self.process.stdout.readline() == f"{word}\n"


class Client:
    """`pytrace-ebpf request`, run by the user without rights, or by root."""

    def __init__(self, where: Open, pid: int, name: str, *options: str, root: bool = False, within: Sequence[str] = ()) -> None:
        """`within`: words before root's command."""
        self.trace = where.home / name
        words = ["-m", "pytrace_ebpf", "request", "--socket", str(where.socket), "--pid", str(pid), "-o", str(self.trace), *options]
        command = [*within, sys.executable, *words] if root else without_rights(USER, *words)
        self.process = subprocess.Popen(command, cwd=REPOSITORY if root else "/", stderr=subprocess.PIPE, text=True)

    def begun(self) -> str:
        """Wait until it records; what it said."""
        assert self.process.stderr
        said = ""
        for line in self.process.stderr:
            said += line
            if line.startswith(("tracing process", "joined")):
                return said
        raise AssertionError(said)

    def stop(self) -> str:
        """Ctrl-C; what it said at the end."""
        self.process.send_signal(signal.SIGINT)
        code, said = self.ended()
        assert code == 0, said
        return said

    def ended(self) -> tuple[int, str]:
        """Its exit code, and what it said since."""
        said = self.process.communicate(timeout=PATIENCE_S)[1]
        return self.process.returncode, said

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


# Of a user's program: CONNECTS connects to argv[1]; ask(connection, line, *descriptors) returns the last answer.
CONNECTS = """
import json, os, socket, sys
def connected():
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(100)
    connection.connect(sys.argv[1])
    return connection
def ask(connection, line, *descriptors):
    socket.send_fds(connection, [line.encode()], descriptors)
    return last(connection)
def last(connection):
    with connection.makefile() as lines:
        said = [json.loads(line) for line in lines]
    return said[-1] if said else None
def trace(directory, **more):
    request = {"do": "trace", "pid": int(sys.argv[2]), "words": ["request", "--pid", sys.argv[2]], "output": "trace", **more}
    return ask(connected(), json.dumps(request) + "\\n", *([directory] if directory is not None else []))
"""


def last_answer(text: str) -> Any:
    """What a user's program printed as its last line, JSON."""
    return json.loads(text.splitlines()[-1])
