"""`report --by rank` as a terminal shows it: which rank of a training on this host the others wait for, why, and the steps in which that cost most."""

from functools import partial
from typing import Any

import pandas as pd
from rich.console import RenderableType
from rich.text import Text

from pytrace_ebpf.analyze.critical_path.path import with_all_threads
from pytrace_ebpf.analyze.steps.by_rank import by_rank, late, with_ranks
from pytrace_ebpf.units import plural
from pytrace_ebpf.view import text
from pytrace_ebpf.view.grid import PROSE, Listing
from pytrace_ebpf.view.names import plain
from pytrace_ebpf.view.path import one_path, sequence_of
from pytrace_ebpf.view.requests import wrapped

_WAYS = {
    "on_cpu_ns": "more work",
    "runq_wait_ns": "no core",
    "throttled_ns": "no CPU quota left",
    "gil_wait_ns": "waiting for the GIL",
    "blocked_ns": "blocked",
    "unknown": "more time",
}


def before(trace: Any) -> None:
    """Derive the waits."""
    trace.whole.derive("waits")


def found(trace: Any, _tree: pd.DataFrame, facts: dict[str, Any]) -> tuple[pd.DataFrame, dict[str, Any]]:
    """analyze.steps.by_rank's rows; `late`, the steps that somebody came last into, the latest first, with the critical paths of as many as facts["slowest"] says; the sentence."""
    steps = trace.steps(patterns=facts.get("step") or ())
    steps = steps[(steps["start_ns"] >= trace.start_ns) & (steps["end_ns"] <= trace.end_ns)]
    rows = with_ranks(steps, trace.processes())
    came_late = late(rows)
    table = by_rank(rows, came_late)
    shown = [_one(trace, row, facts) for row in came_late.head(facts.get("slowest") or 0).to_dict("records")]
    more = {"late": plain(came_late.head(facts.get("at_most") or len(came_late))), "slowest": shown}
    return table, more | {"sentence": _sentence(table, came_late)}


def _one(trace: Any, row: dict[str, Any], facts: dict[str, Any]) -> dict[str, Any]:
    about = plain(pd.DataFrame([row]))[0] | {"after_ns": int(row["start_ns"]) - trace.whole.start_ns, "path": None}
    if facts["scheduling"]["source"] == "bpf":
        item = pd.DataFrame([{**row, "request_id": pd.NA, "func_id": -1, "suspended": False}]).astype({"request_id": "Int64"})
        about["path"] = one_path(with_all_threads(trace), item, trace.functions())
    return about


def _sentence(table: pd.DataFrame, came_late: pd.DataFrame) -> str | None:
    if not len(table):
        return None
    if not len(came_late):
        return f"No rank of {len(table):,} keeps the others waiting."
    row, steps = table.iloc[0], int(table["steps"].max())
    return f"Rank {row['rank']} comes last in {row['late']:,} of {steps:,} steps, by {text.duration(row['p50_late_ns'])} (median): {_why(row)}."


def _why(row: Any) -> str:
    """What most of that is."""
    return f"{_WAYS[row['way']]} in {row['phase']}" if text.known(row["way"]) else ""


def report(facts: dict[str, Any], table: pd.DataFrame, width: int, ascii_only: bool, top: int) -> list[RenderableType]:
    """One line per row of `table` (see found), then the steps in which that cost most."""
    if not len(table):
        return [
            Text(
                "No step was found in which ranks of a training communicate: record all of them, as with run -- torchrun ... (--by step has each one's steps)."
            )
        ]
    columns = [(6, "last"), (6, "by"), (6, "step"), (6, "own"), (6, "waits")]
    out = Listing(width, [(4, "rank"), (7, "pid"), (6, "steps"), *columns], ["mostly by"], ["steps", "pid", "step"])
    for row in table.head(top).to_dict("records"):
        times = [text.duration(row[name]) for name in ("p50_late_ns", "p50_ns", "own_ns", "waited_ns")]
        figures = [str(row["rank"]), str(row["pid"]), text.count(row["steps"], 6), text.count(row["late"], 6), *times]
        out.add(figures, partial(text.fit, _why(row) if row["late"] else ""))
    note = "medians; last: steps it came last into, and by how much; own: without communication"
    lines: list[RenderableType] = [Text(line, "bold") for line in wrapped(facts["sentence"], min(width, PROSE))]
    lines += [Text(), text.title(f"{plural(len(table), 'rank')} by what the others wait", note, width), out]
    for one in facts["slowest"]:
        said = f"{text.duration(one['wall_ns'])}, {text.duration(one['after_ns'])} into the recording"
        title = f"Step {one['step']} took {said}: rank {one['rank']} came last by {text.duration(one['by_ns'])}, mostly {_why(one)} ({text.duration(one['more_ns'])})"
        lines += [Text(), *(Text(line, "bold") for line in wrapped(title, width))]
        lines += [sequence_of(one["path"], width)] if one["path"] else []
    return lines
