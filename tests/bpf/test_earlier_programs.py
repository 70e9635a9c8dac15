"""A process that executes another program: what it was before, in `processes` and in the report, whoever records it."""

import json
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import pytrace_ebpf
from tests.bpf.conftest import COMMAND

PYTHON = "/usr/bin/python3.11"
# The second program is over before anybody can look at it.
SHORT = "def serve(n): return n\nserve(1)\n"
BUILD = "import os, sys\ndef prepare(n): return n\nfor n in range(300): prepare(n)\nos.execv(sys.executable, [sys.executable, 'serve.py', '--fast', sys.argv[1]])\n"
HOW = pytest.mark.parametrize("how", [("--source", "usdt"), ("--source", "agent"), ("--sample",)], ids=["usdt", "agent", "sample"])


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "build.py").write_text(BUILD)
    (tmp_path / "serve.py").write_text(SHORT)
    return tmp_path


def report(trace: Path, *options: str) -> str:
    return subprocess.run([*COMMAND, "report", str(trace), *options], capture_output=True, text=True, check=True).stdout


@HOW
def test_the_last_program_is_named_and_the_one_that_executed_it(how: tuple[str, ...], programs: Path, run: Callable[..., tuple]) -> None:
    directory, ended = run([PYTHON, "build.py", "a b"], *how)
    assert ended.returncode == 0, ended.stderr
    trace = pytrace_ebpf.open(directory)
    build, serve = f"{PYTHON} build.py 'a b'", f"{PYTHON} serve.py --fast 'a b'"
    row = trace.processes().iloc[0]
    assert (row["command"], list(row["earlier_commands"]), row["executable"]) == (serve, [build], PYTHON)
    assert trace.manifest["target"]["command"] == serve
    assert f"{build},\nwhich executed {serve}\n" in report(directory) or f"{build}, which executed {serve}\n" in report(directory)
    target = json.loads(report(directory, "--json"))["target"]
    assert (target["command"], target["earlier_commands"]) == (serve, [build])
    if "usdt" in how or "agent" in how:
        names = trace.calls(columns=["func_id"]).merge(trace.functions(), on="func_id")["name"]
        assert (names == "prepare").sum() == 300
    assert trace.sql("select len(earlier_commands) as n from processes")["n"].tolist() == [1]


@HOW
def test_programs_of_any_kind_one_after_the_other(how: tuple[str, ...], programs: Path, run: Callable[..., tuple]) -> None:
    inner = f"exec {PYTHON} -c \"import os; os.execv('/bin/true', ['true', 'x' * 2000])\""
    outer = f"exec sh -c {shlex.quote(inner)}"
    directory, ended = run(["sh", "-c", outer], *how)
    assert ended.returncode == 0, ended.stderr
    row = pytrace_ebpf.open(directory).processes().iloc[0]
    words = [shlex.split(command) for command in row["earlier_commands"]]
    assert words == [["sh", "-c", outer], ["sh", "-c", inner], shlex.split(inner)[1:]]
    assert row["command"].startswith("true xxxxxxxx") and (len(row["command"]) == 2005 or row["command"].endswith("x ..."))


@HOW
def test_a_child_that_executes_a_program_at_once_was_nothing_before(how: tuple[str, ...], programs: Path, run: Callable[..., tuple]) -> None:
    program = "import os\nif pid := os.fork(): os.waitpid(pid, 0)\nelse: os.execv('/bin/echo', ['echo', '-n'])"
    directory, ended = run([PYTHON, "-c", program], *how)
    assert ended.returncode == 0, ended.stderr
    rows = pytrace_ebpf.open(directory).processes().set_index("command")
    assert list(rows.loc["echo -n", "earlier_commands"]) == [] and len(rows) == 2


def test_one_that_executes_itself_again_and_again_keeps_the_first_and_the_last_ones(programs: Path, run: Callable[..., tuple]) -> None:
    (programs / "again.sh").write_text("[ $1 -lt 40 ] && exec sh again.sh $(($1 + 1))\nexit 0\n")
    directory, ended = run(["sh", "again.sh", "0"], "--source", "agent")
    assert ended.returncode == 0, ended.stderr
    row = pytrace_ebpf.open(directory).processes().iloc[0]
    numbers = [int(command.split()[-1]) for command in row["earlier_commands"]]
    assert row["command"] == "sh again.sh 40" and numbers == [0, *range(31, 40)]
    assert "sh again.sh 0, which executed 10 programs in turn, the last of them sh again.sh 40" in " ".join(report(directory).split())
