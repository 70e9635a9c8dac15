"""Every Python at hand, as child processes that stand still at a known place."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.conftest import ROOTS, Python, free_threaded_pythons

MINORS = range(8, 16)


def interpreters() -> dict[str, list[str]]:
    """Name -> command that runs the interpreter: on the PATH, in ~/.pyenv, and in the root filesystems."""
    found: dict[str, list[str]] = {}
    for minor in MINORS:
        name = f"python3.{minor}"
        # An absolute one: the PATH may hold shims that start another process.
        for path in (f"/usr/bin/{name}", f"/usr/local/bin/{name}", *map(str, _pyenv(minor))):
            if os.access(path, os.X_OK) and shutil.which(path):
                found[f"{name}-{'pyenv' if '.pyenv' in path else Path(path).parent.parent.name}"] = [path]
        for root in sorted(ROOTS.glob("*")) if os.geteuid() == 0 else ():
            if (root / "usr" / "bin" / name).exists():
                words = Python(f"3.{minor}", root).command("")
                found[f"{name}-{root.name}"] = words[: words.index(f"/usr/bin/{name}") + 1]
    return found


def builds() -> dict[str, list[str]]:
    """These, and those without a GIL."""
    return interpreters() | {f"python{python.version}": python.words for python in free_threaded_pythons()}


@contextmanager
def running(command: list[str], source: str, **environment: str) -> Iterator[int]:
    """The process id of `source`, once it has printed "ready"."""
    with started(command, source, **environment) as process:
        yield process.pid


@contextmanager
def started(command: list[str], source: str, **environment: str) -> Iterator["subprocess.Popen[bytes]"]:
    """The process of `source`, once it has printed "ready"."""
    process = subprocess.Popen([*command, "-c", source], stdout=subprocess.PIPE, stdin=subprocess.PIPE, env={**os.environ, **environment})
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def minor_of(name: str) -> int:
    """The minor version in an interpreter's name."""
    match = re.match(r"python3\.(\d+)", name)
    assert match
    return int(match[1])


def _pyenv(minor: int) -> list[Path]:
    return sorted(Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/python3.{minor}"))
