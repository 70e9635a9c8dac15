"""`report --by line`: source lines with their time: all where lines were recorded, of samples those that were on a core, of calls those that called."""

from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from rich.console import RenderableType
from rich.text import Text

from pytrace_ebpf.analyze.functions.by_call_site import by_call_site
from pytrace_ebpf.analyze.functions.collapsed import in_imports_alone
from pytrace_ebpf.trace.states import SPLIT
from pytrace_ebpf.view import exact_lines, sampled_lines, text
from pytrace_ebpf.view.grid import NARROW, Listing
from pytrace_ebpf.view.source_text import line_of, lines_of
from pytrace_ebpf.view.states import figures, states_of, titles

IMPORTS = "imports"
_MOST_LINES = 10**6  # of a file that is one
_NO_CALLS = "No function called another one."
_NO_LINES = "The lines are not known: this trace does not have them, or the callers are left out."


def found(trace: Any, tree: pd.DataFrame, facts: dict[str, Any]) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Of a trace with lines exact_lines.found's rows, with samples sampled_lines.found_lines's; else analyze.functions.by_call_site's."""
    if exact_lines.are_in(trace):
        table, more = exact_lines.found(trace)
    elif trace.manifest.get("sampling"):
        table, more = sampled_lines.found_lines(trace, tree, facts)
    else:
        table, more = by_call_site(trace.call_sites(), trace.functions()), {}
    if not facts.get("imports") and not facts.get("only"):
        table = _imports_as_one(table, in_imports_alone(tree, trace.functions()))
    if "call_line" in table:
        table = table.sort_values("self_ns", ascending=False, kind="stable", ignore_index=True)
    return _by_total(table) if facts.get("sort") == "total" else table, more


def _imports_as_one(table: pd.DataFrame, ids: "np.ndarray[Any, np.dtype[np.int64]]") -> pd.DataFrame:
    """Rows, of which those of functions that imports alone call (`ids`) are one, the last, with their self times; of lines that call it is of nobody, since the
    line of an import has all of it."""
    calls = "call_line" in table
    of_imports = table["caller_id" if calls else "func_id"].isin(ids)
    if not of_imports.any():
        return table
    some = table[of_imports]
    row = some.iloc[:1].copy()
    for name in some.columns[[pd.api.types.is_numeric_dtype(some[name]) for name in some]]:
        own = f"self_{name.removeprefix('total_')}" if not name.startswith("self_") and f"self_{name.removeprefix('total_')}" in some else name
        errors = name.endswith("_error_ns")
        row[name] = round(float((some[own].astype(float) ** 2).sum() ** 0.5)) if errors else some[own].sum(min_count=1)
    if calls:  # of self times it is not known how they split
        row = row.assign(**{name: pd.array([pd.NA], "Int64") for name in SPLIT}, unknown_ns=row["self_ns"])
    names = {"func_id": -1, "caller_id": -1, "call_line": pd.NA, "line": -1, "first_line": -1, "caller_first_line": -1, "qualname": IMPORTS, "file": "", "module": "",
             "caller_qualname": None, "caller_file": None}  # fmt: skip
    for name, value in names.items():
        if name in row:
            row[name] = pd.Series([value], row.index).astype(table[name].dtype if not isinstance(value, str) else object)
    return pd.concat([table[~of_imports], row.astype(table.dtypes.to_dict() | {"qualname": object})], ignore_index=True)


def _by_total(table: pd.DataFrame) -> pd.DataFrame:
    """Most total time first: of lines that call each, of others function by function."""
    if "call_line" in table:
        return table.sort_values("total_ns", ascending=False, kind="stable", ignore_index=True)
    order = table.assign(most=table.groupby("func_id")["total_ns"].transform("max"))
    return table.loc[order.sort_values(["most", "func_id"], ascending=False, kind="stable").index].reset_index(drop=True)


def report(facts: dict[str, Any], table: pd.DataFrame, width: int, ascii_only: bool, top: int) -> list[RenderableType]:
    """The rows of found(), by function."""
    shown = _report(facts, table, width, ascii_only, top)
    return [*shown, Text(), Text("--imports shows what imports call.", "dim")] if table["qualname"].eq(IMPORTS).any() else shown


def _report(facts: dict[str, Any], table: pd.DataFrame, width: int, ascii_only: bool, top: int) -> list[RenderableType]:
    if "hits" in table:
        return exact_lines.report(facts, table, width, ascii_only, top)
    if "call_line" not in table:
        return sampled_lines.report_lines(facts, table, width, ascii_only, top)
    table = table[table["caller_id"] >= 0]
    if not len(table):
        return [Text(_NO_CALLS)]
    shown = table.head(top)
    note = f"{len(shown):,} of {len(table):,}; bar and split are of total time"
    parts: list[RenderableType] = [text.title(f"Lines that call, by {facts.get('sort') or 'self'} time of what they call", note, width)]
    parts += [] if table["call_line"].notna().any() else [Text(_NO_LINES)]
    longest = int(shown["total_ns"].max())
    for number, (_, rows) in enumerate(shown.groupby("caller_id", sort=False)):
        first = rows.iloc[0]
        caller = text.function(first["caller_qualname"], first["caller_file"], first["caller_first_line"], width)
        parts += [Text(), caller, _listing(facts, rows.sort_values("call_line", kind="stable"), longest, width, ascii_only, not number)]
    return parts


def _listing(facts: dict[str, Any], rows: pd.DataFrame, longest: int, width: int, ascii_only: bool, head: bool) -> Listing:
    """The lines of a caller, with what each calls."""
    states = states_of(facts)
    count_width, bar_width = (6, 4) if width < NARROW else (9, 8)
    fixed = [(bar_width, ""), (count_width, "calls"), (6, "total"), (6, "self"), *titles(states), (6, "line")]
    out = Listing(width, fixed, ["source", "called"], may_go=[""], head=head)
    source, before = lines_of(str(rows["caller_file"].iloc[0])), 0
    for row in rows.to_dict("records"):
        line = int(row["call_line"]) if text.known(row["call_line"]) else 0
        out.add(
            [
                text.bar(row, bar_width, ascii_only, "", longest, states),
                text.count(row["calls"], count_width),
                text.duration(row["total_ns"]),
                text.duration(row["self_ns"]),
                *figures(row, "", states),
                str(line) if 0 < line < _MOST_LINES else "?",
            ],
            partial(text.fit, line_of(source, line).strip() if line != before else ""),
            partial(text.function, row["qualname"], row["file"], row["first_line"]),
        )
        before = line
    return out
