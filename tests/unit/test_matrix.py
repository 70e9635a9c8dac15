"""The table of Pythons counts what passed, and nothing else."""

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "matrix.py"
COUNTS = "test_calls_equal_what_the_interpreter_counts"
RESULTS = {
    "fib": "",
    "threads": "<system-out>words</system-out>",
    "generators": '<failure message="3 != 4"/>',
    "closures": '<error message="no such process"/>',
    "callbacks": '<skipped message="no such Python"/>',
}


def written(tmp_path: Path, cases: str) -> "subprocess.CompletedProcess[str]":
    results = tmp_path / "matrix.xml"
    results.write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
    return subprocess.run([sys.executable, SCRIPT, results], capture_output=True, text=True)


def test_what_failed_or_was_skipped_is_not_equal(tmp_path: Path) -> None:
    cases = [f'<testcase name="{COUNTS}[python3.11-usdt-{program}]">{inside}</testcase>' for program, inside in RESULTS.items()]
    done = written(tmp_path, "".join(cases))
    assert done.returncode == 0, done.stderr
    assert "| 3.11, Debian | 2 of 5 | - | - | - |" in done.stdout


def test_no_results_make_no_table(tmp_path: Path) -> None:
    done = written(tmp_path, '<testcase name="test_other[python3.11-usdt-fib]"/>')
    assert (done.returncode, done.stdout) == (1, "")
