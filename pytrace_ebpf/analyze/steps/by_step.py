"""Steps of a training by phase: how long each takes and where its time goes, whether that changes over time, and the first ones apart."""

import numpy as np
import numpy.typing as npt
import pandas as pd

from pytrace_ebpf.analyze.quantiles import nearest_ranks
from pytrace_ebpf.trace.states import SPLIT
from pytrace_ebpf.trace.steps import PHASES, STEP

QUANTILES = {"p50_ns": 0.5, "p95_ns": 0.95, "max_ns": 1.0}
_LONGER = 1.5  # than the median: the first steps, which load and compile, as long as they are
_FEWEST = 10  # steps, below which none is one of the first
_MOST_FIRST = 0.2  # of all
_PART = 0.2  # of the steps, whose median is that of the beginning or the end

Bools = npt.NDArray[np.bool_]


def first_ones(steps: pd.DataFrame) -> Bools:
    """Which rows of `steps` (schema.STEPS) are of the first steps of their thread: those up to the first that takes no more than 1.5 times the median."""
    whole = steps[steps["phase"] == STEP]
    threads = whole.groupby(["pid", "tid"])["wall_ns"]
    longer = whole["wall_ns"] > _LONGER * threads.transform("median")
    leading = longer.groupby([whole["pid"], whole["tid"]]).cummin() & (threads.transform("size") >= _FEWEST)
    leading &= whole["step"] < _MOST_FIRST * threads.transform("size")
    found = whole.loc[leading, ["pid", "tid", "step"]]
    keys = ["pid", "tid", "step"]
    return pd.MultiIndex.from_frame(steps[keys]).isin(pd.MultiIndex.from_frame(found))


def by_step(steps: pd.DataFrame) -> pd.DataFrame:
    """Aggregate `steps` (schema.STEPS) by phase, the step first and then in the order of PHASES; int64/Int64 nanoseconds.

    Columns: phase; steps, how many have it; p50_ns, p95_ns and max_ns of wall_ns, by nearest rank, and of each part of SPLIT the median, p50_on_cpu_ns and so on;
    run_ns, all of it together, and its parts SPLIT (of the steps whose split is known; null where none is) and unknown_ns, of the others.
    """
    rows = [_row(phase, steps[steps["phase"] == phase]) for phase in (STEP, *PHASES)]
    names = ["steps", *QUANTILES, *(f"p50_{name}" for name in SPLIT), "run_ns", *SPLIT, "unknown_ns"]
    table = pd.DataFrame(rows, columns=["phase", *names]).astype(dict.fromkeys(names, "Int64"))
    return table[table["steps"] > 0].reset_index(drop=True)


def _row(phase: str, rows: pd.DataFrame) -> list[object]:
    if not len(rows):
        return [phase, 0, *[pd.NA] * (len(QUANTILES) + 2 * len(SPLIT) + 2)]
    wall = rows["wall_ns"].to_numpy(np.int64)
    ranks = nearest_ranks(wall, QUANTILES.values())
    known = rows[rows[list(SPLIT)].notna().all(axis=1)]
    medians = [int(known[name].median()) if len(known) else pd.NA for name in SPLIT]
    sums = [known[name].sum() if len(known) else pd.NA for name in SPLIT]
    return [phase, len(rows), *ranks, *medians, wall.sum(), *sums, wall.sum() - known["wall_ns"].sum()]


def drift(steps: pd.DataFrame) -> pd.DataFrame:
    """The median wall_ns of each phase in the first and last fifth of `steps`, the mean of all threads: phase, early_ns, late_ns; the step first, then what changed most."""
    whole = steps[steps["phase"] == STEP]
    most = whole.groupby(["pid", "tid"])["step"].transform("max") + 1
    share = (whole["step"] + 0.5) / most
    keys = ["pid", "tid", "step"]
    ends = steps.merge(whole[keys].assign(share=share), on=keys)
    parts = (ends[ends["share"] < _PART], ends[ends["share"] > 1 - _PART])
    medians = (part.groupby(["pid", "tid", "phase"], observed=True)["wall_ns"].median() for part in parts)  # ranks are not alike
    early, late = (of_threads.groupby("phase", observed=True).mean() for of_threads in medians)
    table = pd.DataFrame({"early_ns": early, "late_ns": late}).fillna(0).astype("int64").rename_axis("phase").reset_index()
    change = (table["late_ns"] - table["early_ns"]).abs().mask(table["phase"] == STEP, np.iinfo(np.int64).max)
    return table.loc[change.sort_values(ascending=False, kind="stable").index].reset_index(drop=True)
