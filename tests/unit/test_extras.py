"""Reading needs few packages; where one is missing for more than that, a sentence says how to install it."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from pytrace_ebpf import extras
from tests.conftest import PATIENCE_S
from tests.hostile.test_reading import EXPERIMENT
from tests.unit.synthetic import sample

REPOSITORY = Path(__file__).parents[2]
EXTRAS = ("bcc", "capstone", "cxxfilt", "duckdb", "matplotlib", "psutil", "textual")
WITHOUT = """
import sys
from importlib.machinery import PathFinder
found = PathFinder.find_spec
PathFinder.find_spec = lambda name, *where: None if name in {names!r} else found(name, *where)
from pytrace_ebpf.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


def without(names: tuple[str, ...]) -> list[str]:
    """How to start a command where these packages are not installed."""
    return [sys.executable, "-c", WITHOUT.format(names=names)]


def without_extras(*words: str | Path) -> "subprocess.CompletedProcess[str]":
    """A command where only what reading needs is installed."""
    return subprocess.run([*without(EXTRAS), *map(str, words)], capture_output=True, text=True, cwd=REPOSITORY, timeout=PATIENCE_S)


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sample(tmp_path_factory.mktemp("extras") / "trace")


@pytest.mark.parametrize(
    "words",
    [
        ["info"],
        ["report"],
        ["report", "--by", "gil"],
        *(["export", "-o", "-", "--to", to] for to in ("perfetto", "speedscope", "folded", "chrome", "firefox", "callgrind", "pprof", "otlp")),
    ],
)
def test_reading_needs_no_extra(trace: Path, words: list[str]) -> None:
    done = subprocess.run([*without(EXTRAS), words[0], trace, *words[1:]], capture_output=True, cwd=REPOSITORY, timeout=PATIENCE_S)
    assert done.returncode == 0 and done.stdout and not done.stderr


@pytest.mark.parametrize("words", [["attach", "--pid", "1"], ["run", "--", "true"], ["run", "--rootless", "--", "true"]])
def test_recording_says_what_it_needs_and_how_to_install_it(words: list[str]) -> None:
    done = without_extras(*words)
    assert done.returncode == 4
    assert re.fullmatch(r"pytrace-ebpf: recording needs \w+, which is not installed; pip install 'pytrace-ebpf\[record\]' brings it\n", done.stderr)


@pytest.mark.parametrize("name", ["capstone", "psutil"])
def test_each_that_recording_needs_is_named(name: str) -> None:
    done = subprocess.run(
        [*without((name,)), "attach", "--pid", str(os.getpid())], capture_output=True, text=True, cwd=REPOSITORY, timeout=PATIENCE_S
    )
    assert done.returncode == 4
    assert done.stderr == f"pytrace-ebpf: recording needs {name}, which is not installed; pip install 'pytrace-ebpf[record]' brings it\n"


def test_the_live_view_says_what_it_needs() -> None:
    done = subprocess.run([*without(("textual",)), "top", "1"], capture_output=True, text=True, cwd=REPOSITORY, timeout=PATIENCE_S)
    assert done.returncode == 4
    assert done.stderr == "pytrace-ebpf: the live view needs textual, which is not installed; pip install 'pytrace-ebpf[top]' brings it\n"


def test_pictures_say_what_they_need_before_anything_is_run(tmp_path: Path) -> None:
    done = without_extras("experiment", "--plot", tmp_path / "pictures", "-o", tmp_path / "out", "--", "true")
    assert done.returncode == 4 and "pip install 'pytrace-ebpf[plots]'" in done.stderr and not (tmp_path / "out").exists()


def test_an_experiment_is_opened_without_any(tmp_path: Path) -> None:
    (tmp_path / "experiment.json").write_text(json.dumps(EXPERIMENT))
    done = without_extras("experiment", "--report", tmp_path)
    assert done.returncode == 5 and "calls-by-path" in done.stderr  # it looks for the data


def test_every_extra_that_is_named_brings_its_package() -> None:
    declared = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    for name, (_, extra) in extras._EXTRAS.items():
        assert any(each.startswith(name) for each in declared["optional-dependencies"][extra])
        assert not any(each.startswith(name) for each in declared["dependencies"])
