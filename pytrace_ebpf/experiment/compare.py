"""The settings of an experiment compared: medians, spread, speed-up and efficiency by function, operator, nn.Module, module or call path."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from pytrace_ebpf.experiment import modules as experiment_modules
from pytrace_ebpf.experiment.data import Experiment
from pytrace_ebpf.experiment.paths import FRAME, NAMED, PARTS, SQUARES, TIMES, names_of, repeated
from pytrace_ebpf.trace import layers

NATIVE = tuple(layer.name for layer in layers.NATIVE)  # the layers of `by` operator; by function has the others
KEYS = {"function": FRAME, "operator": FRAME, "nn.Module": ("module",), "module": ("module",), "path": ("path_id",)}
SORTS = {"self": "self_", "total": ""}
WHOLE = "run"
_PLACE = ("path_id", "parent_path_id", *FRAME, "file")


def compare(experiment: Experiment, by: str, sort: str) -> pd.DataFrame:
    """One row per setting and function, operator, nn.Module, module or call path, what takes longest first; all settings of one together.

    `by`: one of KEYS; `sort`: "self", times without the calls below, or "total", with them (nothing twice where
    something calls itself). An nn.Module is one in its place, with all that was called in it but in other ones; a module is
    Python's. Out: the key (KEYS[by]), for function, operator and path also qualname and file, setting, calls, TIMES (Int64 ns:
    those of the run with the median wall_ns, or the mean of the two in the middle, so that the parts sum to it), low_ns and
    high_ns of wall_ns over the repeats, speed_up (of the first setting's wall_ns over this one's) and efficiency (speed-up over
    how many times as many cores), both null where either has no time; clear: whether the ranges of the two settings
    do not overlap, null without repeats; unaligned_ns: the part of wall_ns on call paths that not all settings have.
    A setting that does not have the function at all has no row; a table without rows has fewer columns.
    """
    everywhere = _everywhere(experiment)
    parts = [sums_of(experiment.rows(run, columns_of(sort)), by, sort, everywhere).assign(setting=run["setting"]) for run in experiment.runs]
    sums = pd.concat(parts, ignore_index=True)
    return against_first(experiment, sums, list(KEYS[by])) if len(sums) else sums


def levels(experiment: Experiment) -> tuple[str, ...]:
    """What rows are of by default: functions, operators and, where any run called one, nn.Modules, else Python's modules."""
    columns = experiment_modules.COLUMNS
    torch = any(experiment_modules.forwards(experiment.rows(run, columns)).any() for run in experiment.runs)
    return "function", "operator", "nn.Module" if torch else "module"


def whole_runs(experiment: Experiment) -> pd.DataFrame:
    """The same table for the runs themselves, key `run`: wall_ns is the program's life, the rest the sum of its outermost calls.

    Also cores (int) and cores_busy: how many it had of them, on average (float); null where more than 1 % of the time in calls is
    not known.
    """
    columns = ["depth", "calls", *TIMES]
    rows = []
    for run in experiment.runs:
        found = experiment.rows(run, columns)
        outer = found[found["depth"] == 0]
        times = {name: outer[name].sum() if outer[name].notna().all() else pd.NA for name in TIMES}
        calls = int(found["calls"].sum())
        rows.append({WHOLE: "whole run", "setting": run["setting"], "calls": calls, **times, "wall_ns": run["wall_ns"], "unaligned_ns": 0})
    sums = pd.DataFrame(rows).astype(dict.fromkeys(TIMES, "Int64"))
    out = against_first(experiment, sums, [WHOLE])
    used = out["on_cpu_ns"] + out["worker_on_cpu_ns"].fillna(0)
    used = used.where(out["unknown_ns"] * 100 <= out[list(PARTS)].sum(axis=1))
    cores = out["setting"].map({row["setting"]: row["cores"] for row in experiment.settings})
    return out.assign(cores=cores, cores_busy=(used / out["wall_ns"]).astype("Float64"))


def against_first(experiment: Experiment, sums: pd.DataFrame, key: list[str]) -> pd.DataFrame:
    """The table of `compare` from one row per run and key: key, setting, calls, TIMES, unaligned_ns and what else names the key."""
    runs = pd.Series([run["setting"] for run in experiment.runs]).value_counts()
    out = _medians(sums, key, runs)
    first = experiment.settings[0]["setting"]
    cores = {row["setting"]: row["cores"] for row in experiment.settings}
    base = out.loc[out["setting"] == first, [*key, "wall_ns", "low_ns", "high_ns"]]
    out = out.merge(base, how="left", on=key, suffixes=("", "_first"))
    wall, reference = (out[name].where(out[name] > 0).astype("Float64") for name in ("wall_ns", "wall_ns_first"))
    out["speed_up"] = reference / wall
    out["efficiency"] = out["speed_up"] * cores[first] / out["setting"].map(cores)
    absent = out["wall_ns_first"].isna()  # in all runs of the first setting, of which each counts as one that took no time
    out["low_ns_first"], out["high_ns_first"] = out["low_ns_first"].mask(absent, 0), out["high_ns_first"].mask(absent, 0)
    apart = (out["high_ns"] < out["low_ns_first"]) | (out["low_ns"] > out["high_ns_first"])
    several = (out["setting"].map(runs) > 1) & (runs.get(first, 0) > 1) & (out["setting"] != first)
    out["clear"] = apart.astype("boolean").where(several)
    out["longest"] = out.groupby(key, dropna=False)["wall_ns"].transform("max")
    out["order"] = out["setting"].map({name: i for i, name in enumerate(cores)})
    out = out.sort_values(["longest", *key, "order"], ascending=[False, *[True] * len(key), True], ignore_index=True)
    return out.drop(columns=["longest", "order", "wall_ns_first", "low_ns_first", "high_ns_first"])


def only_in_some(experiment: Experiment) -> pd.DataFrame:
    """The call paths that not every setting has: path_id, qualname, setting, wall_ns and self_wall_ns (median), longest first.

    One row per path and setting that has it.
    """
    everywhere, parts = _everywhere(experiment), []
    for run in experiment.runs:
        rows = experiment.rows(run, ["path_id", "parent_path_id", "qualname", "wall_ns", "self_wall_ns"])
        parts.append(rows[~rows["path_id"].isin(everywhere)].assign(setting=run["setting"]))
    rows = pd.concat(parts).astype({"qualname": "object"})
    out = rows.groupby(["path_id", "parent_path_id", "qualname", "setting"], as_index=False)[["wall_ns", "self_wall_ns"]].median()
    return out.sort_values("self_wall_ns", ascending=False, ignore_index=True)


def chains(experiment: Experiment, paths: Sequence[int]) -> dict[int, list[str]]:
    """The qualified names from the outermost call down to each of these path_ids."""
    return names_of((experiment.rows(run, [*NAMED]) for run in experiment.runs), paths)


def _everywhere(experiment: Experiment) -> npt.NDArray[np.int64]:
    """The paths that every setting has, in any of its runs."""
    seen: dict[str, pd.Index] = {}
    for run in experiment.runs:
        paths = pd.Index(experiment.rows(run, ["path_id"])["path_id"].to_numpy(np.int64))
        seen[run["setting"]] = paths.union(seen[run["setting"]]) if run["setting"] in seen else paths
    common, *others = seen.values()
    for paths in others:
        common = common.intersection(paths)
    return common.to_numpy()


def columns_of(sort: str) -> list[str]:
    """What sums_of needs of a run's rows."""
    return [*_PLACE, "calls", *(SORTS[sort] + name for name in TIMES)]


def sums_of(rows: pd.DataFrame, by: str, sort: str, everywhere: npt.NDArray[np.int64]) -> pd.DataFrame:
    """One row per key (KEYS[by]) of one run's `rows` (columns_of): calls, TIMES, SQUARES where `rows` has them, and, of wall_ns, what is not on the paths
    `everywhere` (unaligned_ns)."""
    prefix, key = SORTS[sort], list(KEYS[by])
    times = [*TIMES, *(name for name in SQUARES if prefix + name in rows)]
    rows = rows.rename(columns={prefix + name: name for name in times})
    rows = rows.astype(dict.fromkeys(("layer", "module", "qualname", "file"), "object"))
    if by == "nn.Module":
        rows = experiment_modules.in_modules(rows)
    if not prefix:
        again = repeated(rows, rows.groupby(key, sort=False).ngroup().to_numpy(np.int64))
        rows.loc[again, times] = 0
    if by in ("function", "operator"):
        rows = rows[rows["layer"].isin(NATIVE) == (by == "operator")]
    unsplit = rows[list(TIMES)].isna() & rows[["on_cpu_ns"]].notna().to_numpy()
    rows = rows.assign(unaligned_ns=rows["wall_ns"].where(~rows["path_id"].isin(everywhere), 0))
    groups = rows.groupby(key, sort=False)
    out = groups[["calls", *times, "unaligned_ns"]].sum(min_count=1)
    out[list(TIMES)] = out[list(TIMES)].mask(unsplit.groupby([rows[name] for name in key], sort=False).any())
    if KEYS[by] != ("module",):
        names = [name for name in ("qualname", "file") if name not in key]
        out = out.join(groups[names].first())
    return out.reset_index()


def _medians(sums: pd.DataFrame, key: list[str], runs: "pd.Series[int]") -> pd.DataFrame:
    """One row per key and setting; a run in which something did not occur counts as one in which it took no time."""
    numbers = ["calls", *TIMES, "unaligned_ns"]
    sums = sums.sort_values("wall_ns", kind="stable", ignore_index=True)
    groups = [sums[name] for name in (*key, "setting")]
    by_key = sums.groupby(groups, sort=False)
    of = sums["setting"].map(runs)
    absent = of - by_key["wall_ns"].transform("size")
    rank = by_key.cumcount() + absent
    weight = ((rank == (of - 1) // 2).astype(float) + (rank == of // 2).astype(float)) / 2
    weighted = sums[numbers].astype("Float64").mul(weight, axis=0).mask(weight == 0, 0.0)
    found = weighted.groupby(groups, sort=False).sum().mask(weighted.isna().groupby(groups, sort=False).any())
    out = by_key[[name for name in ("qualname", "file") if name in sums and name not in key]].first()
    out[numbers] = found.round().astype("Int64")
    out["low_ns"] = sums["wall_ns"].where(absent == 0, 0).groupby(groups, sort=False).min()
    out["high_ns"] = by_key["wall_ns"].max()
    return out.reset_index()
