"""The functions that a process has loaded, as they are read from outside: of every Python of this host."""

from pathlib import Path

import pytest

from pytrace_ebpf.record.cpython.loaded import loaded_functions
from pytrace_ebpf.record.doctor import findings
from pytrace_ebpf.record.process.target import inspect
from tests.unit.agent_pythons import BUILDS, attached

PROGRAM = """
import json
class Job:
    def work(self): return 1
    @staticmethod
    def still(): return 2
    @classmethod
    def made(cls): return cls()
    @property
    def size(self): return 3
    class Inner:
        def deep(self): return 4
    again = work
def free(): return 5
other = free
serve()
"""
OWN = {"Job.work", "Job.still", "Job.made", "Job.size", "Job.Inner.deep", "free", "serve"}


@pytest.mark.parametrize("interpreter", BUILDS)
def test_they_are_all_that_can_be_reached_by_name(interpreter: str) -> None:
    with attached(interpreter, PROGRAM) as process:
        loaded = loaded_functions(inspect(process.process.pid))
    own = [(name, line) for file, name, line in loaded.functions if file == "<string>" and name in OWN]
    assert loaded.complete and {name for name, _ in own} == OWN and len(own) == len(OWN)
    assert any(name == "JSONDecoder.decode" and Path(file).name == "decoder.py" for file, name, _ in loaded.functions)


def test_doctor_says_what_patterns_fit() -> None:
    with attached(next(iter(BUILDS)), PROGRAM) as process:
        asked = [("--args", "wrok"), ("--args", "Job.*"), ("--args", "__main__"), ("--include", "json")]
        said = [finding for finding in findings(process.process.pid, asked) if finding.subject == "pattern"]
    assert [finding.ok for finding in said] == ["warning", "ok", "ok", "ok"]
    assert said[0].sentence.startswith("--args wrok fits none of the ") and "the nearest names: work" in said[0].sentence
    assert said[1].sentence.startswith("--args Job.* fits 5 functions so far: Job.work of <string>, ")


def test_a_process_that_has_ended_has_none() -> None:
    with attached(next(iter(BUILDS)), PROGRAM) as process:
        target = inspect(process.process.pid)
    assert loaded_functions(target).functions == []
