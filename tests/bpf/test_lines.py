"""`--lines exact`: every line as often as sys.settrace counts it, and the time of a function's lines its own time, on a live program."""

import json
import subprocess
from collections.abc import Callable

import pandas as pd
import pytest

import pytrace_ebpf
from pytrace_ebpf.analyze.samples.by_line import by_line
from pytrace_ebpf.analyze.samples.errors import standard_error
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.trace.states import SPLIT
from tests.bpf.conftest import Recorder, lost
from tests.conftest import PATIENCE_S, Python, Target

pytestmark = pytest.mark.sources("agent")
HZ, SIGMAS = 997, 5
LINE_NS = 1_000  # what recording one costs at most
MOST_MIXED = 0.02  # of a share: two runs of one program, which measures itself


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
    assert not lost(trace)
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
    assert not lost(trace)
    names = trace.functions().set_index("func_id")["name"]
    lines = trace.lines()
    assert set(names[lines["func_id"]]) == {"fib"}
    calls = trace.tree().query("calls > 0").groupby("func_id")["calls"].sum()
    assert lines["hits"].max() == calls[lines["func_id"].iloc[0]]
    assert_sums(trace)


@pytest.mark.gil
@pytest.mark.measured
def test_shares_of_sampled_lines_are_those_of_exact_ones(python: Python, target: Callable[..., Target], attach: Callable[..., Recorder]) -> None:
    """Of lines that take 1 : 2 : 4, in two runs of a program, which measures them itself."""

    def recorded(*options: str) -> tuple[Trace, pd.Series]:
        """And what the program says that its lines took."""
        process = target("shares", "3", "--wait", python=python)
        recorder = attach(process.pid, *options)
        process.go()
        said = process.done()
        took = {said["first_line"] + 2 + int(name[5:]): ns for name, ns in said["spent"].items() if name.startswith("line+")}
        return pytrace_ebpf.open(recorder.finish()), pd.Series(took, dtype=float)

    def of_lines(table: pd.DataFrame, trace: Trace) -> pd.DataFrame:
        return table[table["func_id"].isin(trace.functions().query("name == 'lines'")["func_id"])].set_index("line").loc[took.index]

    trace, took = recorded("--lines", "exact", "--lines-of", "shares.lines")
    exact = of_lines(trace.lines(), trace)
    own_cost = LINE_NS * exact["hits"].sum() / exact["self_on_cpu_ns"].sum()
    shares = (exact["self_on_cpu_ns"] / exact["self_on_cpu_ns"].sum()).astype(float)
    assert exact["hits"].nunique() == 1 and own_cost < 0.01  # of lines that take a millisecond
    assert ((shares - took / took.sum()).abs() < MOST_MIXED).all(), (shares, took)
    trace, took = recorded("--sample", str(HZ))
    period = trace.manifest["sampling"]["period_ns"]
    samples = of_lines(by_line(trace, period, len(trace.samples())), trace)["self_on_cpu_ns"] / period
    count = samples.sum()
    off = (samples - shares * count).abs()
    assert count > 50 and (off <= SIGMAS * standard_error(shares * count, count) + MOST_MIXED * count).all(), (samples, shares, took)
