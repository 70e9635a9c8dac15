"""The table of Pythons counts what passed, and nothing else."""

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[3] / "scripts" / "matrix.py"
COUNTS = "test_calls_equal_what_the_interpreter_counts"
RESULTS = {
    "fib": "",
    "threads": "<system-out>words</system-out>",
    "generators": '<failure message="3 != 4"/>',
    "closures": '<error message="no such process"/>',
    "callbacks": '<skipped message="no such Python"/>',
}


def written(tmp_path: Path, cases: str, *more: Path) -> "subprocess.CompletedProcess[str]":
    results = tmp_path / "matrix.xml"
    results.write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
    return subprocess.run([sys.executable, SCRIPT, results, *more], capture_output=True, text=True)


def test_what_failed_or_was_skipped_is_not_equal(tmp_path: Path) -> None:
    cases = [f'<testcase name="{COUNTS}[python3.11-usdt-{program}]">{inside}</testcase>' for program, inside in RESULTS.items()]
    done = written(tmp_path, "".join(cases))
    assert done.returncode == 0, done.stderr
    assert "| 3.11, Debian | 2 of 5 | - | - | - |" in done.stdout


def test_rows_of_pythons_that_were_not_tried_are_kept(tmp_path: Path) -> None:
    document = tmp_path / "matrix.md"
    document.write_text(written(tmp_path, f'<testcase name="{COUNTS}[python3.9-usdt-fib]"/><testcase name="{COUNTS}[built3.13-agent-fib]"/>').stdout)
    case = f'<testcase name="{COUNTS}[built3.14t-agent-fib]"/><testcase name="{COUNTS}[python3.9-usdt-fib]"><failure/></testcase>'
    rows = [row for row in written(tmp_path, case, document).stdout.splitlines() if row.startswith("| 3")]
    assert rows == ["| 3.9, Debian | 0 of 1 | - | - | - |", "| 3.13, pyenv | - | - | 1 of 1 | - |", "| 3.14, free-threaded | - | - | 1 of 1 | - |"]


def test_no_results_make_no_table(tmp_path: Path) -> None:
    done = written(tmp_path, '<testcase name="test_other[python3.11-usdt-fib]"/>')
    assert (done.returncode, done.stdout) == (1, "")
