"""The states of a trace's threads over time; of a window, from what is kept of the moment before it."""

from collections.abc import Iterator

import numpy as np
import pandas as pd
import pyarrow as pa

from pytrace_ebpf.derive.read_ahead import sched_groups
from pytrace_ebpf.derive.scheduling.split import Known, Timeline, timeline
from pytrace_ebpf.derive.scheduling.switches import UNKNOWN
from pytrace_ebpf.derive.sums import at_start
from pytrace_ebpf.trace.conditions import are
from pytrace_ebpf.trace.frames import to_frame
from pytrace_ebpf.trace.manifest import machine_of
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.trace.schema import SCHED
from pytrace_ebpf.trace.window import Window

_AT_ONCE = 1 << 19  # scheduling rows
_SCHED = ("ts", "pid", "tid", "kind", "cpu", "state", "syscall", "address", "other_tid")


def timeline_of(trace: Trace, pid: int | None = None, tid: int | None = None) -> pd.DataFrame:
    """split.timeline of a trace or of a window of it, cut at its edges; of the threads of `pid` and `tid`, where these are given."""
    if not isinstance(trace, Window) or not trace.segments:
        return timeline(trace.sched(pid=pid, tid=tid), trace.processes(), trace.end_ns, trace.losses(), machine=machine_of(trace.manifest))
    whole, (first, known) = trace.whole, before(trace)
    chosen = [whole.part("sched", segment["index"]) for segment in whole.segments[first : trace.last]]
    rows = to_frame(pa.concat_tables([SCHED.arrow.empty_table(), *chosen]), SCHED)
    rows = rows.sort_values("ts", kind="stable", ignore_index=True)
    rows = _own(timeline(rows, whole.processes(), trace.end_ns, whole.losses(), known, machine_of(trace.manifest)), trace, pid, tid)
    return rows[rows["end_ns"] > rows["start_ns"]].reset_index(drop=True)


def timelines(trace: Trace) -> Iterator[pd.DataFrame]:
    """The same, split.Timeline of some segments at a time, in bounded memory: by thread and in the order of time within each.

    began_ns is not before a window's start, and with its end nothing goes on.
    """
    whole, (first, known) = trace.whole, before(trace)
    states = Timeline(whole.processes(), whole.losses(), known, machine_of(trace.manifest))
    chosen = whole.segments[first : getattr(trace, "last", None)] if trace.segments else []
    for place, sched in sched_groups(whole, chosen, _SCHED, _AT_ONCE):
        trace.progress("Following the states of threads", place / len(chosen))
        ends = [segment["end_ns"] for segment in chosen[place : place + len(sched)]]
        yield _piece(states.take(pa.concat_tables(sched), np.repeat(np.arange(len(sched)), [len(own) for own in sched]), ends), trace)
    if not chosen or chosen[-1]["end_ns"] < trace.end_ns:
        yield _piece(states.take(SCHED.arrow.empty_table(), np.zeros(0, np.int64), [trace.end_ns]), trace)


def intervals(trace: Trace) -> Iterator[pd.DataFrame]:
    """The rows of timeline_of(), some at a time: each once it has ended. In bounded memory."""
    for rows in timelines(trace):
        ended = rows[~rows["goes_on"]]
        yield ended.assign(start_ns=ended["began_ns"]).drop(columns=["began_ns", "goes_on"])


def before(trace: Trace) -> tuple[int, Known | None]:
    """How many segments lie before what has to be read for a window, and what was known there."""
    if not isinstance(trace, Window) or not trace.segments:
        return 0, None
    engine, first = at_start(trace)
    keys, (state, cpu) = engine.keys(), engine.states()
    order = keys.argsort()
    order = order[state[order] != UNKNOWN]
    known = Known(trace.whole.segments[first]["start_ns"], keys[order], state[order].astype("int64"), cpu[order].astype("int64"))
    return first, known if len(order) else None


def _own(rows: pd.DataFrame, trace: Trace, pid: int | None = None, tid: int | None = None) -> pd.DataFrame:
    """Cut at a window's edges, and of its threads alone. What goes on at its end has not been woken yet."""
    ended = rows["end_ns"] < trace.end_ns if isinstance(trace, Window) else rows["end_ns"] <= trace.end_ns
    rows = rows.assign(
        start_ns=rows["start_ns"].clip(lower=trace.start_ns),
        end_ns=rows["end_ns"].clip(upper=trace.end_ns),
        other_tid=rows["other_tid"].where(ended, 0),
    )
    for name, wanted in (("pid", getattr(trace, "pid", None)), ("pid", pid), ("tid", getattr(trace, "tid", None)), ("tid", tid)):
        rows = rows[are(rows[name], wanted)]
    return rows


def _piece(rows: pd.DataFrame, trace: Trace) -> pd.DataFrame:
    goes_on, began = rows["goes_on"] & (rows["end_ns"] < trace.end_ns), rows["began_ns"].clip(lower=trace.start_ns)
    rows = _own(rows.assign(goes_on=goes_on, began_ns=began), trace)
    ends_here = (rows["end_ns"] == rows["start_ns"]) & (rows["start_ns"] > rows["began_ns"]) & (rows["start_ns"] < trace.end_ns)
    return rows[(rows["end_ns"] > rows["start_ns"]) | ends_here].reset_index(drop=True)
