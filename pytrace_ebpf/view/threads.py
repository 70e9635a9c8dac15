"""The report by thread as a terminal shows it: how long each was seen, its split and its calls."""

from functools import partial
from typing import Any

import pandas as pd
from rich.console import RenderableType

from pytrace_ebpf.analyze.functions.collapsed import outermost_of
from pytrace_ebpf.analyze.samples.errors import with_errors
from pytrace_ebpf.analyze.samples.paths import by_thread as by_thread_samples
from pytrace_ebpf.analyze.time.by_thread import by_thread
from pytrace_ebpf.errors import UsageError
from pytrace_ebpf.trace.states import SPLIT
from pytrace_ebpf.view import text
from pytrace_ebpf.view.grid import NARROW, Listing
from pytrace_ebpf.view.only import of_calls
from pytrace_ebpf.view.sampled import ERRORS, periods, split_figures, split_titles
from pytrace_ebpf.view.states import figures, states_of, titles


def found(trace: Any, _calls: pd.DataFrame, facts: dict[str, Any]) -> tuple[pd.DataFrame, dict[str, Any]]:
    """analyze.time.by_thread's rows; of samples with how many there are of each thread instead of calls."""
    table = by_thread(trace.thread_times(), trace.threads(), trace.start_ns, trace.end_ns)
    if chosen := of_calls(facts.get("only"), "thread"):
        if facts.get("sampled"):
            raise UsageError(f"--only {chosen.kind} narrows --by thread only where calls were recorded; --by function has it of samples.")
        return _within(table, outermost_of(trace.tree(), chosen.func_ids(trace.functions()))), {}
    if facts.get("sampled"):
        sampled = by_thread_samples(trace)
        exact = trace.scheduling["source"] is not None
        table = table.drop(columns="calls").merge(sampled[["pid", "tid", "samples"]], how="left", on=["pid", "tid"]).fillna({"samples": 0})
        if not exact:
            table = _of_samples(table, sampled, facts["sampled"])
    return table, {}


def _within(table: pd.DataFrame, calls: pd.DataFrame) -> pd.DataFrame:
    """The rows of threads that made some `calls` (schema.TREE), with the time in these alone."""
    sums = calls.groupby(["pid", "tid"], as_index=False)[["total_ns", *SPLIT, "unknown_ns", "calls"]].sum(min_count=1)
    out = table[["pid", "tid", "name", "start_ns", "end_ns"]].merge(sums.rename(columns={"total_ns": "wall_ns"}), on=["pid", "tid"])
    return out.sort_values(["on_cpu_ns", "wall_ns", "calls"], ascending=False, na_position="last", ignore_index=True)


def _of_samples(table: pd.DataFrame, sampled: pd.DataFrame, counts: dict[str, Any]) -> pd.DataFrame:
    """Where nobody recorded scheduling: the split of each thread from its samples, with X_error_ns of each part; unknown_ns is what wall_ns has beyond them."""
    parts = table[["pid", "tid"]].merge(sampled, how="left", on=["pid", "tid"]).fillna(0).astype("int64")
    parts = with_errors(parts.drop(columns=["samples", "unknown_ns"]), counts["period_ns"], periods(counts))
    out = table.drop(columns=[*SPLIT, "unknown_ns"]).merge(parts.drop(columns="total_error_ns"), on=["pid", "tid"])
    out["unknown_ns"] = (out["wall_ns"] - out.pop("total_ns")).clip(lower=0)
    return out.sort_values(["on_cpu_ns", "wall_ns", "samples"], ascending=False, ignore_index=True)


def report(facts: dict[str, Any], table: pd.DataFrame, width: int, ascii_only: bool, top: int) -> list[RenderableType]:
    """One line per row of `table` (see found)."""
    states, counted = states_of(facts), "samples" if facts.get("sampled") else "calls"
    count_width, bar_width = (6, 8) if width < NARROW else (9, 20)
    by_samples = "on_cpu_error_ns" in table
    split = split_titles(states) if by_samples else titles(states)
    out = Listing(width, [(bar_width, ""), (count_width, counted), (6, "seen"), *split, (7, "tid")], ["thread"], may_go=["± "])
    several = table["pid"].nunique() > 1
    longest = int(table["wall_ns"].max()) if len(table) else 0
    for row in table.head(top).to_dict("records"):
        bar = text.bar(row, bar_width, ascii_only, longest=longest, states=states)
        out.add(
            [
                bar,
                text.count(row[counted], count_width),
                text.duration(row["wall_ns"]),
                *(split_figures(row, "", states) if by_samples else figures(row, "", states)),
                str(row["tid"]),
            ],
            partial(text.thread, row["name"], row["pid"] if several else None),
        )
    shown = min(top, len(table))
    asked = f"; the time in calls of {text.clean(facts['only'])}" if of_calls(facts.get("only"), "thread") else ""
    note = f"{shown:,} of {len(table):,}{asked}{f'; by samples, {ERRORS}' if by_samples else ''}"
    return [text.title("Threads by time on a core", note, width), out]
