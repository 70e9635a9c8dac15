"""Steps of a training and their phases: where the calls of PyTorch that are of one begin and end, and what the thread waited for between.

One pass reads the calls of these functions only, of which the outermost ones of each phase are kept; another goes over the waits, some at a time.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from pytrace_ebpf.derive.added import Added
from pytrace_ebpf.derive.arrow_table import from_frame
from pytrace_ebpf.derive.calls.entry_points import asked
from pytrace_ebpf.derive.calls.nesting import above
from pytrace_ebpf.derive.calls.phases import BACKWARD, COMMUNICATES, COMMUNICATION, DATA, OTHER, phases
from pytrace_ebpf.derive.one_pass import run
from pytrace_ebpf.derive.scheduling.last_at import last_at, thread_keys
from pytrace_ebpf.derive.scheduling.windows import touches, windows_of
from pytrace_ebpf.derive.sink import RowsOf, RowsSink
from pytrace_ebpf.trace.derived import Settled
from pytrace_ebpf.trace.losses import NOT_REPORTED
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.trace.schema import SCHED_LOSSES, STEPS
from pytrace_ebpf.trace.segments import part_name
from pytrace_ebpf.trace.states import SPLIT
from pytrace_ebpf.trace.steps import PHASES, STEP
from pytrace_ebpf.trace.writing import write

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_WAIT = ("pid", "tid", "start_ns", "blocked_until_ns", "end_ns", "kind", "resource_id", "waker_pid", "waker_tid", "throttled_ns")
_WALL, _RUNQ, _GIL, _BLOCKED, _THROTTLED = range(5)  # columns of what is summed
_ENOUGH = 2  # steps of the optimizer for one batch: where there are more, the batches that are loaded are not those it steps on


class _Calls(RowsSink):
    """The outermost calls of phases, and all of the functions that are `asked` for."""

    columns = ("call_id", "last_descendant_id", "pid", "tid", "func_id", "start_ns", "end_ns", "outermost")

    def __init__(self, trace: Trace, phase: "pd.Series[int]") -> None:
        super().__init__(trace)
        self._phase = phase
        self.found = list[pd.DataFrame]()

    def rows_of(self) -> RowsOf:
        return RowsOf(self._phase.index.to_numpy(np.int64))

    def part(self, calls: pd.DataFrame) -> None:
        calls = calls[calls["outermost"]].sort_values("call_id", ignore_index=True)
        calls = calls.assign(phase=calls["func_id"].map(self._phase).to_numpy(np.int64))
        outer, _ = above(calls)
        phase = calls["phase"].to_numpy(np.int64)
        self.found.append(calls[(outer < 0) | (phase[outer] != phase) | (phase == OTHER)])


class _Segments(NamedTuple):
    """Pieces of time of one phase and step each, sorted by thread and time. `step`: a row of the steps; -1 none."""

    key: Ints
    start: Ints
    end: Ints
    phase: Ints
    step: Ints


def derive(trace: Trace, into: Path) -> Settled | None:
    """Write schema.STEPS of `trace`."""
    functions = trace.functions()
    of = phases(functions)
    wanted = asked(functions, trace.step_patterns).index
    if not (len(wanted) if trace.step_patterns else of["ends"].any() or (of["phase"] == DATA).any()):
        return None
    phase = pd.concat([of["phase"], pd.Series(OTHER, wanted.difference(of.index))]).astype(np.int64)
    sink = _Calls(trace, phase)
    run(trace, sink)
    if not sink.found:
        return None
    calls = pd.concat(sink.found).sort_values("call_id", ignore_index=True)
    calls = calls.assign(
        key=thread_keys(calls["pid"].to_numpy(), calls["tid"].to_numpy()),
        ends=calls["func_id"].isin(of.index[of["ends"]]),
        asked=calls["func_id"].isin(wanted),
    )
    steps = _asked(calls) if trace.step_patterns else _found(calls)
    if not len(steps):
        return None
    rows = _rows(trace, steps, _segments(calls, steps))
    write(STEPS, from_frame(STEPS, rows), into / part_name(0))
    return None


def _asked(calls: pd.DataFrame) -> pd.DataFrame:
    """The steps, which are the calls that were asked for: key, start, end, in the order of key and start."""
    own = calls[calls["asked"]]
    outer, _ = above(own)
    own = own[outer < 0].rename(columns={"start_ns": "start", "end_ns": "end"})
    return own.sort_values(["key", "start"], ignore_index=True)[["key", "start", "end"]]


def _found(calls: pd.DataFrame) -> pd.DataFrame:
    """The steps of each thread that has some: key, start, end, in the order of key and start."""
    trains = calls["pid"].isin(calls["pid"][calls["ends"]])
    trains_here = calls["key"].isin(calls["key"][calls["ends"]])
    loads = calls["key"].isin(calls["key"][calls["phase"] == DATA])
    parts = [_trained(own) for _, own in calls[trains_here].groupby("key")]
    parts += [_iterated(own) for _, own in calls[loads & ~trains].groupby("key")]
    return pd.concat([pd.DataFrame({"key": [], "start": [], "end": []}, dtype=np.int64), *parts], ignore_index=True)


def _columns(calls: pd.DataFrame) -> tuple[Ints, Ints, Ints, Bools]:
    start, end, phase = (calls[name].to_numpy(np.int64) for name in ("start_ns", "end_ns", "phase"))
    return start, end, phase, calls["ends"].to_numpy(bool)


def _trained(calls: pd.DataFrame) -> pd.DataFrame:
    """The steps of one thread whose optimizer makes some: from the first batch with gradients up to when the next one is asked for."""
    start, end, phase, ends = _columns(calls)
    outer, _ = above(calls[ends])
    ended, loaded = np.sort(end[ends][outer < 0]), np.sort(start[phase == DATA])
    if _ENOUGH * len(loaded) < len(ended):
        begins = np.append(start.min(), ended[:-1])
        return pd.DataFrame({"key": calls["key"].iloc[0], "start": begins, "end": ended})
    # Pieces from one batch that is asked for to the next: which have gradients, and at the end of which the optimizer has stepped.
    edges = np.append(start.min(), loaded) if loaded[0] > start.min() else loaded
    of = np.searchsorted(edges, start, side="right") - 1
    graded, stepped = np.zeros(len(edges), bool), np.zeros(len(edges), bool)
    graded[of[(phase == BACKWARD) | ends]] = True
    stepped[of[ends]] = True
    before = np.cumsum(stepped) - stepped  # steps that were made before each piece
    last = np.flatnonzero(stepped)
    first = np.full(len(last), len(edges))
    some = np.flatnonzero(graded & (before < len(last)))
    np.minimum.at(first, before[some], some)
    until = np.append(edges, end.max())[last + 1]
    return pd.DataFrame({"key": calls["key"].iloc[0], "start": edges[first], "end": until})


def _iterated(calls: pd.DataFrame) -> pd.DataFrame:
    """The passes of a thread without an optimizer through its loop over a DataLoader: from one batch that is asked for to the next."""
    start, _, phase, _ = _columns(calls)
    loaded = np.sort(start[phase == DATA])
    return pd.DataFrame({"key": calls["key"].iloc[0], "start": loaded[:-1], "end": loaded[1:]})


def _segments(calls: pd.DataFrame, steps: pd.DataFrame) -> _Segments:
    """The time between the begins and ends of `calls`, each by the innermost one."""
    calls = calls[calls["key"].isin(steps["key"])].reset_index(drop=True)
    outer, depth = above(calls)
    ids, last, phase = (calls[name].to_numpy(np.int64) for name in ("call_id", "last_descendant_id", "phase"))
    count, key = len(calls), calls["key"].to_numpy(np.int64)
    around = np.where(outer >= 0, phase[outer], OTHER)
    # In the order in which they happen, whatever their times: entries by number, ends after all that is below, the innermost first.
    order = np.lexsort((np.concatenate((np.zeros(count, np.int64), -depth)), np.repeat((0, 1), count), np.concatenate((ids, last)), np.tile(key, 2)))
    ts = np.concatenate((calls["start_ns"], calls["end_ns"]))[order].astype(np.int64)
    keys, now = np.tile(key, 2)[order], np.concatenate((phase, around))[order]
    some = np.flatnonzero((keys[1:] == keys[:-1]) & (ts[1:] > ts[:-1]))
    key, start, end, now = keys[some], ts[some], ts[some + 1], now[some]
    at = last_at(steps["key"].to_numpy(np.int64), steps["start"].to_numpy(np.int64), key, start)
    inside = (at >= 0) & (start < steps["end"].to_numpy(np.int64)[at])
    return _Segments(key, start, end, now, np.where(inside, at, -1))


def _rows(trace: Trace, steps: pd.DataFrame, segments: _Segments) -> pd.DataFrame:
    """Rows of schema.STEPS."""
    count = len(PHASES)
    sums = np.zeros((len(steps) * count, 5), np.int64)
    begin, end = np.full(len(sums), np.iinfo(np.int64).max), np.full(len(sums), -1)
    inside = segments.step >= 0
    cell = segments.step[inside] * count + segments.phase[inside]
    np.add.at(sums[:, _WALL], cell, (segments.end - segments.start)[inside])
    np.minimum.at(begin, cell, segments.start[inside])
    np.maximum.at(end, cell, segments.end[inside])
    resources = _add_waits(trace, segments, sums, begin, end) if trace.scheduling["source"] == "bpf" else {}
    step, phase = np.divmod(np.arange(len(sums)), count)
    rows = pd.DataFrame(sums, columns=["wall_ns", "runq_wait_ns", "gil_wait_ns", "blocked_ns", "throttled_ns"])
    rows = rows.assign(step=step, phase=np.array(PHASES, object)[phase], start_ns=begin, end_ns=end)
    rows["resource_id"] = pd.Series(resources, dtype="Int64").reindex(rows.index)
    is_other = phase == OTHER
    rows.loc[is_other, "start_ns"], rows.loc[is_other, "end_ns"] = steps["start"].to_numpy(), steps["end"].to_numpy()
    whole = rows.groupby("step", as_index=False)[["wall_ns", "runq_wait_ns", "gil_wait_ns", "blocked_ns", "throttled_ns"]].sum()
    whole = whole.assign(phase=STEP, start_ns=steps["start"], end_ns=steps["end"])
    whole["resource_id"] = pd.Series(_most(rows)).reindex(whole["step"]).astype("Int64").array
    rows = pd.concat([whole, rows[rows["wall_ns"] > 0]], ignore_index=True)
    return _with_names(trace, steps, rows)


def _most(rows: pd.DataFrame) -> dict[int, int]:
    """What each step was blocked for longest: that of the phase with the longest wait."""
    some = rows[rows["resource_id"].notna()].sort_values("blocked_ns")
    return dict(zip(some["step"], some["resource_id"], strict=True))


def _with_names(trace: Trace, steps: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
    """`rows` with their thread, rank and parts, null where these are not known, in order."""
    at = rows["step"].to_numpy(np.int64)
    key = steps["key"].to_numpy(np.int64)
    number = steps.groupby("key").cumcount().to_numpy(np.int64)
    rank = trace.processes().drop_duplicates("pid", keep="last").set_index("pid")["rank"]
    rows = rows.assign(
        step=number[at],
        pid=key[at] >> 32,
        tid=key[at] & 0xFFFFFFFF,
        on_cpu_ns=rows["wall_ns"] - rows["runq_wait_ns"] - rows["gil_wait_ns"] - rows["blocked_ns"],
    )
    rows["rank"] = rows["pid"].map(rank).astype("Int64")
    unknown = _unknown(trace, steps)[at]
    known = rows[[*SPLIT, "throttled_ns"]].astype("Int64").mask(pd.Series(unknown, rows.index))
    rows[[*SPLIT, "throttled_ns"]] = known
    if not trace.throttling:
        rows["throttled_ns"] = pd.Series(pd.NA, rows.index, dtype="Int64")
    rows = rows.assign(first=rows["phase"] != STEP).sort_values(["pid", "tid", "step", "start_ns", "first"], kind="stable", ignore_index=True)
    return rows[STEPS.arrow.names]


def _unknown(trace: Trace, steps: pd.DataFrame) -> Bools:
    """Of which steps it is not known all along what their thread did."""
    if trace.scheduling["source"] != "bpf":
        return np.ones(len(steps), bool)
    losses, start, end = trace.whole.losses(), steps["start"].to_numpy(np.int64), steps["end"].to_numpy(np.int64)
    out = touches(windows_of(losses, SCHED_LOSSES), start, end)
    key, not_reported = steps["key"].to_numpy(np.int64), losses[losses["tid"].notna()]
    for (pid, tid), own in not_reported.groupby(["pid", "tid"]):
        here = key == (int(pid) << 32 | int(tid))
        out[here] |= touches(windows_of(own, tuple(NOT_REPORTED.values())), start[here], end[here])
    return out


def _add_waits(trace: Trace, segments: _Segments, sums: Ints, begin: Ints, end: Ints) -> dict[int, int]:
    """Add what threads waited to the `sums` of their step and phase, that for others to communication; by row of these what it was blocked for longest."""
    threads = trace.threads()
    communicates = threads[threads["name"].str.startswith(COMMUNICATES, na=False) | threads["comm"].str.startswith(COMMUNICATES, na=False)]
    others = thread_keys(communicates["pid"].to_numpy(), communicates["tid"].to_numpy())
    longest = Added(["cell", "resource_id"], {"ns": "sum"})
    for waits in trace.waits_by_part(_WAIT):
        key = thread_keys(waits["pid"].to_numpy(), waits["tid"].to_numpy())
        at = last_at(segments.key, segments.start, key, waits["start_ns"].to_numpy(np.int64))
        kept = (at >= 0) & (segments.step[at] >= 0) if len(segments.step) else np.zeros(len(at), bool)
        waits, at = waits[kept], at[kept]
        stop = np.minimum(waits["end_ns"].to_numpy(np.int64), segments.end[at])
        start = np.minimum(waits["start_ns"].to_numpy(np.int64), stop)
        until = waits["blocked_until_ns"].fillna(waits["end_ns"]).to_numpy(np.int64).clip(start, stop)
        waker = thread_keys(waits["waker_pid"].fillna(-1).to_numpy(np.int64), waits["waker_tid"].fillna(-1).to_numpy(np.int64))
        of_others = np.isin(waker, others) & (waits["kind"] != "preempted").to_numpy(bool)
        phase = np.where(of_others, COMMUNICATION, segments.phase[at])
        row = segments.step[at] * len(PHASES)
        moved = of_others & (segments.phase[at] != COMMUNICATION)
        np.add.at(sums[:, _WALL], (row + segments.phase[at])[moved], (start - stop)[moved])
        np.add.at(sums[:, _WALL], (row + COMMUNICATION)[moved], (stop - start)[moved])
        cell = row + phase
        np.minimum.at(begin, cell, start)
        np.maximum.at(end, cell, stop)
        is_gil = (waits["kind"] == "gil").to_numpy(bool)
        np.add.at(sums[:, _RUNQ], cell, stop - until)
        np.add.at(sums[:, _GIL], cell[is_gil], (until - start)[is_gil])
        np.add.at(sums[:, _BLOCKED], cell[~is_gil], (until - start)[~is_gil])
        np.add.at(sums[:, _THROTTLED], cell, waits["throttled_ns"].fillna(0).to_numpy(np.int64))
        behind = waits["resource_id"].notna().to_numpy(bool)
        longest.add(
            pd.DataFrame({"cell": cell[behind], "resource_id": waits["resource_id"][behind].to_numpy(np.int64), "ns": (until - start)[behind]})
        )
    table = longest.table.sort_values("ns")
    return dict(zip(table["cell"].tolist(), table["resource_id"].tolist(), strict=True))
