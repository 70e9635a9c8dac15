"""`report --by memory` as a terminal shows it: what memory functions used, by themselves and with all that they called."""

from functools import partial
from typing import Any

import pandas as pd
from rich.console import RenderableType
from rich.text import Text

from pytrace_ebpf.trace.declared import STREAMS
from pytrace_ebpf.view import text
from pytrace_ebpf.view.grid import NARROW, Listing
from pytrace_ebpf.view.names import named

_ORDER = ("self_bytes", "self_native_bytes", "self_grown_bytes", "self_minor_faults", "self_major_faults", "bytes", "grown_bytes", "minor_faults")
_WAYS = [stream.flag for stream in STREAMS if stream.report == __name__]
_NOTHING = f"What memory calls used was not recorded; {', '.join(_WAYS[:-1])} or {_WAYS[-1]} of run and attach record it."
# Columns of schema.MEMORY as they are shown, where they are known: title, cells. The last ones make room first.
_SHOWN = {
    "self_bytes": ("self alloc", 10),
    "bytes": ("allocated", 9),
    "kept_bytes": ("kept", 9),
    "peak_bytes": ("peak", 9),
    "self_native_bytes": ("self native", 11),
    "native_bytes": ("native", 9),
    "native_kept_bytes": ("native kept", 11),
    "self_grown_bytes": ("self resident", 13),
    "grown_bytes": ("resident", 9),
    "minor_faults": ("faults", 9),
    "major_faults": ("major", 6),
    "blocks": ("blocks", 9),
}


def found(trace: Any, tree: pd.DataFrame, facts: dict[str, Any]) -> tuple[pd.DataFrame, dict[str, Any]]:
    """The rows of a Trace's memory() with the names of their functions, those that used most by themselves first."""
    table = named(trace.memory(), trace.functions())
    order = [name for name in _ORDER if table[name].notna().any()]
    if order:
        table = table.sort_values(order, ascending=False, kind="stable", ignore_index=True)
    return table, {"sentence": None, "native_memory": trace.manifest.get("native_memory")}


def report(facts: dict[str, Any], table: pd.DataFrame, width: int, ascii_only: bool, top: int) -> list[RenderableType]:
    """A line per row of `table` (see found)."""
    shown = {name: of for name, of in _SHOWN.items() if table[name].notna().any()}
    if not shown:
        return [Text(_NOTHING)]
    count_width = 7 if width < NARROW else 9
    may_go = [title for title, _ in reversed(list(shown.values())[1:])]
    out = Listing(width, [(0, ""), (count_width, "calls"), *((cells, title) for title, cells in shown.values())], ["function"], may_go=may_go)
    for row in table.head(top).to_dict("records"):
        figures = [_figure(name, row[name], cells) for name, (_, cells) in shown.items()]
        out.add(["", text.count(row["calls"], count_width), *figures], partial(text.function, row["qualname"], row["file"], row["first_line"]))
    note = f"{min(top, len(table)):,} of {len(table):,}{_sampled(facts['native_memory'])}; kept: not freed within the call; peak: of one call"
    return [text.title("What memory functions used", f"{note}; resident: growth of the process's memory", width), out]


def _sampled(how: dict[str, Any] | None) -> str:
    """What stands for the bytes of malloc's, a clause."""
    if how is None:
        return ""
    return "; native: malloc's" + (f", estimated by a sample about every {text.size(how['sample_bytes'])}" if how["sample_bytes"] > 1 else "")


def _figure(name: str, value: Any, cells: int) -> str:
    if not text.known(value):
        return text.NOTHING
    if not name.endswith("bytes"):
        return text.count(value, cells)
    return ("-" if value < 0 else "") + text.size(abs(int(value)))
