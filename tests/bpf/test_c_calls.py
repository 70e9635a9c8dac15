"""`--c-calls`: calls of what is written in C stand between the Python calls around them, with their lines, times and ends."""

from collections.abc import Callable

import pytest

import pytrace_ebpf
from tests.bpf.conftest import Recorder, lost, reported
from tests.conftest import Python, Target

pytestmark = [pytest.mark.sources("agent"), pytest.mark.gil]

OF_THE_PROGRAM = {"list.append": 500, "len": 500, "math.hypot": 500, "re.Pattern.findall": 500, "list.pop": 7, "time.sleep": 1, "sorted": 6}


def test_a_program_of_known_calls(python: Python, run: Callable[..., tuple]) -> None:
    directory, ended = run(python.command("c_calls"), "--source", "agent", "--c-calls")
    assert ended.returncode == 0, ended.stderr
    trace = pytrace_ebpf.open(directory)
    assert not lost(trace)
    functions = trace.functions().set_index("func_id")
    calls = trace.calls().set_index("call_id", drop=False)
    calls["name"] = calls["func_id"].map(functions["name"])
    calls["file"] = calls["func_id"].map(functions["file"])
    calls["caller"] = calls["parent_id"].map(calls["name"])
    calls["from"] = calls["parent_id"].map(calls["file"])
    in_c = calls[calls["layer"] == "c"]
    assert set(functions.loc[in_c["func_id"], "module"]) == {"<c>"}
    assert not calls["status"].isin(["repaired", "in_loss", "open_at_start"]).any()
    own = in_c[in_c["from"].str.endswith("c_calls.py", na=False)]
    counts = own["name"].value_counts()
    assert {name: int(counts[name]) for name in OF_THE_PROGRAM} == OF_THE_PROGRAM
    assert own["call_line"].gt(0).all()
    assert (own["status"] == "unwound").sum() == 7 + 5
    called_back = calls[calls["name"] == "key"]
    assert len(called_back) == 500
    assert set(called_back["caller"]) == {"sorted"}
    (sleep,) = own[own["name"] == "time.sleep"].itertuples()
    assert sleep.blocked_ns > 15_000_000
    known = reported(trace, in_c)
    assert (known[["on_cpu_ns", "runq_wait_ns", "gil_wait_ns", "blocked_ns"]].sum(axis=1) == known["wall_ns"]).all()


def test_attached_to_a_program_that_is_in_one(python: Python, target: Callable[..., Target], attach: Callable[..., Recorder]) -> None:
    """What was open has no row; what follows has all of its own."""
    process = target("fib", "--wait", python=python)
    recorder = attach(process.pid, "--source", "agent", "--c-calls")
    process.go()
    process.done()
    trace = pytrace_ebpf.open(recorder.finish())
    calls = trace.calls()
    assert not calls["status"].isin(["repaired", "in_loss"]).any()
    assert (calls["layer"] == "c").any()
    assert not (calls[calls["layer"] == "c"]["status"] == "open_at_start").any()
