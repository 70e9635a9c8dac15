"""What a person would say of an experiment: how much each setting gained over the first, and where."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from pytrace_ebpf.analyze.experiment import Experiment
from pytrace_ebpf.view import text

_PARTS = {"on_cpu_ns": "on a core", "runq_wait_ns": "in the run queue", "gil_wait_ns": "waiting for the GIL", "blocked_ns": "blocked"}
_NAMEABLE = 0.05  # of the first setting's run: a change below it is not told
_AS_LONG = 0.02
_DISTURBED = 0.2


def sentences(experiment: Experiment, runs: pd.DataFrame, functions: pd.DataFrame | None) -> list[str]:
    """One for each setting that clearly differs from the first, then one for the others and, where it is so, one on the machine.

    `functions`: by self time, says which changed most; None where there is no such table.
    """
    by_setting = {row["setting"]: row for row in runs.to_dict("records")}
    first = by_setting.get(experiment.settings[0]["setting"])
    others = [by_setting[s["setting"]] for s in experiment.settings[1:] if s["setting"] in by_setting]
    if first is None:
        return []
    chance = [row["setting"] for row in others if text.known(row["clear"]) and not row["clear"]]
    found = [_sentence(first, row) + _where(first, row, functions) for row in others if row["setting"] not in chance]
    if chance:
        found.append(f"No clear difference from {first['setting']}, as the ranges of the repeats overlap: {'; '.join(chance)}.")
    return found + _disturbed(runs)


def _sentence(first: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    spent, instead = text.duration(row["wall_ns"]), text.duration(first["wall_ns"])
    if abs(row["speed_up"] - 1) < _AS_LONG:
        return f"With {row['setting']} a run takes as long as with {first['setting']} ({spent}, {instead})"
    return f"With {row['setting']} a run takes {spent} instead of {instead} (speed-up {row['speed_up']:.2f}, efficiency {text.percent(row['efficiency'], 1)})"


def _where(first: Mapping[str, Any], row: Mapping[str, Any], functions: pd.DataFrame | None) -> str:
    """Which function's own time changed most, and which part of it."""
    if functions is None or not len(functions):
        return "."
    key = ["layer", "module", "qualname", "first_line"]
    here, before = (functions[functions["setting"] == each["setting"]].set_index(key) for each in (row, first))
    numbers = ["wall_ns", *_PARTS]
    changed = (here[numbers] - before[numbers]).dropna()
    if not len(changed):
        return "."
    most = changed.loc[changed["wall_ns"].abs().astype("float64").idxmax()]
    if abs(most["wall_ns"]) < _NAMEABLE * first["wall_ns"]:
        return "."
    part = max(_PARTS, key=lambda name: abs(most[name]))
    sign = "less" if most["wall_ns"] < 0 else "more"
    also = f", {text.duration(abs(most[part]))} of that {_PARTS[part]}" if (most[part] < 0) == (most["wall_ns"] < 0) else ""
    return f"; `{text.clean(most.name[2])}` changes most: {text.duration(abs(most['wall_ns']))} {sign}{also}."


def _disturbed(runs: pd.DataFrame) -> list[str]:
    """Whether the machine had other things to do: threads that stood in the run queue while cores were left to others."""
    inside = runs[list(_PARTS)].sum(axis=1)
    queued, idle = runs["runq_wait_ns"] / inside.where(inside > 0), 1 - runs["cores_busy"] / runs["cores"]
    if not ((queued > _DISTURBED) & (idle > _DISTURBED)).fillna(False).any():
        return []
    return ["Other programs had cores that these runs waited for: repeat it on a quiet machine, or compare on-CPU times only."]
