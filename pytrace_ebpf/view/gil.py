"""`report --by gil` as a terminal shows it: how the GIL's time was spent, who waited for whom, and what each thread had of it."""

import textwrap
from functools import partial
from typing import Any

import pandas as pd
from rich.console import RenderableType
from rich.text import Text

from pytrace_ebpf.analyze.waits.gil import Gil, analyze, prepare
from pytrace_ebpf.units import plural
from pytrace_ebpf.view import colours, text
from pytrace_ebpf.view.grid import PROSE, Listing
from pytrace_ebpf.view.names import PLACE, named, plain
from pytrace_ebpf.view.sentence import waited_for
from pytrace_ebpf.view.states import unrecorded

STATES: text.States = (
    ("alone_ns", "uncontended", "█", "#", colours.ON_CPU),
    ("contended_ns", "contended", "×", "x", colours.GIL_WAIT),
    ("handover_ns", "handed over", "▒", "=", colours.RUN_QUEUE),
    ("idle_ns", "idle", "·", ".", colours.BLOCKED),
    ("unknown_ns", "unknown", "?", "?", colours.UNKNOWN),
)
_NO_MATTER = 0.001  # of the time: what is unknown of it is not worth a line
_NOBODY = "Who held the GIL was not recorded, or there is none: --by wait says what the threads of a Python without a GIL waited for instead."
_HELD = {"nobody": "(nobody: handed over)", "no call": "(no Python call)", "not known": "(not known)"}


def report(facts: dict[str, Any], table: pd.DataFrame, width: int, ascii_only: bool, top: int) -> list[RenderableType]:
    """Shares, pairs, threads; `facts["gil"]` holds `processes`, `threads` and `takes` of analyze.waits.gil as rows, `table` its pairs with names."""
    if facts["scheduling"]["source"] != "bpf":
        return [Text(f"Who waited for the GIL, and who held it, is not known without {unrecorded(facts)}.", "yellow")]
    parts = [*_shares(facts, width, ascii_only), *_pairs(facts, table, width, top)]
    return [*parts, *_threads(facts, width, top)]


def _shares(facts: dict[str, Any], width: int, ascii_only: bool) -> list[RenderableType]:
    processes = facts["gil"]["processes"]
    if not processes:
        return [*(Text(line, "yellow") for line in textwrap.wrap(_NOBODY, min(width, PROSE))), Text()]
    total = {key: sum(row[key] for row in processes) for key in ("wall_ns", "held_ns", "contended_ns", *(s[0] for s in STATES))}
    of = f" of {len(processes)} processes, one GIL each" if len(processes) > 1 else ""
    held, contended = (text.percent(total[key], total["wall_ns"]) for key in ("held_ns", "contended_ns"))
    whose = "The main interpreter's GIL" if facts.get("interpreters") else "The GIL"
    title = f"{whose} was held {held} of {text.duration(total['wall_ns'])}{of}, {contended} while somebody waited for it"
    shown = total | {"unknown_ns": 0} if total["unknown_ns"] < _NO_MATTER * total["wall_ns"] else total
    bar = text.bar(shown, min(width, PROSE), ascii_only, states=STATES)
    return [
        *(Text(line, "bold") for line in textwrap.wrap(title, min(width, PROSE))),
        bar,
        text.legend(shown, ascii_only, min(width, PROSE), STATES),
        Text(),
    ]


def _pairs(facts: dict[str, Any], table: pd.DataFrame, width: int, top: int) -> list[RenderableType]:
    if not len(table):
        return [Text("No thread waited for the GIL.")]
    fixed = [(7, "waits"), (6, "total"), (7, "longest")]
    shown = Listing(width, fixed, ["waiting", "GIL held by"])
    for row in table.head(top).to_dict("records"):
        figures = [text.count(row["waits"], 7), text.duration(row["total_ns"]), text.duration(row["longest_ns"])]
        waiting = "function" if text.known(row["waiting_qualname"]) else "no call"
        shown.add(figures, partial(_function, row, "waiting_", waiting), partial(_function, row, "holding_", row["held"]))
    title = text.title("Who waited for whom", f"{min(top, len(table)):,} of {plural(len(table), 'pair')} of functions", width)
    said = facts["sentence"]
    return [title, *map(Text, textwrap.wrap(said or "", min(width, PROSE), break_on_hyphens=False)), shown, Text()]


def _function(row: dict[str, Any], prefix: str, kind: str, width: int) -> Text:
    if kind != "function":
        return Text(text.fit(_HELD[kind], width), "dim")
    qualname, file, line = (row[f"{prefix}{name}"] for name in PLACE)
    return text.function(qualname, file, line, width)


def _threads(facts: dict[str, Any], width: int, top: int) -> list[RenderableType]:
    threads = facts["gil"]["threads"]
    if not threads:
        return []
    mostly: dict[tuple[int, int], dict[str, Any]] = {}
    for take in facts["gil"]["takes"]:
        if take["holder_tid"] > 0:
            mostly.setdefault((take["pid"], take["tid"]), take)
    wall = {row["pid"]: row["wall_ns"] for row in facts["gil"]["processes"]}
    fixed = [
        (6, "held"),
        (6, "share"),
        (6, "waits"),
        (6, "waited"),
        (6, "mean"),
        (7, "longest"),
        (7, "convoys"),
        (7, "tid"),
    ]
    names = {(row["pid"], row["tid"]): text.clean(row["name"]) for row in threads}
    several = len({row["pid"] for row in threads}) > 1
    shown = Listing(width, fixed, ["thread", "mostly behind"], may_go=("mean", "convoys"))
    for row in threads[:top]:
        take = mostly.get((row["pid"], row["tid"]))
        figures = [
            text.duration(row["held_ns"]), text.percent(row["held_ns"] or 0, wall.get(row["pid"], 0)), text.count(row["waits"], 6),
            text.duration(row["waited_ns"]), text.duration(row["mean_ns"]), text.duration(row["longest_ns"]), text.count(row["convoys"], 7),
            str(row["tid"]),
        ]  # fmt: skip
        holder = names.get((take["pid"], take["holder_tid"]), str(take["holder_tid"])) if take else text.NOTHING
        shown.add(figures, partial(text.thread, row["name"], row["pid"] if several else None), partial(text.fit, holder))
    note = f"{min(top, len(threads)):,} of {len(threads):,}; mostly behind: which thread had it; convoys: waits right after a short hold"
    return [text.title("Threads by time waited", note, width), shown]


def before(trace: Any) -> None:
    """Derive the waits, and find who held the GIL."""
    prepare(trace)


def found(trace: Any, _calls: pd.DataFrame, _: dict[str, Any]) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Rows; and `gil`, the other tables of analyze.waits.gil, with the sentence."""
    of_gil = analyze(trace)
    table = rows(of_gil.pairs, trace.functions())
    return table, {"gil": facts(of_gil), "sentence": waited_for(table.to_dict("records")) or None}


def rows(pairs: pd.DataFrame, functions: pd.DataFrame) -> pd.DataFrame:
    """analyze.waits.gil's pairs with the names of both functions (schema.FUNCTIONS), null for none."""
    sides = ("waiting_", "holding_")
    for side in sides:
        pairs = named(pairs, functions, side)
    return pairs[["waits", "total_ns", "longest_ns", "held", *(f"{side}{name}" for side in sides for name in ("func_id", *PLACE))]]


def facts(of_gil: Gil) -> dict[str, list[dict[str, Any]]]:
    """The other tables of analyze.waits.gil as plain rows."""
    tables = {"processes": of_gil.processes, "threads": of_gil.threads, "takes": of_gil.takes}
    return {name: plain(table) for name, table in tables.items()}
