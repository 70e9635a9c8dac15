"""A native Perfetto trace, for ui.perfetto.dev: calls, the state of every thread, and who ran on which core.

Per thread one track of nested call slices with a "state" track below it (on core, run queue, GIL wait and who
held it, blocked in what), with arrows from who woke a thread; and generic kernel task states, from which the UI makes its CPU tracks and
its own thread states. Those, not ftrace's sched_switch: a switch names both threads, and of threads that
were not traced only half the switches are known. Field numbers: perfetto's protos/perfetto/trace/**.proto.
"""

from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pandas as pd

from pytrace_ebpf.analyze.rebuilt.edges import ENDS, Edges, edges
from pytrace_ebpf.view.export.causes import NUMBERS, causes
from pytrace_ebpf.view.export.protobuf import Fixed, Piece, Slot, data, messages, nested, number
from pytrace_ebpf.view.export.tracks import Tracks

SUFFIX = ".perfetto-trace"

_BEGIN, _END, _INSTANT = 1, 2, 3  # TrackEvent.Type
_CLEARED, _NEEDED = number(13, 1), number(13, 2)  # TracePacket.sequence_flags, of the interned names
_CHUNK = 1 << 18
_WAKES, _WOKEN, _FIRST_FUNCTION = 2, 3, 4  # iids of names; 1 is the unknown function
_RUNNABLE, _RUNNING, _SLEEPING, _DEAD = 2, 3, 4, 7  # GenericKernelTaskStateEvent.TaskStateEnum

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]


def write(trace: Any, timeline: pd.DataFrame, out: BinaryIO) -> None:
    """Write `trace`, with the thread states of analyze.time.split's `timeline`, to `out`: its calls a piece at a time."""
    functions, manifest = trace.functions(), trace.manifest
    timeline = timeline[timeline["end_ns"] > timeline["start_ns"]].sort_values(["pid", "tid", "start_ns"], kind="stable")
    tracks = Tracks.of(trace.threads(), trace.thread_times(), timeline)
    timeline = causes(trace, timeline, functions)
    label, labels = pd.factorize(timeline["label"])
    first_label = _FIRST_FUNCTION + 1 + int(functions["func_id"].max() if len(functions) else -1)
    out.write(_clock(manifest))
    out.write(_names(functions, list(labels), first_label))
    out.writelines(_packet(data(60, d)) for d in tracks.descriptors(trace.processes()))
    for piece in edges(trace):
        for block in _calls(piece, tracks):
            out.write(block.data)
    thread = tracks.number(timeline)
    start, end = (timeline[c].to_numpy(np.int64) for c in ("start_ns", "end_ns"))
    # All ends before all begins: perfetto keeps the file's order where times are equal, and states adjoin.
    out.write(_slices(end, _END, tracks.state_uuid(thread)).data)
    for rows, behind in _behind(timeline):
        out.write(_slices(start[rows], _BEGIN, tracks.state_uuid(thread[rows]), label[rows] + first_label, extra=behind).data)
    for block in _arrows(timeline, tracks):
        out.write(block.data)
    for block in _kernel_states(timeline, thread, tracks):
        out.write(block.data)


def _packet(payload: bytes) -> bytes:
    return data(1, number(10, 1) + payload)  # Trace.packet, TracePacket.trusted_packet_sequence_id


def _clock(manifest: dict[str, Any]) -> bytes:
    """A ClockSnapshot. Perfetto counts in BOOTTIME (6), declared equal to MONOTONIC (3), from which only suspends part it."""
    anchor = (manifest.get("clock") or [{"monotonic_ns": manifest["start_ns"]}])[0]
    clocks = [(6, anchor["monotonic_ns"]), (3, anchor["monotonic_ns"]), (1, anchor.get("realtime_ns"))]
    snapshot = b"".join(data(1, number(1, clock) + number(2, int(at))) for clock, at in clocks if at is not None)
    return _packet(number(8, int(anchor["monotonic_ns"])) + data(6, snapshot))


def _names(functions: pd.DataFrame, labels: list[str], first_label: int) -> bytes:
    """Names and places by iid: the unknown function, the ends of arrows, the functions by func_id, then the labels of states."""
    interned = [data(2, number(1, 1) + data(2, "(unknown)")), data(4, number(1, 1) + data(3, "(unknown)"))]
    interned += [data(2, number(1, iid) + data(2, name)) for iid, name in ((_WAKES, "wakes"), (_WOKEN, "woken"))]
    interned += [data(3, number(1, i) + data(2, name)) for i, name in enumerate(NUMBERS, start=1)]  # .debug_annotation_names
    for func_id, name, file, line in functions[["func_id", "qualname", "file", "first_line"]].itertuples(index=False):
        iid = number(1, func_id + _FIRST_FUNCTION)
        interned.append(data(2, iid + data(2, name)))  # InternedData.event_names
        interned.append(data(4, iid + data(2, file) + data(3, name) + number(4, max(line, 0))))  # .source_locations
    interned += [data(2, number(1, first_label + i) + data(2, label)) for i, label in enumerate(labels)]
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


def _arrows(timeline: pd.DataFrame, tracks: Tracks) -> Iterator[Bytes]:
    """An arrow for each thread that a traced one woke: from an instant on the waker's states to one on the woken's."""
    woken = timeline[timeline["waker_tid"].notna() & (timeline["blocked_until_ns"] > timeline["start_ns"])]
    wakers = woken[["waker_pid", "waker_tid"]].set_axis(["pid", "tid"], axis=1).astype("int64")
    waker, thread = tracks.number(wakers), tracks.number(woken)
    known = waker >= 0
    ts, flow = woken["blocked_until_ns"].to_numpy(np.int64)[known], 1 + np.arange(int(known.sum()))
    for place, field, name in ((waker, 47, _WAKES), (thread, 48, _WOKEN)):  # flow_ids, terminating_flow_ids
        uuid = tracks.state_uuid(place[known])
        yield _slices(ts, _INSTANT, uuid, np.full(len(ts), name), extra=[Fixed(field, flow)])


def _slices(ts: Ints, kind: int, uuid: Ints, name: Ints | None = None, place: Ints | None = None, extra: Sequence[Piece] = ()) -> Bytes:
    """TrackEvent packets, one row each, with the fields `extra`."""
    event: list[Piece] = [number(9, kind), Slot(11, 4, uuid)]
    event += [Slot(10, 4, name)] if name is not None else []
    event += [Slot(34, 4, place)] if place is not None else []  # source_location_iid
    return messages(nested(1, [number(10, 1), Slot(8, 9, ts), _NEEDED, *nested(11, [*event, *extra])]), len(ts))


def _calls(piece: Edges, tracks: Tracks) -> Iterator[Bytes]:
    """Begins and ends of calls, thread by thread in the order of the stack."""
    uuid = tracks.uuid(tracks.number(pd.DataFrame({"pid": piece.key >> 32, "tid": piece.key & 0xFFFFFFFF})))
    is_end = piece.func_id == ENDS
    iid = np.where(piece.func_id < 0, 1, piece.func_id + _FIRST_FUNCTION)
    for at in range(0, len(is_end), _CHUNK):
        ends = is_end[at : at + _CHUNK]
        b, e = at + np.flatnonzero(~ends), at + np.flatnonzero(ends)
        yield _interleave(_slices(piece.ts[b], _BEGIN, uuid[b], iid[b], iid[b]), _slices(piece.ts[e], _END, uuid[e]), ends)


def _interleave(first: Bytes, second: Bytes, is_second: npt.NDArray[np.bool_]) -> Bytes:
    """Rows of two matrices of different widths as one run of bytes, in the order that `is_second` gives."""
    stop = np.cumsum(np.where(is_second, second.shape[1], first.shape[1]))
    out = np.empty(int(stop[-1]), np.uint8)
    for matrix, ends in ((first, stop[~is_second]), (second, stop[is_second])):
        out[(ends - matrix.shape[1])[:, None] + np.arange(matrix.shape[1])] = matrix
    return out


def _kernel_states(timeline: pd.DataFrame, thread: Ints, tracks: Tracks) -> Iterator[Bytes]:
    """Task states per thread; the one after a run names the core of the run, which it ends."""
    state = timeline["state"].astype("object")
    code = state.map({"on_cpu": _RUNNING, "runq_wait": _RUNNABLE}).fillna(_SLEEPING).to_numpy(np.int64)
    cpu = timeline["cpu"].where(state == "on_cpu").groupby(thread).ffill().fillna(0).clip(lower=0).to_numpy(np.int64)
    start, end = (timeline[c].to_numpy(np.int64) for c in ("start_ns", "end_ns"))
    edges = np.flatnonzero(np.diff(thread, prepend=-1, append=-1))
    for first, stop in zip(edges[:-1], edges[1:], strict=True):
        number_ = int(thread[first])
        fixed = [number(3, tracks.tid(number_)), data(2, tracks.name(number_))]
        ends = tracks.ended(number_)
        rows = slice(first, stop)
        at, what, core = start[rows], code[rows], cpu[rows]
        if ends:
            at, what, core = np.append(at, end[stop - 1]), np.append(what, _DEAD), np.append(core, core[-1])
        event = nested(117, [*fixed, Slot(1, 2, core), Slot(4, 1, what)])
        yield messages(nested(1, [number(10, 1), Slot(8, 9, at), *event]), len(at))
