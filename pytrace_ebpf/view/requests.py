"""`report --by request` as a terminal shows it: what requests were for, how long they took, and why the slowest were slow."""

import textwrap
from collections.abc import Sequence
from functools import partial
from pathlib import PurePath
from typing import Any

import pandas as pd
from rich.console import RenderableType
from rich.text import Text

from pytrace_ebpf.analyze.requests.by_request import by_request
from pytrace_ebpf.analyze.requests.one_request import RUN_QUEUE, OneRequest, of_id, one_request
from pytrace_ebpf.derive.calls.entry_points import asked, unmet
from pytrace_ebpf.units import plural
from pytrace_ebpf.view import text
from pytrace_ebpf.view.client import whom
from pytrace_ebpf.view.grid import NARROW, PROSE, Listing
from pytrace_ebpf.view.names import named, plain
from pytrace_ebpf.view.sentence import WAITING
from pytrace_ebpf.view.states import figures, states_of, titles, with_off

_ENOUGH = 20  # requests, of which the slowest twentieth is described
_MORE = 0.15  # of their time: by so much the slowest differ from all
_LITTLE = 0.02  # of a request's time: a call that took no longer is not shown
_MOST_LINES = 25  # of a request's calls
_STATEMENT = 160  # cells of one in a sentence
_MOSTLY = 0.5
_WORTH = 0.1  # of a request's time: a wait that is worth a sentence
_DOING = {"on_cpu_ns": "on a core", "runq_wait_ns": "in the run queue", "gil_wait_ns": "waiting for the GIL", "blocked_ns": "blocked", "awaited_ns": "suspended"}  # fmt: skip
_WAITING = {**WAITING, "gil": "waiting for the GIL", RUN_QUEUE: "in the run queue"}


def found(trace: Any, calls: pd.DataFrame, facts: dict[str, Any]) -> tuple[pd.DataFrame, dict[str, Any]]:
    """analyze.requests.by_request's rows with the names of their endpoints; the sentence; and `slowest`, as many requests as facts["slowest"] says."""
    functions = trace.functions()
    requests = of_these(trace.requests(patterns=facts["requests"]), functions, facts["requests"])
    if facts.get("request_id"):
        requests = of_id(requests, facts["request_id"])
    table = named(by_request(requests), functions)
    longest = requests.sort_values("wall_ns", ascending=False, kind="stable").drop_duplicates("request_id").head(facts["slowest"] or 0)
    slowest = [_slow(trace, row, functions) for row in longest.to_dict("records")]
    return table, {"sentence": _sentence(table), "slowest": slowest, "unmet": unmet(functions, trace.request_patterns)}


def of_these(requests: pd.DataFrame, functions: pd.DataFrame, patterns: Sequence[str]) -> pd.DataFrame:
    """Those of `requests` (schema.REQUESTS) whose own function, or that of the program which answered it, fits one of the patterns; all without any."""
    if not patterns:
        return requests
    ids = asked(functions, patterns).index
    return requests[requests["func_id"].isin(ids) | requests["endpoint_func_id"].isin(ids)].reset_index(drop=True)


def _slow(trace: Any, request: dict[str, Any], functions: pd.DataFrame) -> dict[str, Any]:
    one: OneRequest = one_request(trace, request)
    about = plain(named(pd.DataFrame([request]).rename(columns={"endpoint_func_id": "func_id", "func_id": "entry_func_id"}), functions))[0]
    names = functions.set_index("func_id")["qualname"]
    awaited = {"qualnames": [names.get(func_id) for func_id in one.awaited[0]], "ns": one.awaited[1]}
    return {
        **about,
        "after_ns": request["start_ns"] - trace.whole.start_ns,
        "awaited": awaited,
        "held": plain(named(one.held.head(3), functions)),
        "waits": plain(named(one.waits.head(5), functions)),
        "asked": plain(named(one.asked.head(5).rename(columns={"own_func_id": "func_id"}), functions)),
        "calls": plain(named(one.tree, functions)),
    }


def _sentence(table: pd.DataFrame) -> str | None:
    """What the slowest requests of the endpoint with the most time did more than all; None where these are few, or do nothing more than others."""
    if not len(table) or table["requests"][0] < _ENOUGH:
        return None
    row = table.iloc[0]
    parts = [key for key in _DOING if text.known(row[key]) and text.known(row[f"slow_{key}"])]
    whole, slow_whole = row["run_ns"] + row["awaited_ns"], row["slow_run_ns"] + row["slow_awaited_ns"]
    more = {key: row[f"slow_{key}"] / slow_whole - row[key] / whole for key in parts}
    most = max(more, key=lambda key: more[key], default="")
    if not most or more[most] < _MORE:
        return None
    slow, all_ = text.percent(row[f"slow_{most}"], slow_whole), text.percent(row[most], whole)
    over = text.duration(row["p95_ns"])
    return f"Requests of `{text.clean(row['qualname'])}` that took {over} or longer spent {slow} of their time {_DOING[most]}; all of them {all_}."


def report(facts: dict[str, Any], table: pd.DataFrame, width: int, ascii_only: bool, top: int) -> list[RenderableType]:
    """One line per row of `table` (see found), then the slowest requests."""
    if not len(table):
        return [
            Text("No request was found."),
            *map(Text, map(text.clean, facts["unmet"])),
            Text("--request PATTERN names the functions that answer them, such as orders:handle_*."),
        ]
    states = states_of(facts)
    bar_width, count_width = (6, 6) if width < NARROW else (10, 8)
    columns = [(6, "p50"), (6, "p95"), (6, "p99"), (6, "max")]
    asynchronous = bool((table["awaited_ns"] > 0).any())
    splits = [*titles(states), *([(7, "awaited")] if asynchronous else [])]
    may_go = ["p99", "p95", *(title for _, title in titles(states)[1:-1]), "awaited"]
    out = Listing(width, [(bar_width, ""), (count_width, "count"), *columns, *splits], ["request"], may_go)
    longest = int(table["run_ns"].max())
    for row in table.head(top).to_dict("records"):
        times = [text.duration(row[f"{name}_ns"]) for _, name in columns]
        awaited = [text.duration(row["awaited_ns"])] if asynchronous else []
        bar = text.bar(row, bar_width, ascii_only, longest=longest, states=states)
        out.add(
            [bar, text.count(row["requests"], count_width), *times, *figures(row, "", states), *awaited],
            partial(text.function, row["qualname"], row["file"], row["first_line"]),
        )
    note = f"{min(top, len(table)):,} of {len(table):,}; bar and split are of all of a row's requests"
    lines: list[RenderableType] = [text.title("Requests by total time", note, width), out]
    for request in facts["slowest"]:
        lines += _request(request, width, ascii_only, states)
    return lines


def _request(request: dict[str, Any], width: int, ascii_only: bool, states: text.States) -> list[RenderableType]:
    """Why one was slow: its bar, what it waited for, and its calls that took some time."""
    whole = request["wall_ns"]
    of_trace = f", trace {text.clean(request['trace_id'])}" if text.known(request["trace_id"]) else ""
    title = f"{text.duration(whole)} in {text.clean(request['qualname'])}, request {request['request_id']}{of_trace}, {text.duration(request['after_ns'])} into the recording"
    lines: list[RenderableType] = [Text(), *(Text(line, "bold") for line in wrapped(title, width))]
    lines += [Text(line) for sentence in _why(request) for line in wrapped(sentence, width)]
    shown = _worth_showing(request["calls"], whole, request["func_id"])
    out = Listing(width, [(6, "total"), (6, "self"), *titles(states), (6, "calls")], ["call"], [title for _, title in reversed(titles(states))])
    rows = with_off(pd.DataFrame(shown).assign(unknown_ns=0, self_unknown_ns=0)) if shown and states is text.TWO_STATES else pd.DataFrame(shown)
    for row in rows.to_dict("records"):
        name = partial(_indented, row)
        out.add([text.duration(row["total_ns"]), text.duration(row["self_ns"]), *figures(row, "", states), text.count(row["calls"], 6)], name)
    return [*lines, out] if shown else lines


def wrapped(sentence: str, width: int) -> list[str]:
    """Its lines."""
    return textwrap.wrap(sentence, min(width, PROSE), break_on_hyphens=False)


def _indented(row: dict[str, Any], width: int) -> Text:
    indent = min(row["indent"], width // 2)
    return Text(" " * indent) + text.function(row["qualname"], row["file"], row["first_line"], max(1, width - indent))


def _why(request: dict[str, Any]) -> list[str]:
    """What it waited for longest."""
    whole, said = request["wall_ns"], []
    parts = [f"{text.percent(request[key], whole)} {doing}" for key, doing in _DOING.items() if text.known(request[key]) and request[key] > 0]
    if parts:
        said.append(", ".join(parts) + ".")
    awaited = request["awaited"]
    culprit = next((row for row in request["held"] if row["ns"] >= _WORTH * whole), None)
    if culprit:
        how = "computing" if culprit["on_cpu_ns"] >= _MOSTLY * culprit["ns"] else "blocked"
        held = f"`{text.clean(culprit['qualname'])}` ({text.clean(PurePath(culprit['file']).name)}:{culprit['first_line']}) held the event loop"
        said.append(f"Suspended {text.duration(request['awaited_ns'])}: {held} for {text.duration(culprit['ns'])} of that, {how}.")
    if awaited["ns"] >= _WORTH * whole and (not culprit or culprit["ns"] < _MOSTLY * awaited["ns"]):
        through = " > ".join(f"`{text.clean(name)}`" for name in awaited["qualnames"])
        said.append(f"Suspended {text.duration(awaited['ns'])} in {through}, which it awaited.")
    for wait in request["waits"][:2]:
        if wait["ns"] >= _WORTH * whole:
            known = (
                f"for {text.clean(wait['resource'])} ({wait['syscall']})"
                if text.known(wait["resource"])
                else f"in {wait['syscall'] or '?'} ({wait['kind']})"
            )
            doing = _WAITING.get(wait["kind"]) or f"waiting {known}"
            said.append(f"`{text.clean(wait['qualname'])}` spent {text.duration(wait['ns'])} {doing}.")
    for row in request["asked"][:2]:
        if row["total_ns"] >= _WORTH * whole and text.known(row["statement"]):
            statement = text.fit(text.clean(row["statement"]), _STATEMENT)
            said.append(f"`{statement}` of {whom(row)} took {text.duration(row['total_ns'])} in {plural(row['count'], 'call')}.")
    return said


def _worth_showing(calls: list[dict[str, Any]], whole: int, endpoint: int) -> list[dict[str, Any]]:
    """Of a tree the calls that took some time, without those but of `endpoint` that did nothing themselves but call one other; with `indent`."""
    least = sorted((row["total_ns"] for row in calls), reverse=True)[: 8 * _MOST_LINES][-1] if calls else 0
    least = max(least, _LITTLE * whole)
    below: dict[int, list[dict[str, Any]]] = {}
    for row in calls:
        if row["total_ns"] >= least:
            below.setdefault(row["parent_id"], []).append(row)
    out: list[dict[str, Any]] = []
    stack = [(row, 0) for row in reversed(below.get(-1, []))]
    while stack and len(out) < _MOST_LINES:
        row, indent = stack.pop()
        children = sorted(below.get(row["node_id"], []), key=lambda child: child["total_ns"])
        shown = not indent or len(children) != 1 or row["self_ns"] >= _LITTLE * whole or row["func_id"] == endpoint
        if shown:
            out.append({**row, "indent": indent})
        stack += [(child, indent + shown) for child in children]
    return out
