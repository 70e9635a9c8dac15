"""Who held the GIL when, inferred from everything in a trace that shows it.

What shows it: a function event (its thread holds the GIL), `sched.holder_tid` wherever a thread leaves its core, and the
end of a wait for the GIL. Each is valid until the next one of that process says otherwise. Besides:
* A wait for the GIL ended with having it, if the thread is named as the holder before it leaves its core again, or next
  waits for something else. Else it timed out (CPython looks again every 5 ms) and belongs to one with the next.
  From the moment another thread woke it for that to its getting a core nobody has the GIL: it is being handed over.
* A thread that comes back from another wait has the GIL from then on, if it is the next that is named.
* A thread that ends has it no more; where scheduling events were lost, and after exec, it is not known.

So a thread that gives up the GIL and then neither calls, nor leaves its core, nor has others run (a long computation of C
in an otherwise idle program) still counts as holding it; and a hold during which nothing is recorded is missed.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from pytrace_ebpf.analyze.rebuilt.checkpoints import segment_keys
from pytrace_ebpf.analyze.rebuilt.read_ahead import each_of
from pytrace_ebpf.analyze.time.windows import touches, windows_of
from pytrace_ebpf.rebuild.near import near
from pytrace_ebpf.trace.schema import SCHED_LOSSES, CallKind, SchedKind

FOLDER = "gil"
NOBODY, UNKNOWN = 0, -1
_MOST_BYTES = 1 << 28
_EXITED, _NOT_READ = -2, -3  # the thread `by` holds it no more; says nothing
WAIT_COLUMNS = (
    "pid",
    "tid",
    "func_id",
    "start_ns",
    "blocked_until_ns",
    "end_ns",
    "kind",
    "waker_pid",
    "waker_tid",
    "holder_tid",
    "holder_func_id",
    "cpu_after",
)
_ROW = np.dtype([("pid", "i4"), ("ts", "i8"), ("holder", "i4"), ("by", "i4")])

Rows = npt.NDArray[Any]
Ints = npt.NDArray[np.integer[Any]]


def evidence(trace: Any) -> pd.DataFrame:
    """What events and switches of a pytrace_ebpf Trace show: columns pid, ts, holder, by, in the order of ts.

    holder: the thread that has the GIL, NOBODY or UNKNOWN; by: the thread at whose switch that was read, 0 for a function event.
    Read a segment at a time on each core, and kept; of events of one thread in a row the first and the last are kept.
    """
    kept, keys = trace.pieces(FOLDER), dict(zip((s["index"] for s in trace.whole.segments), segment_keys(trace.whole), strict=True))
    windows, pids = windows_of(trace.whole.losses(), SCHED_LOSSES), trace.whole.processes()["pid"].to_numpy()
    found = [np.zeros(0, _ROW)]

    def one(segment: dict[str, Any]) -> Rows:
        name = f"{segment['index']:06d}-{keys[segment['index']]}"
        rows = _unpacked(kept.read(name, _MOST_BYTES))
        if rows is None:
            rows = _of_segment(trace.whole, segment, windows, pids)
            kept.keep(name, rows.tobytes())
        return rows

    for place, rows in enumerate(each_of(one, trace.segments)):
        trace.progress("Reading who held the GIL", place / len(trace.segments))
        found.append(rows)
    frame = pd.DataFrame(np.concatenate(found)).sort_values("ts", kind="stable", ignore_index=True)
    # Of a process whose GIL was never read too little is known to say who holds it.
    read = frame.loc[(frame["by"] != 0) & (frame["holder"] >= 0), "pid"].unique()
    return frame[frame["pid"].isin(read)].reset_index(drop=True)


def _unpacked(content: bytes | None) -> Rows | None:
    return np.frombuffer(content, _ROW) if content is not None and not len(content) % _ROW.itemsize else None


def _of_segment(whole: Any, segment: dict[str, Any], windows: npt.NDArray[np.int64], pids: Ints) -> Rows:
    events = whole.part("events", segment["index"], ("ts", "pid", "tid", "kind"))
    sched = whole.part("sched", segment["index"], ("ts", "pid", "tid", "kind", "holder_tid"))
    switches = _of_switches(sched)
    rows = np.concatenate((_of_events(events, np.append(switches["ts"], windows)), switches))
    rows = rows[~touches(windows, rows["ts"], rows["ts"])]
    begun = windows[(windows[:, 0] >= segment["start_ns"]) & (windows[:, 0] < segment["end_ns"]), 0]
    lost = np.zeros(len(begun) * len(pids), _ROW)
    lost["pid"], lost["ts"], lost["holder"] = np.tile(pids, len(begun)), np.repeat(begun, len(pids)), UNKNOWN
    rows = np.concatenate((lost, rows))
    return _ends_of_runs(rows[np.lexsort((rows["ts"], rows["pid"]))])


def gil_waits(waits: pd.DataFrame, said: pd.DataFrame) -> pd.DataFrame:
    """The rows of kind gil of `waits` (WAIT_COLUMNS) by thread and time, with two columns more.

    acquired (bool): it ended with having the GIL; wait (int64): the same number for those that are one wait, for 5 ms at a time.
    `said`: as from `evidence`.
    """
    own = waits[waits["kind"] != "preempted"].sort_values(["pid", "tid", "start_ns"], kind="stable")
    following = own.groupby(["pid", "tid"])[["kind", "start_ns"]].shift(-1)
    out = own.assign(
        next_kind=following["kind"].astype("object"),
        next_ns=following["start_ns"].fillna(np.iinfo(np.int64).max).astype(np.int64),
    )
    out = out[out["kind"] == "gil"].sort_values("end_ns", kind="stable")
    named = said.loc[said["holder"] > 0, ["pid", "holder", "ts"]].rename(columns={"holder": "tid", "ts": "named_ns"})
    out = pd.merge_asof(out, named, left_on="end_ns", right_on="named_ns", by=["pid", "tid"], direction="forward")
    seen = out["named_ns"].notna() & (out["named_ns"] <= out["next_ns"])
    out["acquired"] = (out["cpu_after"].notna() & (seen | (out["next_kind"] != "gil"))).to_numpy(dtype=bool)
    out = out.sort_values(["pid", "tid", "start_ns"], kind="stable", ignore_index=True)
    before = out.groupby(["pid", "tid"])["acquired"].shift(1, fill_value=True)
    return out.assign(wait=before.cumsum().astype(np.int64)).drop(columns=["next_kind", "next_ns", "named_ns"])


def holds(trace: Any, waits: pd.DataFrame, said: pd.DataFrame, of_gil: pd.DataFrame) -> pd.DataFrame:
    """Who held the GIL of each process when: columns pid, tid (or NOBODY, UNKNOWN), start_ns, end_ns, by process and in the order of time.

    The intervals of a process cover its time in the recording without a gap. `waits` (WAIT_COLUMNS), `said` and `of_gil` are
    those of `evidence` and `gil_waits`. A process of which nothing is known has no rows.
    """
    processes = trace.processes()
    processes = processes[processes["pid"].isin(said["pid"].unique())]
    start = processes["start_ns"].clip(lower=trace.start_ns).astype(np.int64)
    end = processes["end_ns"].fillna(trace.end_ns).clip(upper=trace.end_ns).astype(np.int64)
    begin = pd.DataFrame({"pid": processes["pid"], "ts": start, "holder": UNKNOWN, "by": 0})
    rows = pd.concat([begin, said, _handed_over(of_gil), _came_back(waits, said)]).sort_values(["pid", "ts"], kind="stable", ignore_index=True)
    before = rows["holder"].where(rows["holder"] != _EXITED).groupby(rows["pid"]).ffill()
    exited = rows["holder"] == _EXITED
    rows.loc[exited, "holder"] = NOBODY
    first, last = (rows["pid"].map(pd.Series(values.to_numpy(), index=processes["pid"])) for values in (start, end))
    rows = rows[(~exited | (before == rows["by"])) & (rows["ts"] >= first) & (rows["ts"] < last)]
    changes = (rows["holder"] != rows["holder"].shift()) | (rows["pid"] != rows["pid"].shift())
    rows = rows[changes]
    until = rows.groupby("pid")["ts"].shift(-1).fillna(last).astype(np.int64)
    out = pd.DataFrame({"pid": rows["pid"], "tid": rows["holder"].astype(np.int32), "start_ns": rows["ts"], "end_ns": until})
    return out[out["end_ns"] > out["start_ns"]].reset_index(drop=True)


def _ends_of_runs(rows: Rows) -> Rows:
    """Without the events between two of the same thread, and without what says nothing."""
    pid, holder, by = (rows[name] for name in ("pid", "holder", "by"))
    again = np.zeros(len(rows) + 1, bool)
    again[1:-1] = (by[1:] == 0) & (by[:-1] == 0) & (holder[1:] == holder[:-1]) & (pid[1:] == pid[:-1])
    return rows[~(again[1:] & again[:-1]) & (holder != _NOT_READ)]


def _of_events(events: pa.Table, moments: npt.NDArray[np.int64]) -> Rows:
    """Those that show who has the GIL; `moments`: when the segment's other rows are, and what is left out of them begins and ends."""
    kind, ts, pid, tid = (events[name].to_numpy() for name in ("kind", "ts", "pid", "tid"))
    acted = ~np.isin(kind, (CallKind.OPEN, CallKind.STANDS, CallKind.RESET))
    if not acted.all():
        ts, pid, tid = ts[acted], pid[acted], tid[acted]
    places = np.flatnonzero(near(ts, pid, tid, moments))
    out = np.zeros(len(places), _ROW)
    for name, column in (("pid", pid), ("ts", ts), ("holder", tid)):
        out[name] = column[places]
    return out


def _of_switches(sched: pa.Table) -> Rows:
    kind = sched["kind"].to_numpy()
    names_holder = np.isin(kind, (SchedKind.OUT, SchedKind.EXIT, SchedKind.EXEC))
    out = np.zeros(int(names_holder.sum()), _ROW)
    for name, column in (("pid", "pid"), ("ts", "ts"), ("holder", "holder_tid"), ("by", "tid")):
        out[name] = sched[column].to_numpy()[names_holder]
    kind = kind[names_holder]
    out["holder"][(kind == SchedKind.OUT) & (out["holder"] < 0)] = _NOT_READ
    out["holder"][kind == SchedKind.EXIT] = _EXITED
    out["holder"][kind == SchedKind.EXEC] = UNKNOWN
    return out


def _handed_over(of_gil: pd.DataFrame) -> pd.DataFrame:
    """From its being woken for the GIL nobody has it, from its getting a core the thread that waited."""
    got = of_gil[of_gil["acquired"]]
    woken = got[(got["waker_pid"] == got["pid"]) & (got["waker_tid"] != 0)]
    free = pd.DataFrame({"pid": woken["pid"], "ts": woken["blocked_until_ns"].astype(np.int64), "holder": NOBODY, "by": woken["tid"]})
    return pd.concat([free, pd.DataFrame({"pid": got["pid"], "ts": got["end_ns"], "holder": got["tid"], "by": got["tid"]})])


def _came_back(waits: pd.DataFrame, said: pd.DataFrame) -> pd.DataFrame:
    """Threads that came back from waiting for something else and were the next to be named."""
    back = waits[~waits["kind"].isin(["gil", "preempted"]) & waits["cpu_after"].notna()].sort_values("end_ns", kind="stable")
    following = pd.merge_asof(
        back[["pid", "tid", "end_ns"]],
        said[["pid", "ts", "holder"]],
        left_on="end_ns",
        right_on="ts",
        by="pid",
        direction="forward",
    )
    following = following[following["holder"] == following["tid"]]
    return pd.DataFrame({"pid": following["pid"], "ts": following["end_ns"], "holder": following["tid"], "by": following["tid"]})
