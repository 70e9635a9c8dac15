"""The Pythons of this host itself, with the agent in them: what the agent's tests run programs on."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.agent_arena import ACTIVE, AGENT, REFUSED, Arena, Session, assert_balanced
from tests.conftest import PATIENCE_S, free_threaded_pythons
from tests.unit.live_pythons import interpreters, minor_of


def one_of_each_version() -> dict[str, str]:
    """Name -> path of this host's interpreters. Of two builds of a version the first: to the agent they are one."""
    first: dict[int, tuple[str, str]] = {}
    for name, words in interpreters().items():
        if len(words) == 1:
            first.setdefault(minor_of(name), (name, words[0]))
    return dict(first.values())


PYTHONS = one_of_each_version()
FREE_THREADED = {str(python): python.words[0] for python in free_threaded_pythons()}
BUILDS = PYTHONS | FREE_THREADED
REPOSITORY = Path(__file__).parents[2]
TARGETS = REPOSITORY / "tests" / "targets"

built = pytest.mark.skipif(not AGENT.exists(), reason="probes/agent/agent.so is not built: run scripts/build-libraries.sh")
every_python = pytest.mark.parametrize("interpreter", PYTHONS)
every_build = pytest.mark.parametrize("interpreter", BUILDS)
MINOR = {name: minor_of(name) for name in PYTHONS}
MINOR_OF_BUILD = MINOR | {str(python): python.minor for python in free_threaded_pythons()}


def run(session: Session, interpreter: str, *words: str, stdin: str = "", code: int = 0) -> str:
    """Run an interpreter with the agent preloaded; what it wrote on stdout."""
    done = subprocess.run([BUILDS[interpreter], *words], env=session.preloaded, input=stdin, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == code, done.stderr
    return done.stdout


def truth(interpreter: str, program: str, file: str) -> dict[str, int]:
    """What tests/targets/PROGRAM.py counts of `file`."""
    words = [BUILDS[interpreter], str(TARGETS / f"{program}.py"), file]
    done = subprocess.run(words, capture_output=True, check=True, timeout=PATIENCE_S)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def recorded(session: Session, interpreter: str, *words: str) -> Arena:
    """The arena of run(), of which nothing was lost."""
    run(session, interpreter, *words)
    (arena,) = session.arenas()
    assert arena.header["dropped"] == arena.header["unnamed"] == arena.header["opcodes_dropped"] == 0
    assert_balanced(arena)
    return arena


def refused_for_a_tracer(session: Session, interpreter: str) -> bytes:
    """Why the agent does not trace a program that has set a tracer of its own."""
    with attached(interpreter, "import sys\nsys.settrace(lambda *_: None)\nserve()\nassert sys.gettrace()\n") as process:
        assert process.ask(f"load {session.directory}/agent.so") == "loaded"
        (arena,) = session.wait(REFUSED)
        return bytes(arena.header["message"])


class Attached:
    """A running program that takes commands on stdin: it loads the agent, which begins in it as by `attach`."""

    SERVES = """
import ctypes, sys
library = None
def serve():
    global library
    print("ready", flush=True)
    for line in iter(sys.stdin.readline, ""):
        word, _, rest = line.strip().partition(" ")
        if word == "load":
            library = ctypes.CDLL(rest)
            print("loaded", flush=True)
        elif word == "begin":
            print(library.pytrace_begin(rest.encode()), flush=True)
        else:
            print(eval(line), flush=True)
"""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process

    def ask(self, line: str) -> str:
        """Send a line, return the answer: `load PATH`, `begin DIRECTORY`, or an expression."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(line + "\n")
        answer = self.process.stdout.readline()
        assert answer, f"the program ended with {self.process.wait(20)}"
        return answer.strip()

    def load(self, session: Session) -> None:
        """Load the agent and wait until it records."""
        assert self.ask(f"load {session.directory}/agent.so") == "loaded"
        session.wait(ACTIVE)


@contextmanager
def attached(interpreter: str, program: str) -> Iterator[Attached]:
    """A program that calls serve() somewhere; at the end it must come to its own end with 0."""
    process = subprocess.Popen(
        [BUILDS[interpreter], "-c", Attached.SERVES + program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield Attached(process)
        process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0
    finally:
        process.kill()
        process.communicate()
