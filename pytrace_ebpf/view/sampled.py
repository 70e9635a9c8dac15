"""The report of samples: by function or module, each time with its statistical error, and which functions deserve exact calls."""

import shlex
from collections.abc import Iterator
from functools import partial
from typing import Any

import pandas as pd
from rich.console import RenderableType
from rich.text import Text

from pytrace_ebpf.analyze.samples.errors import with_errors
from pytrace_ebpf.analyze.samples.paths import segments
from pytrace_ebpf.view import colours, text
from pytrace_ebpf.view.grid import NARROW, Listing

ERRORS = "± is one standard error"
_MOST_NAMED, _LEAST_SHARE = 3, 0.1  # modules that deserve exact calls, and how much of the time each has


def counted(trace: Any, period: int) -> dict[str, int]:
    """period_ns; samples, of all threads; outside, those that ran no Python; unread, those whose frames were changing."""
    numbers = pd.concat([samples["stack_id"] for samples, _ in segments(trace)] or [pd.Series(dtype="int64")])
    return {"period_ns": period, "samples": len(numbers), "outside": int((numbers == -1).sum()), "unread": int((numbers == -2).sum())}


def words(sampled: dict[str, int]) -> str:
    """How many samples there are, and of what."""
    outside = f" ({sampled['outside']:,} outside of Python)" if sampled["outside"] else ""
    return f"{sampled['samples']:,} samples of {text.duration(sampled['period_ns'])} on a core each{outside}"


def cost_sentence(spent_ns: int | None, wall_ns: int) -> str:
    """What sampling cost, as a sentence."""
    if spent_ns is None:
        return "not measured."
    return f"Reading stacks took {text.duration(spent_ns)} of the cores ({text.percent(spent_ns, wall_ns)} of the time recorded), interruptions not counted."


def found(table: pd.DataFrame, trace: Any, facts: dict[str, Any]) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Rows by function or module with their samples and errors; and the command that records exact calls of what has most of the time."""
    sampled = facts["sampled"]
    table = with_errors(table.drop(columns="calls"), sampled["period_ns"], sampled["samples"])
    return table, {"deserving": deserving(table, trace) if len(table) else None}


def deserving(table: pd.DataFrame, trace: Any) -> dict[str, Any] | None:
    """The modules with most self time, significantly more than _LEAST_SHARE, and a command that records their calls; None if there are none."""
    by_module = table[table["module"].notna()].groupby("module")[["self_ns", "self_error_ns"]].sum().sort_values("self_ns", ascending=False)
    whole = int(table["self_ns"].sum())
    sure = by_module[(by_module["self_ns"] - 2 * by_module["self_error_ns"] > _LEAST_SHARE * whole)].head(_MOST_NAMED)
    if not len(sure):
        return None
    modules = [str(module) for module in sure.index]
    share = int(sure["self_ns"].sum()) / whole
    return {"modules": modules, "share_percent": round(100 * share), "command": command(trace.manifest, modules)}


def command(manifest: dict[str, Any], modules: list[str]) -> str:
    """The recording's own command, of exact calls of these modules instead."""
    words = ["pytrace-ebpf", *list(_without_sample(manifest["argv"][1:]))]
    at = words.index("--") if "--" in words else len(words)
    wanted = [word for module in modules for word in ("--include", module)]
    return shlex.join([*words[:at], *wanted, *words[at:]])


def _without_sample(argv: list[str]) -> Iterator[str]:
    """Words of a command line but --sample and its rate, and where the trace goes to."""
    skip, ended = False, False
    for word, after in zip(argv, [*argv[1:], ""], strict=True):
        ended = ended or word == "--"
        if skip:
            skip = False
        elif not ended and word == "--sample":
            skip = after.replace(".", "", 1).isdigit()
        elif not ended and word in ("-o", "--output"):
            skip = True
        elif ended or not word.startswith(("--sample=", "--output=")):
            yield word


def functions(facts: dict[str, Any], table: pd.DataFrame, width: int, ascii_only: bool, top: int) -> list[RenderableType]:
    """One line per row of `table` (see found)."""
    sort, module = facts["sort"], facts["by"] == "module"
    count_width, bar_width = (6, 8) if width < NARROW else (9, 10)
    fixed = [(bar_width, ""), (count_width, "samples"), (6, "total"), (7, "±"), (6, "self"), (7, "±")]
    out = Listing(width, fixed, [facts["by"]], may_go=["±"])
    longest = int(table[f"{sort}_ns"].max()) if len(table) else 0
    for row in table.head(top).to_dict("records"):
        what = (
            partial(text.cut_left, text.clean(row["module"])) if module else partial(text.function, row["qualname"], row["file"], row["first_line"])
        )
        out.add(
            [
                bar(row[f"{sort}_ns"], longest, bar_width, ascii_only),
                text.count(row[f"{sort}_samples"], count_width),
                *(figure for of in ("total", "self") for figure in (text.duration(row[f"{of}_ns"]), error(row[f"{of}_error_ns"]))),
            ],
            what,
        )
    shown = f"{min(top, len(table)):,} of {len(table):,}; {ERRORS}"
    return [text.title(f"{facts['by'].capitalize()}s by sampled {sort} time on a core", shown, width), out, *_advice(facts)]


def bar(amount: int, longest: int, cells: int, ascii_only: bool) -> Text:
    """A bar of time on a core, `cells` long for `longest`."""
    return Text(("#" if ascii_only else "█") * (max(1, round(cells * amount / longest)) if amount and longest else 0), colours.ON_CPU)


def error(ns: int) -> str:
    """A statistical error."""
    return f"±{text.duration(ns)}"


def _advice(facts: dict[str, Any]) -> Iterator[Text]:
    if deserves := facts.get("deserving"):
        modules = ", ".join(text.clean(module) for module in deserves["modules"])
        yield Text()
        yield Text(f"{deserves['share_percent']} % of it is in {modules}. To record how often each function there is called, and each call's time:")
        yield Text("  " + text.clean(deserves["command"]), "bold")
