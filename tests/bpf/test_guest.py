"""A guest is not seen, and cannot be hurt by what else its host has at the table."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import pytrace_ebpf
from tests.conftest import HOST_PYTHON, Python, built_pythons

Run = Callable[..., tuple[Path, "subprocess.CompletedProcess[str]"]]
PYTHONS = [Python(HOST_PYTHON), *built_pythons()]


@pytest.mark.parametrize("interpreter", PYTHONS, ids=str)
def test_another_tools_function_that_is_gone_is_never_called(interpreter: Python, run: Run) -> None:
    _, ended = run(interpreter.command("neighbours", "left"), "-q", "--source", "agent")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, 'done {"calls": {}}\n', "")


@pytest.mark.parametrize("interpreter", PYTHONS, ids=str)
def test_a_code_object_at_the_address_of_one_that_died_has_its_own_name(interpreter: Python, run: Run) -> None:
    directory, ended = run(interpreter.command("neighbours", "reused"), "-q", "--source", "agent")
    assert ended.returncode == 0, ended.stderr
    counts = json.loads(ended.stdout.removeprefix("done "))["calls"]
    trace = pytrace_ebpf.open(directory)
    calls = trace.calls(columns=["func_id"]).merge(trace.functions(), on="func_id")
    assert calls[calls["name"].str.startswith("made_")].groupby("name").size().to_dict() == counts
