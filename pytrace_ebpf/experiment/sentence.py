"""An experiment in sentences: how much each setting gained over the first, and where."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from pytrace_ebpf.experiment.compare import KEYS
from pytrace_ebpf.experiment.data import Experiment
from pytrace_ebpf.trace.states import STATES
from pytrace_ebpf.view import text

_PARTS = {f"{state.name}_ns": state.phrase for state in STATES}
SURE = {
    True: "beyond the spread of the repeats",
    False: "within the spread of the repeats, so it may be chance",
    None: "of one run each, so it may be chance",
}
_WIDE = ("nn.Module", "module")  # each is a sum of others
_WIDER = 1.1  # so much more they have to change to be named first
_NAMEABLE = 0.05  # of the first setting's run: a smaller change is not mentioned
_AS_LONG = 0.02
_DISTURBED = 0.2


def sentences(experiment: Experiment, runs: pd.DataFrame, tables: Mapping[str, pd.DataFrame]) -> list[str]:
    """One for each setting that clearly differs from the first, then one for the others and, where it is so, one on the machine.

    `tables`: by self time (compare.compare), by what they are of; what changed most among them all is named.
    """
    by_setting = {row["setting"]: row for row in runs.to_dict("records")}
    first = by_setting.get(experiment.settings[0]["setting"])
    others = [by_setting[s["setting"]] for s in experiment.settings[1:] if s["setting"] in by_setting]
    if first is None:
        return []
    chance = [row["setting"] for row in others if text.known(row["clear"]) and not row["clear"]]
    found = [
        f"{_sentence(first, row)}.{_where(experiment, row['setting'], float(first['wall_ns']), tables)}"
        for row in others
        if row["setting"] not in chance
    ]
    if chance:
        found.append(f"No clear difference from {first['setting']}, as the ranges of the repeats overlap: {'; '.join(chance)}.")
    return found + _disturbed(runs)


def _sentence(first: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    spent, instead = text.duration(row["wall_ns"]), text.duration(first["wall_ns"])
    if abs(row["speed_up"] - 1) < _AS_LONG:
        return f"With {row['setting']} a run takes as long as with {first['setting']} ({spent}, {instead})"
    return f"With {row['setting']} a run takes {spent} instead of {instead} (speed-up {row['speed_up']:.2f}, efficiency {text.percent(row['efficiency'], 1)})"


def _where(experiment: Experiment, setting: str, run_ns: float, tables: Mapping[str, pd.DataFrame]) -> str:
    """What changed most in its own time, of each kind, on one scale; by which part of it, and how sure that is. `run_ns`: of the first setting."""
    settings = experiment.settings[0]["setting"], setting
    repeats = min(sum(run["setting"] == setting for run in experiment.runs) for setting in settings)
    changes = [change for by, table in tables.items() if len(table) and (change := _most_changed(by, table, *settings, repeats)) is not None]
    changes = [change for change in changes if abs(change["wall_ns"]) >= _NAMEABLE * run_ns]
    if not changes:
        return ""
    first, *others = sorted(changes, key=lambda change: -abs(change["wall_ns"]) / (_WIDER if change["by"] in _WIDE else 1))
    others = [change for change in others if change["by"] != "module"]  # which is no more than its functions, that were named
    part = max(_PARTS, key=lambda name: abs(first[name]) if text.known(first[name]) else 0)
    also = f" ({_difference(first[part])} {_PARTS[part]})" if text.known(first[part]) and first[part] else ""
    said = f" The {_named(first)} changes most: {_difference(first['wall_ns'])} of its own time{also}, {SURE[first['clear']]}"
    more = [f"; then the {_named(other)}: {_difference(other['wall_ns'])}, {SURE[other['clear']]}" for other in others]
    return f"{said}{''.join(more)}."


def _named(change: Mapping[str, Any]) -> str:
    return f"{change['by']} `{text.clean(change['name'])}`"


def _difference(ns: Any) -> str:
    return f"{text.duration(abs(ns))} {'less' if ns < 0 else 'more'}"


def _most_changed(by: str, table: pd.DataFrame, first: str, setting: str, repeats: int) -> dict[str, Any] | None:
    """The row whose wall_ns differs most between two settings: by, name, the differences of wall_ns and its parts, and `clear`,
    as in experiment.compare. What one of them lacks took no time there."""
    key, times = list(KEYS[by]), ["wall_ns", *_PARTS]
    here, before = (table[table["setting"] == each].set_index(key) for each in (setting, first))
    rows = here.index.union(before.index)
    changed = here[times].reindex(rows, fill_value=0) - before[times].reindex(rows, fill_value=0)
    if not len(changed):
        return None
    at = changed["wall_ns"].abs().astype("float64").argmax()
    row = (here if rows[at] in here.index else before).loc[[rows[at]]].reset_index().iloc[0]
    clear = row["clear"] if rows[at] in here.index else bool(row["low_ns"] > 0) if repeats > 1 else None
    name = row["module"] if key == ["module"] else row["qualname"]
    return {"by": by, "name": name, **changed.iloc[at].to_dict(), "clear": bool(clear) if text.known(clear) else None}


def _disturbed(runs: pd.DataFrame) -> list[str]:
    """Whether the machine had other things to do: threads that stood in the run queue while cores were left to others."""
    inside = runs[list(_PARTS)].sum(axis=1)
    queued, idle = runs["runq_wait_ns"] / inside.where(inside > 0), 1 - runs["cores_busy"] / runs["cores"]
    if not ((queued > _DISTURBED) & (idle > _DISTURBED)).fillna(False).any():
        return []
    return ["Other programs had cores that these runs waited for: repeat it on a quiet machine, or compare on-CPU times only."]
