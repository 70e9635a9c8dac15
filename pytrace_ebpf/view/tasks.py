"""`report --by task` as a terminal shows it: each coroutine function, how long it ran, was suspended, and held the event loop."""

from functools import partial
from typing import Any

import pandas as pd
from rich.console import RenderableType
from rich.text import Text

from pytrace_ebpf.analyze.tasks.by_task import COLUMNS, by_task, longest_hold
from pytrace_ebpf.view import text
from pytrace_ebpf.view.grid import NARROW, Listing
from pytrace_ebpf.view.names import named
from pytrace_ebpf.view.states import states_of

_WORTH_SAYING_NS = 10_000_000


def found(trace: Any, calls: pd.DataFrame, facts: dict[str, Any]) -> tuple[pd.DataFrame, dict[str, Any]]:
    """The rows, and the sentence."""
    return rows(trace), {"sentence": sentence(trace)}


def rows(trace: Any) -> pd.DataFrame:
    """analyze.tasks.by_task's rows of a Trace with the names of their functions."""
    table = by_task(trace.tasks(columns=list(COLUMNS)))
    return named(table, trace.functions())


def sentence(trace: Any) -> str | None:
    """What held the event loop longest at once; None where that was not long."""
    held = longest_hold(trace.tasks(columns=list(COLUMNS)))
    if held is None or held[1] < _WORTH_SAYING_NS:
        return None
    name = trace.functions().set_index("func_id")["qualname"].get(held[0])
    return f"`{text.clean(name)}` held the event loop for {text.duration(held[1])} at once."


def report(facts: dict[str, Any], table: pd.DataFrame, width: int, ascii_only: bool, top: int) -> list[RenderableType]:
    """One line per row of `table` (see rows)."""
    if not len(table):
        return [Text("No coroutine was seen to run.")]
    states = states_of(facts)
    bar_width, count_width = (5, 6) if width < NARROW else (10, 7)
    columns = [
        (count_width, "count", "coroutines"), (count_width, "tasks", "tasks"), (7, "resumes", "resumes"),
        (6, "run", "run_ns"), (7, "awaited", "awaited_ns"), (7, "longest", "longest_ns"), (6, "held", "held_ns"),
    ]  # fmt: skip
    shown = Listing(width, [(bar_width, ""), *((cells, title) for cells, title, _ in columns)], ["coroutine"])
    most = int(table["run_ns"].max())
    for row in table.head(top).to_dict("records"):
        figures = [text.duration(row[key]) if key.endswith("_ns") else text.count(row[key], cells) for cells, _, key in columns]
        bar = text.bar(row, bar_width, ascii_only, longest=most, states=states)
        shown.add([bar, *figures], partial(text.function, row["qualname"], row["file"], row["first_line"]))
    note = f"{min(top, len(table)):,} of {len(table):,}; bar: split of run; held: longest single resume"
    return [text.title("Coroutines by time run", note, width), shown]
