"""`report --by line` of a trace with `--lines exact`: every line that functions came to, how often, and where the time at it went."""

from typing import Any

import pandas as pd
from rich.console import RenderableType
from rich.text import Text

from pytrace_ebpf.analyze.functions.exact import exact_lines
from pytrace_ebpf.view import text
from pytrace_ebpf.view.grid import NARROW, Listing
from pytrace_ebpf.view.source_lines import annotated, by_functions
from pytrace_ebpf.view.states import figures, states_of, titles, with_off

_NONE = "No line was recorded: did a function of --lines-of run?"


def are_in(trace: Any) -> bool:
    """Whether the trace was recorded with `--lines exact`."""
    return bool((trace.manifest["options"].get("filters") or {}).get("lines"))


def found(trace: Any) -> tuple[pd.DataFrame, dict[str, Any]]:
    """analyze.functions.exact_lines's rows."""
    return exact_lines(trace.lines(), trace.functions()), {}


def report(facts: dict[str, Any], table: pd.DataFrame, width: int, ascii_only: bool, top: int) -> list[RenderableType]:
    """Lines of the functions with most time of their own, until `top` lines are shown."""
    if not len(table):
        return [Text(_NONE)]
    table, states = with_off(table), states_of(facts)
    count_width, bar_width = (6, 4) if width < NARROW else (9, 8)
    fixed = [(bar_width, ""), (count_width, "hits"), (6, "self"), (6, "total"), *titles(states), (6, "line")]
    longest = int(table["self_ns"].max())

    def cells(row: dict[str, Any]) -> list[Any]:
        drawn = text.bar(row, bar_width, ascii_only, "self_", longest, states)
        times = (text.duration(row["self_ns"]), text.duration(row["total_ns"]))
        return [drawn, text.count(row["hits"], count_width), *times, *figures(row, "self_", states)]

    def listing(rows: pd.DataFrame, head: bool) -> Listing:
        return annotated(Listing(width, fixed, ["source"], may_go=[""], head=head), rows, cells)

    title = text.title("Lines by their own time", "total: with what they called; bar and split are of self", width)
    return [title, *by_functions(table, listing, top)]
