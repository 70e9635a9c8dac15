"""Rebuild calls from function and scheduling events: one pass over the segments, the open calls carried over.

Memory is bounded by one segment; besides, analyze/workers.py reads the scheduling of the threads without calls whole.
Everything is done for all threads at once; what does not match is mended first (analyze/repair.py),
then levels alone tell what belongs together (analyze/pairing.py).
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from pytrace_ebpf.analyze import split
from pytrace_ebpf.analyze.finished import Finished
from pytrace_ebpf.analyze.pairing import (
    OPEN_AT_END,
    OPEN_AT_START,
    RESUMED,
    UNWOUND,
    YIELDED,
    Bools,
    Groups,
    Ints,
    Rows,
    Tree,
    depths,
    mismatched,
    pair,
)
from pytrace_ebpf.analyze.repair import AFTER_LOSS, FIRST, LAST, MARK, SETTLED, repair
from pytrace_ebpf.analyze.sampled import Sampled
from pytrace_ebpf.analyze.split import Scheduling, windows_of
from pytrace_ebpf.analyze.stretch import OPEN, Open, Stretch
from pytrace_ebpf.analyze.workers import Workers
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.trace.schema import CALL_LOSSES, LAYERS, SCHED_LOSSES, CallKind

Layers = npt.NDArray[np.int32]
ROW_GROUP = 1 << 14
PIECE = 1 << 17  # rows; twice as fast as a million at once
_THREAD = np.dtype(
    [
        ("key", "i8"), ("sequence", "i8"), ("begins", "i1"), ("marked", "?"),
        ("mark_ns", "i8"), ("mark", "i8", split.STAMP), ("last_ns", "i8"), ("last", "i8", split.STAMP), ("end_ns", "i8"),
    ]
)  # fmt: skip


def derive(trace: Trace, into: Path) -> None:
    """Write the calls of `trace` as Parquet parts into the folder `into`."""
    workers = Workers(trace)
    for number, table in enumerate(rebuild(trace)):
        pq.write_table(
            workers.fill(table), into / f"part-{number:05d}.parquet", row_group_size=ROW_GROUP, compression="lz4",
            use_dictionary=["pid", "tid", "layer", "status", "func_id", "depth", "line", "first_cpu", "last_cpu"],
        )  # fmt: skip


def rebuild(trace: Trace) -> Iterator[pa.Table]:
    """The calls of `trace` as tables of schema.CALLS without worker_on_cpu_ns, each in the order of call_id: those that ended in a segment."""
    sampled = trace.scheduling["source"] == "cputime"
    layers = trace.functions()["function_layer"].map(LAYERS.index).to_numpy(np.int32)
    stream = Calls(trace.threads(), trace.processes(), trace.losses(), trace.start_ns, sampled, layers)
    for segment, following in zip(trace.segments, [*trace.segments[1:], None], strict=False):
        events = trace.part("events", segment["index"])
        sched = trace.part("cputime" if sampled else "sched", segment["index"])
        if sampled and following:  # a curve needs the sample that follows
            sched = pa.concat_tables([sched, trace.part("cputime", following["index"])])
        yield from stream.segment(events, sched, segment["start_ns"], segment["end_ns"])
    yield from stream.finish(trace.end_ns)


class Calls:
    """Calls from events, a segment at a time."""

    def __init__(self, threads: pd.DataFrame, processes: pd.DataFrame, losses: pd.DataFrame, start_ns: int, sampled: bool = False, layers: Layers | None = None) -> None:
        """The key tables (schema.THREADS, PROCESSES), the losses, and when recording began.

        `sampled`: of scheduling there are only samples of CPU time. `layers`: int32, the function's number in
        schema.LAYERS by func_id; None: all are Python's.
        """
        self._layers = np.append(np.zeros(0, np.int32) if layers is None else layers, np.int32(0))  # the last for -1
        self._start_ns, self._processes = start_ns, processes
        self._process_start = dict(zip(processes["pid"].tolist(), processes["start_ns"].tolist(), strict=True))
        self._windows = windows_of(losses, CALL_LOSSES)
        self._stamped = self._passed = 0  # of the windows
        self._window_stamps = np.zeros((0, split.STAMP), np.int64)
        self.scheduling: Sampled | Scheduling = Sampled() if sampled else Scheduling(start_ns, windows_of(losses, SCHED_LOSSES))
        self._threads = np.zeros(0, _THREAD)
        self._number: dict[int, int] = {}
        self._open = np.zeros(0, OPEN)
        self._held: Finished | None = None  # ended last in their thread: whether a sibling follows is not known yet
        self._done: list[tuple[Finished, Bools]] = []  # and which of them to keep
        known = threads.sort_values(["pid", "tid"])
        self._register(split.thread_keys(known["pid"].to_numpy(), known["tid"].to_numpy()))
        self._threads["mark_ns"] = np.maximum(self._threads["mark_ns"], known["start_ns"].to_numpy())
        self._threads["end_ns"] = known["end_ns"].fillna(-1).to_numpy(np.int64)

    def segment(self, events: pa.Table, sched: pa.Table, start_ns: int, end_ns: int) -> Iterator[pa.Table]:
        """The calls that ended in the segment [start_ns, end_ns), from its `events` and `sched` rows.

        With `sampled`, `sched` is the segment's rows of `cputime` and those of the next.
        """
        rows = self._rows(events)
        keys = split.thread_keys(sched["pid"].to_numpy(), sched["tid"].to_numpy())
        unique, inverse = np.unique(keys, return_inverse=True)
        self._register(unique)
        number = np.array([self._number[k] for k in unique.tolist()], np.int64)[inverse]
        # A thread that lost its core between reading the clock and handing over the event did so in an earlier segment.
        asked_ns = start_ns if isinstance(self.scheduling, Sampled) else int(rows.ts.min(initial=start_ns))
        self.scheduling.load(number, sched, asked_ns, end_ns)
        self._first_slices()
        self._mark_beginnings(end_ns)
        for window_start, window_end in self._windows[self._passed :].tolist():
            if window_start < end_ns and self._stamped == self._passed:
                self._window_stamps = self._stamps_at(window_start)
                self._stamped += 1
            if window_end >= end_ns:
                break
            before = rows.ts <= window_end
            self._stretches(rows.take(before))
            rows = rows.take(~before)
            self._pass_window(window_start)
        self._stretches(rows)
        yield from self._flush()

    def finish(self, end_ns: int) -> Iterator[pa.Table]:
        """The calls still open when their thread, or at `end_ns` the recording, ended."""
        ended, last_switch = self.scheduling.ended()
        given = self._threads["end_ns"]
        end = np.where(ended, last_switch, np.where(given >= 0, given, end_ns))
        end = np.maximum(end, np.maximum(self._threads["last_ns"], last_switch))
        threads = np.arange(len(self._threads))
        self._threads["last"] = self.scheduling.stamps(self.scheduling.find(threads, end), end)
        self._threads["begins"] = SETTLED
        thread = np.sort(self._open["thread"])
        count = len(thread)
        self._stretches(
            Rows(
                thread,
                end[thread],
                np.full(count, -1, np.int8),
                np.full(count, -1, np.int32),
                np.zeros(count, np.int64),
                np.full(count, -1, np.int32),
                np.full(count, OPEN_AT_END, np.int8),
                np.full(count, LAST, np.int32),
            )
        )
        if self._held is not None:
            self._done.append((self._held, np.ones(len(self._held), bool)))
            self._held = None
        yield from self._flush()

    def _flush(self) -> Iterator[pa.Table]:
        done, self._done = [part for part in self._done if part[1].any()], []
        if done:
            parts, keep = zip(*done, strict=True)
            yield Finished.to_arrow(list(parts), np.concatenate(keep), self._threads["key"], self._layers)

    def _register(self, keys: Ints) -> None:
        """Give threads that are new a number."""
        new = [key for key in keys.tolist() if key not in self._number]
        if not new:
            return
        self._number.update(zip(new, range(len(self._number), len(self._number) + len(new)), strict=True))
        more = np.zeros(len(new), _THREAD)
        more["key"], more["begins"], more["end_ns"], more["last_ns"] = new, FIRST, -1, -1
        more["mark_ns"] = [max(self._process_start.get(key >> 32, 0), self._start_ns) for key in new]
        self._threads = np.concatenate((self._threads, more))
        self.scheduling.grow(split.gil_ranges(self._processes, more["key"] >> 32))

    def _rows(self, events: pa.Table) -> Rows:
        """Events as rows; makes their threads known."""
        column = {name: events[name].to_numpy() for name in events.column_names}
        keys = split.thread_keys(column["pid"], column["tid"])
        groups = Groups.of(keys)
        self._register(groups.thread)
        number = np.array([self._number[key] for key in groups.thread.tolist()], np.int64)
        kind = column["kind"]
        rows = Rows(
            groups.spread(number),
            column["ts"],
            np.array([1, -1, 1, 0, -1, 1, -1], np.int8)[kind],
            column["func_id"],
            column["frame"],
            column["line"],
            np.array([0, 0, OPEN_AT_START, 0, UNWOUND, RESUMED, YIELDED], np.int8)[kind],
            np.full(len(kind), -1, np.int32),
        )
        if np.any(number[1:] <= number[:-1]):
            rows = rows.take(np.argsort(rows.thread, kind="stable"))
        opened = np.flatnonzero(kind == CallKind.OPEN)
        if len(opened):
            opened = np.flatnonzero((rows.flags & OPEN_AT_START) != 0)
            first = self._threads["begins"][rows.thread[opened]] == FIRST
            rows.given[opened[first]] = MARK
        return rows

    def _stamps_at(self, ts: int) -> Ints:
        """Stamps of all threads at one moment of the loaded segment."""
        threads = np.arange(len(self._threads))
        when = np.full(len(threads), ts)
        return self.scheduling.stamps(self.scheduling.find(threads, when), when)

    def _first_slices(self) -> None:
        """Stamps from before that wait for the thread's next core: it may be in this segment."""
        core = self.scheduling.first_slice
        threads = np.arange(len(core))
        waiting = [(self._open["stamp"], self._open["thread"]), (self._threads["mark"], threads), (self._threads["last"], threads)]
        waiting.append((self._window_stamps, np.arange(len(self._window_stamps))))
        for stamps, thread in waiting:
            stamps[:, split.NEXT_CPU] = np.where(stamps[:, split.NEXT_CPU] < 0, core[thread], stamps[:, split.NEXT_CPU])

    def _mark_beginnings(self, end_ns: int) -> None:
        """Stamps of the threads that began in this segment, at their beginning."""
        new = np.flatnonzero(~self._threads["marked"] & (self._threads["mark_ns"] < end_ns))
        when = self._threads["mark_ns"][new]
        self._threads["mark"][new] = self.scheduling.stamps(self.scheduling.find(new, when), when)
        self._threads["marked"][new] = True

    def _pass_window(self, start_ns: int) -> None:
        """A loss ended: from the thread's last event on, or from the loss's start, anything may have happened."""
        threads = self._threads
        at_start = np.zeros((len(threads), split.STAMP), np.int64)
        at_start[: len(self._window_stamps)] = self._window_stamps
        settled = np.flatnonzero(threads["begins"] == SETTLED)
        inside = threads["last_ns"][settled] >= start_ns
        threads["mark_ns"][settled] = np.maximum(threads["last_ns"][settled], start_ns)
        threads["mark"][settled] = np.where(inside[:, None], threads["last"][settled], at_start[settled])
        threads["begins"][settled] = AFTER_LOSS
        self._passed += 1

    def _stretches(self, rows: Rows) -> None:
        """Rebuild the calls of rows without a loss between them, in pieces whose arrays fit the cache.

        Only threads that go on from before are cut: how others began shows in all of their rows.
        """
        if not len(rows):
            return
        groups = Groups.of(rows.thread)
        begins = self._threads["begins"][groups.thread] != SETTLED
        cuts = np.arange(0, len(rows), PIECE)
        group = np.searchsorted(groups.start, cuts, side="right") - 1
        cuts = np.unique(np.where(begins[group], groups.start[group], cuts)).tolist()
        for start, end in zip(cuts, [*cuts[1:], len(rows)], strict=True):
            self._stretch(rows.take(slice(start, end)))

    def _stretch(self, rows: Rows) -> None:
        """Rebuild the calls of one piece."""
        threads = Groups.of(rows.thread).thread
        self._check_marks(rows)
        carried, rows = self._carry_in(rows)
        rows, groups, tree = self._settle(rows, threads, carried)
        if tree is None:
            self._open = np.concatenate((self._open, carried))
            return
        local = np.searchsorted(threads, groups.thread)
        codes = np.flatnonzero(rows.given < -1)
        place = local[np.searchsorted(groups.start, codes, side="right") - 1]
        rows.given[codes] = len(carried) + place + np.where(rows.given[codes] == MARK, 0, len(threads))
        given = np.concatenate((carried["stamp"], self._threads["mark"][threads], self._threads["last"][threads]))
        stretch = Stretch(rows, groups, tree, carried, given, self._threads["sequence"][groups.thread], self.scheduling)
        self._release_held(groups, stretch.next_sibling_of_held())
        finished, held, still_open = stretch.finish(self._windows)
        self._done.append((finished, ~held))
        self._held = finished.take(held) if self._held is None else Finished.concat([self._held, finished.take(held)])
        self._open = np.concatenate((self._open, still_open))
        last = groups.start + groups.count - 1
        self._threads["last_ns"][groups.thread], self._threads["last"][groups.thread] = rows.ts[last], stretch.last_stamps()
        self._threads["sequence"][groups.thread] += stretch.made
        self._threads["begins"][groups.thread] = SETTLED

    def _release_held(self, groups: Groups, next_sibling: Ints) -> None:
        """Calls that ended their thread's last stretch: now it shows whether a sibling follows."""
        if self._held is None:
            return
        place = np.minimum(np.searchsorted(groups.thread, self._held.thread), len(groups.thread) - 1)
        here = groups.thread[place] == self._held.thread
        released = self._held.take(here)
        released.next_sibling_id = next_sibling[place[here]]
        self._done.append((released, np.ones(len(released), bool)))
        self._held = self._held.take(~here)

    def _check_marks(self, rows: Rows) -> None:
        """A thread's rows cannot begin before the thread did; open calls began with it."""
        groups = Groups.of(rows.thread)
        threads = self._threads
        # Rows that say what was open come first and tell nothing of the time: a source may give them that of its own start.
        leading = np.add.reduceat((rows.given == MARK).astype(np.int64), groups.start) if len(groups.start) else groups.count
        first = groups.start + np.minimum(leading, groups.count - 1)
        told = (leading < groups.count) & (threads["mark_ns"][groups.thread] > rows.ts[first])
        early = np.flatnonzero((threads["begins"][groups.thread] != SETTLED) & told)
        if len(early):
            when, thread = rows.ts[first[early]], groups.thread[early]
            threads["mark_ns"][thread] = when
            threads["mark"][thread] = self.scheduling.stamps(self.scheduling.find(thread, when), when)
        opened = np.flatnonzero(rows.given == MARK)
        if len(opened):
            rows.ts = rows.ts.copy()  # Arrow's memory cannot be written to
            rows.ts[opened] = threads["mark_ns"][rows.thread[opened]]

    def _carry_in(self, rows: Rows) -> tuple[Open, Rows]:
        """Put the open calls of the rows' threads before their rows; each is `given` its own number."""
        groups = Groups.of(rows.thread)
        present = np.zeros(len(self._threads), bool)
        present[groups.thread] = True
        here = present[self._open["thread"]]
        carried, self._open = self._open[here], self._open[~here]
        carried = carried[np.argsort(carried["thread"], kind="stable")]
        count = len(carried)
        entries = Rows(
            carried["thread"],
            carried["start_ns"],
            np.ones(count, np.int8),
            carried["func"],
            carried["frame"],
            np.full(count, -1, np.int32),
            carried["flags"],
            np.arange(count, dtype=np.int32),
        )
        return carried, rows.insert(groups.start[np.searchsorted(groups.thread, carried["thread"])], entries)

    def _settle(self, rows: Rows, threads: Ints, carried: Open) -> tuple[Rows, Groups, Tree | None]:
        """Rows that levels pair: those of threads where they do not are mended."""
        groups = Groups.of(rows.thread)
        depth, broken = depths(rows, groups)
        if broken.any():
            rows = self._mend(rows, groups, broken, carried)
            groups = Groups.of(rows.thread)
            if not len(rows):
                return rows, groups, None
            broken = broken[np.searchsorted(threads, groups.thread)]
            depth, _ = depths(rows, groups)
        tree = pair(rows, groups, depth)
        crossed = mismatched(rows, groups, tree) & ~broken
        if crossed.any():
            rows = self._mend(rows, groups, crossed, carried)
            groups = Groups.of(rows.thread)
            tree = pair(rows, groups, depths(rows, groups)[0])
        return rows, groups, tree

    def _mend(self, rows: Rows, groups: Groups, broken: Bools, carried: Open) -> Rows:
        pieces, done = [], 0
        for group in np.flatnonzero(broken).tolist():
            start = int(groups.start[group])
            end = start + int(groups.count[group])
            thread = self._threads[groups.thread[group]]
            own = int(np.searchsorted(carried["thread"], groups.thread[group], "right") - np.searchsorted(carried["thread"], groups.thread[group]))
            pieces.append(rows.take(slice(done, start)))
            pieces.append(repair(rows.take(slice(start, end)), own, int(thread["begins"]), int(thread["mark_ns"]), int(thread["last_ns"])))
            done = end
        pieces.append(rows.take(slice(done, None)))
        return Rows(*(np.concatenate(columns) for columns in zip(*(vars(p).values() for p in pieces), strict=True)))
