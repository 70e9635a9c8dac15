"""`diff --until-sure`: two programs recorded in turn, until their runs say which is slower."""

import subprocess
import sys
from pathlib import Path

from tests.bpf.conftest import COMMAND
from tests.conftest import PATIENCE_S

PROGRAM = """
import sys, threading
size = int(sys.argv[1])
def score(n): return sum(i * i % 7 for i in range(n))
def work():
    for _ in range(20): score(size)
thread = threading.Thread(target=work)
thread.start()
thread.join()
print("done")
"""


def compare(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    (folder / "program.py").write_text(PROGRAM)
    return subprocess.run([*COMMAND, "diff", "--until-sure", *words], cwd=folder, capture_output=True, text=True, timeout=PATIENCE_S)


def test_what_is_surely_slower_fails_and_is_named(tmp_path: Path) -> None:
    old, new = ([sys.executable, "program.py", size] for size in ("2000", "20000"))
    done = compare(tmp_path, "--runs", "3", "--fail-over", "20%", "-o", "compared", "--", *old, "--", *new)
    assert done.returncode == 1, done.stderr
    assert "slower by more than 20 % of all time on a core: all calls together (+" in done.stderr and "score.<locals>.<genexpr> (+" in done.stderr
    assert "`score.<locals>.<genexpr>` changes most: " in " ".join(done.stdout.split()) and "_wait_for_tstate_lock` changes most" not in done.stdout
    for side in ("before", "after"):
        assert sorted(path.name for path in (tmp_path / "compared" / side).iterdir()) == ["1", "1.log", "2", "2.log", "3", "3.log"]
        assert (tmp_path / "compared" / side / "3.log").read_text() == "done\n"
    logs = sorted((tmp_path / "compared").glob("*/*.log"), key=lambda path: path.stat().st_mtime_ns)
    assert [f"{log.parent.name} {log.stem}" for log in logs] == ["before 1", "after 1", "after 2", "before 2", "before 3", "after 3"]


def test_a_program_that_fails_ends_it(tmp_path: Path) -> None:
    done = compare(tmp_path, "-o", "compared", "--", sys.executable, "program.py", "10", "--", sys.executable, "program.py", "x")
    assert done.returncode == 3 and "the program ended with exit code 1 under `after`" in done.stderr and "invalid literal" in done.stderr
