"""`--lines exact`: every line as often as sys.settrace counts it, and the time of a function's lines its own time, on a live program."""

import json
import subprocess
from collections.abc import Callable

import pandas as pd

import pytrace_ebpf
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.trace.states import SPLIT
from tests.bpf.conftest import Recorder
from tests.conftest import PATIENCE_S, Python, Target


def assert_sums(trace: Trace) -> None:
    names = ["self_ns", *(f"self_{part}" for part in SPLIT), "self_unknown_ns"]
    own, lines = (table.groupby("func_id")[names].sum() for table in (trace.tree().query("calls > 0"), trace.lines()))
    pd.testing.assert_frame_equal(own.loc[lines.index].astype("int64"), lines.astype("int64"))


def test_a_program_of_every_kind_of_line(python: Python, run: Callable[..., tuple]) -> None:
    command = python.command("lines")
    truth = subprocess.run(python.command("line_truth", command[-1]), capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    directory, ended = run(command, "--source", "agent", "--lines", "exact")
    assert ended.returncode == 0, ended.stderr
    trace = pytrace_ebpf.open(directory)
    assert not len(trace.losses())
    lines = trace.lines().merge(trace.functions(), on="func_id").query("file == @command[-1] and hits > 0")
    hits = lines.groupby(["name", "first_line", "line"])["hits"].sum()
    assert {":".join(map(str, place)): count for place, count in hits.items()} == json.loads(truth.stdout.splitlines()[-1])
    assert_sums(trace)


def test_attached_for_some_functions_alone(python: Python, target: Callable[..., Target], attach: Callable[..., Recorder]) -> None:
    process = target("fib", "--wait", python=python)
    recorder = attach(process.pid, "--lines", "exact", "--lines-of", "fib.fib")
    process.go()
    process.done()
    trace = pytrace_ebpf.open(recorder.finish())
    assert not len(trace.losses())
    names = trace.functions().set_index("func_id")["name"]
    lines = trace.lines()
    assert set(names[lines["func_id"]]) == {"fib"}
    calls = trace.tree().query("calls > 0").groupby("func_id")["calls"].sum()
    assert lines["hits"].max() == calls[lines["func_id"].iloc[0]]
    assert_sums(trace)
