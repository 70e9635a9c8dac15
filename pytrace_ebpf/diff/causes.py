"""Of functions that take longer, those that only wait longer for what other threads of the program do: the cause is what these do."""

import numpy as np
import pandas as pd

from pytrace_ebpf.diff.sides import Side
from pytrace_ebpf.experiment.paths import FRAME, PARTS
from pytrace_ebpf.trace.reader import Trace

_WAITED = ("blocked_ns", "gil_wait_ns")
_COLUMNS = ["func_id", "kind", "waker_tid", "start_ns", "blocked_until_ns"]
_WORTH = 0.3  # of a change: less of it in waits is not worth a look at each of them


def waited(before: Side, after: Side, table: pd.DataFrame) -> pd.DataFrame:
    """`table` (of changes.changes: wall time of functions without what they call) with waited_ns: of change_ns what is longer waits for the program's own threads.

    Only while the traces are open. Null where the row that changed most does not wait: then nobody asks.
    """
    if not len(table) or before.period_ns or not _waits(table.iloc[0]):
        return table
    old, new = (_mean(side) for side in (before, after))
    rows = pd.MultiIndex.from_frame(table[list(FRAME)])
    return table.assign(waited_ns=new.reindex(rows).fillna(0).to_numpy() - old.reindex(rows).fillna(0).to_numpy())


def _waits(row: pd.Series) -> bool:
    changed = [row[f"after_{part}"] - row[f"before_{part}"] for part in _WAITED if part in PARTS]
    return not pd.isna(row["change_ns"]) and any(not pd.isna(ns) and abs(ns) >= _WORTH * abs(row["change_ns"]) for ns in changed)


def _mean(side: Side) -> pd.Series:
    """By function, ns of a run."""
    each = [_of_run(run.source, run.functions) / run.recorded for run in side.runs]
    return pd.concat(each).groupby(level=list(FRAME)).sum() / len(each)


def _of_run(trace: Trace, functions: pd.DataFrame) -> pd.Series:
    own = trace.whole.threads()["tid"].unique()
    sums: list[pd.Series] = []
    for part in trace.waits_by_part(_COLUMNS):
        mine = (part["kind"] == "gil") | ((part["kind"] != "preempted") & part["waker_tid"].isin(own).fillna(False))
        rows = part[mine & part["blocked_until_ns"].notna()]
        sums.append((rows["blocked_until_ns"] - rows["start_ns"]).astype(np.float64).groupby(rows["func_id"]).sum())
    of = pd.concat(sums).groupby(level=0).sum()
    by_id = functions.set_index("func_id")
    of = of[of.index.isin(by_id.index)]
    names = by_id.loc[of.index].rename(columns={"function_layer": "layer"})
    return pd.Series(of.to_numpy(), pd.MultiIndex.from_frame(names[list(FRAME)]))
