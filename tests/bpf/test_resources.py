"""What a thread waits for behind a descriptor, against what the program itself knows of its descriptors."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

import pytrace_ebpf
from pytrace_ebpf.analyze.samples.paths import segments
from pytrace_ebpf.cli.main import main
from tests.bpf.conftest import Recorder
from tests.conftest import TARGETS, Python, Target

Run = Callable[..., tuple[Path, "subprocess.CompletedProcess[str]"]]
AT_LEAST_NS = 15_000_000  # half of what each waits for its answer


def waits_of(directory: Path) -> pd.DataFrame:
    """Waits with what they were for, and the name of their function; of that in a process that was forked the same."""
    trace = pytrace_ebpf.open(directory)
    waits = trace.waits().merge(trace.resources(), how="left", on="resource_id", suffixes=("", "_of_it"))
    waits["function"] = waits["caller_func_id"].map(trace.functions().set_index("func_id")["name"])
    waits["ns"] = waits["end_ns"] - waits["start_ns"]
    return waits


@pytest.mark.usually("agent")
def test_each_wait_names_what_the_program_knows(python: Python, source: str, run: Run, tmp_path: Path) -> None:
    told = tmp_path / "known.json"
    directory, ended = run(python.command("resources", str(told)), "-q", "--source", source)
    assert ended.returncode == 0
    known: dict[str, list[str]] = json.loads(told.read_text())
    assert len(known) >= 20
    waits = waits_of(directory)
    for function, (kind, name) in known.items():
        # The functions that a forked child was in when it began are not always known: it waits once.
        where = waits["pid"] != waits["pid"].iloc[0] if function == "inherited" else waits["function"] == function
        mine = waits[where & (waits["ns"] >= AT_LEAST_NS) & waits["syscall"].notna()]
        beside = ["sleep", "lock", "gil", "other" if kind == "child" else "wait-child"]  # other: until a new child has begun its program
        mine = mine[~mine["kind"].isin(beside)]
        assert len(mine) >= 1, function
        assert mine[["kind_of_it", "name"]].drop_duplicates().values.tolist() == [[kind, name]], function


@pytest.mark.usually("agent")
def test_what_a_thread_waited_for_before_it_was_traced(
    python: Python, source: str, target: Callable[..., Target], attach: Callable[..., Recorder]
) -> None:
    process = target("resources_before", python=python)
    recorder = attach(process.pid, "--source", source)
    process.go()
    known = process.done()
    waits = waits_of(recorder.finish())
    first = waits.sort_values("start_ns").drop_duplicates("tid").set_index("tid")
    assert {tid: [first["kind_of_it"][int(tid)], first["name"][int(tid)]] for tid in known} == known and len(known) == 5


def test_samples_name_what_the_program_knows(python: Python, run: Run, tmp_path: Path) -> None:
    """999 times a second: each wait of 8 ms and more is sampled when it ends."""
    told = tmp_path / "known.json"
    directory, ended = run(python.command("resources", str(told), "1"), "-q", "--sample", "999")
    assert ended.returncode == 0, ended.stderr
    known: dict[str, list[str]] = json.loads(told.read_text())
    trace = pytrace_ebpf.open(directory)
    functions = trace.functions().set_index("func_id")["name"]
    parts = [samples.merge(stacks, how="left", on="stack_id") for samples, stacks in segments(trace, native=False)]
    samples = pd.concat(parts).merge(trace.resources(), how="left", on="resource_id", suffixes=("", "_of_it"))
    samples = samples[(samples["off_ns"] >= AT_LEAST_NS) & (samples["state"] == 3) & samples["kind"].notna()]
    samples["function"] = samples["func_id"].map(functions)
    for function, name in known.items():
        if function not in ("inherited", "a_child"):
            mine = samples[samples["function"] == function]
            assert mine[["kind", "name"]].drop_duplicates().values.tolist() == [name], function
    assert main(["report", str(directory), "--by", "wait"]) == 0


@pytest.mark.usually("agent")
def test_who_is_at_the_other_end(python: Python, source: str, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """While both are there; a pair of sockets was made by the program itself, as the kernel has it."""
    directory, ended = run(python.command("peers"), "-q", "--source", source)
    told = json.loads(ended.stdout.splitlines()[-1].removeprefix("done "))
    trace = pytrace_ebpf.open(directory)
    ours = trace.resources()
    ours = ours[(ours["pid"] != told["child"]) & (ours["peer_pid"] == told["child"]) & (ours["kind"] != "child")]
    assert set(ours["kind"]) == {"tcp", "pipe"}
    (name,) = ours["peer_command"].unique()
    assert name.startswith("python") and told["server"] in set(ours["name"])
    assert main(["report", str(directory), "--by", "wait"]) == 0
    shown = capsys.readouterr().out
    assert f"{name} {told['server']} (recvfrom)" in shown and f"pipe of {name} (read)" in shown


def test_thousands_of_connections_a_second_are_told_apart(run: Run) -> None:
    """None is taken for another, and one without a name is a loss that is counted."""
    directory, ended = run([sys.executable, str(TARGETS / "connections.py"), "1.5"], "-q", "--source", "agent")
    assert ended.returncode == 0, ended.stderr
    said = json.loads(ended.stdout.splitlines()[-1])
    waits = waits_of(directory)
    waits = waits[waits["function"].isin(said["names"]) & (waits["syscall"] == "recvfrom")]
    named = waits[waits["name"].notna()]
    assert (named["name"] == named["function"].map(said["names"])).all()
    losses = pytrace_ebpf.open(directory).losses()
    assert len(waits) - len(named) <= losses.loc[losses["class"] == "resource_ring", "count"].sum()
    assert len(named) > 0.9 * len(waits) > 0 and len(waits) > 0.1 * said["made"] > 100
