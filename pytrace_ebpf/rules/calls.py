"""Calls of the functions that rules are about, as columns; and what was found among them, folded by the path that they came by."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from pytrace_ebpf.trace.schema import STATUSES

Bools = npt.NDArray[np.bool_]
COLUMNS = (
    "call_id", "last_descendant_id", "pid", "tid", "func_id", "start_ns", "end_ns", "wall_ns", "on_cpu_ns", "runq_wait_ns", "gil_wait_ns", "blocked_ns",
    "frame", "flags", "line", "call_line", "status", "known", "node",
)  # fmt: skip
"""Of rebuild/rows.h."""
OPEN_AT_END, OPEN_AT_START, RESUMED, YIELDED = 1, 2, 32, 64  # flags
STATUS_UNWOUND, STATUS_REPAIRED, STATUS_IN_LOSS = (STATUSES.index(name) for name in ("unwound", "repaired", "in_loss"))
_FOUND = ["node", "call_id", "pid", "tid", "start_ns", "func_id", "call_line", "value", "worst_call_id", "count"]


class Calls:
    """Rows of calls, by name of COLUMNS; of some of them a column is made when it is asked for."""

    def __init__(self, columns: dict[str, npt.NDArray[Any]], chosen: npt.NDArray[np.intp] | None = None) -> None:
        """`chosen`: the places of those that these are, None: all."""
        self._all, self._chosen = columns, chosen
        self._columns = columns if chosen is None else dict[str, npt.NDArray[Any]]()

    @property
    def names(self) -> list[str]:
        """The columns that there are."""
        return list(self._all)

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        if name not in self._columns:
            self._columns[name] = self._all[name][self._chosen]
        return self._columns[name]

    def __len__(self) -> int:
        return len(self._all["call_id"] if self._chosen is None else self._chosen)

    def where(self, mask: npt.NDArray[Any]) -> "Calls":
        """Those of a mask, or at these places."""
        places = np.flatnonzero(mask) if mask.dtype == np.bool_ else mask
        return Calls(self._all, places if self._chosen is None else self._chosen[places])

    def with_scope(self, scope: npt.NDArray[np.int64]) -> "Calls":
        """The same with one more column, `scope`."""
        return Calls({**{name: self[name] for name in self.names}, "scope": scope})

    def of(self, functions: Bools) -> "Calls":
        """Those of the functions of a mask by func_id."""
        return self.where(functions[self["func_id"]])

    def has(self, flags: int) -> Bools:
        """Which have one of these flags."""
        return (self["flags"] & flags) != 0

    @property
    def certain(self) -> Bools:
        """Of which no event was lost."""
        return (self["status"] != STATUS_IN_LOSS) & (self["status"] != STATUS_REPAIRED)

    @property
    def thread(self) -> npt.NDArray[np.int64]:
        """pid << 32 | tid."""
        return (self["pid"].astype(np.int64) << 32) | self["tid"]


def joined(pieces: Sequence[Calls]) -> Calls:
    """All of them."""
    return Calls({name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0].names})


class Found:
    """Calls that violate a rule: one row by path, or `each`. Memory is bounded by the paths then."""

    def __init__(self, each: bool) -> None:
        self._each, self._table = each, pd.DataFrame({name: pd.Series(dtype=np.int64) for name in _FOUND})

    def add(self, calls: Calls, value: npt.NDArray[np.int64] | None = None) -> None:
        """`value`: of each, by which one is the worst; they are alike without it."""
        if not len(calls):
            return
        columns: dict[str, Any] = {name: calls[name].astype(np.int64) for name in _FOUND[:7]}
        worst = np.zeros(len(calls), np.int64) if value is None else value
        new = pd.DataFrame({**columns, "value": worst, "worst_call_id": columns["call_id"], "count": 1})
        table = pd.concat([self._table, new], ignore_index=True)
        self._table = table if self._each else folded(table, "node")

    @property
    def table(self) -> pd.DataFrame:
        """node; call_id, pid, tid, start_ns, func_id and call_line of the first; value and worst_call_id of the worst; count."""
        return self._table


def folded(table: pd.DataFrame, by: str) -> pd.DataFrame:
    """One row of those that have the same in `by`."""
    first = table.sort_values(["start_ns", "call_id"], kind="stable").drop_duplicates(by).set_index(by)
    worst = table.sort_values(["value", "start_ns"], ascending=[False, True], kind="stable").drop_duplicates(by).set_index(by)
    count = table.groupby(by)["count"].sum()
    return first.assign(value=worst["value"], worst_call_id=worst["worst_call_id"], count=count).reset_index()[list(table.columns)]
