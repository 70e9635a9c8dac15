"""Which findings of a report are new in the second side, gone from it, or of another size."""

import re
import textwrap
from typing import Any

import numpy as np
import pandas as pd
from rich.text import Text

from pytrace_ebpf.analyze.findings.findings import IDLE, findings
from pytrace_ebpf.diff.changes import ERRORS
from pytrace_ebpf.diff.sides import Run, Side
from pytrace_ebpf.view import text
from pytrace_ebpf.view.functions import few

COLUMNS = ["state", "change_ns", "before_ns", "after_ns", "clear", "rule", "function", "file", "line", "resource", "sentence", "command"]
NEW, GONE, CHANGED = "new", "gone", "changed"
_KEY = ["rule", "function", "resource"]
_SAID = ["file", "line", "sentence", "command"]
_LEAST = 0.02  # of the time at work
_NEARLY_NONE = 0.1  # of the other side's
_SHOWN = 5
_EPHEMERAL = re.compile(r":(?:3[3-9]|[4-6]\d)\d{3}$")  # the port of one run


def changed(before: Side, after: Side) -> pd.DataFrame:
    """At most five findings whose time changed by 2 % of the time at work or more, the greatest change first.

    state: NEW, GONE (one side has less than a tenth of the other's) or CHANGED; before_ns and after_ns, means over the runs, of a run or a second of it, and
    change_ns; clear (boolean), as in changes.changes; rule, function, file, line, resource, sentence and command of the side that has more of it.
    A finding is the same where rule, function and resource are, but for a port that is another one in each run.
    """
    sides = [[_of_run(run) for run in side.runs] for side in (before, after)]
    known = [table for runs in sides for table in runs if len(table)]
    if not known:
        return pd.DataFrame(columns=COLUMNS)
    keys = pd.concat([table[_KEY] for table in known]).drop_duplicates()
    means, low, high, variance = [], [], [], np.zeros(len(keys))
    for runs in sides:
        each = [keys.merge(table, how="left", on=_KEY)[["ns", "error_ns"]].fillna(0.0).to_numpy(np.float64) for table in runs]
        ns = np.stack([rows[:, 0] for rows in each])
        means.append(ns.mean(axis=0))
        low.append(ns.min(axis=0))
        high.append(ns.max(axis=0))
        variance += sum((rows[:, 1] ** 2 for rows in each), start=np.zeros(len(keys))) / len(each) ** 2
    out = keys.assign(before_ns=means[0], after_ns=means[1], change_ns=means[1] - means[0])
    smaller, larger = out[["before_ns", "after_ns"]].min(axis=1), out[["before_ns", "after_ns"]].max(axis=1)
    out["state"] = np.where(smaller >= _NEARLY_NONE * larger, CHANGED, np.where(out["change_ns"] > 0, NEW, GONE))
    apart = (low[1] > high[0]) | (low[0] > high[1])
    within = out["change_ns"].abs().to_numpy() <= ERRORS * np.sqrt(variance)
    alone = min(len(before.runs), len(after.runs)) < 2
    out["clear"] = pd.Series(apart, out.index, dtype="boolean").mask(alone & ~within).mask(within & (variance > 0), False)
    most = pd.concat(known).sort_values("ns", ascending=False, kind="stable").drop_duplicates(_KEY)
    out = out.merge(most[[*_KEY, *_SAID]], on=_KEY)
    at_work = max(float(np.mean([table["of_ns"].max() if len(table) else 0.0 for table in runs])) for runs in sides)
    out = out[out["change_ns"].abs() >= _LEAST * at_work]
    out["resource"] = out["resource"].where(out["resource"] != "", None)
    return out.sort_values("change_ns", key=abs, ascending=False, kind="stable").head(_SHOWN).reset_index(drop=True)[COLUMNS]


def lines(table: pd.DataFrame, per: str, width: int) -> list[Text]:
    """changed() in lines of at most `width` cells, numbered; `per`: "run" or "second"."""
    if not len(table):
        return []
    out = [Text(f"Findings that changed most, in a {per}:")]
    for number, row in enumerate(table.to_dict("records"), 1):
        begin = f"{number}. "
        said = f"{begin}{_how(row)}{', which may be chance' if text.known(row['clear']) and not row['clear'] else ''}: {row['sentence']}"
        wrapped = textwrap.wrap(said, width, subsequent_indent=" " * len(begin), break_on_hyphens=False)
        out += [Text(line, "dim" if row["state"] == GONE else "bold") for line in wrapped]
    return [*out, Text()]


def _how(row: dict[str, Any]) -> str:
    old, new = text.duration(row["before_ns"]), text.duration(row["after_ns"])
    if row["state"] == NEW:
        return f"New, {new} instead of {old}"
    if row["state"] == GONE:
        return f"Gone, {new} instead of {old}"
    return f"{text.duration(abs(row['change_ns']))} {'more' if row['change_ns'] > 0 else 'less'}, {new} instead of {old}"


def _of_run(run: Run) -> pd.DataFrame:
    """Its findings with whatever time, by _KEY, times as its Side has them; of_ns: what they are shares of."""
    table = findings(run.source, 0.0) if few(run.source) else pd.DataFrame(columns=[*_KEY, *_SAID, "ns", "share", "error_ns"])
    table = table[(table["rule"] != IDLE) & (table["ns"] > 0)]
    table = table.assign(
        resource=[_EPHEMERAL.sub("", name) if text.known(name) else "" for name in table["resource"]],
        of_ns=(table["ns"] / table["share"]).astype("float64") / run.recorded,
        ns=table["ns"].astype("float64") / run.recorded,
        error_ns=table["error_ns"].astype("Float64") / run.recorded,
    )
    sums = table.groupby(_KEY, as_index=False)["ns"].sum()
    return table.drop_duplicates(_KEY).drop(columns="ns").merge(sums, on=_KEY)
