"""The critical path of a real program whose path is known, across threads, a lock, a queue and a process behind a pipe."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pytrace_ebpf.analyze.critical_path.asked import of_calls
from pytrace_ebpf.analyze.critical_path.rows import ON_CPU, RUN_QUEUE
from pytrace_ebpf.analyze.what_if.change import parsed
from pytrace_ebpf.analyze.what_if.what_if import what_if
from pytrace_ebpf.cli.main import main
from pytrace_ebpf.trace.reader import Trace
from tests.conftest import Python, Target


@pytest.mark.bpf
@pytest.mark.usually("agent")
def test_of_a_request_through_a_queue_a_lock_and_a_child_process(
    python: Python,
    source: str,
    target: Callable[..., Target],
    traced: Callable[..., tuple[Trace, dict[str, Any]]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    trace, said = traced(target("critical", "--wait", python=python), "--source", source)
    rows = trace.critical_path(function="request")
    calls = trace.named_calls(["wall_ns"])
    rows["ns"] = rows["end_ns"] - rows["start_ns"]
    wall = calls.loc[calls["qualname"] == "request", "wall_ns"]
    assert rows.groupby("item")["ns"].sum().tolist() == wall.tolist() and len(wall) == 3
    names = trace.functions().set_index("func_id")["qualname"]
    rows["own"] = rows["own_func_id"].map(names)
    for _, own in rows.groupby("item"):
        sleeps = own[own["kind"] == "sleep"]
        assert sleeps["own"].iloc[0] == "keep" and sleeps["pid"].drop_duplicates().tolist() == [said["pid"], said["child"]]
        of_child = sleeps["pid"] == said["child"]  # in which the agent may still begin, and wait for that
        assert set(sleeps.loc[of_child, "through"]) == {"io-read"} and sleeps.loc[~of_child, "through"].tolist() == ["lock"]
        assert "aside" not in own.loc[own["through"] != "gil", "own"].tolist()  # which it may have lost its core with
        waits = own[~own["kind"].isin([ON_CPU, RUN_QUEUE, "gil"])]
        assert set(waits["kind"]) <= {"sleep", "other", "page-fault"}  # all that others ended was followed
        ends = own.iloc[[0, -1]]["own"].tolist()
        assert ends == ["request", "request"]
    assert main(["report", str(trace.directory), "--by", "path", "--function", "request", "--slowest", "1"]) == 0
    told = capsys.readouterr().out
    assert "of 3 calls" in told and "sleeping" in told and "keep" in told


@pytest.mark.measured
@pytest.mark.usually("agent")
def test_what_would_change_is_what_changes(
    python: Python, source: str, target: Callable[..., Target], traced: Callable[..., tuple[Trace, dict[str, Any]]]
) -> None:
    """`pay` really made twice as fast, and the lock really left out: what was said of it is right within 10 %."""

    def recorded(*words: str) -> Trace:
        return traced(target("changes", "--wait", *words, python=python), "--source", source)[0]

    def median(trace: Trace) -> float:
        items = of_calls(trace, ["request"])
        return float(np.median(items["end_ns"] - items["start_ns"]))

    trace = recorded()
    items = of_calls(trace, ["request"])
    same = what_if(trace, parsed("pay 1x"), items)
    assert len(items) == 120 and same.then.tolist() == same.now.tolist()
    for change, words in (("pay 2x", ("--speed", "2")), ("lock", ("--locked", "0"))):
        said, real = float(np.median(what_if(trace, parsed(change), items).then)), median(recorded(*words))
        assert abs(said / real - 1) <= 0.1, (change, median(trace), said, real)
