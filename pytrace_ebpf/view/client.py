"""`report --by client` as a terminal shows it: what the program's functions asked of servers, processes and pools, through client libraries."""

from functools import partial
from pathlib import PurePath
from typing import Any

import pandas as pd
from rich.cells import cell_len
from rich.console import RenderableType
from rich.text import Text

from pytrace_ebpf.analyze.clients.by_client import by_client
from pytrace_ebpf.analyze.clients.pools import pools
from pytrace_ebpf.trace.streams.clients import NONE
from pytrace_ebpf.view import text
from pytrace_ebpf.view.grid import Listing
from pytrace_ebpf.view.names import named

_ROOMY = 130  # cells: with fewer a statement beside the figures says too little
_POOL = ["size", "out", "had_func_id", "had_line"]  # of pools.pools
_ALL_BUT = 0.5
_UNREAD = "(could not be read)"


def found(trace: Any, _calls: pd.DataFrame, _facts: dict[str, Any]) -> tuple[pd.DataFrame, dict[str, Any]]:
    """analyze.clients.by_client's rows of a Trace with the names of their functions."""
    agent = any(row["source"] == "agent" for row in trace.manifest["sources"])
    recorded = agent and trace.manifest["options"].get("clients") != NONE
    functions, key = trace.functions(), ["own_func_id", "own_line", "library"]
    out = pools(trace)[[*key, *_POOL]].rename(columns={"had_func_id": "had_of_func_id"})
    table = by_client(trace).merge(out.astype({"library": "object"}), how="left", on=key).rename(columns={"own_func_id": "func_id"})
    table = table.assign(had_func_id=table.pop("had_of_func_id").fillna(-1).astype("int64"))
    return named(named(table, functions), functions, "had_"), {"clients": recorded, "sentence": None}


def report(facts: dict[str, Any], table: pd.DataFrame, width: int, ascii_only: bool, top: int) -> list[RenderableType]:
    """One line per row of `table` (see found)."""
    if not len(table):
        if not facts["clients"]:
            return [Text("What client libraries are asked for was not recorded; the agent does so, unless --clients none is given.")]
        return [Text("No call of a client library that is known to the agent began here; docs/clients.md lists them.")]
    roomy = width >= _ROOMY
    titles = ["asked by", "of", "for"] if roomy else ["asked by, of whom, for what"]
    shown = Listing(width, [(7, "calls"), (6, "total"), (6, "each"), (7, "longest")], titles, may_go=("longest", "each"), above=not roomy)
    for row in table.head(top).to_dict("records"):
        times = [text.duration(row[name]) for name in ("total_ns", "each_ns", "longest_ns")]
        names = (_who, _whom, _what) if roomy else (_all,)
        shown.add([text.count(row["count"], 7), *times], *(partial(name, row) for name in names))
    note = f"{min(top, len(table)):,} of {len(table):,}; what a library asks of another within a call is not counted again"
    return [text.title("What was asked of servers, processes and pools", note, width), shown]


def _who(row: dict[str, Any], width: int) -> Text:
    if not text.known(row["qualname"]):
        return Text("(none of its own code)", "dim")
    return text.function(row["qualname"], row["file"], row["own_line"] if row["own_line"] > 0 else row["first_line"], width)


def whom(row: dict[str, Any]) -> str:
    """Who was asked: the server, file or the like, else the library."""
    library = text.clean(row["library"])
    if text.known(row.get("size")):
        is_short = row["out"] >= row["size"] - _ALL_BUT
        return f"{library} of {row['size']:.0f}, all out" if is_short else f"{library}, at most {row['size']:.0f} out"
    return text.clean(row["resource"]).replace("tcp ", f"{library} ", 1) if text.known(row["resource"]) else library


def _all(row: dict[str, Any], width: int) -> Text:
    line = Text.assemble(_who(row, width // 3), "  ", _whom(row, width // 3), "  ")
    return line.append(_what(row, max(1, width - cell_len(line.plain))))


def _whom(row: dict[str, Any], width: int) -> str:
    return text.fit(whom(row), width)


def _what(row: dict[str, Any], width: int) -> str:
    said = text.clean(row["statement"]) if text.known(row["statement"]) else _UNREAD
    if row["failed"]:
        said = f"{'no connection' if row['unconnected'] == row['failed'] else 'failed'} {row['failed']:,} times: {said}"
    if text.known(row.get("had_qualname")):
        line = row["had_line"] if row["had_line"] > 0 else row["had_first_line"]
        said = f"{said}, had by {text.clean(row['had_qualname'])} {PurePath(text.clean(row['had_file'])).name}:{line:.0f}"
    return text.fit(said, width)
