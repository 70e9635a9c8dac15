"""A user's sources that take long to parse, of a Python whose code objects do not know their class: another one's process does not wait for their names."""

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import pytrace_ebpf
from tests.bpf.conftest import COMMAND
from tests.conftest import PATIENCE_S, Python, built_pythons

pytestmark = [pytest.mark.bpf, pytest.mark.skipif(os.geteuid() != 0, reason="the tracer is root here, and its targets are not")]

OLD = [python for python in built_pythons() if python.minor < 11][-1:]
SLOW, STEADY = 70_131, 70_132  # made-up users
FILES, BYTES = 3, 1_900_000  # each takes some 2 s of processor time
# As a user: what may be built for root alone is imported before.
BECOMES = """
import ctypes, importlib, os, sys, threading, time
os.setgroups([]); os.setgid({user}); os.setuid({user})
ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)
sys.path.insert(0, {folder!r})
"""
STEADILY = """
import job
print("ready", flush=True)
while True: job.Job().work()
"""
JOB = """
import time
class Job:
    def work(self):
        time.sleep(.001)
"""
SLOWLY = f"""
modules = [importlib.import_module(f"slow{{number}}") for number in range({FILES})]
print("ready", flush=True)
while True:
    for module in modules: module.Slow().work()
    time.sleep(.001)
"""


@contextmanager
def running(folder: Path, python: Python, user: int, code: str) -> Iterator["subprocess.Popen[bytes]"]:
    """A program of a user of its own, once it is under way."""
    os.chown(folder, user, user)
    (folder / "slow_sources_app.py").write_text(BECOMES.format(user=user, folder=str(folder)) + code)
    words = [*python.words, str(folder / "slow_sources_app.py")]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout and process.stdout.readline() == b"ready\n"
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("interpreter", OLD, ids=str)
def test_names_that_take_long_hold_up_nobody_else(interpreter: Python, tmp_path: Path) -> None:
    folders = [Path(f"/tmp/slow-sources-{os.getpid()}-{time.monotonic_ns()}") for _ in range(2)]
    for folder in folders:
        folder.mkdir(mode=0o755)
    (folders[0] / "job.py").write_text(JOB)
    for number in range(FILES):
        text = "class Slow:\n    def work(self): return 1\n"
        text += "".join(f"    def f{at}(self): return [{at}, {at}, {at}]\n" for at in range((BYTES - len(text)) // 55))
        (folders[1] / f"slow{number}.py").write_text(text)
    trace = tmp_path / "trace"
    try:
        with running(folders[0], interpreter, STEADY, STEADILY) as steady, running(folders[1], interpreter, SLOW, SLOWLY) as slow:
            words = [*COMMAND, "attach", "--match", "slow_sources_app", "--source", "agent", "--duration", "3", "-o", str(trace)]
            subprocess.run(words, check=True, timeout=PATIENCE_S)
            pids = steady.pid, slow.pid
    finally:
        for folder in folders:
            subprocess.run(["rm", "-rf", folder], check=True)
    opened = pytrace_ebpf.open(trace)
    names = opened.calls(columns=["pid", "func_id", "start_ns"]).merge(opened.functions()[["func_id", "qualname"]], on="func_id")
    works = names[names["qualname"].str.endswith("work")]
    assert set(works.loc[works["pid"] == pids[0], "qualname"]) == {"Job.work"}
    assert set(works.loc[works["pid"] == pids[1], "qualname"]) <= {"Slow.work", "work"}
    assert (works["pid"] == pids[1]).any(), "its calls are there, whatever their names"
