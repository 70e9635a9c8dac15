"""What is slower on one side than on the other by more than a share of all: by their runs and beyond chance, or of single runs."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from pytrace_ebpf.diff import verdict
from pytrace_ebpf.diff.changes import ERRORS, by_run, changes, whole_change
from pytrace_ebpf.diff.sides import Side

VALUE = "on_cpu"
"""The time that is judged unless another one is asked for: other programs on the machine disturb it least."""


@dataclass(frozen=True)
class Judgement:
    """Of the time `value`: whether all calls together take longer by more than the limit, and which rows (as of changes.changes) do, by the means of the runs.

    `sure`: of `together` and then of each row, whether that is beyond chance; None where there are too few runs to tell. `none`: whether it can be ruled out that
    anything takes longer by so much. `compared`: how many things could. `known`: whether that time was recorded at all.
    """

    value: str
    together: bool
    change_ns: float | None
    rows: pd.DataFrame
    sure: list[bool] | None
    none: bool
    compared: int
    known: bool

    @property
    def slower(self) -> bool:
        """Whether anything is, beyond chance."""
        return any(self.sure or ())

    @property
    def found(self) -> bool:
        """Whether anything is, by the means."""
        return self.together or bool(len(self.rows))

    def certain(self) -> "Judgement":
        """What of it is beyond chance, where that can be told, and no more."""
        if self.sure is None:
            return self
        sure = self.sure[1:] if self.together else self.sure
        rows = self.rows[np.array(sure, bool)]
        together = self.together and self.sure[0]
        return Judgement(self.value, together, self.change_ns, rows, [True] * (together + len(rows)), self.none, self.compared, self.known)


def judge(before: Side, after: Side, by: str, sort: str, value: str, share: float, rate: float = verdict.RATE) -> Judgement:
    """By so much of all time `before`; with a chance of at most `rate` that anything is said where nothing differs. `by`, `sort`, `value`: as of changes.changes."""
    table, whole = changes(before, after, by, sort, value), whole_change(before, after, value)
    all_before, all_after = before.whole[f"{value}_ns"], after.whole[f"{value}_ns"]
    limit = share * (all_before or 0)
    change, error = (table[name].to_numpy(np.float64, na_value=np.nan) for name in ("change_ns", "error_ns"))
    sampled_well = ~(np.abs(change) <= ERRORS * error)
    together = bool(whole["change_ns"] is not None and whole["change_ns"] > limit and not _within(whole))
    over = (change > limit) & sampled_well
    runs = [_together(side, by_run(side, table, by, sort, value), value) for side in (before, after)]
    # What takes so little on both sides that it could not be over the limit is not compared; which side took it does not matter there, so that chance stays what it is.
    could = ~np.isnan(runs[0]).any(axis=0) & ~np.isnan(runs[1]).any(axis=0) & (runs[0].mean(axis=0) + runs[1].mean(axis=0) > limit)
    least = np.full(int(could.sum()), limit)
    sure, none = None, False
    if min(len(before.runs), len(after.runs)) >= verdict.LEAST_RUNS:
        chance = np.ones(len(could))
        chance[could] = verdict.slower(runs[0][:, could], runs[1][:, could], least)
        said = np.concatenate([[together], over])
        sure = (chance[said] <= rate).tolist()
        none = bool(limit and could.any() and not said.any() and verdict.not_slower(runs[0][:, could], runs[1][:, could], least) <= rate)
    known = not (all_before is None and all_after is None and np.isnan(change).all())
    return Judgement(value, together, whole["change_ns"], table[over], sure, none, int(could.sum()), known)


def _within(whole: dict[str, Any]) -> bool:
    """Whether a change of all may be the samples'."""
    return whole["error_ns"] is not None and abs(whole["change_ns"]) <= ERRORS * whole["error_ns"]


def _together(side: Side, rows: verdict.Times, value: str) -> verdict.Times:
    """With all calls together as the first column."""
    whole = [run.whole[f"{value}_ns"] for run in side.runs]
    return np.column_stack([[np.nan if one is None else one for one in whole], rows])
