"""`report --by task` of samples: which tasks ran, by their names and coroutine functions."""

from functools import partial
from typing import Any

import pandas as pd
from rich.console import RenderableType
from rich.text import Text

from pytrace_ebpf.analyze.samples.by_task import NONE, by_task
from pytrace_ebpf.view import text
from pytrace_ebpf.view.grid import NARROW, Listing
from pytrace_ebpf.view.names import named
from pytrace_ebpf.view.sampled import ERRORS, bar, error, periods, split_figures, split_titles, unread_counted, where
from pytrace_ebpf.view.states import states_of


def found(trace: Any, sampled: dict[str, Any]) -> tuple[pd.DataFrame, dict[str, Any]]:
    """analyze.samples.by_task's rows of tasks with the names of their functions; and in a sentence, how much time was in them."""
    table = unread_counted(by_task(trace, sampled["period_ns"], periods(sampled)), sampled)
    tasks = table[(table["func_id"] != NONE) | table["task"].notna()]
    share = text.percent(int(tasks["total_ns"].sum()), max(int(table["total_ns"].sum()), 1))
    return named(tasks, trace.functions()), {"sentence": f"{share} of the sampled time was in tasks." if len(tasks) else None, "awaited": []}


def report(facts: dict[str, Any], table: pd.DataFrame, width: int, ascii_only: bool, top: int) -> list[RenderableType]:
    """One line per row of found()."""
    if not len(table):
        return [Text("No sample was taken of a coroutine.")]
    count_width, bar_width = (6, 8) if width < NARROW else (9, 10)
    states = states_of(facts) if facts["sampled"]["with_off_core"] else ()
    fixed = [(bar_width, ""), (count_width, "samples"), (6, "total"), (7, "±"), *split_titles(states)]
    with_names = table["task"].notna().any()
    out = Listing(width, fixed, [*(["task"] if with_names else []), "task's coroutine"], may_go=["± ", "±"])
    longest = int(table["total_ns"].max())
    for row in table.head(top).to_dict("records"):
        drawn = text.bar(row, bar_width, ascii_only, "", longest, states) if states else bar(row["total_ns"], longest, bar_width, ascii_only)
        figures = (drawn, text.count(row["total_samples"], count_width), text.duration(row["total_ns"]), error(row["total_error_ns"]))
        name = [partial(text.fit, row["task"] if text.known(row["task"]) else "(no name known)")] if with_names else []
        out.add([*figures, *split_figures(row, "", states)], *name, partial(text.function, row["qualname"], row["file"], row["first_line"]))
    shown = f"{min(top, len(table)):,} of {len(table):,}; {ERRORS}"
    return [text.title(f"Tasks by sampled time{where(facts['sampled'])}", shown, width), out]
