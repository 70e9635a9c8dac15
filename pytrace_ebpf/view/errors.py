"""`report --by error` as a terminal shows it: errors that left operators, with what these were given and the line of Python, and exceptions that left functions."""

import textwrap
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from rich.cells import cell_len
from rich.console import RenderableType
from rich.text import Text

from pytrace_ebpf.analyze.native.around import calls_around
from pytrace_ebpf.analyze.native.failures import CALLS, failed_calls, failures
from pytrace_ebpf.analyze.observed.exceptions import exceptions
from pytrace_ebpf.view import text
from pytrace_ebpf.view.grid import PROSE, Listing
from pytrace_ebpf.view.names import named, plain
from pytrace_ebpf.view.only import of_calls

_UNRECORDED = "Whether operators failed was not recorded; `--layers torch` of `run` and `attach` records it."
_NONE = "No operator was left by an error while this was recorded."
_NO_EXCEPTIONS = "No exception was seen to leave a function of Python."
_NOT_TOLD = "Which functions exceptions left is not known here: --source agent records it, and --args their types and texts, by either source."
_UNTYPED = "--args PATTERN of `run` and `attach` records types and texts too, of the functions it names."
_LEAST_PLACE = 12  # cells
_INDENT = 2
_LINES = 4  # of a message; what may follow is a C++ backtrace


def found(trace: Any, _calls: pd.DataFrame, facts: dict[str, Any]) -> tuple[pd.DataFrame, dict[str, Any]]:
    """analyze.native.failures' rows of a Trace; `errors_raised`, how many errors native code raised, caught ones included, null
    where that was not recorded; and what to say where there is no row."""
    by_probe = any(row["source"] == "usdt" for row in trace.manifest["sources"])
    failed = failed_calls(trace)
    calls = calls_around(trace, CALLS, failed["call_id"].to_numpy(np.int64))
    table = failures(failed, calls, trace.functions(), by_probe)
    raised = len(trace.errors())
    recorded = raised or len(table) or "operator" in (trace.manifest["options"].get("layers") or ())
    said = None if len(table) else _NONE if recorded else _UNRECORDED
    told = (trace.manifest["options"].get("observed") or {}).get("args") or any(row["source"] == "agent" for row in trace.manifest["sources"])
    left = named(exceptions(trace), trace.functions()) if told else None
    if left is not None and (chosen := of_calls(facts.get("only"), "error")):
        left = chosen.rows(trace, left)
    return table, {"errors_raised": raised if recorded else None, "sentence": said, "exceptions": None if left is None else plain(left)}


def report(facts: dict[str, Any], table: pd.DataFrame, width: int, ascii_only: bool, top: int) -> list[RenderableType]:
    """A few lines per row of `table` (see found), in the order of time; what can be said of no operator stands below the exceptions."""
    first, second = _operators(facts, table, width, top), _exceptions(facts["exceptions"], width, top)
    if not len(table):
        first, second = second, first
    return [*first, Text(), *second]


def _exceptions(rows: list[dict[str, Any]] | None, width: int, top: int) -> list[RenderableType]:
    """Two lines for each way in which an exception left a function."""
    if not rows:
        return [*_wrapped(_NO_EXCEPTIONS if rows is not None else _NOT_TOLD, min(width, PROSE), 0)]
    out = Listing(width, [(8, "times"), (8, "raised"), (6, "each"), (6, "total"), (6, "self")], ["exception"], above=True)
    shown = rows[: top or len(rows)]
    for row in shown:
        times = [text.duration(ns) for ns in (row["wall_ns"] // row["times"], row["wall_ns"], row["self_ns"])]
        out.add([text.count(row["times"], 8), text.count(row["raised"], 8), *times], partial(_left, row))
    note = f"{len(shown):,} of {len(rows):,}; raised: not passed on from a call below; times are of the calls that it ended"
    untyped = not all(text.known(row["type"]) for row in shown)
    return [text.title("Exceptions that left functions", note, width), out, *(_wrapped(_UNTYPED, min(width, PROSE), 0) if untyped else [])]


def _left(row: dict[str, Any], width: int) -> Text:
    name = text.clean(row["type"]) if text.known(row["type"]) else "an exception"
    said = f": {text.clean(row['text'])}" if text.known(row["text"]) else ""
    function = text.cut_left(text.clean(row["qualname"]), width // 3)
    line_left = f":{row['line']}" if row["line"] > 0 else ""
    place = f"{text.clean(row['file'])}{line_left}"
    kept = 2 + min(cell_len(place), width // 4) if width >= 4 * _LEAST_PLACE else 0  # for the place
    line = Text.assemble((text.fit(name + said, max(8, width - len(function) - 6 - kept)), "bold red"), " left ", (function, "bold"))
    if (room := width - line.cell_len - 2) >= min(_LEAST_PLACE, cell_len(place)):
        line.append("  ").append(text.cut_left(place, room), "dim")
    line.truncate(width)
    return line


def _operators(facts: dict[str, Any], table: pd.DataFrame, width: int, top: int) -> list[RenderableType]:
    if not len(table):
        return [*_wrapped(facts["sentence"], min(width, PROSE), 0)]
    shown = f"{min(top, len(table)):,} of {len(table):,}; in order of time"
    parts: list[RenderableType] = [text.title("Errors that left an operator", shown, width)]
    for row in table.head(top).to_dict("records"):
        parts += [Text(), *_error(facts, row, width)]
    return parts


def _error(facts: dict[str, Any], row: dict[str, Any], width: int) -> list[RenderableType]:
    after = text.duration(max(0, int(row["end_ns"]) - facts["start_ns"]))
    times = f"{row['times']:,} times, the first " if row["times"] > 1 else ""
    name = text.clean(row["name"]) + (f".{text.clean(row['overload'])}" if row["overload"] else "")
    lines = _wrapped(f"{name} failed   {times}after {after} on thread {row['tid']}", width, 0, "bold red")
    lines += _wrapped(_given(row["shapes"], row["dtypes"]), width, _INDENT)
    if text.known(row["inner"]):
        given = f" of {row['inner_shapes']}" if text.known(row["inner_shapes"]) else ""
        lines += _wrapped(f"in {text.clean(row['inner'])}{text.clean(given)}, which it called", width, _INDENT)
    if text.known(row["qualname"]):
        lines += _wrapped(_place(row, ""), width, _INDENT)
    if text.known(row["caller_qualname"]) and row["caller_file"] != row["file"]:
        lines += _wrapped(_place(row, "caller_"), width, _INDENT)
    message = row["error"] if text.known(row["error"]) else "(the message was not read)"
    for line in str(message).strip().splitlines()[:_LINES]:
        lines += _wrapped(text.clean(line), width, _INDENT, "yellow")
    return [*lines]


def _given(shapes: Any, dtypes: Any) -> str:
    if not text.known(shapes):
        return "what it was given was not read"
    if not shapes:
        return "it was given no tensor"
    types = list(dict.fromkeys(t for t in str(dtypes).split(", ") if t != "-")) if text.known(dtypes) else []
    return f"given {text.clean(shapes)}" + (f" of {text.clean(', '.join(types))}" if types else "")


def _place(row: dict[str, Any], side: str) -> str:
    name, file, line = (row[f"{side}{key}"] for key in ("qualname", "file", "line"))
    where = f"at {text.clean(file)}:{line}" if text.known(line) else f"in {text.clean(file)}, which went on: the line is not known"
    return f"called {'for' if side else 'by'} {text.clean(name)} {where}"


def _wrapped(line: str, width: int, indent: int, style: str = "") -> list[Text]:
    space = " " * indent
    found = textwrap.wrap(line, width, initial_indent=space, subsequent_indent=space + "  ", break_on_hyphens=False)
    return [Text(part, style) for part in found]
