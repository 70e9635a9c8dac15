"""A comparison as an HTML page that needs nothing else: a differential flame graph of the call paths, red for more time, blue for less."""

import json
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pandas as pd

from pytrace_ebpf.diff.sides import Side
from pytrace_ebpf.experiment.paths import NO_PATH
from pytrace_ebpf.trace.states import STATES
from pytrace_ebpf.view.text import clean

_PAGE = Path(__file__).with_name("page.html")
_HOLE = "{{diff}}"  # in it: where the data goes, as JSON
_LEAST = 0.0005  # of all time: what takes less in both sides is left out with all below it
_MOST = 5_000  # paths, the longest
_PLACE = ["path_id", "parent_path_id", "depth", "qualname", "file", "first_line"]
_PARTS = [f"{state.name}_ns" for state in STATES]


def write(before: Side, after: Side, sentence: str, out: BinaryIO) -> None:
    """Write the page. Its paths are at most _MOST, those with the most time in either side; `sentence` stands above them."""
    paths = _kept(_together(before, after))
    row = pd.Series(np.arange(len(paths)), paths["path_id"])
    parents = paths["parent_path_id"].map(row).fillna(-1).astype(int)
    functions, number = np.unique(paths[["qualname", "file", "first_line"]].astype(str).agg("\0".join, axis=1), return_inverse=True)
    sides = ("before", "after")
    numbers = [
        [[_rounded(value) for value in rows] for rows in paths[[f"{side}_{prefix}{name}" for name in ("wall_ns", *_PARTS)]].to_numpy(object)]
        for prefix in ("", "self_")
        for side in sides
    ]
    calls = [[round(float(count), 1) for count in paths[f"{side}_calls"]] for side in sides]
    page = {
        "title": f"{clean(before.directory)} → {clean(after.directory)}",
        "sentence": sentence,
        "parts": [state.label for state in STATES],
        "whole": [[_rounded(side.whole[name]) for name in ("wall_ns", *_PARTS)] for side in (before, after)],
        "functions": [_function(*words.split("\0")) for words in functions],
        "nodes": [
            [int(parent), int(of), [calls[0][i], calls[1][i]], [numbers[0][i], numbers[1][i]], [numbers[2][i], numbers[3][i]]]
            for i, (parent, of) in enumerate(zip(parents, number, strict=True))
        ],
    }
    text = json.dumps(page, separators=(",", ":")).replace("<", "\\u003c")  # nothing in it may end the script
    out.write(_PAGE.read_text(encoding="utf-8").replace(_HOLE, text).encode())


def _together(before: Side, after: Side) -> pd.DataFrame:
    """Each path of either side, callers before callees, with before_X and after_X of its numbers: means over the runs, 0 where there is none."""
    places, means = [], []
    numbers = ["calls", *(prefix + name for prefix in ("", "self_") for name in ("wall_ns", *_PARTS))]
    for name, side in (("after", after), ("before", before)):
        places += [run.paths[_PLACE] for run in side.runs]
        every = pd.concat([run.paths[["path_id", *numbers]] for run in side.runs])
        unknown = every[numbers].isna().groupby(every["path_id"]).any()
        means.append((every.groupby("path_id")[numbers].sum() / len(side.runs)).mask(unknown).add_prefix(f"{name}_"))
    place = pd.concat(places).drop_duplicates("path_id").set_index("path_id")
    out = place
    for mean in means:
        there = place.index.isin(mean.index)
        mean = mean.reindex(place.index)
        mean.loc[~there] = 0.0
        out = out.join(mean)
    return out.reset_index().sort_values(["depth", "path_id"], kind="stable", ignore_index=True)


def _kept(paths: pd.DataFrame) -> pd.DataFrame:
    """Those that are long enough to be seen, and whose callers are."""
    longest = paths[["before_wall_ns", "after_wall_ns"]].astype(float).max(axis=1)
    every = float(longest[paths["parent_path_id"] == NO_PATH].sum())
    least = max(_LEAST * every, float(longest.nlargest(_MOST).iloc[-1]) if len(longest) > _MOST else 0.0)
    kept, known = [], {NO_PATH}
    columns = zip(paths["path_id"], paths["parent_path_id"], longest, strict=True)
    for at, (path, parent, ns) in enumerate(columns):
        if ns >= least and parent in known:
            known.add(path)
            kept.append(at)
    return paths.iloc[kept[:_MOST]].reset_index(drop=True)


def _function(name: str, file: str, line: str) -> list[str]:
    return [clean(name), clean(f"{file}:{line}" if int(line) > 0 and file else file)]


def _rounded(value: Any) -> int | None:
    return None if value is None or pd.isna(value) else round(float(value))
