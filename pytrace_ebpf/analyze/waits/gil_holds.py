"""Who held the GIL when, inferred from everything in a trace that shows it.

What shows it: a function event (its thread holds the GIL), `sched.holder_tid` wherever a thread leaves its core, and the
end of a wait for the GIL. Each is valid until the next one of that process says otherwise. Besides:
* A wait for the GIL ended with having it, if the thread is named as the holder before it leaves its core again, next
  waits for something else, or does not wait again for a second. Else it timed out (CPython looks again every 5 ms) and belongs to one with the next.
  From the moment another thread woke it for that to its getting a core nobody has the GIL: it is being handed over.
* A thread that comes back from another wait has the GIL from then on, if it is the next that is named.
* A thread that makes calls of other interpreters (`threads.interpreters`) shows it only where it leaves its core, as what it calls in them says
  nothing of the main one's GIL, which is meant here; nor does a wait for a GIL of theirs.
* A thread that ends has it no more; where scheduling events were lost, and after exec, it is not known.

So a thread that gives up the GIL and then neither calls, nor leaves its core, nor has others run (a long computation of C
in an otherwise idle program) still counts as holding it; and a hold during which nothing is recorded is missed.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pytrace_ebpf.analyze.rebuilt.checkpoints import segment_keys
from pytrace_ebpf.analyze.rebuilt.read_ahead import each_of
from pytrace_ebpf.analyze.time.split import thread_keys
from pytrace_ebpf.analyze.time.windows import touches, windows_of
from pytrace_ebpf.rebuild.near import near
from pytrace_ebpf.trace.schema import OTHER_GIL, SCHED_LOSSES, CallKind, SchedKind

FOLDER = "gil"
NOBODY, UNKNOWN = 0, -1
_MOST_BYTES = 1 << 28
EXITED, _NOT_READ = -2, -3  # the thread `by` holds it no more; says nothing
WAIT_COLUMNS = (
    "pid",
    "tid",
    "func_id",
    "start_ns",
    "blocked_until_ns",
    "end_ns",
    "kind",
    "lock_address",
    "waker_pid",
    "waker_tid",
    "holder_tid",
    "holder_func_id",
    "cpu_after",
)
ROW = np.dtype([("pid", "i4"), ("ts", "i8"), ("holder", "i4"), ("by", "i4")])

Rows = npt.NDArray[Any]
Ints = npt.NDArray[np.integer[Any]]


def evidence(trace: Any) -> Iterator[Rows]:
    """What events and switches of each segment of a pytrace_ebpf Trace show: columns pid, ts, holder, by.

    holder: the thread that has the GIL, NOBODY, UNKNOWN, or EXITED; by: the thread at whose switch that was read, 0 for a function event.
    Read a segment at a time on each core, and kept; of events of one thread in a row the first and the last are kept.
    """
    kept, keys = trace.pieces(FOLDER), dict(zip((s["index"] for s in trace.whole.segments), segment_keys(trace.whole), strict=True))
    windows, pids = windows_of(trace.whole.losses(), SCHED_LOSSES), trace.whole.processes()["pid"].to_numpy()
    threads = trace.whole.threads()
    foreign = thread_keys(*(threads.loc[threads["interpreters"] != "", name].to_numpy() for name in ("pid", "tid")))

    def one(segment: dict[str, Any]) -> Rows:
        name = f"{segment['index']:06d}-{keys[segment['index']]}"
        rows = _unpacked(kept.read(name, _MOST_BYTES))
        if rows is None:
            rows = _of_segment(trace.whole, segment, windows, pids, foreign)
            kept.keep(name, rows.tobytes())
        return rows

    for place, rows in enumerate(each_of(one, trace.segments)):
        trace.progress("Reading who held the GIL", place / len(trace.segments))
        yield rows


def told(trace: Any) -> list[int]:
    """The processes whose GIL was read at all: of others too little is known to say who holds it."""
    return sorted({int(pid) for rows in evidence(trace) for pid in np.unique(rows["pid"][(rows["by"] != 0) & (rows["holder"] >= 0)])})


def _unpacked(content: bytes | None) -> Rows | None:
    return np.frombuffer(content, ROW) if content is not None and not len(content) % ROW.itemsize else None


def _of_segment(whole: Any, segment: dict[str, Any], windows: npt.NDArray[np.int64], pids: Ints, foreign: Ints) -> Rows:
    events = whole.part("events", segment["index"], ("ts", "pid", "tid", "kind"))
    sched = whole.part("sched", segment["index"], ("ts", "pid", "tid", "kind", "address", "holder_tid"))
    switches = _of_switches(sched)
    rows = np.concatenate((_of_events(events, np.append(switches["ts"], windows), foreign), switches))
    rows = rows[~touches(windows, rows["ts"], rows["ts"])]
    begun = windows[(windows[:, 0] >= segment["start_ns"]) & (windows[:, 0] < segment["end_ns"]), 0]
    lost = np.zeros(len(begun) * len(pids), ROW)
    lost["pid"], lost["ts"], lost["holder"] = np.tile(pids, len(begun)), np.repeat(begun, len(pids)), UNKNOWN
    rows = np.concatenate((lost, rows))
    return _ends_of_runs(rows[np.lexsort((rows["ts"], rows["pid"]))])


def _ends_of_runs(rows: Rows) -> Rows:
    """Without the events between two of the same thread, and without what says nothing."""
    pid, holder, by = (rows[name] for name in ("pid", "holder", "by"))
    again = np.zeros(len(rows) + 1, bool)
    again[1:-1] = (by[1:] == 0) & (by[:-1] == 0) & (holder[1:] == holder[:-1]) & (pid[1:] == pid[:-1])
    return rows[~(again[1:] & again[:-1]) & (holder != _NOT_READ)]


def _of_events(events: pa.Table, moments: npt.NDArray[np.int64], foreign: Ints) -> Rows:
    """Those that show who has the GIL.

    moments  when the segment's other rows are, and what is left out of them begins and ends
    foreign  threads whose events do not show it (thread_keys)
    """
    kind, ts, pid, tid = (events[name].to_numpy() for name in ("kind", "ts", "pid", "tid"))
    acted = ~np.isin(kind, (CallKind.OPEN, CallKind.STANDS, CallKind.RESET))
    if len(foreign):
        acted &= ~np.isin(thread_keys(pid, tid), foreign)
    if not acted.all():
        ts, pid, tid = ts[acted], pid[acted], tid[acted]
    places = np.flatnonzero(near(ts, pid, tid, moments))
    out = np.zeros(len(places), ROW)
    for name, column in (("pid", pid), ("ts", ts), ("holder", tid)):
        out[name] = column[places]
    return out


def _of_switches(sched: pa.Table) -> Rows:
    kind = sched["kind"].to_numpy()
    names_holder = np.isin(kind, (SchedKind.OUT, SchedKind.EXIT, SchedKind.EXEC))
    out = np.zeros(int(names_holder.sum()), ROW)
    for name, column in (("pid", "pid"), ("ts", "ts"), ("holder", "holder_tid"), ("by", "tid")):
        out[name] = sched[column].to_numpy()[names_holder]
    kind, other = kind[names_holder], sched["address"].to_numpy()[names_holder] & 7 == OTHER_GIL
    out["holder"][(kind == SchedKind.OUT) & ((out["holder"] < 0) | other)] = _NOT_READ
    out["holder"][kind == SchedKind.EXIT] = EXITED
    out["holder"][kind == SchedKind.EXEC] = UNKNOWN
    return out
