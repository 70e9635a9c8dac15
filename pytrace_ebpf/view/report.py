"""The report as a terminal shows it: head, one bar for everything, then a table by function, thread or core."""

import textwrap
from typing import Any

import pandas as pd
from rich.console import Console, Group, RenderableType
from rich.text import Text

from pytrace_ebpf.view import cores, gil, tasks, text, waits
from pytrace_ebpf.view.grid import grid, rest
from pytrace_ebpf.view.head import head

WIDTH = 99
_NARROW = 92  # below it the bar and the counts shrink so that the names keep some room
_TITLES = {
    "on_cpu_ns": (6, "on CPU"), "runq_wait_ns": (6, "run q."), "gil_wait_ns": (6, "GIL"), "blocked_ns": (7, "blocked"), "off_cpu_ns": (7, "off CPU"),
}  # fmt: skip


def width_of(console: Console) -> int:
    """Cells a line may take: the terminal's, never more than WIDTH."""
    return max(40, min(console.width, WIDTH))


def report(facts: dict[str, Any], table: pd.DataFrame, width: int, ascii_only: bool, top: int) -> Group:
    """The whole report; `facts` is view.summary's with calls, cost, split, by, sort and compensated."""
    if _states(facts) is text.TWO_STATES:
        facts, table = facts | {"split": _with_off(pd.DataFrame([facts["split"]])).to_dict("records")[0]}, _with_off(table)
    parts: list[RenderableType] = [*head(facts, facts["calls"], width), Text()]
    if facts["by"] not in ("gil", "wait"):
        parts += _overall(facts, width, ascii_only)
    rows = {"thread": _threads, "core": cores.report, "task": tasks.report, "wait": waits.report, "gil": gil.report}.get(facts["by"], _functions)
    parts += rows(facts, table, width, ascii_only, top)
    return Group(*parts)


def _states(facts: dict[str, Any]) -> text.States:
    """What a figure is split into: four states, or two where only eBPF could have told them apart."""
    source = (facts.get("scheduling") or {"source": "bpf"})["source"]
    return text.STATES if source == "bpf" else text.TWO_STATES


def _with_off(table: pd.DataFrame) -> pd.DataFrame:
    """`table` with off_cpu_ns and self_off_cpu_ns: the known time that was not on a core, null where none is known."""
    out = table.copy(deep=False)
    for prefix, total in (("", "total_ns"), ("", "wall_ns"), ("self_", "self_ns")):
        if total in table and f"{prefix}on_cpu_ns" in table:
            whole, on_cpu, unknown = (table[c].astype("Int64") for c in (total, f"{prefix}on_cpu_ns", f"{prefix}unknown_ns"))
            out[f"{prefix}off_cpu_ns"] = whole - on_cpu - unknown
    return out


def _overall(facts: dict[str, Any], width: int, ascii_only: bool) -> list[RenderableType]:
    split = facts["split"]
    if not split["wall_ns"]:
        return [Text("No call was recorded.")]
    taken = " (less what tracing cost)" if facts["compensated"] else ""
    title = Text(f"Where the {text.duration(split['wall_ns'])} inside calls went, all threads together{taken}", "bold")
    said = [Text(line) for line in textwrap.wrap(facts["sentence"] or "", width, break_on_hyphens=False)]
    return [title, text.bar(split, width, ascii_only, states=_states(facts)), text.legend(split, ascii_only, _states(facts)), *said, Text()]


def _functions(facts: dict[str, Any], table: pd.DataFrame, width: int, ascii_only: bool, top: int) -> list[RenderableType]:
    states = _states(facts)
    by_self, module = facts["sort"] == "self", facts["by"] == "module"
    prefix = "self_" if by_self else ""
    count_width, bar_width = (6, 8) if width < _NARROW else (9, 10)
    fixed = [(bar_width, ""), (count_width, "calls"), (6, "total"), (6, "self"), *_titles(states)]
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
            *_figures(row, prefix, states),
            Text("  ") + what,
        )
    shown = f"{min(top, len(table)):,} of {len(table):,}; bar and split are of {facts['sort']} time"
    title = Text.assemble((f"{facts['by'].capitalize()}s by {facts['sort']} time", "bold"), f"   {shown}")
    return [title, out]


def _threads(facts: dict[str, Any], table: pd.DataFrame, width: int, ascii_only: bool, top: int) -> list[RenderableType]:
    states = _states(facts)
    count_width, bar_width = (6, 8) if width < _NARROW else (9, 20)
    fixed = [(bar_width, ""), (count_width, "calls"), (6, "seen"), *_titles(states), (8, "tid")]
    room = rest(width, fixed)
    out = grid([*fixed, (room, "  thread")], left={0, len(fixed)})
    several = table["pid"].nunique() > 1
    longest = int(table["wall_ns"].max()) if len(table) else 0
    for row in table.head(top).to_dict("records"):
        name = text.clean(row["name"]) + (f" of pid {row['pid']}" if several else "")
        out.add_row(
            text.bar(row, bar_width, ascii_only, longest=longest, states=states),
            text.count(row["calls"], count_width),
            text.duration(row["wall_ns"]),
            *_figures(row, "", states),
            str(row["tid"]),
            Text("  " + text.fit(name, room - 2)),
        )
    shown = min(top, len(table))
    return [Text.assemble(("Threads by time on a core", "bold"), f"   {shown:,} of {len(table):,}"), out]


def _titles(states: text.States) -> list[tuple[int, str]]:
    return [_TITLES[key] for key, *_ in states[:-1]]


def _figures(row: dict[str, Any], prefix: str, states: text.States) -> list[str]:
    return [text.duration(row[prefix + key]) for key, *_ in states[:-1]]
