"""The lines that functions came to, with hits and the time at each: a pass of its own, since it makes each line a call."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from pytrace_ebpf.derive.sink import Needs, Sink
from pytrace_ebpf.derive.sinks.tree import columns_of
from pytrace_ebpf.derive.store import State, checked_rows
from pytrace_ebpf.rebuild.engine import Engine
from pytrace_ebpf.rebuild.library import SUMS
from pytrace_ebpf.rebuild.shards import Shards
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.trace.schema import LINES
from pytrace_ebpf.trace.segments import part_name
from pytrace_ebpf.trace.writing import write

_PLACE = ["func_id", "line"]
_ROW = np.dtype([(name, "i8") for name in (*_PLACE, "hits", *(f"{prefix}.{name}" for prefix in ("", "self_") for name in SUMS.names or ()))])


class Lines(Sink):
    """Writes schema.LINES."""

    table = LINES

    def __init__(self, trace: Trace, into: Path | None = None) -> None:
        super().__init__(trace, into)
        functions = trace.functions()
        self._first_lines = np.full(int(functions["func_id"].max()) + 1 if len(functions) else 0, -1, np.int32)
        self._first_lines[functions["func_id"]] = functions["first_line"]
        self._lined = np.zeros(len(self._first_lines), np.uint8)  # 1 by func_id of which there are some

    def needs(self) -> Needs:
        return Needs(lines=True)

    def prepare(self, engines: Shards) -> None:
        for engine in engines.engines:
            engine.want_lines(self._first_lines, self._lined)

    def begin(self, engines: Shards, first: int, state: State | None) -> None:
        self._engines, self._before = engines, self._resumed(state)

    def state(self) -> State:
        rows = _added(self._before, self._engines.engines)
        packed = np.zeros(len(rows), _ROW)
        for name in rows:
            packed[name] = rows[name]
        return {"lined": np.flatnonzero(self._lined), "rows": packed}

    def end(self) -> None:
        write(LINES, _table(_added(self._before, self._engines.engines), self._lined), self.into / part_name(0))

    def _resumed(self, state: State | None) -> pd.DataFrame:
        """The rows of the segments that were read before, None: of none. Raises KeyError, and ValueError for what is no such state."""
        self._lined[:] = 0
        if state is None:
            return pd.DataFrame(np.zeros(0, _ROW))
        lined = checked_rows(state["lined"], np.dtype(np.int64))
        if len(lined) and not 0 <= lined.min() <= lined.max() < len(self._lined):
            raise ValueError("no such state")
        self._lined[lined] = 1
        return pd.DataFrame(checked_rows(state["rows"], _ROW))


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
