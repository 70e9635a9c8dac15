"""Experiments on the real kernel: every run has its cores and threads, and all have the same calls."""

import json
import subprocess
import sys
from pathlib import Path

import pandas as pd

import pytrace_ebpf
from pytrace_ebpf.experiment.data import DATASET
from pytrace_ebpf.experiment.paths import PARTS
from tests.bpf.conftest import COMMAND
from tests.conftest import PATIENCE_S

PROGRAM = """\
import json, os, sys

def leaf(n):
    return sum(range(n))

def middle():
    return [leaf(1000 * n) for n in range(5)]

def work():
    for _ in range(3):
        middle()
    if os.environ["OMP_NUM_THREADS"] == sys.argv[2]:
        leaf(1)

work()
print(json.dumps([sorted(os.sched_getaffinity(0)), os.environ["OMP_NUM_THREADS"], os.environ["MKL_NUM_THREADS"], sys.stdin.read()]))
sys.exit(int(sys.argv[1]))
"""
SETTINGS = [(cpus, threads) for cpus in ([0], [0, 1]) for threads in (1, 2)]


def experiment(tmp_path: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    settings = ["--cpus", "0", "--cpus", "0,1", "--threads", "1", "--threads", "2"]
    command = [*COMMAND, "experiment", *settings, "-o", str(tmp_path / "out"), *words[:-1], "--", "/usr/bin/python3.11", str(program), words[-1], "2"]
    return subprocess.run(command, input="nothing of this", capture_output=True, text=True, timeout=PATIENCE_S)


def test_every_run_has_its_setting_and_the_same_calls(tmp_path: Path) -> None:
    done = experiment(tmp_path, "--source", "agent", "--repeat", "2", "--json", "0")
    assert done.returncode == 0, done.stderr
    facts, out = json.loads(done.stdout), tmp_path / "out"
    assert [(row["cpus"], row["threads"]) for row in facts["settings"]] == SETTINGS
    names = [row["setting"] for row in facts["settings"]]
    assert [(run["setting"], run["repeat"]) for run in facts["runs"]] == [(name, repeat) for repeat in (1, 2) for name in names]
    for run in facts["runs"]:
        cpus, threads = SETTINGS[names.index(run["setting"])]
        assert json.loads((out / run["log"]).read_text().splitlines()[-1]) == [cpus, str(threads), str(threads), ""]
        trace = pytrace_ebpf.open(out / run["trace"])
        assert trace.manifest["state"] == "complete" and not run["lost"]
        calls = trace.calls(columns=["first_cpu", "last_cpu", "wall_ns"])
        cores = {core for name in ("first_cpu", "last_cpu") for core in calls[name].dropna()}
        assert cores and cores <= set(cpus)
        assert run["calls"] == len(calls) and run["wall_ns"] >= calls["wall_ns"].max()
    rows = pd.read_parquet(out / DATASET)
    assert (rows[list(PARTS)].sum(axis=1) == rows["wall_ns"]).all()
    own = rows[rows["module"] == "program"].groupby(["setting", "repeat", "qualname"], observed=True)["calls"].sum()
    for name, (_, threads) in zip(names, SETTINGS, strict=True):
        for repeat in (1, 2):
            assert own[name, repeat, "middle"] == 3 and own[name, repeat, "leaf"] == 15 + (threads == 2)
    # work > leaf is there with two threads only; middle > leaf everywhere.
    only = [row for row in facts["only_in_some"] if row["qualname"] == "leaf"]
    assert sorted(row["setting"] for row in only) == sorted(name for name in names if name.endswith("threads=2"))
    assert {path.suffix for path in out.glob("functions.*")} == {".png", ".svg"}


def test_a_program_that_fails_ends_it_with_one_sentence(tmp_path: Path) -> None:
    done = experiment(tmp_path, "-q", "7")
    assert done.returncode == 3 and done.stdout == ""
    assert "exit code 7 under cpus=0 threads=1" in done.stderr and done.stderr.count("\n") == 1
    again = subprocess.run([*COMMAND, "experiment", "--report", str(tmp_path / "out")], capture_output=True, text=True, check=False)
    assert again.returncode == 5 and again.stderr.count("\n") == 1


def test_messages_of_the_tracer_about_a_run_are_shown(tmp_path: Path) -> None:
    (tmp_path / "no.py").write_text("not a program")
    command = [*COMMAND, "experiment", "--cpus", "0", "-o", str(tmp_path / "out"), "--", str(tmp_path / "no.py")]
    (tmp_path / "no.py").chmod(0o755)
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    announced, said = done.stderr.splitlines()
    assert done.returncode != 0 and announced == "3 runs, in turns: cpus=0" and said.startswith("pytrace-ebpf: "), sys.executable
