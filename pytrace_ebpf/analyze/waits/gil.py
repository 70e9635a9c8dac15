"""The GIL: which function waited for which, how much of the time it was held, wanted and free, and what each thread had of it.

Waits and evidence are taken some segments at a time, in the order of time. Memory is bounded by these, by what waits for what is not known
yet (gil_turns.py), and by the rows of the answer.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from pytrace_ebpf.analyze.waits.gil_turns import THREAD, Holds, Turns, came_back, handed_over
from pytrace_ebpf.derive.added import Added
from pytrace_ebpf.derive.scheduling.curve import Curve
from pytrace_ebpf.derive.sinks.gil import NOBODY, ROW, UNKNOWN, WAIT_COLUMNS, Evidence, evidence, told
from pytrace_ebpf.trace.schema import OTHER_GIL, WAITS

SHORT_HOLD_NS = 2_500_000  # half of sys.getswitchinterval()'s default: a thread that computes is left the GIL for twice as long
_FIGURES = ("held_ns", "holds", "waited_ns", "waits", "mean_ns", "longest_ns", "convoys", "convoy_ns")
SHARES = ("alone_ns", "contended_ns", "handover_ns", "idle_ns", "unknown_ns")

_AT_ONCE = 1 << 17  # scheduling rows of segments that are taken together
_NEVER = 1 << 62
_PAIR = ["waiting_func_id", "holding_func_id", "held"]
_WHOLE = {"pid": "first", "tid": "first", "start_ns": "first", "end_ns": "last", "waited_ns": "sum", "holder_tid": "first"}
_OF_THREAD = {**dict.fromkeys(("waited_ns", "waits", "having_ns", "convoys", "convoy_ns"), "sum"), "longest_ns": "max"}

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Gil:
    """What `analyze` found; times are int64 nanoseconds.

    pairs: one row per waiting and holding function, most time first: waiting_func_id, holding_func_id (-1 none or not
      known), held (by "function"; "no call": a thread without an open one; "nobody": it was free or being handed over; "not known"),
      waits, total_ns, longest_ns.
    processes: pid, wall_ns and SHARES, which sum to it, of the main interpreter's GIL: held with nobody waiting, held while somebody waits, free
      while somebody waits, free, not known; held_ns is the first two.
    threads: pid, tid, name, held_ns, holds, waited_ns, waits, mean_ns and longest_ns from wanting to having
      (null without waits), convoys (waits straight after a hold shorter than SHORT_HOLD_NS), convoy_ns (from wanting to having, of these); longest waited first.
      held_ns, holds, convoys and convoy_ns are null where the holder is not known.
    takes: pid, tid, holder_tid (who had it when the wait began), waits.
    """

    pairs: pd.DataFrame
    processes: pd.DataFrame
    threads: pd.DataFrame
    takes: pd.DataFrame


def prepare(trace: Any) -> None:
    """Derive the waits of a pytrace_ebpf Trace, and in the same pass find what shows who held the GIL, which is read by itself else."""
    trace.whole.derive(WAITS.name, beside=[Evidence(trace.whole)])


def analyze(trace: Any) -> Gil:
    """All about the GIL in a pytrace_ebpf Trace."""
    pids = told(trace)
    sums = _Sums(trace, pids)
    for waits, said, until in _pieces(trace, pids):
        sums.take(waits, said, until)
    return sums.found(trace.threads())


def holds(trace: Any) -> pd.DataFrame:
    """Which thread had the GIL when in a pytrace_ebpf Trace, where that is known: pid, tid, start_ns, end_ns, a row for each time or part of one."""
    pids = told(trace)
    sums = _Sums(trace, pids)
    found = pd.concat([sums.take(*each) for each in _pieces(trace, pids)], ignore_index=True)
    return found.loc[found["tid"] > 0, ["pid", "tid", "start_ns", "end_ns"]].reset_index(drop=True)


def _pieces(trace: Any, pids: list[int]) -> Iterator[tuple[pd.DataFrame, pd.DataFrame, int | None]]:
    """Waits by when they begin, and evidence of the processes `pids`, with the moment before which all of it is there; None at the end."""
    listed, since, rows, waiting = trace.segments, None, 0, [np.zeros(0, ROW)]
    for place, found in enumerate(evidence(trace)):
        waiting.append(found[np.isin(found["pid"], pids)])
        rows += listed[place]["rows"].get("sched", 0)
        until = listed[place]["start_ns"]  # a thread hands over an event one segment later at most
        if rows >= _AT_ONCE and place + 1 < len(listed) and until > max(since or 0, trace.start_ns):
            said = np.concatenate(waiting)
            yield _waits(trace, since, until), _frame(said[said["ts"] < until]), until
            waiting, since, rows = [said[said["ts"] >= until]], until, 0
    yield _waits(trace, since, None), _frame(np.concatenate(waiting)), None


def _waits(trace: Any, since: int | None, until: int | None) -> pd.DataFrame:
    rows = trace.waits(columns=WAIT_COLUMNS, start_ns=since, end_ns=until)
    return rows if since is None else rows[rows["start_ns"] >= since]


def _frame(said: npt.NDArray[np.void]) -> pd.DataFrame:
    return pd.DataFrame(said[np.argsort(said["ts"], kind="stable")]).astype("int64")


class _Sums:
    """What the rows of Gil are made of."""

    def __init__(self, trace: Any, pids: list[int]) -> None:
        processes = trace.processes()
        self._turns, self._holds = Turns(), Holds(processes[processes["pid"].isin(pids)], trace.start_ns, trace.end_ns)
        self._said, self._back = _frame(np.zeros(0, ROW)), pd.DataFrame(columns=["pid", "tid", "ts"], dtype="int64")
        self._wanted = pd.DataFrame(columns=["pid", "start_ns", "end_ns"], dtype="int64")
        self._once = self._whole = self._ended = self._lasting = pd.DataFrame()  # of waits that are not over, or whose convoys are not known
        self._pairs = Added(_PAIR, {"waits": "sum", "total_ns": "sum", "longest_ns": "max"})
        self._shares = Added(["pid"], dict.fromkeys(("wall_ns", "held_ns", *SHARES), "sum"))
        self._held, self._waited = Added(THREAD, {"held_ns": "sum", "holds": "sum"}), Added(THREAD, _OF_THREAD)
        self._takes = Added([*THREAD, "holder_tid"], {"waits": "sum"})

    def take(self, waits: pd.DataFrame, said: pd.DataFrame, until: int | None) -> pd.DataFrame:
        """Further ones of _pieces(); returns the pieces of holds (gil_turns.Holds) that are known by now."""
        known = self._holds.pids
        both = pd.concat([self._said, said]) if len(self._said) else said
        of_gil = self._turns.take(waits, both, until)
        back, self._back = came_back(self._back, waits[waits["pid"].isin(known)], both)
        upto = self._holds.upto(until, [self._turns.undecided, self._back])
        rows = pd.concat([said.assign(order=0), *handed_over(of_gil[of_gil["pid"].isin(known) & _of_main(of_gil)]), back])
        self._said = both[both["ts"] >= both["pid"].map(upto)]
        held, pieces = self._holds.take(rows, upto)
        own = waits.loc[(waits["kind"].astype("object") == "gil") & waits["pid"].isin(known) & _of_main(waits), list(self._wanted)].astype("int64")
        self._wanted = pd.concat([self._wanted, own]) if len(self._wanted) else own
        self._shares.add(shares(pieces, self._wanted))
        self._wanted = self._wanted[self._wanted["end_ns"] > self._wanted["pid"].map(upto)]
        self._add_waits(of_gil, until is None)
        self._add_holds(held[held["tid"] > 0].astype("int64"), upto, until is None)
        return pieces

    def _add_waits(self, of_gil: pd.DataFrame, last: bool) -> None:
        rows = of_gil.assign(waited_ns=of_gil["blocked_until_ns"].fillna(of_gil["end_ns"]).astype(np.int64) - of_gil["start_ns"])
        # A wait of 12 ms is three of 5, 5 and 2: for each holder it counts once, with its whole time.
        once = _paired(rows).groupby([*_PAIR, "wait"], as_index=False)["total_ns"].sum()
        once = pd.concat([self._once, once]).groupby([*_PAIR, "wait"], as_index=False)["total_ns"].sum()
        whole = pd.concat([self._whole, rows[["wait", *_WHOLE]].astype("int64")]).groupby("wait", as_index=False).agg(_WHOLE)
        over = whole["wait"][whole["wait"].isin(rows["wait"][rows["acquired"]]) | last]
        done, self._once = once[once["wait"].isin(over)], once[~once["wait"].isin(over)]
        self._pairs.add(done.assign(waits=1, longest_ns=done["total_ns"]))
        ended, self._whole = whole[whole["wait"].isin(over)], whole[~whole["wait"].isin(over)]
        self._takes.add(ended.assign(waits=1))
        self._ended = pd.concat([self._ended, ended])

    def _add_holds(self, held: pd.DataFrame, upto: "pd.Series[int]", last: bool) -> None:
        """`held`: holds by threads. Of waits that are over it is known by them whether they came straight after a short hold."""
        held["held_ns"] = held["end_ns"] - held["start_ns"]
        self._held.add(held[held["open"] == 0].assign(holds=1))
        own = pd.concat([self._lasting, held[[*THREAD, "start_ns", "held_ns", "open"]]]).sort_values("start_ns", kind="stable")
        found = pd.merge_asof(self._ended.sort_values("start_ns", kind="stable"), own, on="start_ns", by=THREAD)
        short = found["held_ns"] < SHORT_HOLD_NS
        later = ((found["start_ns"] >= found["pid"].map(upto)) | (short & (found["open"] == 1))) & (not last)
        self._ended = found.loc[later, list(self._ended)]
        self._lasting = self._still_asked(own[own["open"] == 0])
        having = found["end_ns"] - found["start_ns"]
        found = found.assign(waits=1, having_ns=having, longest_ns=having, convoys=short.astype("int64"), convoy_ns=having.where(short, 0))
        self._waited.add(found[~later])

    def _still_asked(self, holds: pd.DataFrame) -> pd.DataFrame:
        """Of each thread the last hold before the first of its waits that are not over, and what came since."""
        waiting = pd.concat([each[[*THREAD, "start_ns"]] for each in (self._turns.waiting, self._whole, self._ended) if len(each)] or [holds[:0]])
        first = waiting.groupby(THREAD)["start_ns"].min().rename("first_ns").reset_index()
        first = holds[THREAD].merge(first, how="left", on=THREAD)["first_ns"].fillna(_NEVER).to_numpy()
        last = holds["start_ns"].where(holds["start_ns"] <= first).groupby([holds["pid"], holds["tid"]]).transform("max")
        return holds[~(holds["start_ns"] < last)]

    def found(self, threads: pd.DataFrame) -> Gil:
        """After the last piece; `threads`: schema.THREADS."""
        processes = self._shares.table
        waited = self._waited.table.assign(mean_ns=lambda rows: (rows["having_ns"] / rows["waits"]).round()).drop(columns="having_ns")
        out = self._held.table.merge(waited, how="outer", on=THREAD).merge(threads[[*THREAD, "name"]], how="left", on=THREAD)
        for name in _FIGURES:
            out[name] = out[name].astype("Int64")
            if name not in ("mean_ns", "longest_ns"):
                out[name] = out[name].fillna(0)
        out.loc[~out["pid"].isin(processes["pid"]), ["held_ns", "holds", "convoys", "convoy_ns"]] = pd.NA
        out = out[[*THREAD, "name", *_FIGURES]].sort_values(["waited_ns", "held_ns"], ascending=False, kind="stable", ignore_index=True)
        takes = self._takes.table.sort_values([*THREAD, "waits"], ascending=[True, True, False], ignore_index=True)
        pairs = self._pairs.table[[*_PAIR, "waits", "total_ns", "longest_ns"]]
        return Gil(pairs.sort_values("total_ns", ascending=False, kind="stable", ignore_index=True), processes, out, takes)


def _of_main(waits: pd.DataFrame) -> "pd.Series[bool]":
    """Not for the own GIL of another interpreter."""
    return waits["lock_address"].fillna(0).astype(np.int64) & 7 != OTHER_GIL


def _paired(rows: pd.DataFrame) -> pd.DataFrame:
    ids = {"waiting_func_id": rows["func_id"], "holding_func_id": rows["holder_func_id"]}
    out = pd.DataFrame({name: func_id.to_numpy(np.int64) for name, func_id in ids.items()})
    holder = rows["holder_tid"].to_numpy()
    by = [holder == NOBODY, holder < 0, out["holding_func_id"] < 0]
    out["held"] = np.select(by, ["nobody", "not known", "no call"], "function")
    return out.assign(wait=rows["wait"].to_numpy(), total_ns=rows["waited_ns"].to_numpy())


def shares(held: pd.DataFrame, wanted: pd.DataFrame) -> pd.DataFrame:
    """Gil.processes, of pieces of holds (gil_turns.Holds) and of the waits that may lie in them, with pid, start_ns and end_ns."""
    rows = []
    for pid, own in held.groupby("pid"):
        waits = wanted[wanted["pid"] == pid]
        covered = _covered(
            waits["start_ns"].to_numpy(),
            waits["end_ns"].to_numpy(),
            own["start_ns"].to_numpy(),
            own["end_ns"].to_numpy(),
        )
        length, tid = (own["end_ns"] - own["start_ns"]).to_numpy(), own["tid"].to_numpy()
        has, free = tid > 0, tid == NOBODY
        times = [(length - covered)[has], covered[has], covered[free], (length - covered)[free], length[tid == UNKNOWN]]
        sums = dict(zip(SHARES, (int(part.sum()) for part in times), strict=True))
        rows.append({"pid": pid, "wall_ns": int(length.sum()), "held_ns": sums["alone_ns"] + sums["contended_ns"], **sums})
    return pd.DataFrame(rows, columns=["pid", "wall_ns", "held_ns", *SHARES]).astype("int64")


def _covered(start: Ints, end: Ints, from_ns: Ints, to_ns: Ints) -> Ints:
    """How much of each [from_ns, to_ns) lies in any of the intervals [start, end), which may overlap."""
    if not len(start):
        return np.zeros(len(from_ns), np.int64)
    order = np.argsort(start, kind="stable")
    start, reach = start[order], np.maximum.accumulate(end[order])
    first = np.append(True, start[1:] > reach[:-1])
    covered = Curve.of(start[first], reach[np.append(first[1:], True)])
    return covered.at(to_ns) - covered.at(from_ns)
