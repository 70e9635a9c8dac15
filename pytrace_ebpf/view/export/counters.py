"""Memory over time, for Perfetto: of each process tracks of counters beside its threads: resident memory, what Python has allocated, and malloc."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from pytrace_ebpf.trace.declared import STREAMS
from pytrace_ebpf.view.export.numbered import grouped
from pytrace_ebpf.view.export.protobuf import Piece, Slot, data, messages, nested, number

_COUNTER, _BYTES = 4, 3  # TrackEvent.Type; CounterDescriptor.Unit
_BASE = 1 << 40  # uuids, beyond those of tracks.py
_COUNTERS = [counter for stream in STREAMS for counter in stream.counters]

Ints = npt.NDArray[np.int64]


def counters(trace: Any, process: dict[int, int]) -> Iterator[bytes | memoryview]:
    """Packets: each track, then its values, a segment at a time. `process`: uuid of each process's track, by pid.

    Resident memory begins at the last sample of `usage` before, or else the first one; what was allocated, at 0.
    """
    usage = trace.whole.usage()
    usage = usage[usage["kind"] == "process"].dropna(subset=["rss_bytes"])
    before = usage["ts"] <= trace.start_ns
    first = pd.concat([usage[before].drop_duplicates("pid", keep="last"), usage[~before]]).drop_duplicates("pid").set_index("pid")["rss_bytes"]
    begun: dict[tuple[int, int], int] = {}
    for segment in trace.segments:
        for place, counter in enumerate(_COUNTERS):
            rows = trace.part(counter.table, segment["index"], ["ts", "pid", counter.column])
            ts, pid, change = (rows[each].to_numpy() for each in ("ts", "pid", counter.column))
            for one, own in grouped(pid):
                uuid = _BASE + len(_COUNTERS) * one + place
                if (place, one) not in begun:
                    begun[place, one] = int(first.get(one, 0)) if counter.resident else 0
                    track = number(1, uuid) + number(5, process.get(one, 0)) + data(2, counter.title) + data(8, number(3, _BYTES))
                    yield data(1, number(10, 1) + data(60, track))
                own = own[(change[own] != 0) & (ts[own] >= trace.start_ns) & (ts[own] < trace.end_ns)]
                order = np.argsort(ts[own], kind="stable")
                value = begun[place, one] + np.cumsum(change[own][order])
                begun[place, one] = int(value[-1]) if len(value) else begun[place, one]
                yield _values(ts[own][order], uuid, np.maximum(value, 0))


def _values(ts: Ints, uuid: int, value: Ints) -> memoryview:
    event: list[Piece] = [number(9, _COUNTER), number(11, uuid), Slot(30, 9, value)]
    return messages(nested(1, [number(10, 1), Slot(8, 9, ts), number(13, 2), *nested(11, event)]), len(ts)).data
