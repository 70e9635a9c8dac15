"""Attaching to a program in the middle of its work: open frames are reported once, with their names."""

from collections.abc import Callable

import pytest

import pytrace_ebpf
from tests.bpf.conftest import Recorder, lost
from tests.conftest import Python, Target


@pytest.mark.parametrize("returns", [True, False])
def test_a_deep_stack_is_reported_whether_it_returns_or_not(
    returns: bool, python: Python, source: str, target: Callable[..., Target], attach: Callable[..., Recorder]
) -> None:
    process = target("deep", "400", "--wait", python=python)
    recorder = attach(process.pid, "--source", source)
    if returns:
        process.go()
        process.wait()
        directory = recorder.finish()
    else:
        directory = recorder.stop()
    trace = pytrace_ebpf.open(directory)
    calls = trace.calls().merge(trace.functions(), on="func_id").sort_values("call_id")
    opened = calls[calls["status"] == "open_at_start"]
    assert list(opened["name"]) == ["<module>"] + ["nest"] * 401 + ["bottom", "line_on_stdin"]
    assert list(opened["depth"]) == list(range(404))
    assert (opened["start_ns"] == trace.processes()["start_ns"].iloc[0]).all()
    assert set(opened["line"] > 0) == {returns}


def test_the_outer_frames_of_a_busy_program_are_reported(
    python: Python, source: str, target: Callable[..., Target], attach: Callable[..., Recorder]
) -> None:
    process = target("busy", python=python)
    directory = attach(process.pid, "--source", source, "--duration", "0.1").finish()
    process.kill()  # it would compute for as long as its trace is read
    trace = pytrace_ebpf.open(directory)
    calls = trace.calls().merge(trace.functions(), on="func_id")
    # At ten million calls a second, where this process is not given a core for a second, some are lost and counted.
    some_lost = bool(lost(trace))
    assert source == "agent" or not some_lost
    outer = calls[calls["depth"] < 2].groupby("tid")["name"].apply(list)
    main = outer[process.pid]
    assert main == ["<module>", "forever"]
    threads = calls[(calls["tid"] != process.pid) & (calls["name"] == "forever")]
    assert len(threads) == 2 and set(threads["status"]) == {"in_loss" if some_lost else "open_at_start"}
    # Every stack below is a run of `down`, whichever frame of it was open.
    below = calls[(calls["name"] == "down")]
    assert below["status"].isin(["complete", "open_at_start", "open_at_end", *(["in_loss", "repaired"] if some_lost else [])]).all()
    deepest = calls.loc[calls["name"] == "forever", "depth"].max()
    assert below["depth"].max() <= deepest + 30
