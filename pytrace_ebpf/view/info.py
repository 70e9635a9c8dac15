"""What is in a trace, as a terminal shows it."""

import datetime
import shlex
import textwrap
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pytrace_ebpf.units import plural
from pytrace_ebpf.view import text
from pytrace_ebpf.view.head import (
    ended_lines,
    killed_lines,
    loss_lines,
    native_lines,
    scheduling_lines,
    traced,
    unmeasured,
    unserved_lines,
    waited_sentence,
)
from pytrace_ebpf.view.identities import sentences
from pytrace_ebpf.view.sampled import cost_sentence, words
from pytrace_ebpf.view.trigger import trigger_lines

_LABEL = 10
_WINDOWS_SHOWN = 10


def info(facts: dict[str, Any], width: int) -> Group:
    """Everything of view.contents' facts that a person asks for."""
    target, host = facts["target"], facts["host"]
    state = {"complete": "complete", "cut": "cut", "recording": "not finished"}[facts["state"]]
    per_call = f"{facts['bytes_per_call']:.1f} bytes a call" if facts["bytes_per_call"] else "no calls"
    what = words(facts["sampled"]) if facts["sampled"] else f"{plural(facts['calls'], 'call')}, {per_call}"
    ns, native_ns, line_ns = (facts["cost"].get(key) for key in ("ns_per_call", "native_ns_per_call", "ns_per_line"))
    apart = f", {text.duration(native_ns)} a native one" if native_ns is not None else ""
    apart += f", {text.duration(line_ns)} a line" if line_ns is not None else ""
    lines = [
        ("trace", f"{facts['trace']}   {facts['format']} format {facts['format_version']}   {state}"),
        ("recorded", f"{text.duration(facts['wall_ns'])}{_since(facts['clock'], facts['start_ns'])} in {plural(len(facts['segments']), 'segment')}"),
        *([("dropped", _dropped(facts))] if facts["dropped"] else []),
        ("host", f"{host.get('hostname', '?')}   Linux {host.get('kernel', '?')} {host.get('machine', '')}   {host.get('cpus', '?')} cores"),
        ("program", traced(facts)),
        *(("service", sentence) for sentence in sentences(facts["identities"])),
        ("python", f"{target.get('python_version') or 'none'}   {target.get('executable', '')}   pid {target.get('pid', '?')}"),
        *(("source", f"{s['source']} for pid {s.get('pid')}: {s.get('why')}") for s in facts["sources"] if s.get("source")),
        (
            "cost",
            (f"{text.duration(ns)} a call{apart}." if ns is not None else _other_cost(facts)) + waited_sentence(facts["waited_ns"]),
        ),
        *([("values", _values(facts["options"]["observed"]))] if (facts["options"].get("observed") or {}).get("args") else []),
        ("command", shlex.join(str(a) for a in facts["argv"])),
        ("size", f"{text.size(facts['bytes'])}   {what}"),
        ("derived", f"{text.size(facts['derived_bytes'])}   kept so that reports need not read everything again; can be deleted"),
    ]
    (lost, partly), (by_signal, ended) = loss_lines(facts, width), ended_lines(facts, width)
    parts: list[RenderableType] = [*trigger_lines(facts, width), *killed_lines(facts, width), *lost, *partly, *_windows(facts["losses"])]
    parts += [*by_signal, *ended, *unserved_lines(facts, width), *scheduling_lines(facts, width), *native_lines(facts, width), Text()]
    for label, value in lines:
        parts += _labelled(label, value, width)
    empty = [name for name, table in facts["tables"].items() if not table["rows"]]
    without = _labelled("no rows", f"{', '.join(empty)}: not recorded, or not derived yet", width) if empty else []
    return Group(*parts, Text(), _tables(facts["tables"]), Text(), *without)


def _other_cost(facts: dict[str, Any]) -> str:
    """Of a trace of which it is not known what a call cost."""
    if facts["sampled"] or facts["sampling_ns"] is not None:
        return cost_sentence(facts["sampling_ns"], facts["wall_ns"])
    return unmeasured(facts)


def _labelled(label: str, value: str, width: int) -> list[Text]:
    first, *others = textwrap.wrap(text.clean(value), width - _LABEL, break_on_hyphens=False) or [""]
    return [Text.assemble((f"{label:<{_LABEL}}", "bold"), first), *(Text(" " * _LABEL + line) for line in others)]


def _since(clock: list[dict[str, int]], start_ns: int) -> str:
    if not clock or clock[0].get("realtime_ns") is None:
        return ""
    began = datetime.datetime.fromtimestamp((clock[0]["realtime_ns"] + start_ns - clock[0]["monotonic_ns"]) / 1e9).astimezone()
    return f" from {began:%Y-%m-%d %H:%M:%S %Z}"


def _dropped(facts: dict[str, Any]) -> str:
    """What --retain dropped."""
    dropped = facts["dropped"]
    return f"the first {text.duration(dropped['wall_ns'])}, {plural(dropped['segments'], 'segment')} of {text.size(dropped['bytes'])}: older than what --retain asked for"


def _values(observed: dict[str, list[str]]) -> str:
    """What is in it that may be secret."""
    return f"what {', '.join(observed['args'])} was given and returned; only the types of what is called {', '.join(observed['redact']) or 'nothing'}"


def _windows(losses: list[dict[str, Any]]) -> list[Text]:
    """The first windows of loss: class, how many, how long."""
    lines = [
        Text(f"  {text.fit(w['class'], 14):<14} {w['count']:>12,} within {text.duration(w['end_ns'] - w['start_ns'])} up to {w['end_ns']} ns", "red")
        for w in losses[:_WINDOWS_SHOWN]
    ]
    more = len(losses) - _WINDOWS_SHOWN
    return [*lines, Text(f"  and {plural(more, 'more window')}: --json lists all", "red")] if more > 0 else lines


def _tables(tables: dict[str, dict[str, int]]) -> Table:
    grid = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for title in ("table", "rows", "size", "bytes a row", "parts"):
        grid.add_column(title, justify="left" if title == "table" else "right", no_wrap=True)
    for name, t in tables.items():
        if not t["rows"]:
            continue
        grid.add_row(name, f"{t['rows']:,}", text.size(t["bytes"]), f"{t['bytes'] / t['rows']:.1f}", str(t["parts"]))
    return grid
