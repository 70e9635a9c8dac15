"""What changed between two sides: by function, module, operator or call path, by which of the four ways, and whether it is more than chance."""

from math import comb
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from pytrace_ebpf.diff.sides import Run, Side
from pytrace_ebpf.experiment.compare import KEYS, SORTS, columns_of, sums_of
from pytrace_ebpf.experiment.paths import PARTS, SQUARES
from pytrace_ebpf.experiment.paths import names_of as names_of_paths

BY = ("function", "module", "operator", "path")
VALUES = ("wall", *(part.removesuffix("_ns") for part in PARTS if part != "unknown_ns"))

_NUMBERS = ("calls", "wall_ns", *PARTS)
ERRORS = 2  # standard errors of sampling: a change by no more may be chance, which it is that large once in twenty rows


def changes(before: Side, after: Side, by: str, sort: str, value: str) -> pd.DataFrame:
    """One row per function, module, operator or call path (`by`, of BY) of either side, what changed most first.

    `sort`: "self", times without the calls below, or "total"; `value`, of VALUES: which time is compared. Out: the key
    (experiment.compare.KEYS[by]), qualname and file; for each side (before_, after_) calls, wall_ns and PARTS, means over its runs, so
    that the parts add up, 0 where it has none; change_ns of `value` and low_ns, high_ns: the least and the greatest difference of two
    runs, one of each side; of samples error_ns: the standard error that sampling gives change_ns, else null; and clear (boolean): whether all differences have
    one sign, and change_ns is more than ERRORS times its error; where a side has one run alone null, but false where it is not. Times are Float64 ns.
    """
    key = list(KEYS[by])
    sums = {name: [_sums(run, by, sort, key) for run in side.runs] for name, side in (("before", before), ("after", after))}
    first, *others = (run.index for runs in sums.values() for run in runs)
    rows = first.append(others).unique()
    columns: dict[str, Any] = {}
    compared = f"{value}_ns"
    low, high = {}, {}
    error: npt.NDArray[np.float64] | float = 0.0
    for side, runs in sums.items():
        whole = [_in_all(run, rows) for run in runs]
        for name in _NUMBERS:
            columns[f"{side}_{name}"] = sum((run[name] for run in whole), start=0.0) / len(whole)
        each = np.stack([run[compared].to_numpy(np.float64, na_value=np.nan) for run in whole])
        low[side], high[side] = each.min(axis=0), each.max(axis=0)
        error = error + _variance((before, after)[side == "after"], whole, value)
    out = pd.DataFrame(columns, index=rows)
    out["change_ns"] = out[f"after_{compared}"] - out[f"before_{compared}"]
    out["low_ns"], out["high_ns"] = low["after"] - high["before"], high["after"] - low["before"]
    out["error_ns"] = pd.array(np.sqrt(error) + np.zeros(len(out)), "Float64") if before.period_ns else pd.array([pd.NA] * len(out), "Float64")
    alone = min(len(runs) for runs in sums.values()) < 2
    apart = (out["low_ns"] > 0) | (out["high_ns"] < 0)
    within = (out["change_ns"].abs() <= ERRORS * out["error_ns"]).fillna(False).to_numpy(bool)
    out["clear"] = apart.astype("boolean").mask((out["change_ns"].isna() | alone) & ~within).mask(within, False)
    names = pd.concat([run[[name for name in ("qualname", "file") if name not in key and name in run]] for runs in sums.values() for run in runs])
    out = out.join(names[~names.index.duplicated()])
    order = out["change_ns"].abs().fillna(-1).to_numpy(np.float64).argsort(kind="stable")[::-1]
    return out.iloc[order].reset_index()


def _variance(side: Side, runs: list[pd.DataFrame], value: str) -> npt.NDArray[np.float64] | float:
    """Of the mean of a side's `runs`, what sampling adds."""
    if not side.period_ns:
        return 0.0
    each = (
        run.variance(value, own["on_cpu_ns"].to_numpy(np.float64, na_value=0), own[f"{value}_square"].to_numpy(np.float64, na_value=0))
        for run, own in zip(side.runs, runs, strict=True)
    )
    return sum(each, start=np.zeros(len(runs[0]))) / len(runs) ** 2


def _in_all(run: pd.DataFrame, rows: pd.Index) -> pd.DataFrame:
    """The numbers of one run by `rows`, 0 for what it did not call."""
    out = run[[*_NUMBERS, *(name for name in SQUARES if name in run)]].astype("Float64").reindex(rows)
    out.loc[~rows.isin(run.index)] = 0.0
    return out


def chance(before: Side, after: Side) -> float | None:
    """How often the ranges of so many runs of one and the same program lie apart by chance; None where a side has one run alone."""
    runs = len(before.runs), len(after.runs)
    return 2 / comb(sum(runs), runs[0]) if min(runs) > 1 else None


def whole_change(before: Side, after: Side, value: str) -> dict[str, Any]:
    """change_ns of all outermost calls together, error_ns and `clear`, as of changes."""
    each = [[run.whole[f"{value}_ns"] for run in side.runs] for side in (before, after)]
    if any(one is None for runs in each for one in runs):
        return {"change_ns": None, "error_ns": None, "clear": None}
    old, new = ([one for one in runs if one is not None] for runs in each)
    certain = None if chance(before, after) is None else min(new) > max(old) or max(new) < min(old)
    change, error = float(np.mean(new)) - float(np.mean(old)), None
    if before.period_ns:
        variances = (
            sum(float(run.variance(value, run.whole["on_cpu_ns"] or 0, run.whole[f"{value}_square"] or 0)) for run in side.runs) / len(side.runs) ** 2
            for side in (before, after)
        )
        error = float(np.sqrt(sum(variances)))
        certain = certain if abs(change) > ERRORS * error else False
    return {"change_ns": change, "error_ns": error, "clear": certain}


def names_of(before: Side, after: Side, table: pd.DataFrame, by: str) -> list[str]:
    """What to call each row of `table`: a function's qualified name, a module, a path's functions from the outermost in."""
    if by != "path":
        return [str(name) for name in table["module" if by == "module" else "qualname"]]
    runs = (run.paths for side in (after, before) for run in side.runs)
    found = names_of_paths(runs, table["path_id"].tolist())
    return [" > ".join(found[path]) for path in table["path_id"]]


def by_run(side: Side, table: pd.DataFrame, by: str, sort: str, value: str) -> npt.NDArray[np.float64]:
    """Times `value` (ns, nan where not known) of the rows of `table`, of changes(): a row a run, a column for each of its rows."""
    key = list(KEYS[by])
    rows = pd.MultiIndex.from_frame(table[key]) if len(key) > 1 else pd.Index(table[key[0]])
    each = [_in_all(_sums(run, by, sort, key), rows)[f"{value}_ns"].to_numpy(np.float64, na_value=np.nan) for run in side.runs]
    return np.stack(each)


def _sums(run: Run, by: str, sort: str, key: list[str]) -> pd.DataFrame:
    everywhere = run.paths["path_id"].to_numpy(np.int64)
    squares = [SORTS[sort] + name for name in SQUARES if name in run.paths]
    return sums_of(run.paths[[*columns_of(sort), *squares]], by, sort, everywhere).set_index(key)
