"""`report --by blas` as a terminal shows it: whether an optimized BLAS is used, which one, by which operators and on how many threads."""

import textwrap
from functools import partial
from typing import Any

import pandas as pd
from rich.console import RenderableType
from rich.text import Text

from pytrace_ebpf.analyze.native.around import native_by_part
from pytrace_ebpf.analyze.native.by_blas import COLUMNS, by_blas
from pytrace_ebpf.view import text
from pytrace_ebpf.view.grid import PROSE, Listing
from pytrace_ebpf.view.operators import giga

_UNRECORDED = "Whether a BLAS is used was not recorded; `--layers torch,blas` of `run` and `attach` records it."
_UNSEEN = "No BLAS was called while this was recorded: none that exports its functions, that is."
_SHOWN = 2  # operators in a sentence


def found(trace: Any, _calls: pd.DataFrame, facts: dict[str, Any]) -> tuple[pd.DataFrame, dict[str, Any]]:
    """analyze.native.by_blas's rows; `libraries`, what each library did; and the sentence that answers the question."""
    table, libraries = by_blas(native_by_part(trace, COLUMNS))
    if libraries:
        sentence = " ".join(_answer(row) for row in libraries)
    else:
        sentence = _UNSEEN if "blas" in (trace.manifest["options"].get("layers") or ()) else _UNRECORDED
    return table, {"libraries": libraries, "sentence": sentence}


def _answer(row: dict[str, Any]) -> str:
    """What one library (by_library) was used for, in a sentence or two."""
    what = "an optimized BLAS, is used" if row["optimized"] else "a BLAS not known to be optimized, is used"
    name = text.clean(row["library"])
    did = f"{text.count(row['calls'])} call{'s' * (row['calls'] != 1)}, most of their {text.duration(row['total_ns'])} in {text.clean(row['names'][0][0])}"
    threads = f"called from {row['threads']} thread{'s' * (row['threads'] != 1)}"
    busy = f", {row['cpu_ns'] / row['total_ns']:.1f} cores busy meanwhile" if row["cpu_ns"] is not None and row["total_ns"] else ""
    return f"{name}, {what}: {did}, {_for_whom(row)}, {threads}{busy}."


def _for_whom(row: dict[str, Any]) -> str:
    operators = [(n, ns) for n, ns in row["operators"] if n is not None]
    if not operators:
        return "by which operators was not recorded"
    callers = [f"`{text.clean(name)}` ({text.percent(ns, row['total_ns'])})" for name, ns in operators[:_SHOWN]]
    return "for " + " and ".join(callers) + (" and others" if len(operators) > _SHOWN else "")


def report(facts: dict[str, Any], table: pd.DataFrame, width: int, ascii_only: bool, top: int) -> list[RenderableType]:
    """The sentence, and one line per row of `table` (see found)."""
    said: list[RenderableType] = [Text(line) for line in textwrap.wrap(facts["sentence"], min(width, PROSE), break_on_hyphens=False)]
    if not len(table):
        return said
    fixed = [(7, "calls"), (6, "total"), (5, "cores"), (7, "GFLOP/s"), (7, "m"), (7, "n"), (7, "k")]
    out = Listing(width, fixed, ["function", "for"])
    for row in table.head(top).to_dict("records"):
        rate = row["flops"] * 10**9 / row["total_ns"] if text.known(row["flops"]) and row["total_ns"] else None
        cores = f"{row['cpu_ns'] / row['total_ns']:.1f}" if text.known(row["cpu_ns"]) and row["total_ns"] else text.NOTHING
        function = f"{row['name']} ({row['library']})"
        operator = row["operator"] if text.known(row["operator"]) else "(no operator on its thread)"
        figures = [text.count(row["calls"], 7), text.duration(row["total_ns"]), cores, giga(rate), *(text.count(row[size], 7) for size in "mnk")]
        out.add(figures, partial(text.fit, function), partial(text.fit, operator))
    note = f"{min(top, len(table)):,} of {len(table):,}; sizes m x k by k x n"
    return [*said, Text(), text.title("Calls of a BLAS by time", note, width), out]
