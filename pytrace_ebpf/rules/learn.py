"""Rules from a trace of a program that was right, for a person to cut down: who calls a module, how long functions take, how often a request asks."""

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from pytrace_ebpf.derive.calls.own_code import own
from pytrace_ebpf.formatting import clean, duration
from pytrace_ebpf.rules.check import VIOLATED, check
from pytrace_ebpf.rules.file import shipped_names
from pytrace_ebpf.rules.functions import Functions
from pytrace_ebpf.rules.grammar import parsed
from pytrace_ebpf.rules.rule import Rule
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.units import plural

_MOST_MODULES, _MOST_CALLERS, _MOST_FUNCTIONS = 50, 8, 20
_ROOM = 2  # times as long as the longest: the next run is not the same
_LEAST_NS = 1_000_000
_SHORT_NS, _MANY = 100_000, 100  # of functions that are called less often, and never longer, there is nothing to be learned
_WAITS_ABOVE_MS = 1
_ROUND = (1, 2, 5)
_PLAIN = re.compile(r"[\w.]+(?:\.<locals>\.[\w.]+)*")

Ints = npt.NDArray[np.int64]


class _Learned(NamedTuple):
    rule: Rule
    said: str  # what it was learned from


def learned(trace: Trace) -> str:
    """A file of rules that hold of the trace, or of which it cannot be known, each with what it was learned from."""
    functions = Functions(trace)
    rules = [*_callers(trace, functions), *_measured(trace, functions)]
    verdicts = check(trace, [each.rule for each in rules]).verdicts if rules else []  # a name may be of more than was meant
    kept = [each for each, verdict in zip(rules, verdicts, strict=True) if verdict.state != VIOLATED]
    command = clean((trace.manifest.get("target") or {}).get("command") or "?").replace("\n", " ")
    lines = [
        f"# Learned from {clean(str(trace.directory))}: {command}",
        "# Keep what has to be so, and delete what only happened to be.",
        "",
        "[rules]",
    ]
    times = Counter[str]()
    for each in kept:
        times[each.rule.name] += 1
        name = each.rule.name + (f"-{times[each.rule.name]}" if times[each.rule.name] > 1 else "")
        lines += [f"# {each.said}", f'{name} = "{each.rule.text}"']
    return "\n".join(lines) + "\n"


def _rule(kind: str, of: str, text: str) -> Rule:
    return parsed(f"{re.sub(r'[^A-Za-z0-9_]+', '-', of).strip('-')}-{kind}", text, {})


def _callers(trace: Trace, functions: Functions) -> Iterator[_Learned]:
    """Of each module of the program's own which modules call it."""
    tree = trace.tree(["parent_id", "func_id", "calls"])
    function, parent = (tree[name].to_numpy(np.int64) for name in ("func_id", "parent_id"))
    up = parent.copy()
    while (passed := (up >= 0) & (function[up] >= 0) & ~functions.in_python[function[up]]).any():
        up[passed] = parent[up[passed]]
    modules = functions.table.set_index("func_id")["module"].astype(str)
    owned = functions.table["func_id"].to_numpy()[own(functions.table)]
    caller = np.where((up >= 0), function[up], -1)
    edges = pd.DataFrame({"module": function, "by": caller, "calls": tree["calls"].to_numpy(np.int64)})[np.isin(function, owned)]
    edges = edges.assign(module=edges["module"].map(modules), by=edges["by"].map(modules).fillna(""))
    sums = edges.groupby(["module", "by"], as_index=False)["calls"].sum().sort_values("calls", ascending=False, kind="stable")
    for module in list(dict.fromkeys(sums["module"]))[:_MOST_MODULES]:
        by = sums[(sums["module"] == module) & (sums["by"] != module)]
        names = by["by"].tolist()
        if 0 < len(names) <= _MOST_CALLERS and all(map(_PLAIN.fullmatch, [module, *names])):
            told = ", ".join(f"{name} ({count:,})" for name, count in zip(names, by["calls"].tolist(), strict=True))
            yield _Learned(_rule("only-from", module, f"{_quoted(module)} only from {' or '.join(map(_quoted, names))}"), f"called by {told}")


def _measured(trace: Trace, functions: Functions) -> Iterator[_Learned]:
    """How long functions of the program's own take, how often requests call what asks databases, how long coroutines wait, and which modules raise nothing."""
    timed = {f"{name} takes at most 0ns": name for name in _slowest(trace, functions)}
    asked = {f"at most 0 {_quoted(name)} in one request": name for name in shipped_names("query") if functions.fitting((name,)).any()}
    waits = {f"no wait above {_WAITS_ABOVE_MS}ms in a coroutine": "coroutines"} if functions.coroutines.any() else {}
    tried = [_rule("tried", text, text) for text in (*timed, *asked, *waits)]
    checked = check(trace, tried)
    for rule, verdict in zip(tried, checked.verdicts, strict=True):
        rows: Any = checked.violations[checked.violations["rule"] == rule.name]
        if not len(rows):
            continue
        most, count = int(rows["value"].max()), int(rows["count"].sum())
        if name := timed.get(rule.text):
            if most < _SHORT_NS and verdict.calls < _MANY:
                continue
            yield _Learned(
                _rule("time", name, f"{name} takes at most {_above(most)}"), f"{plural(verdict.calls, 'call')}, the longest {duration(most)}"
            )
        elif name := asked.get(rule.text):
            yield _Learned(
                _rule("in-one-request", name, f"at most {most} {_quoted(name)} in one request"),
                f"{plural(count, 'request')} with some, the most {most:,}",
            )
        else:
            yield _Learned(
                _rule("wait", "coroutines", f"no wait above {_above(most)} in a coroutine"), f"{plural(count, 'wait')}, the longest {duration(most)}"
            )


def _slowest(trace: Trace, functions: Functions) -> list[str]:
    """The functions of the program's own with the most time, quoted."""
    tree = trace.tree(["func_id", "outermost", "total_ns"])
    total = tree[tree["outermost"].astype(bool)].groupby("func_id")["total_ns"].sum().sort_values(ascending=False, kind="stable")
    rows = functions.table[own(functions.table)].set_index("func_id")
    names = [f"{rows.at[func_id, 'module']}.{rows.at[func_id, 'qualname']}" for func_id in total.index if func_id in rows.index]
    return [_quoted(name) for name in dict.fromkeys(names) if _PLAIN.fullmatch(name)][:_MOST_FUNCTIONS]


def _quoted(name: str) -> str:
    return f"'{name}'"


def _above(ns: int) -> str:
    """A round time with room above `ns`."""
    wanted, unit = max(ns * _ROOM, _LEAST_NS), _LEAST_NS
    while True:
        for step in _ROUND:
            if step * unit >= wanted:
                return f"{step * unit // 1_000_000}ms"
        unit *= 10
