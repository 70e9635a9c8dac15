"""The report by function or module as a terminal shows it, and what a person would say of the function with the most self time."""

from collections.abc import Mapping
from functools import cache, partial
from typing import Any

import pandas as pd
from rich.console import RenderableType
from rich.text import Text

from pytrace_ebpf.analyze.functions.by_call_site import by_call_site, hottest
from pytrace_ebpf.analyze.functions.by_function import of_tree
from pytrace_ebpf.analyze.functions.collapsed import MODULE_OF_IMPORTS, imports_as_one, into_own_code, within
from pytrace_ebpf.analyze.functions.left_out import callers
from pytrace_ebpf.analyze.functions.own_code import NONE, by_own_code, own_callers
from pytrace_ebpf.analyze.waits.locks import most_contended
from pytrace_ebpf.analyze.waits.reasons import Part, reasons
from pytrace_ebpf.analyze.waits.resources import for_work
from pytrace_ebpf.derive.calls.entry_points import kinds
from pytrace_ebpf.derive.calls.primitives import LIBRARY, among, main_wait
from pytrace_ebpf.trace.libraries import in_library
from pytrace_ebpf.trace.schema import CALLER
from pytrace_ebpf.view import findings, text, waits
from pytrace_ebpf.view.grid import NARROW, Listing
from pytrace_ebpf.view.only import only
from pytrace_ebpf.view.sentence import called_below, called_to_wait, contended_lock, most_time, top_function, waits_for_work
from pytrace_ebpf.view.states import figures, states_of, titles

_WIDE = 150  # cells, with which there is room for where functions were called from
_PASSED_OVER = 10  # functions in which threads wait for work
_MOSTLY = 0.5
_EVENTS = 50_000_000  # of a trace with more, no waits are derived for the sake of one sentence


def found(trace: Any, tree: pd.DataFrame, facts: dict[str, Any]) -> tuple[pd.DataFrame, dict[str, Any]]:
    """analyze.functions.by_function's rows by `facts["by"]`, sorted by `facts["sort"]`; and the sentence."""
    table, more = _sampled(trace, facts) if facts.get("sampled") else _called(trace, tree, facts)
    if facts.get("sampled") and (chosen := only(facts.get("only"), facts["by"])):
        table = chosen.rows(trace, table)
    if facts["by"] == "function" and not more.get("sentence"):
        more["sentence"] = most_time(table) or None
    return table.sort_values(f"{facts['sort']}_ns", ascending=False, kind="stable", ignore_index=True), more


def _sampled(trace: Any, facts: dict[str, Any]) -> tuple[pd.DataFrame, dict[str, Any]]:
    from pytrace_ebpf.view import sampled  # what reads samples is not needed for calls

    table, more = sampled.found(trace, facts)
    return table, more | ({"findings": findings.found(trace)} if facts["by"] == "function" else {})


def _called(trace: Any, tree: pd.DataFrame, facts: dict[str, Any]) -> tuple[pd.DataFrame, dict[str, Any]]:
    whole = of_tree(tree, trace.functions(), facts["by"])
    table = _shown(trace, tree, whole, facts)
    if facts["by"] == "function" and trace.manifest.get("entry_line") == CALLER and trace.manifest["sources"]:
        table = table.join(hottest(by_call_site(trace.call_sites(), trace.functions())), on="func_id")
    alone = [row for row in facts.get("left_out", ()) if row["qualname"] is not None]
    if alone and facts["by"] == "function":
        out = pd.DataFrame(alone)
        table["left_out_ns"] = table["func_id"].map(out.set_index("func_id")["left_out_ns"]).fillna(0).astype("int64")
        table["has_left_out"] = table["func_id"].isin(callers(tree, out["func_id"])).astype("int64")
    if facts["by"] == "module":
        return table, {}
    more: dict[str, Any] = {"sentence": sentence(trace, whole, tree), "findings": findings.found(trace) if few(trace) else []}
    if trace.manifest.get("sampling"):  # beside calls
        from pytrace_ebpf.view import sampled

        more["native_below"] = sampled.found_below(trace)
    return table, more


def _shown(trace: Any, tree: pd.DataFrame, whole: pd.DataFrame, facts: dict[str, Any]) -> pd.DataFrame:
    """The rows of all of the `tree`, `whole`, or those that were asked for; imports as one row where they were not."""
    chosen = only(facts.get("only"), facts["by"])
    functions, of_some = trace.functions(), chosen and chosen.kind in ("function", "module", "task")
    if chosen and chosen.kind == "own":
        rows = into_own_code(tree, functions)
    elif of_some or facts.get("imports"):
        rows = tree
    else:
        rows, functions = imports_as_one(tree, functions)
    if chosen and of_some:
        ids = chosen.func_ids(functions)
        rows = rows[within(rows, ids) if chosen.kind == "task" else rows["func_id"].isin(ids)]
    return whole if rows is tree else of_tree(rows, functions, facts["by"])


def before(trace: Any) -> None:
    """Derive the waits where the sentence needs them."""
    if trace.scheduling["source"] == "bpf" and few(trace):
        waits.before(trace)
        if len(kinds(trace.functions())):
            trace.whole.derive("requests")


def few(trace: Any) -> bool:
    """Whether a trace has so few events that its waits are derived for the sake of what a report opens with."""
    return sum(segment["rows"].get("events", 0) for segment in trace.whole.segments) <= _EVENTS


def sentence(trace: Any, table: pd.DataFrame, tree: pd.DataFrame) -> str | None:
    """What a person would say of a lock that is waited for, and of the function with the most self time; None where that is not much, or not known.

    Of a library's function it says which of the program's own code called it. One that mostly waits where no own code called it, or in an event loop,
    waits for work, and so does one that mostly waits for clients to connect or to send something: these are passed over, and said to be where that is much.
    """
    if trace.scheduling["source"] != "bpf" or not len(table):
        return None
    functions = trace.functions()
    names = functions.set_index("func_id")["qualname"]
    named = few(trace)
    top, below, all_ns = _top(table, tree, functions, for_work(trace) if named else {})
    if top["func_id"] not in names:
        return None
    lock = most_contended(trace, functions) if named else None
    said = contended_lock(lock, table, functions) if lock else ""
    if said and lock and lock["func_id"] == top["func_id"]:
        return said

    @cache
    def why() -> dict[str, list[Part]]:
        """Of very many calls nobody is named."""
        return reasons(trace, top["func_id"]) if named else {"gil": [], "blocked": [], "runq": []}

    rest = top_function(top, all_ns, why, names)
    if rest and below is not None:
        called = functions.set_index("func_id").loc[below["own_func_id"]]
        rest = called_below(called, below | {"func_id": top["func_id"]}, all_ns, why, names) or rest
    wait = main_wait(trace, top["func_id"]) if rest and named and among(functions, LIBRARY)[top["func_id"]] else None
    answer = " ".join(filter(None, (said, (wait and called_to_wait(wait, table, functions)) or rest)))
    return " ".join(filter(None, (answer, waits_for_work(1 - all_ns / table["self_ns"].sum())))) if answer else None


def _top(
    table: pd.DataFrame, tree: pd.DataFrame, functions: pd.DataFrame, work: "Mapping[int, int] | pd.Series[int]"
) -> tuple[dict[str, Any], dict[str, Any] | None, int]:
    """The row of `table` to be spoken of; what of it lies below the one function of own code that it mostly does, None of own code, and where there is none;
    and the time of all functions but those that are passed over. `work`: for how long each function waited for clients."""
    files = functions.set_index("func_id")["file"]
    rows, all_ns = table.sort_values("self_ns", ascending=False, kind="stable"), int(table["self_ns"].sum())
    left_ns, callers = all_ns, None
    for row in rows.head(_PASSED_OVER).to_dict("records"):
        if work.get(row["func_id"], 0) >= _MOSTLY * row["self_ns"] > 0:
            left_ns -= int(row["self_ns"])
            continue
        if row["func_id"] not in files or not in_library(str(files[row["func_id"]])):
            return row, None, left_ns
        callers = own_callers(tree, functions) if callers is None else callers
        most = by_own_code(tree, callers, int(row["func_id"])).iloc[0].to_dict()
        if most["own_func_id"] != NONE:
            return row, most if most["self_ns"] >= _MOSTLY * row["self_ns"] else None, left_ns
        waits_ns = most["self_blocked_ns"] if text.known(most["self_blocked_ns"]) else 0
        if waits_ns < _MOSTLY * row["self_ns"]:
            return row, None, left_ns
        left_ns -= int(row["self_ns"])
    return rows.iloc[0].to_dict(), None, all_ns


def _name(row: dict[str, Any], facts: dict[str, Any]) -> str:
    """With a mark where the calls of others that were left out are in its own time, and how long it was left out itself."""
    star = " *" if row.get("has_left_out") else ""
    return f"{row['qualname']}{star}" + (f" (left out {text.percent(row['left_out_ns'], facts['wall_ns'])})" if row.get("left_out_ns") else "")


def _hottest(row: dict[str, Any], width: int) -> Text | str:
    """The line that most of a function's self time was called from."""
    return text.function(row["caller_qualname"], row["caller_file"], row["call_line"], width) if text.known(row["call_line"]) else ""


def report(facts: dict[str, Any], table: pd.DataFrame, width: int, ascii_only: bool, top: int) -> list[RenderableType]:
    """One line per row of `table` (see found)."""
    if facts.get("sampled"):
        from pytrace_ebpf.view import sampled

        return sampled.functions(facts, table, width, ascii_only, top)
    states = states_of(facts)
    by_self, module = facts["sort"] == "self", facts["by"] == "module"
    prefix = "self_" if by_self else ""
    count_width, bar_width = (6, 8) if width < NARROW else (9, 10)
    fixed = [(bar_width, ""), (count_width, "calls"), (6, "total"), (6, "self"), *titles(states)]
    from_where = "call_line" in table and width >= _WIDE
    out = Listing(width, fixed, [facts["by"], *(["called most from"] if from_where else [])])
    longest = int(table[f"{facts['sort']}_ns"].max()) if len(table) else 0
    for row in table.head(top).to_dict("records"):
        what = (
            partial(text.cut_left, text.clean(row["module"])) if module else partial(text.function, _name(row, facts), row["file"], row["first_line"])
        )
        out.add(
            [
                text.bar(row, bar_width, ascii_only, prefix, longest, states),
                text.count(row["calls"], count_width),
                text.duration(row["total_ns"]),
                text.duration(row["self_ns"]),
                *figures(row, prefix, states),
            ],
            what,
            *([partial(_hottest, row)] if from_where else []),
        )
    asked = f"; only {text.clean(facts['only'])}" if facts.get("only") else ""
    shown = f"{min(top, len(table)):,} of {len(table):,}{asked}; bar and split are of {facts['sort']} time"
    shown += "; --imports shows what they call" if table["module"].eq(MODULE_OF_IMPORTS).any() and not facts.get("imports") else ""
    title = text.title(f"{facts['by'].capitalize()}s by {facts['sort']} time", shown, width)
    if not facts.get("native_below"):
        return [title, out]
    from pytrace_ebpf.view import sampled

    return [title, out, *sampled.below_lines(facts, width, top)]
