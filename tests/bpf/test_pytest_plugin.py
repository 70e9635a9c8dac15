"""pytest --pytrace on the real kernel: the tests' calls, without the recorder's own; what got slower; with workers, too."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import pytrace_ebpf
from tests.conftest import PATIENCE_S

SUITE = """\
import os, time

SLOW = int(os.environ.get("SLOW", "1"))

def leaf(n):
    return n

def work():
    return [leaf(n) for n in range(100 * SLOW)]

def wait():
    time.sleep(0.03 * SLOW)

def test_first():
    work()

def test_waits():
    wait()

def test_same():
    leaf(1)

def test_fails():
    assert leaf(0)
"""


def suite(folder: Path, *words: str, slow: int = 1) -> "subprocess.CompletedProcess[str]":
    (folder / "test_it.py").write_text(SUITE)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "--tb=no",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(folder),
        "-p",
        "pytrace_ebpf.diff.pytest_plugin",
        *words,
        "test_it.py",
    ]
    package = str(Path(pytrace_ebpf.__file__).parents[1])
    environment = {**os.environ, "SLOW": str(slow), "PYTHONPATH": package, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=PATIENCE_S)


def counts(run: Path, function: str) -> dict[str, int]:
    """Calls of `function` in each test of a run."""
    trace = pytrace_ebpf.open(run / "trace")
    func_ids = trace.functions().query("qualname == @function")["func_id"]
    found = {}
    for test in json.loads((run / "tests.json").read_text())["tests"]:
        window = trace.window(test["start_ns"], test["end_ns"], test["pid"], test["tid"])
        tree = window.tree()
        found[test["test"].partition("::")[2]] = int(tree.loc[tree["func_id"].isin(func_ids), "calls"].sum())
    return found


def test_tests_are_recorded_and_compared(tmp_path: Path) -> None:
    assert "4 tests recorded in base/1\n" in suite(tmp_path, "--pytrace", "base").stdout
    run = tmp_path / "base" / "1"
    assert counts(run, "leaf") == {"test_first": 100, "test_waits": 0, "test_same": 1, "test_fails": 1}
    manifest = pytrace_ebpf.open(run / "trace").manifest
    pytests = {test["pid"] for test in json.loads((run / "tests.json").read_text())["tests"]}
    assert {source["pid"] for source in manifest["sources"]} == pytests  # not the recorder, though it is a child of pytest's
    compared = ("--pytrace", "new", "--pytrace-baseline", "base", "--pytrace-by", "wall", "--pytrace-fail", "--deselect", "test_it.py::test_fails")
    slower = suite(tmp_path, *compared, "--pytrace-single-run", slow=4)
    assert slower.returncode == 1 and "3 tests recorded in new/1\n" in slower.stdout
    (said,) = [line for line in slower.stdout.splitlines() if line.startswith("test_it.py::test_waits: ")]
    assert "`wait` changes most: " in said and "more blocked" in said and "pytrace-ebpf report new/1/trace --from " in said
    assert "which fewer than 3 runs of each side cannot tell from chance:" in slower.stdout
    words = said.partition("pytrace-ebpf report ")[2].rstrip(")").split()
    report = subprocess.run([sys.executable, "-m", "pytrace_ebpf", "report", *words], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "wait" in report.stdout and "leaf" not in report.stdout
    not_sure = suite(tmp_path, *compared, slow=4)
    assert not_sure.returncode == 0 and "cannot tell from chance" in not_sure.stdout


def test_of_three_runs_each_it_is_sure_and_by_time_on_a_core(tmp_path: Path) -> None:
    for _ in range(3):
        suite(tmp_path, "--pytrace", "base")
    compared = ("--pytrace-baseline", "base", "--pytrace-fail", "--deselect", "test_it.py::test_fails")
    for number in range(3):
        waits = suite(tmp_path, "--pytrace", "waits", *compared, slow=10)
        slower = suite(tmp_path, "--pytrace", "slower", *compared, "--pytrace-by", "wall", slow=10)
        assert (waits.returncode, slower.returncode) == (0, int(number == 2)), slower.stdout  # it waits longer, and computes no longer
    assert "1 of 3 tests got slower (where nothing changed at most 5% of comparisons name any test):" in slower.stdout


def test_nothing_is_left_when_pytest_is_killed(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("import os, signal\ndef test_killed(): os.kill(os.getpid(), signal.SIGKILL)\n")
    command = [sys.executable, "-m", "pytest", "-p", "pytrace_ebpf.diff.pytest_plugin", "--pytrace", "base", "test_it.py"]
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(pytrace_ebpf.__file__).parents[1]),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTEST_ADDOPTS": "",
    }
    killed = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL)
    assert killed.wait(PATIENCE_S) == -signal.SIGKILL
    until = time.monotonic() + PATIENCE_S
    manifest = tmp_path / "base" / "1" / "trace" / "manifest.json"
    while json.loads(manifest.read_text())["state"] != "complete":  # the recorder ends with what it records
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--pytrace-fail",), "--pytrace-fail has no effect without --pytrace."),
        (("--pytrace", "new", "--pytrace-baseline", "nothing"), "nothing has no recorded tests"),
        (("--pytrace", "new", "--pytrace-slower", "much"), "--pytrace-slower much is not a share"),
        (("--pytrace", "/proc/new"), "/proc/new cannot be written"),
    ],
)
def test_bad_options_are_one_sentence(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    refused = suite(tmp_path, *words)
    assert refused.returncode == 4 and said in refused.stderr and "Traceback" not in refused.stderr
