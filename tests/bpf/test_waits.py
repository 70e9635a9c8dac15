"""Programs that wait for one known cause: the cause is named, and the thread that was waited for."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

import pytrace_ebpf
from pytrace_ebpf.analyze.waits.whole import whole_waits
from pytrace_ebpf.cli import main
from tests.bpf.conftest import Recorder
from tests.conftest import Python, Target
from tests.waits_add_up import assert_waits_add_up

pytestmark = pytest.mark.measured

NOBODY = [0]
# The kind, and who ended the wait: the partner that the program names, nobody (a timer or a device), or some kernel thread.
CAUSES: dict[str, tuple[str, Any]] = {
    "sleep": ("sleep", NOBODY),
    "pipe": ("io-read", "partner"),
    "socket": ("net", "partner"),
    "poll": ("poll", "partner"),
    "lock": ("lock", "partner"),
    "gil": ("gil", "partner"),
    "fault": ("page-fault", NOBODY),
    "disk": ("io-read", NOBODY),
    "sync": ("io-write", None),
    "child": ("wait-child", "partner"),
    "hog": ("preempted", None),
}


@pytest.mark.usually("agent")
@pytest.mark.parametrize("cause", CAUSES)
def test_the_cause_is_named(
    cause: str, python: Python, source: str, target: Callable[..., Target], attach: Callable[..., Recorder], request: pytest.FixtureRequest
) -> None:
    kind, partner = CAUSES[cause]
    if kind == "gil":
        request.getfixturevalue("gil_on")
    facts, trace = recorded(cause, python, source, target, attach)
    assert assert_waits_add_up(trace)
    waits = waits_of(trace, "wait")
    # Of the wait alone, without the run queue after it, which depends on the machine; unless the run queue is the cause.
    waits["ns"] = waits["end_ns"] - waits["start_ns"] if cause == "hog" else waits["blocked_until_ns"] - waits["start_ns"]
    right = waits[waits["kind"] == kind]
    assert share(right, waits) >= 0.95, waits.groupby(["kind", "syscall"], dropna=False, observed=True)["ns"].sum()
    if partner is not None:
        wanted = np.ravel(facts["partner"] if partner == "partner" else partner)
        by = right["holder_tid" if kind == "gil" else "waker_tid"]
        threads = trace.threads()
        by = by[~by.isin(threads.loc[threads["name"] == "pytrace-agent", "tid"])]  # which takes the GIL, too, to find threads that began unseen
        right = right.loc[by.index]
        assert share(right[by.isin(wanted)], right) >= 0.95, (wanted, right.groupby(by, dropna=False)["ns"].sum())
    if kind == "gil":
        holding = trace.calls(columns=["call_id", "func_id"]).merge(trace.functions(), on="func_id").set_index("call_id")["name"]
        names = right["holder_call_id"].map(holding)
        assert share(right[names == "hold"], right) >= 0.95, names.value_counts()


@pytest.mark.usually("agent")
def test_the_process_that_took_the_core_is_named(python: Python, source: str, target: Callable[..., Target], attach: Callable[..., Recorder]) -> None:
    facts, trace = recorded("hog", python, source, target, attach)
    waits = waits_of(trace, "wait")
    # Not it alone: the other programs of this machine take the core too, as often as the scheduler lets them.
    assert facts["partner"] in set(waits.loc[waits["kind"] == "preempted", "waker_tid"])


def test_the_report_names_the_lock_its_waiter_and_its_holder(
    python: Python, source: str, target: Callable[..., Target], attach: Callable[..., Recorder], capsys: pytest.CaptureFixture[str]
) -> None:
    process = target("two_locks", "--wait", python=python)
    recorder = attach(process.pid, "--source", source, "--no-follow")
    process.go()
    process.done()
    folder = str(recorder.finish())
    main.main(["report", folder])
    said = " ".join(capsys.readouterr().out.split())
    assert "all threads together" in said and "for a lock that `flush` (two_locks.py:14) has while it sleeps: " in said
    assert said.index("`log_line` (two_locks.py:19) waits ") < said.index("for a lock that") < said.index("Functions by self time")
    main.main(["report", folder, "--by", "wait"])
    line = next(line for line in capsys.readouterr().out.splitlines() if " log_line  " in line)
    assert line.split()[4] == "lock" and "flush  " in line.partition(" log_line  ")[2]


# By the function that waits: what it calls to wait, what ends the wait, and whose call that is.
PRIMITIVES = {
    "consume": ("get", "put", "produce"),
    "watch": ("wait", "set", "signal"),
    "acquire": ("acquire", "release", "release"),
    "listen": ("wait", "notify", "announce"),
    "meet": ("wait", "wait", "arrive"),
    "collect": ("result", "set_result", "answer"),
}


def test_a_wait_is_named_by_what_was_called_and_by_who_ended_it(
    python: Python, source: str, target: Callable[..., Target], attach: Callable[..., Recorder], capsys: pytest.CaptureFixture[str]
) -> None:
    process = target("primitives", "--wait", python=python)
    recorder = attach(process.pid, "--source", source, "--no-follow")
    process.go()
    process.done()
    folder = str(recorder.finish())
    trace = pytrace_ebpf.open(folder)
    waits, names = trace.waits(), trace.functions().set_index("func_id")["name"]
    waits = waits[(waits["kind"] == "lock") & (waits["primitive_func_id"] >= 0)]
    for column in ("caller", "primitive", "waker_primitive", "waker_caller"):
        waits[column] = waits[f"{column}_func_id"].map(names)
    waits["ns"] = waits["blocked_until_ns"] - waits["start_ns"]
    longest = waits.sort_values("ns").groupby("caller").tail(1).set_index("caller")[["primitive", "waker_primitive", "waker_caller"]]
    assert {name: tuple(longest.loc[name]) for name in PRIMITIVES} == PRIMITIVES
    main.main(["report", folder, "--by", "wait"])
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    for waiting, (called, ended, by) in PRIMITIVES.items():
        (line,) = (line for line in lines if f".{called} {waiting} " in line)
        assert f".{ended} by {by} " in line


@pytest.mark.usually("agent")
def test_a_lock_is_the_same_in_all_its_waiters(python: Python, source: str, target: Callable[..., Target], attach: Callable[..., Recorder]) -> None:
    _, trace = recorded("lock", python, source, target, attach)
    calls = trace.calls(columns=["call_id", "func_id"]).merge(trace.functions()[["func_id", "name"]], on="func_id")
    waits = trace.waits().merge(calls, on="call_id")
    locks = waits[waits["name"].isin(["hold", "want"]) & (waits["kind"] == "lock")]
    locks = locks[locks["end_ns"] - locks["start_ns"] > 1e6]
    # Not three: on some versions one thread may take it at every turn before the others have it.
    assert locks["tid"].nunique() >= 2
    assert locks["lock_address"].nunique() == 1, locks.groupby(["lock_address", "tid"]).size()


@pytest.mark.usually("agent")
def test_a_lock_is_the_same_in_those_that_waited_already(
    python: Python, source: str, target: Callable[..., Target], attach: Callable[..., Recorder]
) -> None:
    process = target("queued", "--wait", python=python)
    recorder = attach(process.pid, "--source", source, "--no-follow")
    process.go()
    waiters = process.done()["waiters"]
    waits = pytrace_ebpf.open(recorder.finish()).waits()
    waits["ns"] = waits["blocked_until_ns"] - waits["start_ns"]
    longest = waits[waits["tid"].isin(waiters)].sort_values("ns").groupby("tid").tail(1)
    assert longest["kind"].tolist() == ["lock"] * 3
    assert longest["lock_address"].nunique() == 1


def test_a_wait_in_slices_is_one_wait(target: Callable[..., Target], attach: Callable[..., Recorder]) -> None:
    process = target("slices", "--wait")
    recorder = attach(process.pid, "--source", "agent")
    process.go()
    looks = process.done()["looks"]
    trace = pytrace_ebpf.open(recorder.finish())
    waits = trace.waits(tid=process.pid)
    polls = waits[waits["syscall"] == "poll"]
    assert looks >= 5 and len(polls) >= looks
    whole = pd.concat(whole_waits([polls]))
    unseen = trace.losses()["class"].isin(["sched_in", "sched_out", "sched_waking"]).sum()  # the kernel did not report a switch: that ends the row
    longest = whole.loc[whole["slices"].idxmax()]
    assert longest["slices"] >= (looks + 1 - 3 * unseen) // (1 + unseen)
    if not unseen:
        assert len(whole) == 1 and longest["waker_pid"] == process.pid and longest["waker_tid"] != process.pid  # not the timer
        assert longest["end_ns"] - longest["start_ns"] == (polls["end_ns"] - polls["start_ns"]).sum()


def recorded(cause: str, python: Python, source: str, target: Callable[..., Target], attach: Callable[..., Recorder]) -> tuple[dict[str, Any], Any]:
    process = target("waits", cause, "--wait", python=python)
    recorder = attach(process.pid, "--source", source, "--no-follow")
    process.go()
    facts = process.done()
    return facts, pytrace_ebpf.open(recorder.finish())


def waits_of(trace: Any, name: str) -> pd.DataFrame:
    """The waits that began within the one call of function `name`, on its thread."""
    calls = trace.calls(columns=["tid", "func_id", "start_ns", "end_ns"]).merge(trace.functions(), on="func_id")
    (call,) = calls[(calls["name"] == name) & calls["file"].str.endswith("waits.py")].to_dict("records")
    waits = trace.waits(tid=call["tid"], start_ns=call["start_ns"], end_ns=call["end_ns"])
    return waits[waits["start_ns"] >= call["start_ns"]].reset_index(drop=True)


def share(part: pd.DataFrame, whole: pd.DataFrame) -> float:
    return float(part["ns"].sum() / whole["ns"].sum())
