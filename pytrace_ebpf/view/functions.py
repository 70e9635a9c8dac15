"""The report by function or module as a terminal shows it, and what a person would say of the function with the most self time."""

from typing import Any

import pandas as pd
from rich.console import RenderableType
from rich.text import Text

from pytrace_ebpf.analyze.by_function import by_function
from pytrace_ebpf.analyze.reasons import reasons
from pytrace_ebpf.view import text
from pytrace_ebpf.view.grid import NARROW, grid, rest
from pytrace_ebpf.view.sentence import top_function
from pytrace_ebpf.view.states import figures, states_of, titles


def found(trace: Any, calls: pd.DataFrame, facts: dict[str, Any]) -> tuple[pd.DataFrame, dict[str, Any]]:
    """analyze.by_function's rows by `facts["by"]`, sorted by `facts["sort"]`; and the sentence."""
    table = by_function(calls, trace.functions(), facts["by"])
    more = {"sentence": sentence(trace, calls, table)} if facts["by"] == "function" else {}
    return table.sort_values(f"{facts['sort']}_ns", ascending=False, kind="stable", ignore_index=True), more


def sentence(trace: Any, calls: pd.DataFrame, table: pd.DataFrame) -> str | None:
    """What a person would say of the function with the most self time; None where that is not much, or not known."""
    if trace.scheduling["source"] != "bpf" or not len(table):
        return None
    top = table.loc[table["self_ns"].idxmax()].to_dict()
    names = dict(trace.functions().set_index("func_id")["qualname"])
    if top["func_id"] not in names:
        return None
    return top_function(top, int(table["self_ns"].sum()), lambda: reasons(trace, calls, top["func_id"]), names) or None


def report(facts: dict[str, Any], table: pd.DataFrame, width: int, ascii_only: bool, top: int) -> list[RenderableType]:
    """One line per row of `table` (see found)."""
    states = states_of(facts)
    by_self, module = facts["sort"] == "self", facts["by"] == "module"
    prefix = "self_" if by_self else ""
    count_width, bar_width = (6, 8) if width < NARROW else (9, 10)
    fixed = [(bar_width, ""), (count_width, "calls"), (6, "total"), (6, "self"), *titles(states)]
    room = rest(width, fixed)
    out = grid([*fixed, (room, "  " + facts["by"])], left={0, len(fixed)})
    longest = int(table[f"{facts['sort']}_ns"].max()) if len(table) else 0
    for row in table.head(top).to_dict("records"):
        what = (
            Text(text.cut_left(text.clean(row["module"]), room - 2))
            if module
            else text.function(row["qualname"], row["file"], row["first_line"], room - 2)
        )
        out.add_row(
            text.bar(row, bar_width, ascii_only, prefix, longest, states),
            text.count(row["calls"], count_width),
            text.duration(row["total_ns"]),
            text.duration(row["self_ns"]),
            *figures(row, prefix, states),
            Text("  ") + what,
        )
    shown = f"{min(top, len(table)):,} of {len(table):,}; bar and split are of {facts['sort']} time"
    title = Text.assemble((f"{facts['by'].capitalize()}s by {facts['sort']} time", "bold"), f"   {shown}")
    return [title, out]
