"""`report --by memory` as a terminal shows it: what memory functions used, by themselves and with all that they called."""

from functools import partial
from typing import Any

import pandas as pd
from rich.console import RenderableType
from rich.text import Text

from pytrace_ebpf.view import text
from pytrace_ebpf.view.grid import NARROW, Listing
from pytrace_ebpf.view.names import named

_ORDER = ("self_grown_bytes", "self_minor_faults", "self_major_faults", "grown_bytes", "minor_faults")
_NOTHING = "What memory calls used was not recorded; --faults of run and attach records it."


def found(trace: Any, tree: pd.DataFrame, facts: dict[str, Any]) -> tuple[pd.DataFrame, dict[str, Any]]:
    """The rows of a Trace's memory() with the names of their functions, those that used most by themselves first."""
    table = named(trace.memory(), trace.functions())
    order = [name for name in _ORDER if table[name].notna().any()]
    if order:
        table = table.sort_values(order, ascending=False, kind="stable", ignore_index=True)
    return table, {"sentence": None}


def report(facts: dict[str, Any], table: pd.DataFrame, width: int, ascii_only: bool, top: int) -> list[RenderableType]:
    """A line per row of `table` (see found)."""
    amounts = [(name, title, cells) for name, title, cells in _AMOUNTS if table[name].notna().any()]
    if not amounts:
        return [Text(_NOTHING)]
    count_width = 7 if width < NARROW else 9
    columns = [(count_width, "calls"), *((cells, "self " + title) for _, title, cells in amounts), *((cells, title) for _, title, cells in amounts)]
    out = Listing(width, [(0, ""), *columns], ["function"], may_go=[title for _, title, _ in reversed(amounts)])
    for row in table.head(top).to_dict("records"):
        figures = [_shown(name, row[prefix + name], cells) for prefix in ("self_", "") for name, _, cells in amounts]
        out.add(["", text.count(row["calls"], count_width), *figures], partial(text.function, row["qualname"], row["file"], row["first_line"]))
    note = f"{min(top, len(table)):,} of {len(table):,}; by self; resident: growth of the process's resident memory"
    return [text.title("What memory functions used", note, width), out]


_AMOUNTS = (("grown_bytes", "resident", 9), ("minor_faults", "faults", 9), ("major_faults", "major", 7))


def _shown(name: str, value: Any, cells: int) -> str:
    if not text.known(value):
        return text.NOTHING
    if not name.endswith("bytes"):
        return text.count(value, cells)
    return ("-" if value < 0 else "") + text.size(abs(int(value)))
