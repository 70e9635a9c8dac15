"""`report --by line` and `--by opcode` of samples: source lines with their time, and instructions with theirs."""

from functools import partial
from typing import Any

import pandas as pd
from rich.console import RenderableType
from rich.text import Text

from pytrace_ebpf.analyze.samples.by_line import by_line
from pytrace_ebpf.analyze.samples.by_opcode import by_opcode, in_total
from pytrace_ebpf.view import text
from pytrace_ebpf.view.grid import NARROW, Listing
from pytrace_ebpf.view.records import plain
from pytrace_ebpf.view.sampled import ERRORS, bar, counted, error, periods, split_figures, split_titles, unread_counted, where
from pytrace_ebpf.view.source_lines import annotated, by_functions
from pytrace_ebpf.view.states import states_of

_OPCODES = 4  # of a function
_NONE = "No sample was taken of Python code."


def found_lines(trace: Any, _calls: pd.DataFrame, _facts: dict[str, Any]) -> tuple[pd.DataFrame, dict[str, Any]]:
    """analyze.samples.by_line's rows, none where nothing was sampled; and `of_samples`, as view.sampled.counted has it."""
    sampled = _sampled(trace)
    return unread_counted(by_line(trace, sampled["period_ns"], periods(sampled)), sampled), {"of_samples": sampled}


def found_opcodes(trace: Any, _calls: pd.DataFrame, _facts: dict[str, Any]) -> tuple[pd.DataFrame, dict[str, Any]]:
    """analyze.samples.by_opcode.in_total's rows, and `by_function`, those of the functions that have most samples."""
    sampled = _sampled(trace)
    table = by_opcode(trace, sampled["period_ns"], periods(sampled))
    keys = ["func_id", "qualname", "file", "first_line"]
    functions = []
    for key, rows in sorted(table.groupby(keys, dropna=False), key=lambda each: -int(each[1]["self_ns"].sum())):
        few = [
            {"name": row["name"], "generic": row["generic"], "self_ns": int(row["self_ns"]), "self_samples": int(row["self_samples"])}
            for row in rows.to_dict("records")[:_OPCODES]
        ]
        functions.append(dict(zip(keys, map(plain, key), strict=True)) | {"self_ns": int(rows["self_ns"].sum()), "opcodes": few})
    return unread_counted(in_total(table, sampled["period_ns"], periods(sampled)), sampled), {"by_function": functions}


def _sampled(trace: Any) -> dict[str, Any]:
    """Of samples beside calls, too."""
    return counted(trace, int((trace.manifest.get("sampling") or {"period_ns": 0})["period_ns"]))


def report_lines(facts: dict[str, Any], table: pd.DataFrame, width: int, ascii_only: bool, top: int) -> list[RenderableType]:
    """Source lines of the functions with most time of their own, until `top` lines with samples are shown."""
    if not len(table):
        return [Text(_NONE)]
    title = f"Source lines by sampled time{where(facts['of_samples'])}"
    parts: list[RenderableType] = [text.title(title, f"total: with what it called; {ERRORS}", width)]
    longest = int(table["self_ns"].max())
    states = states_of(facts) if facts["of_samples"]["with_off_core"] else ()
    return [*parts, *by_functions(table, lambda rows, head: _listing(rows, longest, width, ascii_only, states, head), top)]


def _listing(rows: pd.DataFrame, longest: int, width: int, ascii_only: bool, states: text.States, head: bool) -> Listing:
    """A function's lines; of those without samples a few between others."""
    narrow = width < NARROW
    fixed = [(4 if narrow else 8, ""), (6, "self"), (7, "±"), (6, "total"), (7, "±"), *split_titles(states), (6, "line")]
    out = Listing(width, fixed, ["source"], may_go=["± ", "±"], head=head)

    def cells(row: dict[str, Any]) -> list[Any]:
        times = (text.duration(row["self_ns"]), error(row["self_error_ns"]), text.duration(row["total_ns"]), error(row["total_error_ns"]))
        drawn = text.bar(row, fixed[0][0], ascii_only, "self_", longest, states) if states else bar(row["self_ns"], longest, fixed[0][0], ascii_only)
        return [drawn, *times, *split_figures(row, "self_", states)]

    return annotated(out, rows, cells)


def report_opcodes(facts: dict[str, Any], table: pd.DataFrame, width: int, ascii_only: bool, top: int) -> list[RenderableType]:
    """Instructions in total, then those of the functions with most samples."""
    if not len(table):
        return [Text(_NONE)]
    shown = f"{min(top, len(table)):,} of {len(table):,}; {ERRORS}"
    bar_width, count_width = (8, 7) if width < NARROW else (10, 9)
    out = Listing(width, [(bar_width, ""), (count_width, "samples"), (6, "self"), (7, "±")], ["instruction", "mostly in"], may_go=["±"])
    longest = int(table["self_ns"].max())
    for row in table.head(top).to_dict("records"):
        special = row["name"] if row["generic"] == row["name"] else f"{row['name']} ({row['generic']})"
        out.add(
            [
                bar(row["self_ns"], longest, bar_width, ascii_only),
                text.count(row["self_samples"], count_width),
                text.duration(row["self_ns"]),
                error(row["self_error_ns"]),
            ],
            partial(text.fit, special),
            partial(text.function, row["qualname"], row["file"], row["first_line"]),
        )
    functions = Listing(width, [(6, "self")], ["function", "its instructions"])
    for each in facts["by_function"][:top]:
        few = ", ".join(f"{one['name']} {text.percent(one['self_ns'], each['self_ns'])}" for one in each["opcodes"])
        functions.add(
            [text.duration(each["self_ns"])], partial(text.function, each["qualname"], each["file"], each["first_line"]), partial(text.fit, few)
        )
    head = text.title("Instructions by sampled time on a core", f"{shown}; in brackets what it is specialized from", width)
    return [head, out, Text(), Text("Functions and the instructions that they were at", "bold"), functions]
