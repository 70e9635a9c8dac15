"""`report --by task` as a terminal shows it: each coroutine function, how long it ran, was suspended and held the event loop; and what it awaited."""

from functools import partial
from typing import Any

import pandas as pd
from rich.console import RenderableType
from rich.text import Text

from pytrace_ebpf.analyze.tasks import awaited
from pytrace_ebpf.analyze.tasks.by_task import COLUMNS, by_task, longest_hold
from pytrace_ebpf.view import sampled_tasks, text
from pytrace_ebpf.view.grid import NARROW, Listing
from pytrace_ebpf.view.names import in_full, named, plain
from pytrace_ebpf.view.states import states_of

_WORTH_SAYING_NS = 10_000_000


def before(trace: Any) -> None:
    """Derive the coroutines."""
    trace.derive("tasks")


def found(trace: Any, calls: pd.DataFrame, facts: dict[str, Any]) -> tuple[pd.DataFrame, dict[str, Any]]:
    """The rows, the sentence, and `awaited`: analyze.tasks.awaited's rows with the names of their functions. Of samples alone sampled_tasks.found's."""
    if facts.get("sampled"):
        return sampled_tasks.found(trace, facts["sampled"])
    functions = trace.functions()
    waits = named(awaited.awaited(trace.tasks(columns=list(awaited.COLUMNS)), functions), functions)
    names = in_full(functions, waits["awaited_func_id"]).str.replace("asyncio.tasks.", "asyncio.", regex=False)  # as programs import them
    waits = waits.assign(awaited=waits["awaited_func_id"].map(names))
    return rows(trace), {"sentence": sentence(trace), "awaited": plain(waits)}


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
    """One line per row of `table` (see rows), then one per row of facts["awaited"]."""
    if facts.get("sampled"):
        return sampled_tasks.report(facts, table, width, ascii_only, top)
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
    return [text.title("Coroutines by time run", note, width), shown, *_awaited(facts["awaited"], width, top)]


def _awaited(waits: list[dict[str, Any]], width: int, top: int) -> list[RenderableType]:
    if not waits:
        return []
    shown = Listing(width, [(9, "times"), (6, "total")], ["awaited", "by"])
    for row in waits[:top]:
        what = row["awaited"] or "(a future or a task)"
        shown.add(
            [text.count(row["waits"], 9), text.duration(row["awaited_ns"])],
            partial(text.fit, what),
            partial(text.function, row["qualname"], row["file"], row["first_line"]),
        )
    return [Text(), text.title("What coroutines awaited", f"{min(top, len(waits)):,} of {len(waits):,}; total: time suspended in it", width), shown]
