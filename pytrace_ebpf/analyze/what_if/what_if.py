"""What requests, calls or the run would take if something were different: the trace played again with that change."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from pytrace_ebpf.analyze.critical_path.asked import fitted
from pytrace_ebpf.analyze.critical_path.timelines import NOBODY, Timelines, timelines
from pytrace_ebpf.analyze.waits.gil import holds
from pytrace_ebpf.analyze.what_if.change import CORES, FUNCTION, GIL, LOCK, Change
from pytrace_ebpf.analyze.what_if.steps import Model, Saved, played, recorded
from pytrace_ebpf.derive.calls.primitives import LIBRARY, among
from pytrace_ebpf.derive.scheduling.curve import Curve
from pytrace_ebpf.derive.scheduling.split import thread_keys
from pytrace_ebpf.errors import TraceError

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Outcome:
    """Of each item how long it took and would take, ns; `played`, that what was recorded would take by the same simulation, None where that is exact."""

    now: Ints
    then: Ints
    played: Ints | None


def what_if(trace: Any, change: Change, items: pd.DataFrame) -> Outcome:
    """Play a pytrace_ebpf Trace with scheduling by eBPF with `change`, for `items` (critical_path.asked.ITEM). About 500 bytes a wait.

    A function's change keeps the order in which threads waited for each other and for the GIL, and the run queue as long as it was. Any other one
    simulates the GIL as one lock of each process and the cores, as many as its threads were seen on, with what each thread was seen to need of them;
    what that says is in proportion to what it says without the change. Raises UsageError where no function fits, and TraceError where waits contradict each other.
    """
    trace.whole.derive("waits")
    keys = thread_keys(items["pid"].to_numpy(), items["tid"].to_numpy())
    lines = timelines(trace, trace.start_ns, trace.end_ns, keys)
    model = recorded(lines, trace.threads(), trace.start_ns, trace.end_ns)
    now = (items["end_ns"] - items["start_ns"]).to_numpy(np.int64)
    if change.kind == FUNCTION:
        return Outcome(now, _lengths(_faster(trace, model, change), items, lines), None)
    base = _simulated(trace, model)
    changed = {LOCK: _without_locks, GIL: _without_gil, CORES: _with_cores}[change.kind](trace, base, change)
    was, then = (_lengths(each, items, lines) for each in (base, changed))
    return Outcome(now, np.round(now * (then / np.maximum(was, 1))).astype(np.int64), was)


def _lengths(model: Model, items: pd.DataFrame, lines: Timelines) -> Ints:
    """How long each of `items` takes."""
    thread = lines.thread(thread_keys(items["pid"].to_numpy(), items["tid"].to_numpy()))
    marks = pd.DataFrame(
        {"thread": np.tile(thread, 2), "ts": np.concatenate((items["start_ns"].to_numpy(np.int64), items["end_ns"].to_numpy(np.int64)))}
    )
    when = played(model, marks)
    begin, end = when[: len(items)], when[len(items) :]
    if (when < 0).any():
        raise TraceError("threads of this trace wait for each other in a circle, as only in a damaged one: it cannot be played again.")
    return end - begin


def _faster(trace: Any, model: Model, change: Change) -> Model:
    """Calls of some functions take another time: what they do, with all that they call, and what they wait for that no recorded thread ends."""
    calls = fitted(trace, [change.pattern], "--what-if")
    calls = calls[calls["outermost"]]
    thread = model.lines.thread(thread_keys(calls["pid"].to_numpy(), calls["tid"].to_numpy()))
    gone = 1 - change.left
    saved = {}
    for which in np.unique(thread[thread != NOBODY]):
        start, end = (calls[name].to_numpy(np.int64)[thread == which] for name in ("start_ns", "end_ns"))
        saved[int(which)] = Saved(_union(start, end), gone.numerator, gone.denominator)
    model = replace(model, saved=saved)
    of = np.repeat(np.arange(len(model.lines.keys)), np.diff(model.lines.first))
    start, until, end = (model.lines.waits["start_ns"].to_numpy(np.int64), model.lines.until, model.lines.waits["end_ns"].to_numpy(np.int64))
    less = [np.zeros(len(of), np.int64) for _ in range(3)]
    for which, each in saved.items():
        here = np.flatnonzero(of == which)
        for out, ts in zip(less, (start, until, end), strict=True):
            out[here] = each.at(ts[here])
    return replace(model, lasts=model.lasts - (less[1] - less[0]), queued=model.queued - (less[2] - less[1]))


def _union(start: Ints, end: Ints) -> Curve:
    """Time in any of the intervals, which may overlap."""
    order = np.argsort(start, kind="stable")
    start, reach = start[order], np.maximum.accumulate(end[order])
    first = np.append(True, start[1:] > reach[:-1])
    return Curve.of(start[first], reach[np.append(first[1:], True)])


def _simulated(trace: Any, model: Model) -> Model:
    """The GIL and the cores as they are needed: what is left of the run queue is what others than the program had of them."""
    waits = model.lines.waits
    gil = (waits["kind"].astype("object") == "gil").to_numpy()
    ender, lasts = np.where(gil, NOBODY, model.ender).astype(np.int32), np.where(gil, 0, model.lasts)
    ours = np.zeros(len(waits), np.int64)
    if trace.rivals_known:
        rivals = trace.rivals()
        rivals = rivals[rivals["rival_pid"].isin(trace.whole.processes()["pid"])]
        sums = rivals.groupby(["tid", "queued_ns"])["ns"].sum()
        at = pd.MultiIndex.from_arrays([waits["tid"], model.lines.until], names=["tid", "queued_ns"])
        ours = sums.reindex(at).fillna(0).to_numpy(np.int64)
    queued = np.maximum(model.queued - ours, 0)
    cores = max(1, waits["cpu_after"].dropna().nunique())
    return replace(model, ender=ender, lasts=lasts, queued=queued, holds=holds(trace), cores=cores)


def _without_locks(trace: Any, model: Model, _change: Change) -> Model:
    """No wait for a lock that another thread lets go: as analyze.waits.locks has them, none of those that queues and pools are made of."""
    waits, library = model.lines.waits, np.append(among(trace.functions(), LIBRARY), True)
    function = waits["func_id"].fillna(-1).to_numpy(np.int64)
    of_program = (function >= 0) & ~library[function] & (waits["primitive_func_id"] < 0).to_numpy()
    none = (waits["kind"].astype("object") == "lock").to_numpy() & of_program & (model.ender >= 0)
    return replace(
        model,
        ender=np.where(none, NOBODY, model.ender).astype(np.int32),
        lasts=np.where(none, 0, model.lasts),
        queued=np.where(none, 0, model.queued),
    )


def _without_gil(_trace: Any, model: Model, _change: Change) -> Model:
    """Threads of a process compute beside each other."""
    assert model.holds is not None
    return replace(model, holds=model.holds.head(0))


def _with_cores(_trace: Any, model: Model, change: Change) -> Model:
    """Other cores, which the program has for itself."""
    return replace(model, cores=change.cores, queued=np.zeros_like(model.queued))
