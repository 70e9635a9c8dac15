"""Which exceptions left which functions of Python, at which line, how often, and what the calls cost that they ended.

That an exception left a call, and from which line, the agent's events say; its type and text are there of functions that `--args` named.
One pass; memory is bounded by a segment, what is open, and the rows of the result.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from pytrace_ebpf.derive.calls.observed import ObservedSink, Waiting
from pytrace_ebpf.derive.one_pass import run
from pytrace_ebpf.derive.store import State
from pytrace_ebpf.rebuild.engine import Engine
from pytrace_ebpf.rebuild.shards import Shards
from pytrace_ebpf.trace.reader import Trace

FEW = 8  # different texts of a type that left a line: where there are more, they are not distinguished
SEVERAL = "(several texts)"
_OF_A_CALLER = 64  # exceptions that left calls of one that goes on

_COLUMNS = ("call_id", "parent_id", "func_id", "line", "call_line", "wall_ns", "self_wall_ns")
_PLACE = ["func_id", "line", "type"]
_KEY = [*_PLACE, "text"]
_SUMS = ["times", "raised", "wall_ns", "self_ns"]


def exceptions(trace: Trace) -> pd.DataFrame:
    """One row per function, line that was left, type and text, the most times first.

    func_id; line (-1 not known); type and text (null not read); times; raised: of these where it came from the function itself or from one in C, not
    through a call below: as type and text tell or, where these were not read, lines; wall_ns and self_ns of the calls that it ended.
    """
    sink = _Exceptions(trace)
    run(trace, sink)
    total = sink.total.astype(dict.fromkeys(_SUMS, np.int64))
    return total.sort_values(["times", "wall_ns"], ascending=False, kind="stable", ignore_index=True)


class _Exceptions(ObservedSink):
    """`total`: the rows."""

    idle = False  # exceptions are there without values

    def begin(self, engines: Shards, first: int, state: State | None) -> None:
        super().begin(engines, first, state)
        self.total = pd.DataFrame(columns=[*_KEY, *_SUMS])
        self._open = pd.DataFrame({"parent_id": [], "call_line": [], "type": [], "text": []}).astype({"parent_id": np.int64, "call_line": np.int64})

    def wanted(self, rows: pa.Table) -> pa.Table:
        return rows.filter(pc.equal(rows["what"], "raised"))

    def rows(self, engine: Engine, rows: pa.Table) -> None:
        left = rows.filter(pc.equal(rows["status"], "unwound"))
        of_python = pc.equal(left["layer"], "python")
        found, open_ = _described(left.filter(of_python), self._waiting), self._open
        open_ = pd.concat([open_, found[list(open_)]], ignore_index=True) if len(open_) else found[list(open_)]
        open_ = _through(open_, left.filter(pc.invert(of_python)))
        found["raised"] = 1 - _passed(found, open_)
        self._open = _last_ones(open_[~open_["parent_id"].isin(rows["call_id"].to_numpy())])
        found = found.assign(times=1)[[*_KEY, *_SUMS]]
        self.total = _summed(pd.concat([self.total, found]) if len(self.total) else found)


def _described(left: pa.Table, waiting: Waiting) -> pd.DataFrame:
    """The calls with type and text of what left them."""
    rows = _plain(left.select(_COLUMNS)).rename(columns={"self_wall_ns": "self_ns"})
    found = waiting.take(left, ["call_id"])
    known: dict[str, Any] = {"call_id": [], "type": [], "text": []}
    if found is not None:
        ids = found.calls["call_id"].to_numpy()[found.call]
        known = {"call_id": ids, "type": found.values["type"].to_pandas().astype(object), "text": found.values["value"].to_pandas().astype(object)}
    described = pd.DataFrame(known).astype({"call_id": np.int64}).drop_duplicates("call_id")
    rows = rows.merge(described, how="left", on="call_id")
    return rows.astype({"func_id": np.int64, "line": np.int64, "type": object, "text": object}).assign(
        type=lambda r: r["type"].where(r["type"].notna(), None), text=lambda r: r["text"].where(r["text"].notna(), None)
    )


def _plain(calls: pa.Table) -> pd.DataFrame:
    """As pandas has them; a line that is not known is -1."""
    rows = calls.to_pandas(types_mapper={pa.int32(): pd.Int32Dtype()}.get)
    return rows.assign(call_line=rows["call_line"].fillna(-1).astype(np.int64))


def _through(open_: pd.DataFrame, left: pa.Table) -> pd.DataFrame:
    """What left a call within one of C's or an import, and with it that one, has left a call of the one above."""
    above = _plain(left.select(["call_id", "parent_id", "call_line"])).set_index("call_id")
    while (inside := open_["parent_id"].isin(above.index)).any():  # a parent's number is less
        open_.loc[inside, list(above)] = above.loc[open_.loc[inside, "parent_id"]].to_numpy()
    return open_


def _last_ones(open_: pd.DataFrame) -> pd.DataFrame:
    """Of each caller the last different ones: what passes on came through one of these, however many a loop has caught before."""
    return open_.drop_duplicates(keep="last").groupby("parent_id", sort=False).tail(_OF_A_CALLER) if len(open_) else open_


def _passed(rows: pd.DataFrame, open_: pd.DataFrame) -> npt.NDArray[np.int64]:
    """1 where the exception had left a call below; `open_`: the calls that one left, and whose callers have not ended before."""
    typed = open_[open_["type"].notna()]
    by_type = rows["type"].notna() & rows["call_id"].isin(typed["parent_id"])
    same = _among(rows[["call_id", "type", "text"]], typed[["parent_id", "type", "text"]])
    # Where an exception is raised anew, as behind `finally`, the instruction may have no line.
    at_line = _among(rows[["call_id", "line"]], open_[["parent_id", "call_line"]]) | ((rows["line"] == -1) & rows["call_id"].isin(open_["parent_id"]))
    return np.where(by_type, same, at_line).astype(np.int64)


def _among(rows: pd.DataFrame, others: pd.DataFrame) -> npt.NDArray[np.bool_]:
    if not len(others):
        return np.zeros(len(rows), np.bool_)
    return pd.MultiIndex.from_frame(rows.fillna("")).isin(pd.MultiIndex.from_frame(others.fillna("")))


def _summed(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of one key as one; of a place with many texts no text."""
    if not len(rows):
        return rows
    table = rows.groupby(_KEY, dropna=False, sort=False, as_index=False)[_SUMS].sum()
    places = table.assign(many=table["text"] == SEVERAL).groupby(_PLACE, dropna=False)
    many = (places["text"].transform("nunique") > FEW) | places["many"].transform("any")  # also where there were before
    if (many & (table["text"] != SEVERAL)).any():
        table.loc[many, "text"] = SEVERAL
        table = table.groupby(_KEY, dropna=False, sort=False, as_index=False)[_SUMS].sum()
    return table
