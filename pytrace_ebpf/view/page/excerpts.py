"""Moments of a long trace of which a page has every single call: spread over it, where threads waited longest, and where functions were slowest."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from pytrace_ebpf.derive import streams
from pytrace_ebpf.trace.frames import to_frame
from pytrace_ebpf.trace.schema import CALLS
from pytrace_ebpf.view.page.boxes import COLUMNS, Boxes
from pytrace_ebpf.view.page.columns import Columns
from pytrace_ebpf.view.page.timeline import Lanes, packed

_SPREAD, _SLOWEST, _WAITS = 16, 4, 6  # how many of each kind
_CALLS = 5_000  # of a moment


@dataclass
class Moment:
    """From start_ns to end_ns, why it is there, and the calls (Boxes's columns) that overlap it; end_ns moves where they are too many."""

    start_ns: int
    end_ns: int
    why: str
    calls: list[pd.DataFrame] = field(default_factory=list)

    def add(self, rows: pd.DataFrame) -> None:
        """Take those of `rows` that overlap it."""
        start, end = rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy()
        within = (start < self.end_ns) & (end > self.start_ns)
        if within.any():
            self.calls.append(rows[within])
            if sum(map(len, self.calls)) > 4 * _CALLS:
                self.cut()

    def cut(self) -> None:
        """Keep the first _CALLS."""
        rows = pd.concat(self.calls)
        start = rows["start_ns"].to_numpy()
        if len(rows) > _CALLS:
            self.end_ns = min(self.end_ns, max(self.start_ns + 1, int(np.partition(start, _CALLS)[_CALLS])))
            rows = rows[start < self.end_ns][:_CALLS]
        self.calls = [rows]


class Moments:
    """Those of a trace; none overlaps another. Memory is bounded by how many there are and their calls."""

    def __init__(self, trace: Any, calls: int, waits: pd.DataFrame) -> None:
        """`calls`: how many the trace has; `waits`: the longest first, with start_ns, end_ns and kind."""
        self._trace, self._found = trace, list[Moment]()
        self._length = int(_CALLS * (trace.end_ns - trace.start_ns) / max(1, calls))
        longest = waits.drop_duplicates("kind").head(_WAITS)
        for end, kind in zip(longest["end_ns"], longest["kind"], strict=True):
            self._want(int(end), f"after the longest wait of kind {kind}")
        for k in range(_SPREAD):
            self._want(trace.start_ns + (trace.end_ns - trace.start_ns) * k // _SPREAD, "one of some moments, evenly spread")

    def _want(self, at: int, why: str) -> Moment | None:
        begin = max(self._trace.start_ns, at - self._length // 10)
        end = min(self._trace.end_ns, begin + self._length)
        if end <= begin or any(begin < other.end_ns and end > other.start_ns for other in self._found):
            return None
        self._found.append(Moment(begin, end, why))
        return self._found[-1]

    def watch(self, rows: pd.DataFrame) -> None:
        """Take what belongs to any of some calls."""
        first, last = int(rows["start_ns"].min()), int(rows["end_ns"].max())
        for moment in self._found:
            if first < moment.end_ns and last > moment.start_ns:
                moment.add(rows)

    def add_slowest(self, boxes: pd.DataFrame, table: pd.DataFrame, lanes: Lanes) -> None:
        """And the slowest calls of the functions with the most time of their own, read anew; `boxes`: of the whole, `table`: by_function's."""
        single = boxes[boxes["calls"] == 1].sort_values("wall_ns", ascending=False, kind="stable").drop_duplicates("func_id").set_index("func_id")
        for row in table.nlargest(_SLOWEST, "self_ns").itertuples():
            moment = (
                self._want(int(single.loc[row.func_id, "start_ns"]), f"the slowest call of {row.qualname}") if row.func_id in single.index else None
            )
            if moment:
                for pieces in streams.calls(self._trace.window(moment.start_ns, moment.end_ns)):
                    for piece in pieces:
                        moment.add(lanes.laid(to_frame(piece.select([*COLUMNS, "pid", "tid"]), CALLS)))

    def packed(self, columns: Columns) -> list[dict[str, Any]]:
        """For each its edges, since the trace's start, why it is there, and its calls as timeline.packed has them."""
        out, origin = [], self._trace.start_ns
        for moment in sorted(self._found, key=lambda moment: moment.start_ns):
            if moment.calls:
                moment.cut()
                picture = Boxes(2 * _CALLS)
                picture.add(moment.calls[0].sort_values(["depth", "start_ns"], kind="stable"))
                edges = {"start": moment.start_ns - origin, "end": moment.end_ns - origin, "why": moment.why}
                out.append({**edges, **packed(picture.made(), origin, columns)})
        return out
