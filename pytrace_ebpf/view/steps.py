"""`report --by step` as a terminal shows it: the steps of a training by phase, over time, and why the slowest were slow."""

from functools import partial
from typing import Any

import pandas as pd
from rich.console import RenderableType
from rich.text import Text

from pytrace_ebpf.analyze.critical_path.path import with_all_threads
from pytrace_ebpf.analyze.steps.by_step import by_step, drift, first_ones
from pytrace_ebpf.analyze.steps.sentence import sentence
from pytrace_ebpf.derive.calls.entry_points import unmet
from pytrace_ebpf.trace.steps import STEP
from pytrace_ebpf.units import plural
from pytrace_ebpf.view import text
from pytrace_ebpf.view.grid import NARROW, Listing
from pytrace_ebpf.view.names import plain
from pytrace_ebpf.view.path import one_path, sequence_of
from pytrace_ebpf.view.states import titles

_MOST_FIRST = 5  # that are shown one by one
_ENOUGH = 20  # steps of a thread, of which it is said how they change over time
_CHANGED = 0.05  # of the median: less is no drift


def before(trace: Any) -> None:
    """Derive the waits."""
    trace.whole.derive("waits")


def found(trace: Any, _tree: pd.DataFrame, facts: dict[str, Any]) -> tuple[pd.DataFrame, dict[str, Any]]:
    """analyze.steps.by_step's rows, without the first steps; `steps`: how many, on how many threads, the first ones and the drift; `slowest`, with their paths; the sentence."""
    steps = trace.steps(patterns=facts.get("step") or ())
    steps = steps[(steps["start_ns"] >= trace.start_ns) & (steps["end_ns"] <= trace.end_ns)]
    is_first = first_ones(steps)
    first, rest = steps[is_first & (steps["phase"] == STEP)], steps[~is_first]
    whole = rest[rest["phase"] == STEP]
    longest = whole.sort_values("wall_ns", ascending=False, kind="stable").head(facts.get("slowest") or 0)
    of = {
        "count": int((steps["phase"] == STEP).sum()),
        "threads": len(whole[["pid", "tid"]].drop_duplicates()),
        "first": plain(first[["pid", "step", "rank", "wall_ns"]]),
        "drift": plain(drift(rest)),
    }
    slowest = [_slow(trace, row, steps, facts) for row in longest.to_dict("records")]
    unmatched = unmet(trace.functions(), facts.get("step") or (), "--step")
    table = by_step(rest)
    return table, {"steps": of, "slowest": slowest, "sentence": sentence(trace, rest, table), "unmet": unmatched}


def _slow(trace: Any, step: dict[str, Any], steps: pd.DataFrame, facts: dict[str, Any]) -> dict[str, Any]:
    """A step with its phases and, where that is known, its critical path."""
    own = steps[(steps["pid"] == step["pid"]) & (steps["tid"] == step["tid"]) & (steps["step"] == step["step"]) & (steps["phase"] != STEP)]
    phases = plain(own.sort_values("wall_ns", ascending=False)[["phase", "wall_ns"]])
    about = {name: step[name] if text.known(step[name]) else None for name in ("step", "pid", "rank", "wall_ns")}
    about |= {"after_ns": int(step["start_ns"]) - trace.whole.start_ns, "phases": phases, "path": None}
    if facts["scheduling"]["source"] == "bpf":
        item = pd.DataFrame([{**step, "request_id": pd.NA, "func_id": -1, "suspended": False}]).astype({"request_id": "Int64"})
        about["path"] = one_path(with_all_threads(trace), item, trace.functions())
    return about


def report(facts: dict[str, Any], table: pd.DataFrame, width: int, ascii_only: bool, top: int) -> list[RenderableType]:
    """One line per row of `table` (see found), then drift, the first steps and the slowest."""
    if not len(table):
        return [
            Text("No step of a training was found."),
            *map(Text, map(text.clean, facts["unmet"])),
            Text("--step PATTERN names a function whose calls are the steps, such as train:train_step."),
        ]
    known = bool(table["on_cpu_ns"].notna().any())
    states = text.STATES
    bar_width = 6 if width < NARROW else 10
    columns = [(6, "p50"), (6, "p95"), (6, "max")]
    out = Listing(width, [(bar_width, ""), (6, "share"), *columns, *(titles(states) if known else [])], ["phase"], ["p95"])
    longest, all_ns = int(table["run_ns"].max()), int(table["run_ns"].iloc[0])
    for row in table.to_dict("records"):
        times = [text.duration(row[f"{name}_ns"]) for _, name in columns]
        parts = [text.duration(row[f"p50_{key}"]) for key, *_ in states[:-1]] if known else []
        share = text.percent(row["run_ns"], all_ns)
        bar = text.bar(row, bar_width, ascii_only, longest=longest, states=states)
        out.add([bar, share, *times, *parts], partial(text.fit, row["phase"]), style="bold" if row["phase"] == STEP else "")
    of = facts["steps"]
    count = of["count"] - len(of["first"])
    threads = f" on {plural(of['threads'], 'thread')}" if of["threads"] > 1 else ""
    note = "medians, also of the split; bar and share are of all steps"
    lines: list[RenderableType] = [text.title(f"{plural(count, 'step')}{threads} by phase", note, width), out]
    lines += [Text(), *map(Text, (*_first(of), *_drift(of["drift"], count // max(1, of["threads"]))))]
    for one in facts["slowest"]:
        lines += _one(one, width)
    return lines


def _first(of: dict[str, Any]) -> list[str]:
    if not of["first"]:
        return []
    shown = ", ".join(text.duration(row["wall_ns"]) for row in of["first"][:_MOST_FIRST])
    more = len(of["first"]) - _MOST_FIRST
    return [f"Left out of these figures: the first {plural(len(of['first']), 'step')}, {shown}{f' and {more:,} more' if more > 0 else ''}."]


def _drift(rows: list[dict[str, Any]], count: int) -> list[str]:
    """Whether steps got longer or shorter, and in what."""
    if count < _ENOUGH:
        return []
    step, *phases = rows
    change = step["late_ns"] - step["early_ns"]
    said = f"Over time: {text.duration(step['early_ns'])} in the first fifth of the steps, {text.duration(step['late_ns'])} in the last"
    if abs(change) < _CHANGED * step["early_ns"] or not phases:
        return [f"{said}: no drift."]
    most = max(phases, key=lambda row: (row["late_ns"] - row["early_ns"]) * (1 if change > 0 else -1))
    return [f"{said}, mostly by {most['phase']}: {text.duration(most['early_ns'])} and {text.duration(most['late_ns'])}."]


def _one(one: dict[str, Any], width: int) -> list[RenderableType]:
    """A slow step: its phases in a line, and its path piece by piece."""
    rank = f" of rank {one['rank']}" if one["rank"] is not None else ""
    title = f"Step {one['step']}{rank}: {text.duration(one['wall_ns'])}, {text.duration(one['after_ns'])} into the recording"
    phases = ", ".join(f"{row['phase']} {text.duration(row['wall_ns'])}" for row in one["phases"])
    lines: list[RenderableType] = [Text(), Text(title, "bold"), Text(text.fit(phases, width))]
    return [*lines, sequence_of(one["path"], width)] if one["path"] else lines
