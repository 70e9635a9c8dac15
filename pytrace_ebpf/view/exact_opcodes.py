"""`report --by opcode` of a trace with `--opcodes exact`: how often each instruction was executed and how long, and where CPython could not specialize it."""

import textwrap
from functools import partial
from typing import Any

import pandas as pd
from rich.console import RenderableType
from rich.text import Text

from pytrace_ebpf.analyze.functions.exact import by_function, exact_opcodes, generic, in_total, shares
from pytrace_ebpf.errors import UsageError
from pytrace_ebpf.units import plural
from pytrace_ebpf.view import text
from pytrace_ebpf.view.grid import PROSE, Listing
from pytrace_ebpf.view.records import records
from pytrace_ebpf.view.sampled import bar

_OPCODES = 4  # of a function
_NONE = "No instruction was counted: did a function of --opcodes-of run?"
_STATES = ("specialized", "generic", "unknown")


def are_in(trace: Any) -> bool:
    """Whether the trace was recorded with `--opcodes exact`."""
    return bool((trace.manifest["options"].get("filters") or {}).get("opcodes"))


def found(trace: Any, _calls: pd.DataFrame, _facts: dict[str, Any]) -> tuple[pd.DataFrame, dict[str, Any]]:
    """analyze.functions.exact_opcodes.in_total's rows; `by_function` with the instructions of each, `generic`: places, and `shares`."""
    if getattr(trace, "tid", None) is not None:
        raise UsageError("Instructions are counted of a program, not of each thread; leave out --tid and --only thread.")
    functions, table = trace.functions(), exact_opcodes(trace.opcodes())
    few = {
        func_id: rows.groupby("opcode")["hits"].sum().sort_values(ascending=False, kind="stable").head(_OPCODES)
        for func_id, rows in table.groupby("func_id")
    }
    rows = [
        row | {"opcodes": [{"opcode": name, "hits": int(hits)} for name, hits in few[row["func_id"]].items()]}
        for row in records(by_function(table, functions))
    ]
    facts = {"by_function": rows, "generic": records(generic(table, functions)), "shares": shares(table)}
    return in_total(table, functions), facts


def report(facts: dict[str, Any], table: pd.DataFrame, width: int, ascii_only: bool, top: int) -> list[RenderableType]:
    """Instructions in total, then those of the functions with most time, then the lines at which they stay general."""
    if not len(table):
        return [Text(_NONE)]
    note = f"{min(top, len(table)):,} of {len(table):,}; in brackets what it is specialized from"
    parts: list[RenderableType] = [text.title("Instructions by their time", note, width)]
    parts += [*map(Text, textwrap.wrap(_sentence(facts["shares"]), min(width, PROSE))), Text(), _totals(table.head(top), width, ascii_only), Text()]
    parts += [Text("Functions and the instructions that they executed most often", "bold"), _functions(facts["by_function"][:top], width)]
    if places := facts["generic"]:
        note = f"{min(top, len(places)):,} of {len(places):,}"
        parts += [Text(), text.title("Lines with instructions that CPython could not specialize", note, width), _places(places[:top], width)]
    return parts


def _sentence(shares: dict[str, int]) -> str:
    counted = f"{plural(shares['hits'], 'instruction')} {'was' if shares['hits'] == 1 else 'were'} executed."
    able = sum(shares[state] for state in _STATES)
    if not able:
        return counted + " This version of CPython specializes none of them."
    of = {state: text.percent(shares[state], able) for state in _STATES}
    warm = " Attach to a program that has run for a while to have it known." if shares["unknown"] > able // 2 else ""
    before = (
        f"{of['specialized']} it had before they were counted, {of['generic']} it had tried to and could not, of {of['unknown']} that is not known"
        if shares["unknown"] < able
        else "whether it had before they were counted is not known"
    )
    return (
        f"{counted} {able:,} of them CPython can specialize: {before}, as they had not run often enough by then. "
        f"While it counts, CPython executes the general form of each.{warm}"
    )


def _name(row: dict[str, Any]) -> str:
    if row["state"] == "specialized":
        return f"{row['specialized']} ({row['opcode']})"
    return f"{row['opcode']}, {'not specialized' if row['state'] == 'generic' else 'not known'}" if row["state"] in _STATES else str(row["opcode"])


def _totals(table: pd.DataFrame, width: int, ascii_only: bool) -> Listing:
    out = Listing(width, [(8, ""), (8, "hits"), (6, "time")], ["instruction", "mostly in"], may_go=[""])
    longest = int(table["wall_ns"].max())
    for row in table.to_dict("records"):
        figures: list[Text | str] = [bar(row["wall_ns"], longest, 8, ascii_only), text.count(row["hits"], 8), text.duration(row["wall_ns"])]
        out.add(figures, partial(text.fit, _name(row)), partial(text.function, row["qualname"], row["file"], row["first_line"]))
    return out


def _functions(rows: list[dict[str, Any]], width: int) -> Listing:
    out = Listing(width, [(8, "hits"), (6, "time"), (7, "special")], ["function", "its instructions"])
    for row in rows:
        known = row["specialized"] + row["generic"]
        figures = [text.count(row["hits"], 8), text.duration(row["wall_ns"]), text.percent(row["specialized"], known) if known else "-"]
        few = ", ".join(f"{one['opcode']} {text.percent(one['hits'], row['hits'])}" for one in row["opcodes"])
        out.add(figures, partial(text.function, row["qualname"], row["file"], row["first_line"]), partial(text.fit, few))
    return out


def _places(rows: list[dict[str, Any]], width: int) -> Listing:
    out = Listing(width, [(8, "hits"), (6, "time"), (6, "line")], ["instruction", "function"])
    for row in rows:
        figures = [text.count(row["hits"], 8), text.duration(row["wall_ns"]), str(row["line"]) if row["line"] >= 0 else "?"]
        out.add(figures, partial(text.fit, row["opcode"]), partial(text.function, row["qualname"], row["file"], row["first_line"]))
    return out
