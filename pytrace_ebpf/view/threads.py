"""The report by thread as a terminal shows it: how long each was seen, its split and its calls."""

from functools import partial
from typing import Any

import pandas as pd
from rich.console import RenderableType

from pytrace_ebpf.analyze.samples.paths import by_thread as by_thread_samples
from pytrace_ebpf.analyze.time.by_thread import by_thread
from pytrace_ebpf.view import text
from pytrace_ebpf.view.grid import NARROW, Listing
from pytrace_ebpf.view.states import figures, states_of, titles


def found(trace: Any, _calls: pd.DataFrame, facts: dict[str, Any]) -> tuple[pd.DataFrame, dict[str, Any]]:
    """analyze.time.by_thread's rows; of samples with how many there are of each thread instead of calls."""
    table = by_thread(trace.thread_times(), trace.threads(), trace.start_ns, trace.end_ns)
    if facts.get("sampled"):
        table = table.drop(columns="calls").merge(by_thread_samples(trace), how="left", on=["pid", "tid"]).fillna({"samples": 0})
    return table, {}


def report(facts: dict[str, Any], table: pd.DataFrame, width: int, ascii_only: bool, top: int) -> list[RenderableType]:
    """One line per row of `table` (see found)."""
    states, counted = states_of(facts), "samples" if facts.get("sampled") else "calls"
    count_width, bar_width = (6, 8) if width < NARROW else (9, 20)
    fixed = [(bar_width, ""), (count_width, counted), (6, "seen"), *titles(states), (7, "tid")]
    out = Listing(width, fixed, ["thread"])
    several = table["pid"].nunique() > 1
    longest = int(table["wall_ns"].max()) if len(table) else 0
    for row in table.head(top).to_dict("records"):
        bar = text.bar(row, bar_width, ascii_only, longest=longest, states=states)
        out.add(
            [bar, text.count(row[counted], count_width), text.duration(row["wall_ns"]), *figures(row, "", states), str(row["tid"])],
            partial(text.thread, row["name"], row["pid"] if several else None),
        )
    shown = min(top, len(table))
    return [text.title("Threads by time on a core", f"{shown:,} of {len(table):,}", width), out]
