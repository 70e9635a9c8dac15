"""The lines that functions came to, with hits and the time at each: a pass of its own, since it makes each line a call."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from pytrace_ebpf.analyze.rebuilt.incremental import Growth, State, checked_rows
from pytrace_ebpf.analyze.rebuilt.passes import engine_of, segments, shards_of
from pytrace_ebpf.analyze.rebuilt.read_ahead import PIECE
from pytrace_ebpf.analyze.rebuilt.tree import columns_of
from pytrace_ebpf.rebuild.engine import Engine
from pytrace_ebpf.rebuild.library import SUMS
from pytrace_ebpf.rebuild.shards import Shards
from pytrace_ebpf.trace.derived import Settled
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.trace.schema import LINES
from pytrace_ebpf.trace.window import Window
from pytrace_ebpf.trace.writing import write

_PLACE = ["func_id", "line"]
_ROW = np.dtype([(name, "i8") for name in (*_PLACE, "hits", *(f"{prefix}.{name}" for prefix in ("", "self_") for name in SUMS.names or ()))])


def derive(trace: Trace, into: Path) -> Settled | None:
    """Write the lines of `trace` as a Parquet part into the folder `into`; of one that has grown since, only the new segments are read."""
    lines = _Lines(trace)
    if trace.whole is not trace:
        _write(lines.of_window(trace), lines, into)
        return None
    growth = Growth(trace, LINES, into, lines.shards)
    try:
        before = lines.resume(growth.state)
    except (KeyError, ValueError):
        growth.refuse()
        before = lines.resume(None)
    shards = growth.engines
    for number, (events, end_ns) in enumerate(segments(trace, shards, growth.first), growth.first + 1):
        shards.take(events, end_ns, PIECE)
        if growth.due(number):
            growth.settle((), lines.state(_added(before, shards.engines)))
    shards.finish(trace.end_ns)
    _write(_added(before, shards.engines), lines, into)
    return growth.settled


def _write(rows: pd.DataFrame, lines: "_Lines", into: Path) -> None:
    write(LINES, _table(rows, lines.lined), into / "part-00000.parquet")


def _table(rows: pd.DataFrame, lined: npt.NDArray[np.uint8]) -> pa.Table:
    """Rows as schema.LINES, in the order of its first columns: those of functions of which there are lines (`lined`, by func_id)."""
    rows = rows[rows["func_id"].isin(np.flatnonzero(lined)) & ((rows["hits"] > 0) | (rows[".wall"] > 0))]
    columns: dict[str, Any] = {name: rows[name].to_numpy() for name in (*_PLACE, "hits")}
    for prefix in ("", "self_"):
        sums = {name: rows[f"{prefix}.{name}"].to_numpy() for name in _names(rows, prefix)}
        some_known = (sums["wall"] != sums["unknown_wall"]) | (sums["unknown"] == 0)
        columns |= dict(columns_of(prefix, sums, sums["unknown"] + some_known))
    return pa.table([pa.array(columns[field.name], field.type) for field in LINES.arrow], schema=LINES.arrow)


def _names(rows: pd.DataFrame, prefix: str) -> Iterator[str]:
    return (name.rpartition(".")[2] for name in rows if name.startswith(f"{prefix}."))


def _rows(sites: npt.NDArray[np.void], own: npt.NDArray[np.void]) -> pd.DataFrame:
    columns = {"func_id": sites["caller_id"], "line": sites["line"], "hits": sites["calls"]}
    for prefix, sums in (("", sites["total"]), ("self_", own)):
        columns |= {f"{prefix}.{name}": sums[name] for name in sums.dtype.names or ()}
    return pd.DataFrame(columns)


def _added(before: pd.DataFrame, engines: Sequence[Engine]) -> pd.DataFrame:
    """The rows before and those of the engines as one for each line."""
    return pd.concat([before, *(_rows(*engine.lines()) for engine in engines)]).groupby(_PLACE, as_index=False).sum()


class _Lines:
    """Engines that find lines, and of which functions there are some: `lined`, 1 by func_id."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace.whole
        functions = trace.functions()
        self._first_lines = np.full(int(functions["func_id"].max()) + 1 if len(functions) else 0, -1, np.int32)
        self._first_lines[functions["func_id"]] = functions["first_line"]
        self.lined = np.zeros(len(self._first_lines), np.uint8)

    def shards(self) -> Shards:
        """Those of the whole trace."""
        shards = shards_of(self._trace)
        for engine in shards.engines:
            engine.want_lines(self._first_lines, self.lined)
        return shards

    def resume(self, state: State | None) -> pd.DataFrame:
        """The rows of the segments that were read before, None: of none. Raises KeyError, and ValueError for what is no such state."""
        self.lined[:] = 0
        if state is None:
            return pd.DataFrame(np.zeros(0, _ROW))
        lined = checked_rows(state["lined"], np.dtype(np.int64))
        if len(lined) and not 0 <= lined.min() <= lined.max() < len(self.lined):
            raise ValueError("no such state")
        self.lined[lined] = 1
        return pd.DataFrame(checked_rows(state["rows"], _ROW))

    def state(self, rows: pd.DataFrame) -> State:
        """For resume()."""
        packed = np.zeros(len(rows), _ROW)
        for name in rows:
            packed[name] = rows[name]
        return {"lined": np.flatnonzero(self.lined), "rows": packed}

    def of_window(self, trace: Trace) -> pd.DataFrame:
        """The rows of a window: one engine takes all up to its end, as no state that is kept for windows knows where calls stand."""
        assert isinstance(trace, Window)
        whole, before = self._trace, self.resume(None)
        engine = engine_of(whole, rows=False)
        engine.want_lines(self._first_lines, self.lined)
        start_ns = trace.start_ns if trace.start_ns > whole.start_ns else None
        cut = trace.end_ns < whole.end_ns
        engine.window(start_ns, trace.end_ns if cut else None, trace.pid, trace.tid)
        for events, segment_end in segments(whole, engine, 0, trace.last if cut else None):
            for _ in engine.take(events, segment_end, PIECE):
                pass
        engine.finish(trace.end_ns)
        return _added(before, [engine])
