"""`report --by args` as a terminal shows it: with which arguments functions were called, what came of it, and what these calls cost."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import pandas as pd
from rich.cells import cell_len
from rich.console import RenderableType
from rich.text import Text

from pytrace_ebpf.analyze.observed.by_arguments import FEW, by_arguments
from pytrace_ebpf.patterns import fitting
from pytrace_ebpf.units import plural
from pytrace_ebpf.view import text
from pytrace_ebpf.view.grid import NARROW, Listing
from pytrace_ebpf.view.names import named
from pytrace_ebpf.view.states import figures, states_of, titles

_LEAST = 12  # cells of arguments


def found(trace: Any, calls: pd.DataFrame, facts: dict[str, Any]) -> tuple[pd.DataFrame, dict[str, Any]]:
    """analyze.observed.by_arguments' rows of a Trace with the names of their functions; `observed`, the patterns that `--args` named."""
    patterns = (trace.manifest["options"].get("observed") or {}).get("args") or []
    return named(by_arguments(trace), trace.functions()), {"observed": patterns, "fits": trace.manifest.get("patterns") or [], "sentence": None}


def report(facts: dict[str, Any], table: pd.DataFrame, width: int, ascii_only: bool, top: int) -> list[RenderableType]:
    """Two lines per row of `table` (see found)."""
    if not len(table):
        if not facts["observed"]:
            return [Text("No arguments were recorded; --args PATTERN of run and attach records those of the functions that it names.")]
        return [Text(_unmet(pattern, facts["fits"])) for pattern in facts["observed"]]
    states = states_of(facts)
    bar_width, count_width = (6, 7) if width < NARROW else (12, 9)
    columns = [(bar_width, ""), (count_width, "calls"), (6, "each"), (6, "total"), (6, "self"), *titles(states)]
    out = Listing(width, columns, ["called with"], [title for _, title in reversed(titles(states))], above=True)
    most = int(table["wall_ns"].max())
    for row in table.head(top).to_dict("records"):
        bar = text.bar(row, bar_width, ascii_only, longest=most, states=states)
        times = [text.duration(row[name]) for name in ("each_ns", "wall_ns", "self_ns")]
        out.add([bar, text.count(row["count"], count_width), *times, *figures(row, "", states)], partial(_call, row))
    note = f"{min(top, len(table)):,} of {len(table):,}; values and sizes where a function has at most {FEW}; a call within another counts in both"
    return [text.title("Calls by what they were given", note, width), out]


def _unmet(pattern: str, known: Sequence[dict[str, Any]]) -> str:
    """Why there may be no call of what --args asked for."""
    name = text.clean(pattern)
    found = next((each for each in known if each["option"] == "--args" and each["pattern"] == pattern), None)
    if found and found["fits"]:
        return f"No call of {name} began and ended here; it fits {plural(found['fits'], 'function')} of the program."
    said = f"No call of {name} ended here"
    return f"{text.clean(fitting('--args', pattern, 0, found['known'], found['nearest']))}." if found and found["known"] else f"{said}."


def _call(row: dict[str, Any], width: int) -> Text:
    """Name, arguments and outcome, and where there is room the function's place; the arguments are what is cut."""
    name = text.clean(row["qualname"]) if text.known(row["qualname"]) else "(unknown function)"
    outcome = f" {text.clean(row['outcome'])}" if row["outcome"] else ""
    outcome = text.fit(outcome, max(_LEAST, width // 3))
    name = text.cut_left(name, max(_LEAST, width - cell_len(outcome) - _LEAST - 2))
    arguments = text.clean(row["arguments"])
    arguments = text.fit(arguments, max(_LEAST, width - cell_len(name) - cell_len(outcome) - 2))
    line = Text.assemble((name, "bold"), f"({arguments})" if not arguments.startswith("(") else f" {arguments}", outcome)
    place = f"{text.clean(row['file'])}:{row['first_line']}" if text.known(row["file"]) else ""
    room = width - cell_len(line.plain) - 2
    if place and room >= _LEAST:
        line.append("  ").append(text.cut_left(place, room), "dim")
    line.truncate(width)
    return line
