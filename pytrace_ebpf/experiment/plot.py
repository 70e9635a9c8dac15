"""Pictures of an experiment: what the time of each function was made of under each setting, and what that gained."""

import shlex
import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from pytrace_ebpf.experiment.compare import WHOLE, chains
from pytrace_ebpf.experiment.data import Experiment
from pytrace_ebpf.experiment.report import leading, name_of
from pytrace_ebpf.trace.files import whole
from pytrace_ebpf.view import colours, text

_PARTS = {column: (label, colour) for column, label, _, _, colour in text.STATES}
_WORKERS = colours.WORKERS
_NAME = 90
_ON_WHITE = {"facecolor": "white", "edgecolor": "none", "pad": 1}  # of words that a line would cross
FORMATS = ("png", "svg")


def draw(
    experiment: Experiment,
    by: str,
    sort: str,
    runs: pd.DataFrame,
    table: pd.DataFrame,
    top: int,
    directory: Path,
    rights: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> list[Path]:
    """Write the picture of one table (as of experiment.compare, with that of the whole runs) into `directory`, in each of FORMATS.

    `rights()` is entered for making the files.
    """
    groups = [(WHOLE, rows) for rows in leading(WHOLE, runs, 1)] + [(by, rows) for rows in leading(by, table, top)]
    names = chains(experiment, [rows["path_id"].iloc[0] for kind, rows in groups if kind == "path"])
    settings = [row["setting"] for row in experiment.settings]
    height = sum(len(settings) + 1.4 for _ in groups)
    figure = Figure(figsize=(11, 1.2 + 0.23 * height), layout="constrained")
    spent, gained = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
    at, ticks = 0.0, dict[float, str]()
    for kind, rows in groups:
        label = name_of(kind, rows.iloc[0].to_dict(), names)
        spent.text(
            0, at - 0.1, label if len(label) <= _NAME else "…" + label[1 - _NAME :], fontweight="bold", fontsize=9, va="center", parse_math=False
        )
        by_setting = {row["setting"]: row for row in rows.to_dict("records")}
        for i, setting in enumerate(settings):
            ticks[at + 1 + i] = setting
            if setting in by_setting:
                _spent(spent, at + 1 + i, by_setting[setting], kind == WHOLE)
                _gained(gained, at + 1 + i, by_setting[setting], by_setting.get(settings[0]))
        at += len(settings) + 1.4
    shown = pd.concat([rows for kind, rows in groups if kind != WHOLE]) if len(groups) > 1 else runs.head(0)
    _axes(spent, gained, ticks, at, sort)
    _legend(figure, shown)
    figure.suptitle(text.fit(shlex.join(experiment.command), 110), fontsize=10, parse_math=False)
    written = [directory / f"{by.lower().replace('.', '-')}s.{suffix}" for suffix in FORMATS]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # names may be in a script that the font does not have
        for path in written:
            with whole(path, rights) as file:
                figure.savefig(file, format=path.suffix[1:], dpi=110)
    return written


def _spent(axes: Axes, y: float, row: Mapping[str, Any], whole: bool) -> None:
    """The bar of one setting, its parts end to end and its workers below; a whole run is given in words, since it would dwarf the others."""
    left = 0.0
    for name, (_, colour) in {} if whole else _PARTS.items():
        if text.known(row[name]) and row[name]:
            axes.barh(y - 0.12, row[name] / 1e9, left=left, color=colour, height=0.56)
            left += row[name] / 1e9
    workers = 0.0 if whole or not text.known(row["worker_on_cpu_ns"]) else row["worker_on_cpu_ns"] / 1e9
    if workers:
        axes.barh(y + 0.28, workers, color=_WORKERS, height=0.24)
    axes.annotate(text.duration(row["wall_ns"]), (max(left, workers), y), (3, 0), textcoords="offset points", fontsize=8, va="center")


def _gained(axes: Axes, y: float, row: Mapping[str, Any], first: Mapping[str, Any] | None) -> None:
    """The speed-up of one setting with the range of its repeats, and the efficiency next to it."""
    if first is None or not text.known(row["speed_up"]):
        return
    speed_up, base = float(row["speed_up"]), first["wall_ns"]
    chance = text.known(row["clear"]) and not row["clear"]
    axes.barh(y, speed_up, color="#b9b2c9" if chance or row is first else "#6b5b95", height=0.8)
    # Beyond the farthest bar of interest the line of a short function's range would leave no room for the others.
    ends = [min(base / row[name], 3 * speed_up) if row[name] else speed_up for name in ("high_ns", "low_ns")]
    axes.plot(ends, [y, y], color="black", linewidth=1)
    said = f"{speed_up:.2f}" + ("" if row is first else f"   eff. {text.percent(row['efficiency'], 1)}") + ("  (chance)" if chance else "")
    axes.annotate(said, (max(speed_up, *ends), y), (4, 0), textcoords="offset points", fontsize=8, va="center", bbox=_ON_WHITE)


def _axes(spent: Axes, gained: Axes, ticks: Mapping[float, str], end: float, sort: str) -> None:
    spent.set_yticks(list(ticks), list(ticks.values()), fontsize=8)
    spent.set_ylim(end, -0.8)
    spent.set_xlabel(f"{sort} time, s, all threads together", fontsize=8)
    gained.set_xlabel("speed-up over the first setting; the line is the range of the repeats", fontsize=8)
    gained.axvline(1, color="black", linewidth=0.6, linestyle=":")
    for axes in (spent, gained):
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(axis="x", labelsize=8)
        axes.tick_params(axis="y", length=0)
        axes.margins(x=0.3)


def _legend(figure: Figure, shown: pd.DataFrame) -> None:
    """The colours that occur."""
    colours = {**_PARTS, "worker_on_cpu_ns": ("threads without Python (workers)", _WORKERS)}
    handles = [Patch(color=colour, label=label) for name, (label, colour) in colours.items() if shown[name].fillna(0).any()]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(colours), fontsize=8, frameon=False)
