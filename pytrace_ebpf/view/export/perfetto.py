"""A native Perfetto trace, for ui.perfetto.dev: calls, the state of every thread, and who ran on which core.

Per thread one track of nested call slices with a "state" track below it (on core, run queue, GIL wait and who
held it, blocked in what), with arrows from who woke a thread, and from who held the GIL when a wait for it began; and
generic kernel task states, from which the UI makes its CPU tracks and
its own thread states. Those, not ftrace's sched_switch: a switch names both threads, and of threads that
were not traced only half the switches are known. Field numbers: perfetto's protos/perfetto/trace/**.proto.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, BinaryIO, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd

from pytrace_ebpf.derive.edges import Written, edges
from pytrace_ebpf.view.export.causes import NUMBERS, causes
from pytrace_ebpf.view.export.counters import counters
from pytrace_ebpf.view.export.numbered import grouped
from pytrace_ebpf.view.export.protobuf import Fixed, Piece, Slot, data, messages, nested, number
from pytrace_ebpf.view.export.tracks import Tracks

SUFFIX = ".perfetto-trace"

_BEGIN, _END, _INSTANT = 1, 2, 3  # TrackEvent.Type
_CLEARED, _NEEDED = number(13, 1), number(13, 2)  # TracePacket.sequence_flags, of the interned names
_WAKES, _WOKEN, _HOLDS, _WAITS, _FIRST_FUNCTION = 2, 3, 4, 5, 6  # iids of names; 1 is the unknown function
_ENDS_OF_ARROWS = ((_WAKES, "wakes"), (_WOKEN, "woken"), (_HOLDS, "holds the GIL"), (_WAITS, "waits for the GIL"))
_RUNNABLE, _RUNNING, _SLEEPING, _DEAD = 2, 3, 4, 7  # GenericKernelTaskStateEvent.TaskStateEnum

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Buffer: TypeAlias = bytes | memoryview


def write(trace: Any, timelines: Iterable[pd.DataFrame], out: BinaryIO) -> None:
    """Write `trace`, with the thread states of derive.scheduling.trace_timeline's `timelines`, to `out`: its calls and its states a piece at a time."""
    functions, manifest = trace.functions(), trace.manifest
    tracks = Tracks.of(trace.threads(), trace.thread_times())
    out.write(_clock(manifest))
    out.write(_names(functions))
    out.writelines(_packet(data(60, d)) for d in tracks.descriptors(trace.processes()))
    out.writelines(counters(trace, tracks.processes))
    calls = _calls(functions, tracks)
    for piece in edges(trace):
        out.writelines(calls.pieces(piece.rows, piece.keys))
    states = _States(tracks, _FIRST_FUNCTION + 1 + int(functions["func_id"].max() if len(functions) else -1))
    for timeline in timelines:
        if len(timeline):
            out.writelines(states.take(causes(trace, timeline, functions)))
    out.writelines(states.finish())


class _States:
    """The packets of thread states, some segments' at a time. What goes on from one to the next begins in that and ends in this."""

    def __init__(self, tracks: Tracks, first_label: int) -> None:
        self._tracks, self._first_label, self._labels = tracks, first_label, dict[str, int]()
        self._core, self._end = np.zeros((2, len(tracks.threads)), np.int64)  # of each thread: the last one, and when its last state ended
        self._flows = 0

    def take(self, timeline: pd.DataFrame) -> Iterator[Buffer]:
        """Of a timeline with causes."""
        thread, core = self._tracks.number(timeline), self._cores(timeline)
        ended = ~timeline["goes_on"].to_numpy(bool)
        # All ends before all begins: perfetto keeps the file's order where times are equal, and states adjoin.
        yield _slices(timeline["end_ns"].to_numpy(np.int64)[ended], _END, self._tracks.state_uuid(thread[ended])).data
        begun = ((timeline["start_ns"] == timeline["began_ns"]) & (timeline["end_ns"] > timeline["start_ns"])).to_numpy(bool)
        timeline, thread, core = timeline[begun], thread[begun], core[begun]
        yield self._named(timeline["label"])
        start, label = timeline["start_ns"].to_numpy(np.int64), timeline["label"].map(self._labels).to_numpy(np.int64)
        for rows, behind in _behind(timeline):
            yield _slices(start[rows], _BEGIN, self._tracks.state_uuid(thread[rows]), label[rows] + self._first_label, extra=behind).data
        yield from self._arrows(timeline)
        state = timeline["state"].astype("object")
        code = state.map({"on_cpu": _RUNNING, "runq_wait": _RUNNABLE}).fillna(_SLEEPING).to_numpy(np.int64)
        for one, own in grouped(thread):
            yield _kernel_states(one, self._tracks, start[own], core[own], code[own])

    def _named(self, labels: "pd.Series[Any]") -> bytes:
        """Labels that were not there before, by iid."""
        new = [label for label in labels.unique().tolist() if label not in self._labels]
        first = len(self._labels)
        self._labels |= {label: first + at for at, label in enumerate(new)}
        return _packet(_NEEDED + data(12, b"".join(data(2, number(1, self._first_label + self._labels[label]) + data(2, label)) for label in new)))

    def _cores(self, timeline: pd.DataFrame) -> Ints:
        """The core that each row's thread is on, or had last."""
        thread = self._tracks.number(timeline)
        cpu = timeline["cpu"].where(timeline["state"].astype("object") == "on_cpu").groupby(thread).ffill()
        core = cpu.fillna(pd.Series(self._core[thread], timeline.index)).clip(lower=0).to_numpy(np.int64)
        self._core[thread], self._end[thread] = core, timeline["end_ns"].to_numpy(np.int64)  # of several the last
        return core

    def _arrows(self, timeline: pd.DataFrame) -> Iterator[Buffer]:
        """From who woke a thread to it, when that was; and from who held the GIL to who began to wait for it, then."""
        woken = timeline[timeline["waker_tid"].notna() & (timeline["blocked_until_ns"] > timeline["start_ns"])]
        yield from self._arrow(woken, ["waker_pid", "waker_tid"], "blocked_until_ns", (_WAKES, _WOKEN))
        waits = timeline[timeline["holder_tid"].notna() & (timeline["kind"] == "gil")]
        yield from self._arrow(waits, ["pid", "holder_tid"], "start_ns", (_HOLDS, _WAITS))

    def _arrow(self, rows: pd.DataFrame, whose: list[str], when: str, names: tuple[int, int]) -> Iterator[Buffer]:
        """An arrow for each row whose other thread (columns `whose`: pid, tid) is a traced one: from an instant on its states to one on the row's thread."""
        others = rows[whose].set_axis(["pid", "tid"], axis=1).astype("int64")
        start, end = self._tracks.number(others), self._tracks.number(rows)
        known = start >= 0
        ts, flow = rows[when].to_numpy(np.int64)[known], self._flows + 1 + np.arange(int(known.sum()))
        self._flows += len(flow)
        for place, field, name in ((start, 47, names[0]), (end, 48, names[1])):  # flow_ids, terminating_flow_ids
            uuid = self._tracks.state_uuid(place[known])
            yield _slices(ts, _INSTANT, uuid, np.full(len(ts), name), extra=[Fixed(field, flow)]).data

    def finish(self) -> Iterator[Buffer]:
        """That threads have ended."""
        for thread in np.flatnonzero(self._end).tolist():
            if self._tracks.ended(thread):
                yield _kernel_states(thread, self._tracks, self._end[[thread]], self._core[[thread]], np.array([_DEAD]))


def _packet(payload: bytes) -> bytes:
    return data(1, number(10, 1) + payload)  # Trace.packet, TracePacket.trusted_packet_sequence_id


def _clock(manifest: dict[str, Any]) -> bytes:
    """A ClockSnapshot. Perfetto counts in BOOTTIME (6), declared equal to MONOTONIC (3), from which only suspends part it."""
    anchor = (manifest.get("clock") or [{"monotonic_ns": manifest["start_ns"]}])[0]
    clocks = [(6, anchor["monotonic_ns"]), (3, anchor["monotonic_ns"]), (1, anchor.get("realtime_ns"))]
    snapshot = b"".join(data(1, number(1, clock) + number(2, int(at))) for clock, at in clocks if at is not None)
    return _packet(number(8, int(anchor["monotonic_ns"])) + data(6, snapshot))


def _names(functions: pd.DataFrame) -> bytes:
    """Names and places by iid: the unknown function, the ends of arrows, the functions by func_id."""
    interned = [data(2, number(1, 1) + data(2, "(unknown)")), data(4, number(1, 1) + data(3, "(unknown)"))]
    interned += [data(2, number(1, iid) + data(2, name)) for iid, name in _ENDS_OF_ARROWS]
    interned += [data(3, number(1, i) + data(2, name)) for i, name in enumerate(NUMBERS, start=1)]  # .debug_annotation_names
    for func_id, name, file, line in functions[["func_id", "qualname", "file", "first_line"]].itertuples(index=False):
        iid = number(1, func_id + _FIRST_FUNCTION)
        interned.append(data(2, iid + data(2, name)))  # InternedData.event_names
        interned.append(data(4, iid + data(2, file) + data(3, name) + number(4, max(line, 0))))  # .source_locations
    return _packet(_CLEARED + data(12, b"".join(interned)))


def _behind(timeline: pd.DataFrame) -> Iterator[tuple[Ints, list[Piece]]]:
    """The rows of `timeline`, in groups that have the same annotations, with these: who woke, who held, which lock."""
    columns = [timeline[name] for name in ("waker_tid", "holder_tid", "lock_address")]
    given = sum(column.notna().to_numpy().astype(np.int64) << i for i, column in enumerate(columns))
    for code in np.unique(given).tolist():
        rows = np.flatnonzero(given == code)
        annotations: list[Piece] = []
        for i, column in enumerate(columns):
            if code >> i & 1:  # TrackEvent.debug_annotations: name_iid, int_value or pointer_value
                field = 7 if i == 2 else 4
                annotations += nested(4, [number(1, i + 1), Slot(field, 9, column.iloc[rows].to_numpy(np.int64))])
        yield rows, annotations


def _slices(ts: Ints, kind: int, uuid: Ints, name: Ints | None = None, extra: Sequence[Piece] = ()) -> Bytes:
    """TrackEvent packets, one row each, with the fields `extra`."""
    event: list[Piece] = [number(9, kind), Slot(11, 4, uuid)]
    event += [Slot(10, 4, name)] if name is not None else []
    return messages(nested(1, [number(10, 1), Slot(8, 9, ts), _NEEDED, *nested(11, [*event, *extra])]), len(ts))


def _calls(functions: pd.DataFrame, tracks: Tracks) -> Written:
    """Begins and ends of calls as packets: each has its thread, and its time behind it."""
    none = np.zeros(0, np.int64)
    track, time = Slot(11, 4, none), Slot(8, 9, none)

    def head(event: bytes) -> bytes:
        pieces = nested(1, [number(10, 1), _NEEDED, *nested(11, [event, track]), time])
        return b"".join(piece for piece in pieces if isinstance(piece, bytes))

    def of_threads(keys: Ints) -> list[bytes]:
        return [row.tobytes() + time.tag for row in messages([Slot(11, 4, tracks.uuid(tracks.number_of(keys)))], len(keys))]

    functions_known = int(functions["func_id"].max()) + 1 if len(functions) else 0
    iids = [1, *range(_FIRST_FUNCTION, _FIRST_FUNCTION + functions_known)]
    return Written(
        [head(number(9, _END)), *(head(number(9, _BEGIN) + number(10, iid) + number(34, iid)) for iid in iids)], of_threads, as_varint=True
    )


def _kernel_states(thread: int, tracks: Tracks, ts: Ints, core: Ints, state: Ints) -> Buffer:
    """Task states of a thread; the one after a run names the core of the run, which it ends."""
    fixed = [number(3, tracks.tid(thread)), data(2, tracks.name(thread))]
    event = nested(117, [*fixed, Slot(1, 2, core), Slot(4, 1, state)])
    return messages(nested(1, [number(10, 1), Slot(8, 9, ts), *event]), len(ts)).data
