"""The states of a trace's threads over time; of a window, from what is kept of the moment before it."""

import pandas as pd
import pyarrow as pa

from pytrace_ebpf.analyze.rebuilt.sums import at_start
from pytrace_ebpf.analyze.time.split import Known, timeline
from pytrace_ebpf.analyze.time.switches import UNKNOWN
from pytrace_ebpf.trace.frames import to_frame
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.trace.schema import SCHED
from pytrace_ebpf.trace.window import Window


def timeline_of(trace: Trace, pid: int | None = None, tid: int | None = None) -> pd.DataFrame:
    """split.timeline of a trace or of a window of it, cut at its edges; of the threads of `pid` and `tid`, where these are given."""
    if not isinstance(trace, Window) or not trace.segments:
        return timeline(trace.sched(pid=pid, tid=tid), trace.processes(), trace.end_ns, trace.losses())
    whole, (engine, first) = trace.whole, at_start(trace)
    chosen = [whole.part("sched", segment["index"]) for segment in whole.segments[first : trace.last]]
    rows = to_frame(pa.concat_tables([SCHED.arrow.empty_table(), *chosen]), SCHED)
    keys, (state, cpu) = engine.keys(), engine.states()
    order = keys.argsort()
    order = order[state[order] != UNKNOWN]
    known = Known(whole.segments[first]["start_ns"], keys[order], state[order].astype("int64"), cpu[order].astype("int64"))
    rows = rows.sort_values("ts", kind="stable", ignore_index=True)
    found = timeline(rows, whole.processes(), trace.end_ns, whole.losses(), known if len(order) else None)
    found = found.assign(start_ns=found["start_ns"].clip(lower=trace.start_ns), end_ns=found["end_ns"].clip(upper=trace.end_ns))
    for name, wanted in (("pid", trace.pid), ("pid", pid), ("tid", trace.tid), ("tid", tid)):
        found = found if wanted is None else found[found[name] == wanted]
    return found[found["end_ns"] > found["start_ns"]].reset_index(drop=True)
