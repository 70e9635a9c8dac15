"""A program that another one starts in its own place, with other variables or in another root, is traced from its first instruction all the same."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import pytrace_ebpf
from tests.conftest import REPOSITORY, TARGETS, Python

Run = Callable[..., tuple[Path, "subprocess.CompletedProcess[str]"]]
LIBC = next(word for word in subprocess.check_output(["ldd", sys.executable], text=True).split() if word.startswith("/") and "libc.so" in word)
SAYS = "import json, os, sys\ndef step(): pass\nstep()\nprint(json.dumps([dict(os.environ), sys.argv]))"
WRAPPERS = {
    "no variables": (["env", "-i"], {}),
    "others": (["env", "-i", "A=1", "B="], {"A": "1", "B": ""}),
    "a library of its own": (["env", "-i", "A=1", f"LD_PRELOAD={LIBC}", "C=3"], {"A": "1", "LD_PRELOAD": LIBC, "C": "3"}),
    "more than one stack has room for": (["env", "-i", *(f"V{n}={'v' * 99_000}" for n in range(2))], {f"V{n}": "v" * 99_000 for n in range(2)}),
}


@pytest.mark.parametrize("wrapper, variables", WRAPPERS.values(), ids=WRAPPERS)
def test_a_program_has_the_variables_that_its_wrapper_gave_it_and_the_agent(
    wrapper: list[str], variables: dict[str, str], python: Python, run: Run
) -> None:
    directory, ended = run([*wrapper, *python.words, "-c", SAYS, "one", ""], "-q", "--source", "agent")
    assert (ended.returncode, ended.stderr) == (0, "")
    environment, arguments = json.loads(ended.stdout)
    brought, _, own = environment.pop("LD_PRELOAD", "").partition(":")
    fits = sum(map(len, variables.values())) < 1 << 17
    assert environment.items() >= {name: value for name, value in variables.items() if name != "LD_PRELOAD"}.items()
    assert (brought.endswith("/agent.so"), own, arguments) == (fits, variables.get("LD_PRELOAD", ""), ["-c", "one", ""])
    trace = pytrace_ebpf.open(directory)
    calls = trace.calls(columns=["func_id"]).merge(trace.functions(), on="func_id")
    assert (calls["name"] == "step").sum() == fits


def test_calls_in_another_root_are_counted_where_its_folders_for_files_in_memory_are_its_own(python: Python, run: Run) -> None:
    in_root = [str(REPOSITORY / "scripts" / "in-root.sh"), "--at", str(TARGETS), "--tmpfs", "/tmp:mode=1777", "/"]
    directory, ended = run([*in_root, *python.command("fib")], "-q", "--source", "agent")
    assert (ended.returncode, ended.stderr) == (0, "")
    trace = pytrace_ebpf.open(directory)
    calls = trace.calls(columns=["func_id"]).merge(trace.functions(), on="func_id")
    assert (calls["name"] == "fib").sum() == json.loads(ended.stdout.partition("done ")[2])["calls"]["fib"]
