"""An experiment as a terminal shows it: the settings side by side, whole runs first, then what took longest."""

import shlex
import textwrap
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import pandas as pd
from rich.console import Group, RenderableType
from rich.text import Text

from pytrace_ebpf.experiment.compare import KEYS, WHOLE, chains
from pytrace_ebpf.experiment.data import FORMAT, FORMAT_VERSION, Experiment
from pytrace_ebpf.trace.states import STATES
from pytrace_ebpf.units import plural
from pytrace_ebpf.view import text
from pytrace_ebpf.view.grid import PROSE, Listing
from pytrace_ebpf.view.names import plain

_BAR, _SHORT_BAR, _SHORT = 10, 4, 70  # cells of a bar, and of one in lines below so many cells
_FIGURES = (*((f"{state.name}_ns", state.title) for state in STATES), ("worker_on_cpu_ns", "workers"))
_MATTERS = 0.05  # of a function's time on call paths that only some settings have
_WORTH_NAMING = 0.01  # of a run
_NAMED = 5
_LEAST = 0.01  # of the longest row: what has less is shown only when all are asked for
_LEGEND = (
    "wall: median of the repeats, all threads together; +-: half their range. ~: it overlaps the first setting's, so the speed-up may be chance. "
    "From on CPU on: of the first setting the parts of its time, of the others what each part has more or less. workers: threads without Python."
)
_PLURAL = {"function": "Functions", "operator": "Operators", "nn.Module": "nn.Modules", "module": "Python modules", "path": "Call paths"}


def report(
    experiment: Experiment, sort: str, runs: pd.DataFrame, tables: Mapping[str, pd.DataFrame], only: pd.DataFrame, said: Sequence[str],
    width: int, ascii_only: bool, top: int,
) -> Group:  # fmt: skip
    """The whole report: `runs`, `tables` (by `by`) and `only` as experiment.compare makes them, `said` of experiment.sentence; `top`
    rows of each table, 0 for all."""
    lost = sum(run["lost"] for run in experiment.runs)
    longest = max(int(table["wall_ns"].max()) for table in (runs, *tables.values()) if len(table))  # bars on one scale
    parts: list[RenderableType] = [
        *([Text(f"LOST {plural(lost, 'event')} in these runs: pytrace-ebpf info says of each trace what that means.", "bold red")] if lost else []),
        Text(text.fit(shlex.join(experiment.command), width), "bold"),
        *(line for each in said for line in _wrapped(each, width)),
        Text(),
        *_runs(experiment, runs, width, ascii_only, longest),
        *(Text(line.plain, "dim") for line in [Text(), *_wrapped(_LEGEND, width)]),
    ]
    for by, table in tables.items():
        parts += [Text(), *_table(experiment, by, sort, table, width, ascii_only, top, longest)]
    return Group(*parts, *_only(experiment, runs, only, width))


def facts(
    experiment: Experiment, sort: str, runs: pd.DataFrame, tables: Mapping[str, pd.DataFrame], only: pd.DataFrame, said: Sequence[str]
) -> dict[str, Any]:
    """The same as one plain object; times in ns, None for what nobody measured."""
    return {
        "experiment": str(experiment.directory),
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "command": experiment.command,
        "settings": experiment.settings,
        "runs": experiment.runs,
        "sort": sort,
        "sentences": list(said),
        "whole": plain(runs),
        "by": {by: plain(table) for by, table in tables.items()},
        "only_in_some": plain(only),
    }


def name_of(by: str, row: Mapping[str, Any], names: Mapping[int, Sequence[str]]) -> str:
    """What to call a row: of a call path, `names`' chain of functions."""
    if by == "path":
        return " > ".join(text.clean(name) for name in names.get(row["path_id"], [row["qualname"]]))
    return text.clean(row["module" if KEYS.get(by) == ("module",) else WHOLE if by == WHOLE else "qualname"])


def leading(by: str, table: pd.DataFrame, top: int) -> list[pd.DataFrame]:
    """The rows of the first `top` functions (operators, ...), each with all its settings, less those without _LEAST; 0 for all."""
    key = [WHOLE] if by == WHOLE else list(KEYS[by])
    groups = [rows for _, rows in table.groupby(key, sort=False, dropna=False)]
    least = _LEAST * groups[0]["wall_ns"].max() if groups else 0
    return [rows for rows in groups[:top] if rows["wall_ns"].max() >= least] if top else groups


def _runs(experiment: Experiment, runs: pd.DataFrame, width: int, ascii_only: bool, longest: int) -> list[RenderableType]:
    repeats = pd.Series([run["setting"] for run in experiment.runs]).value_counts()
    bar = _bar(width)
    fixed = [(bar, ""), (5, "runs"), (7, "wall"), (6, "+-"), (8, "speed-up"), (10, "efficiency"), (10, "cores busy"), (12, "calls")]
    out = Listing(width, fixed, ["setting"], may_go=("calls",))
    for row in runs.to_dict("records"):
        # The split is of all threads, the length of the bar that of the run.
        cells = max(1, round(bar * row["wall_ns"] / longest)) if longest else 1
        out.add(
            [
                text.bar(row, cells, ascii_only),
                str(repeats[row["setting"]]),
                text.duration(row["wall_ns"]),
                spread(row),
                *_gain(row),
                f"{row['cores_busy']:.2f}" if text.known(row["cores_busy"]) else text.NOTHING,
                text.count(row["calls"], 12),
            ],
            partial(text.fit, row["setting"]),
        )
    return [Text("Whole runs", "bold"), out]


def _table(
    experiment: Experiment, by: str, sort: str, table: pd.DataFrame, width: int, ascii_only: bool, top: int, longest: int
) -> list[RenderableType]:
    groups = leading(by, table, top)
    note = f"{len(groups):,} of {len(leading(by, table, 0)):,}" if groups else "none was recorded"
    title = text.title(f"{_PLURAL[by]} by {sort} time" + (" in the forward pass" if by == "nn.Module" else ""), note, width)
    if not groups:
        return [title]
    names = chains(experiment, [rows["path_id"].iloc[0] for rows in groups]) if by == "path" else {}
    parts: list[RenderableType] = [title, _listing(width)]
    for rows in groups:
        lines = _listing(width, head=False)
        by_setting = {row["setting"]: row for row in rows.to_dict("records")}
        first = by_setting.get(experiment.settings[0]["setting"])
        for setting in experiment.settings:
            bar = partial(text.bar, cells=_bar(width), ascii_only=ascii_only, longest=longest)
            _line(lines, setting["setting"], by_setting.get(setting["setting"]), first, bar)
        parts += [_head(by, rows, names, width), lines]
    return parts


def _bar(width: int) -> int:
    return _BAR if width >= _SHORT else _SHORT_BAR


def _listing(width: int, head: bool = True) -> Listing:
    figures = [(_bar(width), ""), (6, "wall"), (5, "+-"), (8, "speed-up"), (6, "eff."), *((7, title) for _, title in _FIGURES)]
    return Listing(width, figures, ["setting"], may_go=("workers", "+-"), head=head)


def _line(out: Listing, setting: str, row: Mapping[str, Any] | None, first: Mapping[str, Any] | None, bar: Callable[..., Text]) -> None:
    if row is None:
        out.add(["", text.NOTHING, *[""] * 3, *[""] * len(_FIGURES)], partial(text.fit, setting))
        return
    figures = [text.duration(row[name]) if first in (None, row) else change(row[name], first[name]) for name, _ in _FIGURES]
    out.add([bar(dict(row)), text.duration(row["wall_ns"]), spread(row), *_gain(row), *figures], partial(text.fit, setting))


def _head(by: str, rows: pd.DataFrame, names: Mapping[int, Sequence[str]], width: int) -> Text:
    row = rows.iloc[0].to_dict()
    apart = (rows["unaligned_ns"] / rows["wall_ns"].where(rows["wall_ns"] > 0)).astype("Float64").max()
    note = f"  ({text.percent(apart, 1)} of it on call paths that not all settings have)" if text.known(apart) and apart > _MATTERS else ""
    room = width - len(note)
    if by == "function":
        name = text.function(row["qualname"], row["file"], row["first_line"], room)
    else:
        name = Text(text.cut_left(name_of(by, row, names), room))
    name.stylize("bold", 0, len(text.clean(row.get("qualname", ""))) if by == "function" else len(name))
    return name.append(note, "yellow")


def _gain(row: Mapping[str, Any]) -> list[Text | str]:
    """Speed-up and efficiency; a tilde where the repeats' ranges overlap, so that it may be chance."""
    if not text.known(row["speed_up"]):
        return [text.NOTHING, text.NOTHING]
    chance = text.known(row["clear"]) and not row["clear"]
    return [
        Text(("~" if chance else "") + times(row["speed_up"]), "dim" if chance else ""),
        text.percent(row["efficiency"], 1),
    ]


def times(ratio: float) -> str:
    """A speed-up: "1.93x", "12x"."""
    return f"{ratio:.2f}x" if ratio < 9.995 else f"{ratio:.0f}x" if ratio < 9999.5 else ">9999x"


def spread(row: Mapping[str, Any]) -> str:
    """Half the range of the repeats as a share of the median; "-" of one run."""
    half = (row["high_ns"] - row["low_ns"]) / 2
    if not half:
        return text.NOTHING
    return text.percent(half, row["wall_ns"]).replace(" ", "") if half < 9.995 * row["wall_ns"] else ">999%"


def change(now: Any, before: Any) -> str:
    """The difference of two times with its sign; "-" where either is not known."""
    if not text.known(now) or not text.known(before):
        return text.NOTHING
    difference = int(now) - int(before)
    return f"{'+' if difference > 0 else '-'}{text.duration(abs(difference))}" if difference else "0"


def _only(experiment: Experiment, runs: pd.DataFrame, only: pd.DataFrame, width: int) -> list[RenderableType]:
    """Which call paths some settings lack: how many, and those that take time."""
    if not len(only):
        return []
    per_path = only.groupby("path_id", sort=False).agg(ns=("self_wall_ns", "max"), settings=("setting", list))
    large = per_path[per_path["ns"] >= _WORTH_NAMING * float(runs["wall_ns"].min())].head(_NAMED)
    said = f"{len(per_path):,} call paths occur only in some settings"
    if not len(large):
        return [Text(), *_wrapped(f"{said}; none of them has 1 % of a run's time.", width)]
    names, lines = chains(experiment, list(large.index)), []
    for path, row in large.iterrows():
        where = f"{text.duration(row['ns'])}  only {', '.join(row['settings'])}:  "
        lines.append(Text("  " + where + text.cut_left(" > ".join(map(text.clean, names[path])), max(10, width - len(where) - 2))))
    return [Text(), text.title(said, "those with 1 % of a run's time or more of their own", width), *lines]


def _wrapped(sentence: str, width: int) -> list[Text]:
    return [Text(line) for line in textwrap.wrap(sentence, min(width, PROSE), break_on_hyphens=False)]
