"""The report of samples: by function or module, each time with its statistical error, and which functions deserve exact calls."""

import shlex
from collections.abc import Iterator
from functools import partial
from typing import Any

import pandas as pd
from rich.console import RenderableType
from rich.text import Text

from pytrace_ebpf.analyze.functions.by_function import KEYS, of_tree
from pytrace_ebpf.analyze.samples.below import ITSELF, below
from pytrace_ebpf.analyze.samples.errors import with_errors, with_unread
from pytrace_ebpf.analyze.samples.paths import NO_FRAMES, UNREAD, natives_of, segments
from pytrace_ebpf.analyze.samples.sampling import is_summed
from pytrace_ebpf.analyze.samples.tree import functions_of, nodes, untold
from pytrace_ebpf.analyze.samples.weights import SUMS, named, off_core, with_states
from pytrace_ebpf.derive.calls.primitives import LIBRARY
from pytrace_ebpf.trace.sampled import NATIVE
from pytrace_ebpf.units import plural
from pytrace_ebpf.view import colours, text
from pytrace_ebpf.view.grid import NARROW, Listing
from pytrace_ebpf.view.states import figures, states_of, titles

ERRORS = "± is one standard error"
_WORTH_SAYING = 0.01  # of the time, that has no stack
_PARTS = 4  # of a function's own time
_BUSY = 0.5  # of the time of a module whose functions wait, on a core: with less they did just that
_MOST_NAMED, _LEAST_SHARE = 3, 0.1  # modules that deserve exact calls, and how much of the time each has


def counted(trace: Any, period: int) -> dict[str, Any]:
    """period_ns; samples, of threads on a core; missed: ticks of the cores' clocks that did not come, for which these stand as well; off_core, of threads
    off it; with_off_core, whether these were taken; states, whether they say what it waited for; of both, outside: they ran no Python; unread: their
    frames were changing. time and unread_time: by weights.SUMS, what all stand for, and those unread.
    """
    samples = missed = off = outside = unread = 0
    time, unread_time = (dict.fromkeys(SUMS[1:], 0) for _ in range(2))
    for each, _ in segments(trace, native=False):
        count = each["samples"]
        samples, off = samples + int(count.sum()), off + int(count[each["off_ns"] > 0].sum())
        missed += int(each["missed"].sum())
        for sums, rows in ((time, each), (unread_time, each[each["stack_id"] == UNREAD])):
            for name in sums:
                sums[name] += int(rows[name].sum())
        outside, unread = outside + int(count[each["stack_id"] == NO_FRAMES].sum()), unread + int(count[each["stack_id"] == UNREAD].sum())
    return {
        "period_ns": period,
        "samples": samples - off,
        "missed": missed,
        "off_core": off,
        "with_off_core": int(off_core(trace)),
        "states": int(with_states(trace)),
        "outside": outside,
        "unread": unread,
        "time": time,
        "unread_time": unread_time,
    }


def periods(sampled: dict[str, Any]) -> int:
    """How many periods on a core the samples (counted) stand for."""
    return int(sampled["samples"] + sampled["missed"])


def unread_counted(table: pd.DataFrame, sampled: dict[str, Any]) -> pd.DataFrame:
    """`table` with errors to which those samples (counted) add that have no stack."""
    return with_unread(table, sampled["period_ns"], sampled["time"], sampled["unread_time"])


def where(sampled: dict[str, Any]) -> str:
    """Of which time the samples (counted) are."""
    return "" if sampled["with_off_core"] else " on a core"


def words(sampled: dict[str, Any]) -> str:
    """How many samples there are, and of what."""
    outside = f" ({sampled['outside']:,} outside of Python)" if sampled["outside"] else ""
    off = f" and {sampled['off_core']:,} off the core" if sampled["off_core"] else ""
    missed = f", {plural(sampled['missed'], 'tick')} missed" if sampled["missed"] else ""
    return f"{plural(sampled['samples'], 'sample')} of {text.duration(sampled['period_ns'])} on a core each{missed}{off}{outside}"


def cost_sentence(spent_ns: int | None, wall_ns: int) -> str:
    """What sampling cost, as a sentence."""
    if spent_ns is None:
        return "What reading stacks cost was not measured."
    return f"Reading stacks took {text.duration(spent_ns)} of the cores ({text.percent(spent_ns, wall_ns)} of the time recorded), interruptions not counted."


def found(trace: Any, facts: dict[str, Any]) -> tuple[pd.DataFrame, dict[str, Any]]:
    """analyze.functions.by_function's rows by function or module with their samples and errors; and further facts.

    Time in native code is that of the Python function that called it, or by module its library's. merged_ns; deserving: the command that records exact
    calls of what has most of the time; by function native_below, as found_below() has it.
    """
    sampled, key = facts["sampled"], KEYS[facts["by"]]
    tree = nodes(trace, native=facts["by"] == "module", outside=True)
    tree = tree.assign(**{name: pd.array([pd.NA] * len(tree), "Int64") for name in untold(trace)})
    table = of_tree(tree, trace.functions(), facts["by"])
    group = tree["func_id"] if facts["by"] == "function" else tree["func_id"].map(functions_of(trace))
    own = tree.assign(**{key: group})[tree["depth"] >= 0]
    total, self_ = (named(whole, prefix) for whole, prefix in (("total", ""), ("self", "self_")))
    wanted = [[name for name in names if name.endswith(("_square", "_samples")) and "unknown" not in name] for names in (total, self_)]
    outermost = own["outermost" if facts["by"] == "function" else "outermost_of_module"]
    table = table.drop(columns="calls")
    for rows, names in ((own[outermost], wanted[0]), (own, wanted[1])):
        table = table.merge(rows.groupby(key, dropna=False)[names].sum(), how="left", left_on=key, right_index=True)
    table = unread_counted(with_errors(table, sampled["period_ns"], periods(sampled)), sampled)
    merged = int(own.loc[own["merged"], "self_ns"].sum())
    native = table["func_id"].isin(natives_of(trace)) if facts["by"] == "function" else table[key].isin(_native_modules(trace))
    more = {"deserving": deserving(_by_module(trace, sampled), trace), "merged_ns": merged}
    below_ = {"native_below": found_below(trace, sampled)} if facts["by"] == "function" else {}
    return table.assign(native=native.astype("int64")), more | below_


def _native_modules(trace: Any) -> set[str]:
    functions = trace.functions()
    return set(functions.loc[functions["function_layer"] == NATIVE, "module"])


def _by_module(trace: Any, sampled: dict[str, Any]) -> pd.DataFrame:
    """Modules of Python code with their self time, self_ns and self_error_ns: what they called of native code is theirs."""
    tree = nodes(trace, native=False)
    own = tree.assign(module=tree["func_id"].map(functions_of(trace)))[tree["depth"] >= 0]
    sums = own.groupby("module")[[name for name in named("self", "self_") if "unknown" not in name]].sum().reset_index()
    return unread_counted(with_errors(sums, sampled["period_ns"], periods(sampled)), sampled)


def mark(row: dict[str, Any]) -> str:
    """What stands behind the name of a native function."""
    return " [native]" if row.get("native") else ""


def deserving(table: pd.DataFrame, trace: Any) -> dict[str, Any] | None:
    """The modules (_by_module) with most self time, significantly more than _LEAST_SHARE, and a command that records their calls; None without any.

    Where threads wait for work in `threading`, `selectors` and the like there is nothing to find out.
    """
    if table.empty:  # no sample is in Python code: its module column has no type
        return None
    idle = table["module"].str.split(".").str[0].isin(LIBRARY) & (table["self_on_cpu_ns"] < _BUSY * table["self_ns"])
    by_module = table[~idle].set_index("module").sort_values("self_ns", ascending=False)
    whole = int(table["self_ns"].sum())
    sure = by_module[(by_module["self_ns"] - 2 * by_module["self_error_ns"] > _LEAST_SHARE * whole)].head(_MOST_NAMED)
    if not len(sure):
        return None
    modules = [str(module) for module in sure.index]
    share = int(sure["self_ns"].sum()) / whole
    return {"modules": modules, "share_percent": round(100 * share), "command": command(_manifest_of(trace, modules), modules)}


def _manifest_of(trace: Any, modules: list[str]) -> dict[str, Any]:
    """The manifest; what a daemon sampled is recorded by attach to the processes that have much of the time in these modules."""
    if not is_summed(trace):
        return dict(trace.manifest)
    tree = nodes(trace, native=False)
    own = tree[tree["func_id"].map(functions_of(trace)).isin(modules)].groupby("pid")["self_ns"].sum().sort_values(ascending=False)
    pids = own[own > _LEAST_SHARE * own.sum()].head(_MOST_NAMED).index
    return trace.manifest | {"argv": ["pytrace-ebpf", "attach", ",".join(map(str, pids))]}


def command(manifest: dict[str, Any], modules: list[str]) -> str:
    """The recording's own command, of exact calls of these modules instead; `run`, where without privileges no running program can be attached to."""
    words = ["pytrace-ebpf", *list(_without_sample(manifest["argv"][1:]))]
    wanted = [word for module in modules for word in ("--include", module)]
    if words[1:2] == ["attach"] and "--rootless" in words:
        return f"{shlex.join(['pytrace-ebpf', 'run', '--rootless', *wanted, '--'])} {manifest['target'].get('command') or 'COMMAND'}"
    at = words.index("--") if "--" in words else len(words)
    return shlex.join([*words[:at], *wanted, *words[at:]])


def _without_sample(argv: list[str]) -> Iterator[str]:
    """Words of a command line but --sample and its rate, what goes with it alone, and where the trace goes to."""
    skip, ended = False, False
    for word, after in zip(argv, [*argv[1:], ""], strict=True):
        ended = ended or word == "--"
        if skip:
            skip = False
        elif not ended and word == "--sample":
            skip = after.replace(".", "", 1).isdigit()
        elif not ended and word in ("-o", "--output"):
            skip = True
        elif ended or not (word == "--switches" or word.startswith(("--sample=", "--output=", "-o"))):
            yield word


def functions(facts: dict[str, Any], table: pd.DataFrame, width: int, ascii_only: bool, top: int) -> list[RenderableType]:
    """One line per row of `table` (see found)."""
    sort, module = facts["sort"], facts["by"] == "module"
    count_width, bar_width = (6, 8) if width < NARROW else (9, 10)
    states = states_of(facts) if facts["sampled"]["with_off_core"] else ()
    fixed = [(bar_width, ""), (count_width, "samples"), (6, "total"), (7, "±"), (6, "self"), (7, "±"), *split_titles(states)]
    out = Listing(width, fixed, [facts["by"]], may_go=["± ", "±"])
    prefix = "self_" if sort == "self" else ""
    longest = int(table[f"{sort}_ns"].max()) if len(table) else 0
    for row in table.head(top).to_dict("records"):
        what = (
            partial(text.cut_left, text.clean(row["module"]) + mark(row))
            if module
            else partial(text.function, f"{row['qualname']}{mark(row)}" if text.known(row["qualname"]) else None, row["file"], row["first_line"])
        )
        out.add(
            [
                text.bar(row, bar_width, ascii_only, prefix, longest, states) if states else bar(row[f"{sort}_ns"], longest, bar_width, ascii_only),
                text.count(row[f"{sort}_samples"], count_width),
                *(figure for of in ("total", "self") for figure in (text.duration(row[f"{of}_ns"]), error(row[f"{of}_error_ns"]))),
                *split_figures(row, prefix, states),
            ],
            what,
        )
    shown = f"{min(top, len(table)):,} of {len(table):,}; {ERRORS}"
    title = f"{facts['by'].capitalize()}s by sampled {sort} time{where(facts['sampled'])}"
    return [text.title(title, shown, width), out, *below_lines(facts, width, top), *_advice(facts)]


def found_below(trace: Any, sampled: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    """Of each Python function what its own time was spent in, as rows of analyze.samples.below with `native` names, by function, most time first.

    `sampled`: counted() of them, where that was done already.
    """
    sampled = sampled or counted(trace, int(trace.manifest["sampling"]["period_ns"]))
    table = unread_counted(below(trace, sampled["period_ns"], periods(sampled)), sampled)
    names = trace.functions().set_index("func_id")[["qualname", "file", "first_line", "module"]]
    out = []
    for func_id, rows in sorted(table.groupby("func_id"), key=lambda each: -int(each[1]["self_ns"].sum())):
        if func_id in names.index and (rows["native_id"] != ITSELF).any():
            parts = [_part(row, names) for row in rows.head(_PARTS).to_dict("records")]
            qualname, file, first_line, _ = names.loc[func_id]
            function = {"func_id": int(func_id), "qualname": qualname, "file": file, "first_line": int(first_line)}
            out.append({**function, "self_ns": int(rows["self_ns"].sum()), "parts": parts})
    return out


def _part(row: dict[str, Any], names: pd.DataFrame) -> dict[str, Any]:
    native = int(row["native_id"])
    name, library = (None, None) if native == ITSELF else (str(names.at[native, each]) for each in ("qualname", "module"))
    return {"native": name, "library": library, "self_ns": int(row["self_ns"]), "self_error_ns": int(row["self_error_ns"])}


def below_lines(facts: dict[str, Any], width: int, top: int) -> list[RenderableType]:
    """What the functions with most of it have called of native code; nothing where none did."""
    found = facts.get("native_below") or []
    if not found:
        return []
    out = Listing(width, [(6, "self")], ["function", "native code that it was in"])
    for each in found[:top]:
        few = ", ".join(
            f"{text.clean(part['native']) if part['native'] else 'itself'} {text.percent(part['self_ns'], each['self_ns'])}"
            + (f" ±{text.percent(part['self_error_ns'], each['self_ns'])}" if width >= NARROW else "")
            for part in each["parts"]
        )
        what = partial(text.function, each["qualname"], each["file"], each["first_line"])
        out.add([text.duration(each["self_ns"])], what, partial(text.fit, few))
    shown = f"{min(top, len(found)):,} of {len(found):,}" + (f"; {ERRORS}" if width >= NARROW else "")
    return [Text(), text.title("What their own time was spent in, by samples", shown, width), out]


def bar(amount: int, longest: int, cells: int, ascii_only: bool) -> Text:
    """A bar of time on a core, `cells` long for `longest`."""
    return Text(("#" if ascii_only else "█") * (max(1, round(cells * amount / longest)) if amount and longest else 0), colours.ON_CPU)


def split_titles(states: text.States) -> Iterator[tuple[int, str]]:
    """(cells, title) of a column for each state, and of its error, which is the first to go on a narrow screen."""
    for column in titles(states) if states else ():
        yield column
        yield 7, "± "


def split_figures(row: dict[str, Any], prefix: str, states: text.States) -> Iterator[str]:
    """What stands in these columns."""
    for (key, *_), figure in zip(states, figures(row, prefix, states) if states else (), strict=False):
        yield figure
        yield error(row[prefix + key.replace("_ns", "_error_ns")])


def error(ns: int) -> str:
    """A statistical error."""
    return f"±{text.duration(ns)}"


def _advice(facts: dict[str, Any]) -> Iterator[Text]:
    whole, unread = (facts["sampled"][name]["total_ns"] for name in ("time", "unread_time"))
    if unread > _WORTH_SAYING * whole:
        yield Text(
            f"{text.percent(unread, whole)} of the time has no stack (unknown): by how much a time may be too small for that is part of its ±."
        )
    if merged := facts.get("merged_ns"):
        share = text.percent(merged, facts["split"]["wall_ns"])
        yield Text(f"{share} of it is at paths that are too many to be told apart: the rarest stand as (unknown) below their callers.")
    if deserves := facts.get("deserving"):
        modules = ", ".join(text.clean(module) for module in deserves["modules"])
        yield Text()
        yield Text(f"{deserves['share_percent']} % of it is in {modules}. To record how often each function there is called, and each call's time:")
        yield Text("  " + text.clean(deserves["command"]), "bold")
