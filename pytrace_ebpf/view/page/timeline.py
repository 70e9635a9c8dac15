"""The timeline of a page: every thread's calls and states, those too short for the picture merged, and some moments in which every call is there.

Memory and the page are bounded by the quotas below, whatever the trace has.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from pytrace_ebpf.analyze.samples.chart import chart
from pytrace_ebpf.analyze.samples.sampling import period_of
from pytrace_ebpf.derive import streams
from pytrace_ebpf.derive.scheduling.split import thread_keys
from pytrace_ebpf.derive.scheduling.trace_timeline import intervals
from pytrace_ebpf.trace.frames import to_frame
from pytrace_ebpf.trace.schema import CALLS
from pytrace_ebpf.trace.states import NAMES
from pytrace_ebpf.view.page.boxes import COLUMNS, PARTS, Boxes, of_calls
from pytrace_ebpf.view.page.columns import Columns

MOST_BOXES = 300_000  # of calls, of all threads
MOST_STATES = 60_000
_LANE = 24  # bits of a depth: a lane is the thread's place and the depth

Ints = npt.NDArray[np.int64]


class Lanes:
    """The threads of a page, in the order in which they are shown, by place."""

    def __init__(self, threads: pd.DataFrame) -> None:
        """`threads`: pid, tid."""
        self.keys = thread_keys(threads["pid"].to_numpy(), threads["tid"].to_numpy())
        self._order = np.argsort(self.keys, kind="stable")

    def of(self, pid: Ints, tid: Ints) -> Ints:
        """The place of each thread; -1 of one that is not shown."""
        keys = thread_keys(pid, tid)
        if not len(self.keys):
            return np.full(len(keys), -1)
        at = self._order[np.searchsorted(self.keys[self._order], keys).clip(max=len(self.keys) - 1)]
        return np.where(self.keys[at] == keys, at, -1)

    def laid(self, calls: pd.DataFrame) -> pd.DataFrame:
        """The boxes of calls (of each thread and depth in the order of time) with their lane for a depth, lane by lane."""
        place = self.of(calls["pid"].to_numpy(), calls["tid"].to_numpy())
        depth = calls["depth"].to_numpy(np.int64).clip(max=(1 << _LANE) - 1)
        order = (
            np.lexsort((depth, place)) if depth.max(initial=0) * len(self.keys) >= 1 << 16 else _by_small(place * (depth.max(initial=0) + 1) + depth)
        )
        order = order[place[order] >= 0]
        return of_calls(calls.assign(depth=(place << _LANE) + depth)).iloc[order]


def _by_small(number: Ints) -> Ints:
    """The stable order of numbers from -1 to 65534; NumPy sorts so few in linear time."""
    return np.argsort((number + 1).clip(0).astype(np.uint16), kind="stable")


def calls(trace: Any, lanes: Lanes, watch: Callable[[pd.DataFrame], None]) -> Boxes:
    """The boxes of all calls, or of samples as if they were calls; `watch` is given those of each piece, as Boxes takes them."""
    picture = Boxes(MOST_BOXES)
    for rows in _calls(trace):
        if len(rows):
            laid = lanes.laid(rows)
            watch(laid)
            picture.add(laid)
    return picture


def _calls(trace: Any) -> Iterator[pd.DataFrame]:
    if period := period_of(trace):
        for pid, tid in trace.threads()[["pid", "tid"]].drop_duplicates().itertuples(index=False):
            yield from (rows.assign(pid=pid, tid=tid) for rows in chart(trace.window(pid=int(pid), tid=int(tid)), period))
        return
    for pieces in streams.calls(trace):
        for piece in pieces:
            yield to_frame(piece.select([*COLUMNS, "pid", "tid"]), CALLS)


def states(trace: Any, lanes: Lanes) -> pd.DataFrame:
    """The boxes of the states that threads were in; none where no switches were recorded."""
    picture = Boxes(MOST_STATES)
    # perf does not report when a thread that had left its core by itself was woken: such a wait is none of the four states.
    undivided = trace.scheduling["source"] != "bpf"
    for rows in intervals(trace):
        place = lanes.of(rows["pid"].to_numpy(), rows["tid"].to_numpy())
        rows = rows.assign(depth=place << _LANE, func_id=rows["cpu"].fillna(-1), wall_ns=rows["end_ns"] - rows["start_ns"])
        rows = rows[(place >= 0) & (rows["wall_ns"] > 0)].sort_values(["depth", "start_ns"], kind="stable")
        unsplit = rows["state"].isin(["gil_wait", "blocked"]) & undivided
        for part in NAMES:
            amount = rows["wall_ns"].where(rows["state"] == part, 0).astype("Int64")
            rows[f"{part}_ns"] = amount.mask(rows["state"].isna() | (unsplit & (part != "on_cpu")))
        if len(rows):
            picture.add(of_calls(rows))
    return picture.made()


def packed(boxes: pd.DataFrame, origin: int, columns: Columns) -> dict[str, Any]:
    """Boxes, lane by lane, for the page: thread, depth and number of each lane's, and by box the columns that page/source/boxes.js reads.

    gap: from the end of the one before (of the lane's first: from `origin`); length; func: func_id, of a state its core; calls; less: the length less
    wall_ns; the parts but on_cpu.
    """
    lane = boxes["depth"].to_numpy(np.int64)
    start, end, wall = (boxes[name].to_numpy(np.int64) for name in ("start_ns", "end_ns", "wall_ns"))
    first = np.flatnonzero(np.append(True, lane[1:] != lane[:-1])) if len(lane) else np.zeros(0, np.int64)
    before = np.append(0, end[:-1])
    before[first] = origin
    of_box = {
        "gap": start - before,
        "length": end - start,
        "func": boxes["func_id"],
        "calls": boxes["calls"],
        "less": (end - start) - wall,
        **{name: boxes[name] for name in PARTS[1:]},
    }
    count = np.diff(np.append(first, len(lane)))
    of_lane = {"thread": lane[first] >> _LANE, "depth": lane[first] & ((1 << _LANE) - 1), "count": count}
    return {"lanes": {k: columns.add(v) for k, v in of_lane.items()}, "boxes": {k: columns.add(v) for k, v in of_box.items() if len(lane)}}
