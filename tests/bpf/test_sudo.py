"""Under sudo the program runs as it would without: as the user who called it, with that user's variables; the tracer sees none of them."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bpf.conftest import COMMAND
from tests.conftest import PATIENCE_S

NOBODY = 65534
PROGRAM = "import os, sys; print(sys.argv[0], os.getuid(), sorted(os.environ.items()))"
CALLERS = {"VIRTUAL_ENV": "/home/me/venv", "PYTHONHASHSEED": "1", "HOME": "/home/me"}


@pytest.fixture
def caller() -> Iterator[Path]:
    """A directory that the calling user may write to, with a stand-in for sudo: a setuid-root program that runs a shell command."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copy("/bin/dash", folder / "sudo")
        (folder / "sudo").chmod(0o4755)
        (folder / "venv").mkdir()
        (folder / "venv" / "python3").symlink_to("/usr/bin/python3")
        os.chown(folder, NOBODY, NOBODY)
        yield folder


def words(caller: Path) -> list[str]:
    given = f"env -i SUDO_UID={NOBODY} SUDO_GID={NOBODY} PATH=/usr/bin:/bin PYTHONPATH={os.environ.get('PYTHONPATH', '')}"
    line = f"{given} {' '.join(COMMAND)} run -o {caller}/trace -- python3 -c '{PROGRAM}'; exit $?"
    return [str(caller / "sudo"), "-c", line]


def test_the_program_has_the_callers_variables_and_path(caller: Path) -> None:
    environment = CALLERS | {"PATH": f"{caller}/venv:/usr/bin:/bin"}
    ended = subprocess.run(words(caller), env=environment, capture_output=True, text=True, timeout=PATIENCE_S)
    assert ended.returncode == 0, ended.stderr
    inside = dict(eval(ended.stdout.split(maxsplit=2)[2]))
    assert ended.stdout.split()[1] == str(NOBODY)
    assert {name: inside.get(name) for name in environment} == environment
    assert set(inside) - set(environment) <= {"LD_PRELOAD", "LC_CTYPE"}  # the agent's, and Python's own
    assert (caller / "trace" / "manifest.json").stat().st_uid == NOBODY


def test_variables_that_cannot_be_restored_are_reported(caller: Path) -> None:
    (caller / "sudo").rename(caller / "another")
    line = [str(caller / "another"), *words(caller)[1:]]
    ended = subprocess.run(line, env=CALLERS | {"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, timeout=PATIENCE_S)
    assert ended.returncode == 0, ended.stderr
    assert "without the variables that sudo took away" in ended.stderr
    inside = dict(eval(ended.stdout.split(maxsplit=2)[2]))
    assert "VIRTUAL_ENV" not in inside and inside["HOME"] != CALLERS["HOME"]
