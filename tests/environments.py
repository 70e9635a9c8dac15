"""Clean environments of this host's Pythons, with a wheel that is built from what lies here."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import PYENV, REPOSITORY


def source_in(folder: Path) -> Path:
    """A copy of what a wheel is built from, nothing compiled."""
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, folder)
    for name in ("pytrace_ebpf", "probes"):
        shutil.copytree(REPOSITORY / name, folder / name, ignore=shutil.ignore_patterns("*.so"))
    (folder / "scripts").mkdir()
    shutil.copy(REPOSITORY / "scripts/build-libraries.sh", folder / "scripts")
    return folder


def build(source: Path, compiler: str) -> "subprocess.CompletedProcess[str]":
    """A wheel of it, in its folder `wheels`."""
    words = [sys.executable, "-m", "pip", "wheel", "-v", "--no-deps", "--no-build-isolation", "--wheel-dir", "wheels", "."]
    return subprocess.run(words, cwd=source, env={**os.environ, "CC": compiler}, capture_output=True, text=True)


def the_wheel(folder: Path) -> Path:
    """The only one there."""
    (wheel,) = folder.glob("*.whl")
    return wheel


def clean(python: Path, wheel: Path, folder: Path, extra: str = "", *others: str) -> Path:
    """A new environment of this Python with the wheel, what it says it needs and `others`, nothing else; its commands' folder."""
    uv = [sys.executable, "-m", "uv"]
    subprocess.run([*uv, "venv", "-q", *(["--seed"] if others else []), "-p", python, folder], check=True)
    words = [*uv, "pip", "install", "-q", "-p", folder / "bin" / "python", f"{wheel}{extra}", *others]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode and "Failed to fetch" in done.stderr and not os.environ.get("CI"):
        pytest.skip("the package index cannot be reached, from which an environment gets what the wheel needs")
    assert done.returncode == 0, done.stderr
    return folder / "bin"


def pythons() -> list[Path]:
    """This host's own, and a newer one, where there is one."""
    return [Path("/usr/bin/python3.11"), *sorted(PYENV.glob("3.13.*/bin/python3.13"))[-1:]]
