"""`report --by wait` as a terminal shows it: what was waited for, how long, in which function, and for whom."""

from typing import Any

import pandas as pd
from rich.console import RenderableType
from rich.text import Text

from pytrace_ebpf.analyze.by_wait import WAITS, by_wait
from pytrace_ebpf.view import text
from pytrace_ebpf.view.grid import grid, rest
from pytrace_ebpf.view.names import named


def found(trace: Any, calls: pd.DataFrame, facts: dict[str, Any]) -> tuple[pd.DataFrame, dict[str, Any]]:
    """analyze.by_wait's rows of a Trace with the names of their functions; `calls` needs call_id and func_id."""
    table = by_wait(trace.waits(columns=list(WAITS)), calls, trace.threads(), trace.neighbours())
    return named(table, trace.functions()), {}


def report(facts: dict[str, Any], table: pd.DataFrame, width: int, ascii_only: bool, top: int) -> list[RenderableType]:
    """One line per row of `table` (see found)."""
    if not len(table):
        recorded = facts["scheduling"]["source"] in ("bpf", "perf")
        return [
            Text(
                "No thread was seen to wait." if recorded else "What the threads waited for is not known without eBPF."
            )
        ]
    fixed = [(7, "waits"), (6, "total"), (6, "queued"), (7, "longest")]
    room = rest(width, fixed) - 2
    kind = partner = room // 3
    function = room - kind - partner
    shown = grid([*fixed, (kind, "  what"), (function, "mostly in"), (partner, "mostly for")], left={4, 5, 6})
    for row in table.head(top).to_dict("records"):
        where = (
            text.function(row["qualname"], row["file"], row["first_line"], function)
            if text.known(row["qualname"])
            else Text("(no Python call)", "bright_black")
        )
        shown.add_row(
            text.count(row["waits"], 7), text.duration(row["total_ns"]), text.duration(row["queued_ns"]), text.duration(row["longest_ns"]),
            Text("  " + text.fit(_what(row), kind - 2)), where, Text(_partner(row, partner)),
        )  # fmt: skip
    note = f"   {min(top, len(table)):,} of {len(table):,}; queued: of the total, runnable but without a core"
    return [Text.assemble(("What the threads waited for", "bold"), text.fit(note, width - 27)), shown]


def _what(row: dict[str, Any]) -> str:
    if text.known(row["lock_address"]):
        return f"lock {int(row['lock_address']):#x}"
    return row["kind"] + (f" {row['syscall']}" if text.known(row["syscall"]) and row["kind"] != "gil" else "")


def _partner(row: dict[str, Any], width: int) -> str:
    """The main partner in `width` cells; and how much of the total is its, where that is not all."""
    name, number = "(not known)", ""
    if row["partner_tid"] == 0:
        name = {"gil": "(nobody)", "preempted": "(nobody)"}.get(row["kind"], "(timer, device)")
    elif row["partner_tid"] > 0:
        name, number = (
            text.clean(row["partner_name"]) if text.known(row["partner_name"]) else "thread",
            f" {row['partner_tid']}",
        )
    share = f" {text.percent(row['partner_ns'], row['total_ns'])}" if row["partner_ns"] < row["total_ns"] else ""
    return text.fit(name, width - len(number) - len(share)) + number + share
