"""A function's name is right or plain, and the same in every process and every recording of one program."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import pytrace_ebpf
from tests.bpf.conftest import COMMAND, Recorder
from tests.conftest import HOST_PYTHON, PATIENCE_S, Python, built_pythons

PYTHONS = [Python(HOST_PYTHON), *(python for python in built_pythons() if python.minor in (8, 10, 13))]
Run = Callable[..., tuple[Path, "subprocess.CompletedProcess[str]"]]

SERVICE = """
import time
class Alpha:
    def handle(self):
        until = time.perf_counter() + .0013  # with Beta's no multiple of the time between two samples
        while time.perf_counter() < until: pass
class Beta:
    def handle(self):
        until = time.perf_counter() + .0018
        while time.perf_counter() < until: pass
"""
SERVES = """
import sys
sys.dont_write_bytecode = True
import service
print("ready", flush=True)
while True: service.Alpha().handle(); service.Beta().handle()
"""
# Six processes that end at once and their creator call one method.
CHILDREN = """
import multiprocessing, os, sys
class Job:
    def work(self): return os.environ.get("HOME")
def child(number):
    for _ in range(50): Job().work()
if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    for number in range(6):
        process = context.Process(target=child, args=(number,)); process.start(); process.join()
    Job().work()
"""
SHORT = """
import os
class Order:
    def total(self): return sum(each for each in range(9))
    class Line:
        def price(self): return (lambda: 3)()
for _ in range(20): Order().total(); Order.Line().price()
os.environ.get("HOME")
"""


def names_of(directory: Path, file: str) -> set[str]:
    functions = pytrace_ebpf.open(directory).functions()
    return set(functions.loc[functions["file"].str.endswith(file), "qualname"])


@pytest.mark.parametrize("interpreter", PYTHONS, ids=str)
@pytest.mark.parametrize("options", [("--source", "agent"), ("--sample", "499")], ids=" ".join)
def test_a_deploy_gives_a_running_program_no_other_names(
    interpreter: Python, options: tuple[str, ...], tmp_path: Path, attach: Callable[..., Recorder]
) -> None:
    source = tmp_path / "service.py"
    source.write_text(SERVICE)
    (tmp_path / "app.py").write_text(SERVES)
    with subprocess.Popen([*interpreter.words, "app.py"], cwd=tmp_path, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout and process.stdout.readline() == b"ready\n"
            source.write_text(SERVICE.replace("Alpha", "Gamma").replace("Beta", "Delta"))
            recorder = attach(process.pid, "--duration", "1", *options)
            found = names_of(recorder.finish(), "service.py")
        finally:
            process.kill()
    assert found == {"handle"} if interpreter.minor < 11 else found == {"Alpha.handle", "Beta.handle"}


@pytest.mark.parametrize("interpreter", PYTHONS, ids=str)
@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_short_children_have_the_names_of_their_creator(interpreter: Python, method: str, tmp_path: Path, run: Run) -> None:
    (tmp_path / "app.py").write_text(CHILDREN)
    trace, _ = run([*interpreter.words, str(tmp_path / "app.py"), method])
    opened = pytrace_ebpf.open(trace)
    calls = opened.calls(columns=["func_id"]).merge(opened.functions(), on="func_id")
    counts = (
        calls[calls["name"].isin(["work", "__getitem__"]) & calls["file"].str.contains("app.py|/os.py|frozen os")]
        .groupby("qualname")
        .size()
        .to_dict()
    )
    assert counts["Job.work"] == 301 and counts["_Environ.__getitem__"] >= 301 and len(counts) == 2


@pytest.mark.parametrize("interpreter, source", [(python, source) for python in PYTHONS for source in python.sources], ids=str)
def test_identical_runs_have_identical_names(interpreter: Python, source: str, tmp_path: Path) -> None:
    (tmp_path / "short.py").write_text(SHORT)
    traces = [str(tmp_path / f"trace{number}") for number in range(4)]
    for trace in traces:
        words = [*COMMAND, "run", "-q", "--source", source, "-o", trace, "--", *interpreter.words, str(tmp_path / "short.py")]
        subprocess.run(words, check=True, timeout=PATIENCE_S)
    assert {"Order.total", "Order.total.<locals>.<genexpr>", "Order.Line.price", "Order.Line.price.<locals>.<lambda>"} <= names_of(
        Path(traces[0]), "short.py"
    )
    for trace in traces[1:]:
        done = subprocess.run([*COMMAND, "diff", traces[0], trace, "--top", "0", "--json"], capture_output=True, check=True, timeout=PATIENCE_S)
        rows = json.loads(done.stdout)["rows"]
        assert rows and not [row for row in rows if not row["before_calls"] or not row["after_calls"]]
