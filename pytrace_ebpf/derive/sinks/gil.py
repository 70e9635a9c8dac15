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

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pytrace_ebpf.derive.checkpoints import segment_keys
from pytrace_ebpf.derive.read_ahead import each_of
from pytrace_ebpf.derive.scheduling.split import thread_keys
from pytrace_ebpf.derive.scheduling.windows import touches, windows_of
from pytrace_ebpf.derive.sink import Needs, Sink
from pytrace_ebpf.rebuild.gil_handoffs import gil_handoffs
from pytrace_ebpf.trace.schema import OTHER_GIL, SCHED_LOSSES, SchedKind

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
_ACTS, _SCHED = ("ts", "pid", "tid", "kind"), ("ts", "pid", "tid", "kind", "address", "holder_tid")
ROW = np.dtype([("pid", "i4"), ("ts", "i8"), ("holder", "i4"), ("by", "i4")])

Rows = npt.NDArray[Any]
Ints = npt.NDArray[np.integer[Any]]


class Evidence(Sink):
    """What events and switches of each segment of a pytrace_ebpf Trace show, kept next to its tables: columns pid, ts, holder, by.

    holder: the thread that has the GIL, NOBODY, UNKNOWN, or EXITED; by: the thread at whose switch that was read, 0 for a function event.
    Of events of one thread in a row the first and the last are there. Where it goes along with the pass for the waits, that finds it; a segment's
    events are held meanwhile, 17 bytes each.
    """

    def __init__(self, trace: Any) -> None:
        super().__init__(trace)
        self._kept, self._keys = trace.pieces(FOLDER), list(segment_keys(trace.whole))
        self._windows, self._pids = windows_of(trace.whole.losses(), SCHED_LOSSES), trace.whole.processes()["pid"].to_numpy()
        threads = trace.whole.threads()
        self._foreign = thread_keys(*(threads.loc[threads["interpreters"] != "", name].to_numpy() for name in ("pid", "tid")))

    def needs(self) -> Needs:
        return Needs(switches=True)

    def _name(self, place: int) -> str:
        return f"{self.segments[place]['index']:06d}-{self._keys[place]}"

    def of(self, place: int) -> Rows:
        """That of the segment at `place`; it is read, where it is not kept."""
        rows = _unpacked(self._kept.read(self._name(place), _MOST_BYTES))
        if rows is None:
            index = self.segments[place]["index"]
            rows = self._found(place, self.trace.whole.part("sched", index, _SCHED), [self.trace.whole.part("events", index, _ACTS)])
        return rows

    def _found(self, place: int, sched: pa.Table, events: Sequence[pa.Table]) -> Rows:
        rows = _of_segment(self._of_main(events), sched, self.segments[place], self._windows, self._pids)
        self._kept.keep(self._name(place), rows.tobytes())
        return rows

    def _of_main(self, events: Sequence[pa.Table]) -> Sequence[pa.Table]:
        """Without those of threads that make calls of other interpreters."""
        if not len(self._foreign):
            return events
        keys = (thread_keys(piece["pid"].to_numpy(), piece["tid"].to_numpy()) for piece in events)
        return [piece.filter(~np.isin(key, self._foreign)) for piece, key in zip(events, keys, strict=True)]

    def events(self, place: int, switches: pa.Table | None, events: Iterator[pa.Table]) -> Iterator[pa.Table]:
        """The same events: what they show is known when the last one has passed."""
        assert switches is not None
        own = []
        for batch in events:
            own.append(batch.select(_ACTS))
            yield batch
        self._found(place, switches, own)


def evidence(trace: Any) -> Iterator[Rows]:
    """Evidence of each segment of a pytrace_ebpf Trace in turn, found by as many threads as there are cores where it is not kept."""
    found, places = Evidence(trace), {segment["index"]: place for place, segment in enumerate(trace.whole.segments)}
    for count, rows in enumerate(each_of(lambda segment: found.of(places[segment["index"]]), trace.segments)):
        trace.progress("Reading who held the GIL", count / len(trace.segments))
        yield rows


def told(trace: Any) -> list[int]:
    """The processes whose GIL was read at all: of others too little is known to say who holds it."""
    return sorted({int(pid) for rows in evidence(trace) for pid in np.unique(rows["pid"][(rows["by"] != 0) & (rows["holder"] >= 0)])})


def _unpacked(content: bytes | None) -> Rows | None:
    return np.frombuffer(content, ROW) if content is not None and not len(content) % ROW.itemsize else None


def _of_segment(events: Sequence[pa.Table], sched: pa.Table, segment: dict[str, Any], windows: npt.NDArray[np.int64], pids: Ints) -> Rows:
    switches = _of_switches(sched)
    rows = np.concatenate((_of_events(events, np.append(switches["ts"], windows)), switches))
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


def _of_events(pieces: Sequence[pa.Table], moments: npt.NDArray[np.int64]) -> Rows:
    """Those that show who has the GIL; `moments`: when the segment's other rows are, and what is left out of them begins and ends."""
    mask, ends = gil_handoffs(pieces, moments), accumulate(map(len, pieces))
    shown = [piece.take(np.flatnonzero(mask[end - len(piece) : end])) for piece, end in zip(pieces, ends, strict=True)]
    out = np.zeros(sum(map(len, shown)), ROW)
    for name, column in (("pid", "pid"), ("ts", "ts"), ("holder", "tid")):
        out[name] = np.concatenate([np.zeros(0, np.int64), *(rows[column].to_numpy() for rows in shown)])
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
