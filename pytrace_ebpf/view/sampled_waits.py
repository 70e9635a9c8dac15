"""`report --by wait` of samples: what threads waited for, with its statistical error, and in which function."""

from functools import partial
from typing import Any

import pandas as pd
from rich.console import RenderableType
from rich.text import Text

from pytrace_ebpf.analyze.samples.by_wait import by_wait
from pytrace_ebpf.view import text
from pytrace_ebpf.view.grid import Listing
from pytrace_ebpf.view.names import in_full, named
from pytrace_ebpf.view.sampled import ERRORS, error


def found(trace: Any) -> tuple[pd.DataFrame, dict[str, Any]]:
    """analyze.samples.by_wait's rows of a Trace with the names of their functions."""
    functions = trace.functions()
    table = named(by_wait(trace), functions)
    names = in_full(functions, table["primitive_func_id"])
    return table.assign(primitive=table["primitive_func_id"].map(names)), {}


def report(table: pd.DataFrame, width: int, top: int) -> list[RenderableType]:
    """One line per row of found()."""
    if not len(table):
        return [Text("No sample was taken of a thread that waited.")]
    shown = Listing(width, [(7, "samples"), (6, "total"), (7, "±")], ["what", "in"], may_go=["±"])
    for row in table.head(top).to_dict("records"):
        where = text.known(row["qualname"])
        shown.add(
            [text.count(row["samples"], 7), text.duration(row["total_ns"]), error(row["error_ns"])],
            partial(text.waited_for, row),
            partial(text.function, row["qualname"], row["file"], row["first_line"]) if where else lambda _: Text("(no Python call)", "dim"),
        )
    return [text.title("What the threads waited for, by sampled time", f"{min(top, len(table)):,} of {len(table):,}; {ERRORS}", width), shown]
