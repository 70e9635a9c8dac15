"""A process that has itself recorded, and a notebook's cells, on the real kernel."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import pytrace_ebpf
from tests.conftest import PATIENCE_S

PROGRAM = """\
import json, os, sys, threading
import pytrace_ebpf

def leaf():
    pass

def work():
    for _ in range(50):
        leaf()

before = sorted(os.listdir("/proc/self/fd"))
work()
with pytrace_ebpf.recording("trace") as own:
    work()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
work()
after = sorted(os.listdir("/proc/self/fd"))
trace = own.trace
func_id = int(trace.functions().query("qualname == 'leaf'")["func_id"].iloc[0])
calls = trace.calls(columns=["func_id", "tid"])
sources = [each["source"] for each in trace.manifest["sources"]]
print(json.dumps([int((calls["func_id"] == func_id).sum()), calls["tid"].nunique(), before == after, sources, len(trace.left_out())]))
"""

CELLS = """\
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.run_line_magic("load_ext", "pytrace_ebpf")
shell.run_cell("def leaf():\\n    pass")
shell.run_cell_magic("pytrace", "-o trace", "for _ in range(20_000): leaf()\\nx = 5")
shell.run_cell("leaf()")
trace = shell.user_ns["_pytrace"]
func_id = int(trace.functions().query("qualname == 'leaf'")["func_id"].iloc[0])
print("counted", int((trace.calls(columns=["func_id"])["func_id"] == func_id).sum()), shell.user_ns["x"])
print("by", *(each["source"] for each in trace.manifest["sources"]), len(trace.left_out()))
shell.run_cell("%%pytrace --duration soon\\ny = 1")
print("REFUSED" if "y" not in shell.user_ns else "it ran")
"""


def run(program: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    path = folder / "program.py"
    path.write_text(program)
    environment = {"PYTHONPATH": str(Path(pytrace_ebpf.__file__).parents[1]), "PATH": "/usr/bin:/bin", "HOME": str(folder)}
    return subprocess.run([sys.executable, str(path)], cwd=folder, env=environment, capture_output=True, text=True, timeout=PATIENCE_S)


def test_a_process_has_itself_recorded_for_a_time(tmp_path: Path) -> None:
    done = run(PROGRAM, tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [100, 2, True, ["agent"], 0]  # the agent where probes would serve, and all calls
    assert {path.name for path in tmp_path.iterdir()} == {"program.py", "trace"}  # what the recorder says is in no file that somebody could replace


def test_a_recorder_that_cannot_says_why(tmp_path: Path) -> None:
    (tmp_path / "trace").mkdir()
    (tmp_path / "trace" / "something").touch()
    with pytest.raises(pytrace_ebpf.errors.HostError, match="is not empty; give another folder"):
        pytrace_ebpf.recording(tmp_path / "trace").begin()


def test_a_notebooks_cell_is_recorded_and_shown(tmp_path: Path) -> None:
    pytest.importorskip("IPython")
    done = run(CELLS, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "counted 20000 5\nby agent 0\n" in done.stdout
    assert " leaf " in done.stdout and "(a picture of the calls of " in done.stdout
    assert "UsageError: pytrace-ebpf: 'soon' is not a time" in done.stderr and "REFUSED" in done.stdout
