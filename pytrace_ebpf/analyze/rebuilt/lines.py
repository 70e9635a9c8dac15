"""The lines that functions came to, with hits and the time at each: a pass of its own, since it makes each line a call."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from pytrace_ebpf.analyze.rebuilt.passes import engine_of, segments, shards_of
from pytrace_ebpf.analyze.rebuilt.read_ahead import PIECE
from pytrace_ebpf.analyze.rebuilt.tree import columns_of
from pytrace_ebpf.rebuild.engine import Engine
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.trace.schema import LINES
from pytrace_ebpf.trace.window import Window

_PLACE = ["func_id", "line"]


def derive(trace: Trace, into: Path) -> None:
    """Write the lines of `trace` as a Parquet part into the folder `into`."""
    pq.write_table(table(trace), into / "part-00000.parquet", compression="lz4")


def table(trace: Trace) -> pa.Table:
    """The lines of a trace, or of a window of it, as schema.LINES, in the order of its first columns."""
    first_lines = _first_lines(trace.whole)
    lined = np.zeros(len(first_lines), np.uint8)
    found = [_rows(*engine.lines()) for engine in _passed(trace, first_lines, lined)]
    rows = pd.concat(found).groupby(_PLACE, as_index=False).sum()
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


def _passed(trace: Trace, first_lines: npt.NDArray[np.int32], lined: npt.NDArray[np.uint8]) -> list[Engine]:
    """Engines that have taken the whole trace, or up to the end of the window: no state that is kept knows where calls stand."""
    whole = trace.whole
    if whole is trace:
        shards = shards_of(trace)
        for engine in shards.engines:
            engine.want_lines(first_lines, lined)
        for events, end_ns in segments(trace, shards):
            shards.take(events, end_ns, PIECE)
        shards.finish(trace.end_ns)
        return list(shards.engines)
    assert isinstance(trace, Window)
    engine = engine_of(whole, rows=False)
    engine.want_lines(first_lines, lined)
    start_ns = trace.start_ns if trace.start_ns > whole.start_ns else None
    cut = trace.end_ns < whole.end_ns
    engine.window(start_ns, trace.end_ns if cut else None, trace.pid, trace.tid)
    for events, segment_end in segments(whole, engine, 0, trace.last if cut else None):
        for _ in engine.take(events, segment_end, PIECE):
            pass
    engine.finish(trace.end_ns)
    return [engine]


def _first_lines(trace: Trace) -> npt.NDArray[np.int32]:
    functions = trace.functions()
    first_lines = np.full(int(functions["func_id"].max()) + 1 if len(functions) else 0, -1, np.int32)
    first_lines[functions["func_id"]] = functions["first_line"]
    return first_lines
