"""Nothing is lost silently: with a ring that is far too small, events recorded and counted as lost still add up."""

from collections.abc import Callable

import pytrace_ebpf
from tests.bpf.conftest import Recorder, lost
from tests.conftest import Python, Target


def test_events_made_are_events_recorded_and_events_counted_lost(
    python: Python, target: Callable[..., Target], attach: Callable[..., Recorder]
) -> None:
    process = target("fib", "22", "--wait", python=python)
    recorder = attach(process.pid, "--source", python.sources[0], "--ring-mib", "0.015625")
    process.go()
    made = 2 * process.done()["calls"]["fib"]
    trace = pytrace_ebpf.open(recorder.finish())
    functions = trace.functions().set_index("func_id")["name"]
    events = trace.events()
    recorded = int((events["func_id"].map(functions) == "fib").sum())
    losses = trace.losses().query("`class` == 'call_ring'")
    missing = int(losses["count"].sum())
    assert missing > 0
    others = int((events["kind"] < 2).sum()) - recorded
    # Some of the lost may be events of other functions: there are at most a few dozen of those in all.
    assert made <= recorded + missing <= made + 100 - others
    assert lost(trace) == {"call_ring": missing}
    calls = trace.calls()
    assert (calls["status"] == "in_loss").any()
    windows = losses[["start_ns", "end_ns"]].to_numpy()
    assert (windows[:, 0] < windows[:, 1]).all()
    over = [((calls["start_ns"] < end) & (calls["end_ns"] > start)) for start, end in windows]
    touched = over[0].copy()
    for each in over[1:]:
        touched |= each
    assert (calls.loc[touched, "status"] == "in_loss").all()
