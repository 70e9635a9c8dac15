"""What is installed is what lies here: every module, the data they read, and every probe beside them."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
LIBRARIES = {
    "pytrace_ebpf/probes/agent/agent.so",
    "pytrace_ebpf/probes/outside/outside.so",
    "pytrace_ebpf/rebuild/rebuild.so",
}  # compiled by the build


def files(folder: str, *patterns: str) -> set[str]:
    return {str(path.relative_to(REPOSITORY)) for pattern in patterns for path in (REPOSITORY / folder).rglob(pattern)}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A copy of what a wheel is built from, nothing compiled."""
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, tmp_path)
    for name in ("pytrace_ebpf", "probes"):
        shutil.copytree(REPOSITORY / name, tmp_path / name, ignore=shutil.ignore_patterns("*.so"))
    (tmp_path / "scripts").mkdir()
    shutil.copy(REPOSITORY / "scripts/build-libraries.sh", tmp_path / "scripts")
    return tmp_path


def build(source: Path, compiler: str) -> "subprocess.CompletedProcess[str]":
    words = [sys.executable, "-m", "pip", "wheel", "-v", "--no-deps", "--no-build-isolation", "--wheel-dir", "wheels", "."]
    return subprocess.run(words, cwd=source, env={**os.environ, "CC": compiler}, capture_output=True, text=True)


def shipped(source: Path) -> set[str]:
    (wheel,) = (source / "wheels").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def expected() -> set[str]:
    probes = {f"pytrace_ebpf/{name}" for name in files("probes", "*.c", "*.h")}
    data = files("pytrace_ebpf/record/native", "*.txt") | files("pytrace_ebpf/analyze/samples", "*.json")
    data |= files("pytrace_ebpf/view", "*.html") | files("pytrace_ebpf/diff", "*.html")
    assert probes and len(data) > 1
    rebuild = files("pytrace_ebpf/rebuild", "*.c", "*.h")
    assert rebuild
    return files("pytrace_ebpf", "*.py") | data | probes | rebuild


def test_a_wheel_holds_every_module_and_every_probe(source: Path, quick_compiler: str) -> None:
    built = build(source, quick_compiler)
    assert built.returncode == 0, built.stderr
    assert shipped(source) == expected() | LIBRARIES


def test_without_a_compiler_the_libraries_are_left_out_and_that_is_said(source: Path) -> None:
    built = build(source, "no-such-compiler")
    assert built.returncode == 0, built.stderr
    assert shipped(source) == expected()
    assert "built without what rebuilds" in built.stdout + built.stderr


def test_a_compiler_that_fails_fails_the_build(source: Path) -> None:
    assert build(source, "false").returncode != 0
    assert not list(source.rglob("*.so*"))
