"""A trace as the steps of its threads: work, waits for each other, pauses, and where requests begin and end; what rebuild.replay plays."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from pytrace_ebpf.analyze.critical_path.timelines import NOBODY, Timelines
from pytrace_ebpf.derive.scheduling.curve import Curve
from pytrace_ebpf.derive.scheduling.last_at import last_at
from pytrace_ebpf.derive.scheduling.split import thread_keys
from pytrace_ebpf.rebuild.replay import MARK, PAUSE, SIGNAL, WAIT, WORK, replay

Ints = npt.NDArray[np.int64]
_LOOKS_NS = 1_000_000  # between two waits for the GIL that are one, with the time in the run queue
_NOTHING = 255  # a border: nothing happens there
_FIRST_OF, _THEN, _LAST_OF = range(3)  # of one moment


@dataclass
class Model:
    """How a trace is played. Each array is of the waits of `lines`, int64 ns but for `ender`.

    ender: the thread whose signal ends it, NOBODY where it lasts for `lasts`. queued: in the run queue afterwards. since, until: of each thread the
    first and the last moment. holds: pid, tid, start_ns, end_ns of what is done with the GIL, None where that is as it was. cores: None as it was.
    saved: by thread how much of its time up to a moment is saved.
    """

    lines: Timelines
    ender: npt.NDArray[np.int32]
    lasts: Ints
    queued: Ints
    since: Ints
    until: Ints
    saved: dict[int, "Saved"]
    holds: pd.DataFrame | None = None
    cores: int | None = None


@dataclass(frozen=True)
class Saved:
    """Of the time that `curve` counts this share is saved."""

    curve: Curve
    numerator: int
    denominator: int

    def at(self, ts: Ints) -> Ints:
        """Up to each moment."""
        return self.curve.at(ts) * self.numerator // self.denominator


def recorded(lines: Timelines, threads: pd.DataFrame, start_ns: int, end_ns: int) -> Model:
    """The model that gives what was recorded: a wait is for the thread that ended it, where that had a core then; else, and in the run queue, it is as long as it was."""
    start, end = (lines.waits[name].to_numpy(np.int64) for name in ("start_ns", "end_ns"))
    of = np.repeat(np.arange(len(lines.keys)), np.diff(lines.first))
    known = pd.Series(np.arange(len(threads)), thread_keys(threads["pid"].to_numpy(), threads["tid"].to_numpy()))
    place = known[~known.index.duplicated(keep="last")].reindex(lines.keys).fillna(NOBODY).to_numpy(np.int64)
    since = np.append(threads["start_ns"].to_numpy(np.int64), start_ns)[place].clip(start_ns, end_ns)
    until = np.append(threads["end_ns"].fillna(end_ns).to_numpy(np.int64), end_ns)[place].clip(start_ns, end_ns)
    has = np.flatnonzero(np.diff(lines.first))
    since[has] = np.where(lines.born[has] != 0, start[lines.first[has]], since[has])
    # Of a thread without any switch it is not known that it had a core.
    until = np.where(np.diff(lines.first) == 0, since, np.maximum(until, since))
    last = last_at(of, start, lines.next.astype(np.int64), lines.until - 1)
    awake = (last < 0) | (np.append(end, 0)[last] < lines.until)
    there = (lines.until >= since[lines.next]) & (lines.until <= until[lines.next]) if len(of) else np.zeros(0, bool)
    ender = np.where(awake & there & (lines.next != of), lines.next, NOBODY).astype(np.int32)
    lasts, queued = lines.until - start, end - lines.until
    timed_out = _timed_out(lines, of, ender)
    ender[timed_out], lasts[timed_out], queued[timed_out] = NOBODY, 0, 0
    return Model(lines, ender, lasts, queued, since, until, {})


def _timed_out(lines: Timelines, of: Ints, ender: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
    """Which waits for the GIL timed out (CPython looks again every 5 ms) and go on in one that is ended by a thread: they last as long as that needs."""
    kind, waker = lines.waits["kind"].astype("object").to_numpy(), lines.waits["waker_tid"].fillna(0).to_numpy(np.int64)
    start, end = (lines.waits[name].to_numpy(np.int64) for name in ("start_ns", "end_ns"))
    blocked = np.flatnonzero(kind != "preempted")
    gil, thread = kind[blocked] == "gil", of[blocked]
    again = (thread[1:] == thread[:-1]) & gil[1:] & gil[:-1] & (start[blocked[1:]] - end[blocked[:-1]] <= _LOOKS_NS)
    goes_on = np.append(again, False)[: len(blocked)] & (waker[blocked] <= 0)
    last = np.minimum.accumulate(np.where(goes_on, len(blocked), np.arange(len(blocked)))[::-1])[::-1]
    out = np.zeros(len(kind), bool)
    out[blocked] = goes_on & (ender[blocked[last]] >= 0)
    return out


def played(model: Model, marks: pd.DataFrame) -> Ints:
    """When each of `marks` (thread, ts, in the order of the answer) is come to, ns from the first thread's begin (model.since) on; -1 never."""
    rows = _rows(model, marks)
    thread, ts, kind = (rows[name] for name in ("thread", "ts", "kind"))
    begins = np.append(True, thread[1:] != thread[:-1])
    group = np.cumsum(begins) - 1
    # When the thread goes on after each: later than all before it on that thread.
    lifted = rows["resume"] + 0
    resume = _running_max(lifted, group)
    before = np.where(begins, model.since[thread], np.append(0, resume[:-1])[: len(resume)])
    begin, end = np.minimum(before, np.maximum(ts, before)), np.maximum(ts, before)
    work = end - begin - (_saved(model, thread, end) - _saved(model, thread, begin))
    locked = _locked(model, thread, begin)
    steps = np.full((len(thread), 3), PAUSE, np.uint8)
    values = np.zeros((len(thread), 3), np.int64)
    steps[:, 0], values[:, 0] = WORK, work
    steps[:, 1], values[:, 1] = np.where(kind == _NOTHING, PAUSE, kind), rows["value"]
    values[:, 2] = rows["queued"]
    first = 3 * np.searchsorted(thread, np.arange(len(model.lines.keys) + 1))
    with_gil = np.zeros((len(thread), 3), np.uint8)
    with_gil[:, 0] = locked
    gil = np.full(len(model.lines.keys), NOBODY) if model.holds is None else np.unique(model.lines.keys >> 32, return_inverse=True)[1]
    given = steps.ravel(), values.ravel(), with_gil.ravel()
    return replay(given, (first, gil), model.cores, len(model.ender), len(marks))


def _rows(model: Model, marks: pd.DataFrame) -> dict[str, Ints]:
    """What happens on threads, by thread and in the order of time: thread, ts, kind, value, queued, and when the thread goes on, resume."""
    lines, every = model.lines, np.arange(len(model.lines.keys))
    of = np.repeat(every, np.diff(lines.first))
    start, end = (lines.waits[name].to_numpy(np.int64) for name in ("start_ns", "end_ns"))
    ended = np.flatnonzero(model.ender >= 0)
    waiting = model.ender >= 0
    made = np.zeros(len(every), bool)
    has = np.flatnonzero(np.diff(lines.first))
    made[has] = (lines.born[has] != 0) & waiting[lines.first[has]]  # a thread whose maker says when
    late = np.where(made, 0, model.since - int(model.since.min(initial=0)))
    parts = [
        (every, model.since, np.full(len(every), PAUSE), late, 0 * late, model.since, _FIRST_OF - 1),
        (of, start, np.where(waiting, WAIT, PAUSE), np.where(waiting, np.arange(len(of)), model.lasts), model.queued, end, _THEN),
        (model.ender[ended], lines.until[ended], np.full(len(ended), SIGNAL), ended, 0 * ended, lines.until[ended], _FIRST_OF),
        (marks["thread"], marks["ts"], np.full(len(marks), MARK), np.arange(len(marks)), np.zeros(len(marks), int), marks["ts"], _FIRST_OF),
        (every, model.until, np.full(len(every), _NOTHING), 0 * late, 0 * late, model.until, _LAST_OF),
    ]
    if model.holds is not None:
        of_hold = lines.thread(thread_keys(model.holds["pid"].to_numpy(), model.holds["tid"].to_numpy()))
        for name in ("start_ns", "end_ns"):
            ts = model.holds[name].to_numpy(np.int64)[of_hold >= 0]
            parts.append((of_hold[of_hold >= 0], ts, np.full(len(ts), _NOTHING), 0 * ts, 0 * ts, ts, _FIRST_OF))
    names = ("thread", "ts", "kind", "value", "queued", "resume", "order")
    whole = [np.concatenate([np.broadcast_to(np.asarray(part[place], np.int64), len(part[0])) for part in parts]) for place in range(len(names))]
    order = np.lexsort((whole[6], whole[1], whole[0]))
    return {name: column[order] for name, column in zip(names, whole, strict=True)}


def _running_max(values: Ints, group: Ints) -> Ints:
    """The largest so far of each group."""
    span = int(values.max(initial=0) - values.min(initial=0)) + 1
    low = int(values.min(initial=0))
    if span * (int(group.max(initial=0)) + 1) < np.iinfo(np.int64).max:
        return np.maximum.accumulate(values - low + group * span) - group * span + low
    return pd.Series(values).groupby(group).cummax().to_numpy(np.int64)


def _saved(model: Model, thread: Ints, ts: Ints) -> Ints:
    out = np.zeros(len(ts), np.int64)
    for which, saved in model.saved.items():
        here = np.flatnonzero(thread == which)
        out[here] = saved.at(ts[here])
    return out


def _locked(model: Model, thread: Ints, ts: Ints) -> npt.NDArray[np.bool_]:
    """Whether what each thread does from `ts` on is done with the GIL."""
    if model.holds is None:
        return np.zeros(len(ts), bool)
    of = model.lines.thread(thread_keys(model.holds["pid"].to_numpy(), model.holds["tid"].to_numpy())).astype(np.int64)
    start, end = (model.holds[name].to_numpy(np.int64) for name in ("start_ns", "end_ns"))
    order = np.lexsort((start, of))
    at = last_at(of[order], start[order], thread, ts)
    return (at >= 0) & (np.append(end[order], 0)[at] > ts)
