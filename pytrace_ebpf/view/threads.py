"""The report by thread as a terminal shows it: how long each was seen, its split and its calls."""

from typing import Any

import pandas as pd
from rich.console import RenderableType
from rich.text import Text

from pytrace_ebpf.analyze import split
from pytrace_ebpf.analyze.by_thread import by_thread
from pytrace_ebpf.view import text
from pytrace_ebpf.view.grid import NARROW, grid, rest
from pytrace_ebpf.view.states import figures, states_of, titles


def found(trace: Any, calls: pd.DataFrame, facts: dict[str, Any]) -> tuple[pd.DataFrame, dict[str, Any]]:
    """analyze.by_thread's rows."""
    timeline = split.timeline(trace.sched(), trace.processes(), trace.end_ns, trace.losses())
    return by_thread(calls, timeline, trace.threads(), trace.start_ns, trace.end_ns, trace.cputime()), {}


def report(facts: dict[str, Any], table: pd.DataFrame, width: int, ascii_only: bool, top: int) -> list[RenderableType]:
    """One line per row of `table` (see found)."""
    states = states_of(facts)
    count_width, bar_width = (6, 8) if width < NARROW else (9, 20)
    fixed = [(bar_width, ""), (count_width, "calls"), (6, "seen"), *titles(states), (8, "tid")]
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
            *figures(row, "", states),
            str(row["tid"]),
            Text("  " + text.fit(name, room - 2)),
        )
    shown = min(top, len(table))
    return [Text.assemble(("Threads by time on a core", "bold"), f"   {shown:,} of {len(table):,}"), out]
