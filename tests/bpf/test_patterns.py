"""Patterns mean the same by both sources, and a recording says soon what they fit."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import pytrace_ebpf
from tests.bpf.conftest import COMMAND, Recorder
from tests.conftest import PATIENCE_S, Python

PROGRAM = """
import sys, time
class Job:
    def work(self, a): return a
    def rest(self, b): return b
def free(c): return c
print("ready", flush=True)
while not sys.stdin.closed:
    Job().work(1); Job().rest(2); free(3); time.sleep(.002)
"""
MEANT = {"work": "a", "Job.*": "ab", "__main__": "abc", "free": "c", "shop.py": "abc", "__main__.free": "c", "shop.Job.rest": "b", "wrok": ""}


@pytest.mark.parametrize("pattern", MEANT)
def test_both_sources_record_what_a_pattern_means(python: Python, source: str, pattern: str, tmp_path: Path, attach: Callable[..., Recorder]) -> None:
    (tmp_path / "shop.py").write_text(PROGRAM)
    with subprocess.Popen([*python.words, "shop.py"], cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout and process.stdout.readline() == b"ready\n"
            recorder = attach(process.pid, "--source", source, "--duration", "3", "--args", pattern)
            assert recorder.process.stderr
            said = next(line for line in recorder.process.stderr if line.startswith(f"--args {pattern} fits"))
            trace = recorder.finish()
        finally:
            process.kill()
    count = len(MEANT[pattern])
    assert said.startswith(f"--args {pattern} fits {count} function" if count else "--args wrok fits none of the ")
    assert count or "nearest names: work" in said
    values = pytrace_ebpf.open(trace).values()
    assert set(values.loc[values["name"].isin(["a", "b", "c"]), "name"]) == set(MEANT[pattern])
    report = subprocess.run([*COMMAND, "report", str(trace), "--by", "args"], capture_output=True, text=True, check=True, timeout=PATIENCE_S).stdout
    assert count or "nearest names: work" in " ".join(report.split())


def test_of_a_program_that_ends_at_once_it_is_said_at_the_end(
    tmp_path: Path, run: Callable[..., tuple[Path, "subprocess.CompletedProcess[str]"]]
) -> None:
    (tmp_path / "short.py").write_text("def work(): pass\nwork()\n")
    trace, done = run(["/usr/bin/python3", str(tmp_path / "short.py")], "--args", "wrok", "--include", "__main__")
    assert (
        "--include __main__ fits 1 function so far" in done.stderr
        and "--args wrok fits none of the 1 function known" in done.stderr
        and "nearest names: work" in done.stderr
    )
    patterns = json.loads((trace / "manifest.json").read_text())["patterns"]
    assert [(each["option"], each["fits"]) for each in patterns] == [("--include", 1), ("--args", 0)]
