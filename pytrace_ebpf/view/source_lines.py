"""Source lines with figures before them, function by function: what the reports by line have in common."""

import textwrap
from collections.abc import Callable
from functools import partial
from typing import Any

import pandas as pd
from rich.console import RenderableType
from rich.text import Text

from pytrace_ebpf.units import plural
from pytrace_ebpf.view import text
from pytrace_ebpf.view.grid import Listing
from pytrace_ebpf.view.source_text import line_of, lines_of

_BETWEEN = 3  # at most so many lines without figures are shown between two with figures


def by_functions(table: pd.DataFrame, listing: Callable[[pd.DataFrame, bool], Listing], top: int) -> list[RenderableType]:
    """The rows of `table` below the names of their functions, in its order, until `top` rows are shown; listing(rows, head) shows a function's."""
    parts: list[RenderableType] = []
    shown = 0
    for _, rows in table.groupby("func_id", sort=False):
        if shown >= top:
            break
        first = rows.iloc[0]
        parts += [Text(), Text.assemble((text.clean(first["qualname"]), "bold"), "  ", (f"{text.clean(first['file'])}:{first['first_line']}", "dim"))]
        parts.append(listing(rows, not shown))
        shown += len(rows)
    left = len(table) - shown
    return [*parts, *([Text(), Text(f"{plural(left, 'more line')}: --top 0 shows all")] if left > 0 else [])]


def annotated(out: Listing, rows: pd.DataFrame, cells: Callable[[dict[str, Any]], list[Any]]) -> Listing:
    """Add a function's lines to `out`, without the indentation that all have, and, where a line of the terminal holds both, of those
    without figures a few between others.

    cells(row): the columns before that of the line's number.
    """
    source = _dedented(lines_of(str(rows["file"].iloc[0])), int(rows["line"].min()), int(rows["line"].max()))
    before, blank = None, [""] * len(cells(rows.iloc[0].to_dict()))
    for row in rows.to_dict("records"):
        if out.beside and before is not None and source is not None and row["line"] - before > 1:
            gap = range(before + 1, row["line"])
            for number in gap if len(gap) <= _BETWEEN else ():
                out.add([*blank, str(number)], partial(text.fit, line_of(source, number)), style="dim")
            if len(gap) > _BETWEEN:
                out.add([*blank, "..."], partial(text.fit, ""), style="dim")
        known = str(row["line"]) if row["line"] >= 0 else "?"
        out.add([*cells(row), known], partial(text.fit, line_of(source, row["line"])))
        before = row["line"]
    return out


def _dedented(source: list[str] | None, first: int, last: int) -> list[str] | None:
    """Lines `first` to `last` of a file (from 1) without the indentation that they share, in their places."""
    if source is None or first < 1:
        return source
    shown = textwrap.dedent("\n".join(line.expandtabs(4) for line in source[first - 1 : last])).split("\n")
    return [*source[: first - 1], *shown]
