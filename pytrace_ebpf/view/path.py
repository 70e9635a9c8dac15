"""`report --by path` as a terminal shows it: the chain of work and waits that determined how long requests, calls or the whole run took."""

from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from rich.console import RenderableType
from rich.text import Text

from pytrace_ebpf.analyze.critical_path import asked
from pytrace_ebpf.analyze.critical_path.path import path, with_all_threads
from pytrace_ebpf.analyze.critical_path.rows import AWAIT, ON_CPU, RUN_QUEUE, UNKNOWN, sequence, summed
from pytrace_ebpf.analyze.requests.one_request import of_id
from pytrace_ebpf.trace.states import BY_NAME
from pytrace_ebpf.units import plural
from pytrace_ebpf.view import text, what_if
from pytrace_ebpf.view.grid import Listing
from pytrace_ebpf.view.names import named, plain
from pytrace_ebpf.view.requests import of_these
from pytrace_ebpf.view.sentence import WAITING
from pytrace_ebpf.view.states import unrecorded

_LITTLE = 0.005  # of one path: shorter pieces of it are shown together
_MOST_LINES = 40  # of one path
_SAME = ["pid", "tid", "does", "syscall", "what", "through", "own_func_id", "of_func_id"]
_DOING = {
    **WAITING,
    ON_CPU: BY_NAME[ON_CPU].phrase,
    RUN_QUEUE: BY_NAME[RUN_QUEUE].phrase,
    "gil": BY_NAME["gil_wait"].phrase,
    AWAIT: "suspended",
    UNKNOWN: "not known",
}


def before(trace: Any) -> None:
    """Derive the waits and the calls."""
    trace.whole.derive("waits", "calls")


def found(trace: Any, _calls: pd.DataFrame, facts: dict[str, Any]) -> tuple[pd.DataFrame, dict[str, Any]]:
    """analyze.critical_path's sums with the names of their functions; `path`: of what, of how many and of how long together; `longest`: the paths of the longest ones."""
    functions = trace.functions()
    known = facts["scheduling"]["source"] == "bpf"
    what, items = asked_for(trace, facts) if known else ("run", asked.of_run(trace))
    items = items if known else items.head(0)
    trace = with_all_threads(trace)
    of = path(trace, items) if known else None
    table = summed(trace, of) if of else pd.DataFrame(columns=["kind", "own_func_id", "func_id", "ns"]).astype({"own_func_id": int, "func_id": int})
    length = (items["end_ns"] - items["start_ns"]).astype(np.int64)
    longest = (
        []
        if what == "run"
        else [
            one_path(trace, items.loc[[at]], functions)
            for at in length.sort_values(ascending=False, kind="stable").index[: facts.get("slowest") or 0]
        ]
    )
    more = {"path": {"of": what, "count": len(items), "ns": int(length.sum())}, "longest": longest, "sentence": None}
    asks = facts.get("what_if") if known else None
    more["what_if"] = what_if.found(trace, asks, items) if asks else None
    return named(named(table, functions), functions, "own_"), more


def asked_for(trace: Any, facts: dict[str, Any]) -> tuple[str, pd.DataFrame]:
    """What a path is asked of: requests, calls, or the run; and the items (analyze.critical_path.asked) of that."""
    if facts.get("functions"):
        return "calls", asked.of_calls(trace, facts["functions"])
    patterns = facts.get("requests") or []
    requests = of_these(trace.requests(patterns=patterns), trace.functions(), patterns)
    if facts.get("request_id"):
        requests = of_id(requests, facts["request_id"])
    items = asked.of_requests(requests)
    return ("requests", items) if len(items) or patterns else ("run", asked.of_run(trace))


def one_path(trace: Any, item: pd.DataFrame, functions: pd.DataFrame) -> dict[str, Any]:
    """The path of one item: what it is, and its pieces, those that follow each other in one function of own code on one thread as one, time in the run queue included."""
    rows = sequence(trace, path(trace, item.reset_index(drop=True)))
    queued = rows["kind"] == RUN_QUEUE
    rows["of_func_id"] = np.where(rows["own_func_id"] >= 0, -1, rows["func_id"])
    rows["does"], rows["what"] = rows["kind"].mask(queued, ON_CPU), rows["resource"].mask(queued, None)
    rows["queued_ns"] = (rows["end_ns"] - rows["start_ns"]).where(queued, 0)
    same = rows[_SAME].astype(object).where(rows[_SAME].notna(), None)
    again = (same == same.shift()) | (same.isna() & same.shift().isna())
    group = (~again.all(axis=1)).cumsum()
    first = ["pid", "tid", "does", "syscall", "what", "through", "own_func_id", "own_line", "func_id", "through_func_id", "start_ns"]
    merged = rows.groupby(group).agg({**dict.fromkeys(first, _first), "func_id": _only, "end_ns": "last", "queued_ns": "sum"})
    merged = merged.rename(columns={"does": "kind", "what": "resource"}).astype(
        dict.fromkeys(("pid", "tid", "own_func_id", "func_id", "through_func_id"), "int64")
    )
    threads = trace.whole.threads().drop_duplicates(["pid", "tid"], keep="last")[["pid", "tid", "name"]]
    pieces = merged.merge(threads.rename(columns={"name": "thread"}), how="left", on=["pid", "tid"])
    pieces = pieces.assign(ns=pieces["end_ns"] - pieces["start_ns"], after_ns=pieces["start_ns"] - int(item["start_ns"].iloc[0]))
    pieces = named(named(named(pieces, functions), functions, "own_"), functions, "through_")
    about = plain(named(item, functions))[0]
    return {
        **about,
        "ns": int(about["end_ns"] - about["start_ns"]),
        "after_ns": int(about["start_ns"]) - trace.whole.start_ns,
        "pieces": plain(pieces),
    }


def _first(values: "pd.Series[Any]") -> Any:
    return values.iloc[0]  # "first" of pandas passes over null


def _only(values: "pd.Series[Any]") -> Any:
    return values.iloc[0] if (values == values.iloc[0]).all() else -1


def report(facts: dict[str, Any], table: pd.DataFrame, width: int, ascii_only: bool, top: int) -> list[RenderableType]:
    """One line per row of `table` (see found), then the paths of the longest ones."""
    of = facts["path"]
    if facts["scheduling"]["source"] != "bpf":
        return [Text(f"What determined how long it took is not known without {unrecorded(facts)}.")]
    if not of["count"]:
        return [Text(f"There are no {of['of']} here; --request PATTERN and --function PATTERN name some.")]
    what = "the whole run, main thread" if of["of"] == "run" else plural(of["count"], of["of"][:-1])
    heading = f"What determined the {text.duration(of['ns'])} of {what}"
    shown = Listing(width, [(6, "share"), (6, "time")], ["what", "in", "through"])
    for row in table.head(top).to_dict("records"):
        figures = [text.percent(row["ns"], of["ns"]), text.duration(row["ns"])]
        shown.add(figures, partial(_what, row), partial(_where, row), partial(_through, row))
    note = f"{min(top, len(table)):,} of {len(table):,}; through: whose wait it stands for"
    lines: list[RenderableType] = [*what_if.lines(facts["what_if"], of, width)] if facts["what_if"] else []
    lines += [text.title(heading, note, width), shown]
    for one in facts["longest"]:
        lines += _sequence(one, width)
    return lines


def _what(row: dict[str, Any], width: int) -> str:
    if row["kind"] == RUN_QUEUE and text.known(row["resource"]):
        return text.fit(f"{_DOING[RUN_QUEUE]}: {text.clean(row['resource'])}", width)
    if text.known(row["resource"]):
        return text.cut_left(text.clean(row["resource"]), width - 1)
    doing = _DOING.get(row["kind"]) or f"waiting in {row['syscall']}"
    inner = text.clean(row["qualname"]) if row["func_id"] != row["own_func_id"] >= 0 and text.known(row["qualname"]) else ""
    return text.fit(f"{doing}, {inner}" if inner else doing, width)


def _where(row: dict[str, Any], width: int) -> Text:
    if row["own_func_id"] >= 0:
        line = row["own_line"] if row["own_line"] > 0 else row["own_first_line"]
        return text.function(row["own_qualname"], row["own_file"], line, width)
    if row["func_id"] < 0:
        return Text(text.fit("(no Python call)", width), "dim")
    return text.function(row["qualname"], row["file"], row["first_line"], width)


def _through(row: dict[str, Any], width: int) -> str:
    if not text.known(row["through"]):
        return ""
    by = row.get("through_qualname")
    return text.fit(f"{row['through']}, {text.clean(by)}" if text.known(by) else row["through"], width)


def _whose(row: dict[str, Any], pid: int, width: int) -> str:
    """The thread, which process it is of where that is another than `pid`, and through what the path came there."""
    whose = text.thread(row["thread"] or str(row["tid"]), row["pid"] if row["pid"] != pid else None, width)
    through = _through(row, width)
    return text.fit(f"{whose}, {through}" if through else whose, width)


def _sequence(one: dict[str, Any], width: int) -> list[RenderableType]:
    """One path below its title."""
    number = f", request {one['request_id']}" if text.known(one["request_id"]) else ""
    title = f"{text.duration(one['ns'])} in {text.clean(one['qualname'])}{number}, {text.duration(one['after_ns'])} into the recording"
    return [Text(), Text(title, "bold"), sequence_of(one, width)]


def sequence_of(one: dict[str, Any], width: int) -> Listing:
    """One path (of one_path), piece by piece; short ones in a row together."""
    out = Listing(width, [(6, "after"), (6, "time"), (6, "run q.")], ["what", "in", "thread, through"], may_go=("run q.",))
    least = max(_LITTLE * one["ns"], *sorted((row["ns"] for row in one["pieces"]), reverse=True)[_MOST_LINES - 1 : _MOST_LINES], 0)
    small: list[dict[str, Any]] = []

    def together() -> None:
        if small:
            ns, queued = (sum(row[name] for row in small) for name in ("ns", "queued_ns"))
            said = plural(len(small), "short piece")
            out.add(
                [text.duration(small[0]["after_ns"]), text.duration(ns), text.duration(queued)],
                partial(text.fit, said),
                *[lambda _width: ""] * 2,
                style="dim",
            )
            small.clear()

    for row in one["pieces"]:
        if row["ns"] < least:
            small.append(row)
            continue
        together()
        figures = [text.duration(row[name]) for name in ("after_ns", "ns", "queued_ns")]
        out.add(figures, partial(_what, row), partial(_where, row), partial(_whose, row, one["pid"]))
    together()
    return out
