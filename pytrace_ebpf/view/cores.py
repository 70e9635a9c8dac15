"""The report by core: how busy each was and with which threads, how many at once and what for not more, which functions ran where, migrations, preemptions."""

from functools import partial
from typing import Any

import pandas as pd
from rich.console import RenderableType
from rich.text import Text

from pytrace_ebpf.analyze.time import cores
from pytrace_ebpf.analyze.waits.rivals import rivals
from pytrace_ebpf.derive.sinks.cores import CoreSums, core_sums
from pytrace_ebpf.trace.schema import AGENT
from pytrace_ebpf.units import plural
from pytrace_ebpf.view import colours, text
from pytrace_ebpf.view.grid import NARROW, Listing
from pytrace_ebpf.view.names import named, plain
from pytrace_ebpf.view.states import unrecorded

_BAR, _SHORT_BAR = 20, 6
_KEPT_OFF = {
    cores.CORE: "a core",
    "gil": "the GIL",
    "stop-the-world": "a stop-the-world pause",
    "object-lock": "an object's own lock",
    "lock": "a lock",
}


def before(trace: Any) -> None:
    """Find what core_sums() gives, and with that the waits."""
    core_sums(trace)


def found(trace: Any, _calls: pd.DataFrame, asked: dict[str, Any]) -> tuple[pd.DataFrame, dict[str, Any]]:
    """analyze.time.by_core's rows; and `cores`, what `facts` gives, of functions no more than `asked` says."""
    sums = core_sums(trace)
    rows = sums.threads.merge(trace.threads()[["pid", "tid", "name"]], how="left", on=["pid", "tid"])
    return rows[["cpu", "pid", "tid", "name", "busy_ns", "slices"]], {"cores": facts(trace, sums, asked.get("at_most"))}


def facts(trace: Any, sums: CoreSums, at_most: int | None = None) -> dict[str, Any]:
    """What the report by core says in addition to its rows, as plain values (times in ns): of a Trace and its sums, of `at_most` functions (None: all).
    busy_cores is None where no switches were recorded."""
    names = trace.functions()
    known = trace.scheduling["source"] in ("bpf", "perf")
    spent = sums.at_a_time
    return {
        "busy_cores": float((spent["cores"] * spent["ns"]).sum() / max(1, spent["ns"].sum())) if known else None,
        "cores_at_a_time": plain(spent) if known else [],
        "kept_off": plain(named(_kept_off(trace), names)),
        "functions": plain(named(_most(sums.functions, at_most), names)),
        "functions_in_all": int(sums.functions["func_id"].nunique()),
        "migrations": plain(named(cores.migrations(trace.waits_by_part(cores.WAITS)), names)),
        "rivals": plain(rivals(trace)) if trace.rivals_known else [],
        "throttled_ns": int(sum(part["throttled_ns"].fillna(0).sum() for part in trace.waits_by_part(("throttled_ns",))))
        if trace.throttling
        else None,
        "preempted_by": plain(cores.preemptions(trace.waits_by_part(cores.WAITS), trace.whole.threads(), trace.neighbours())),
        "affinity": plain(affinity(trace.usage(), trace.threads())),
    }


def _total(functions: pd.DataFrame) -> "pd.Series[int]":
    """The time on a core of each function, the largest first."""
    return functions.groupby("func_id")["self_on_cpu_ns"].sum().sort_values(ascending=False, kind="stable")


def _most(functions: pd.DataFrame, at_most: int | None) -> pd.DataFrame:
    """Rows of so many functions with the most time; None: all."""
    return functions if at_most is None else functions[functions["func_id"].isin(_total(functions).index[:at_most])]


def _kept_off(trace: Any) -> pd.DataFrame:
    """analyze.time.cores.kept_off of the program's threads, with `threads`: how many on average."""
    threads, wall = trace.whole.threads(), max(1, trace.end_ns - trace.start_ns)
    rows = cores.kept_off(trace.waits_by_part(cores.OFF_CORE), threads.loc[threads["name"] == AGENT, "tid"], trace.start_ns, trace.end_ns)
    return rows.assign(threads=rows["ns"] / wall)


def affinity(usage: pd.DataFrame, threads: pd.DataFrame) -> pd.DataFrame:
    """Cores that each thread may run on, a row when that was first seen or changed: ts, pid, tid, name, cpus (like 0-3,6)."""
    of_threads = usage[(usage["kind"].astype("object") == "thread") & usage["cpus"].notna()]
    of_threads = of_threads[["ts", "pid", "id", "cpus"]].rename(columns={"id": "tid"}).sort_values(["pid", "tid", "ts"])
    of_threads["cpus"] = of_threads["cpus"].astype("object")
    before = of_threads.groupby(["pid", "tid"])["cpus"].shift()
    changed = of_threads[before.isna() | (before != of_threads["cpus"])]
    return changed.merge(threads[["pid", "tid", "name"]], how="left", on=["pid", "tid"])


def report(facts: dict[str, Any], table: pd.DataFrame, width: int, ascii_only: bool, top: int) -> list[RenderableType]:
    """Tables of `table` (see found) and of `facts["cores"]`."""
    more = facts["cores"]
    if more["busy_cores"] is None:
        return [Text(f"Which core ran what is not known without {unrecorded(facts)}.", "yellow"), Text(), *_affinity(facts, width, top)]
    parts: list[RenderableType] = _cores(facts, table, width, ascii_only, top)
    parts += [Text(), _at_a_time(more)]
    if more["kept_off"]:
        parts += [Text(), *_off(more, width)]
    if more["functions"]:
        parts += [Text(), *_functions(more, width, top)]
    if more["migrations"]:
        parts += [Text(), *_moves(more, width, top)]
    if more["throttled_ns"]:
        parts += [Text(), _throttled(more, facts["wall_ns"])]
    if more["rivals"]:
        parts += [Text(), *_rivals(more, width, top)]
    elif more["preempted_by"]:
        parts += [Text(), *_preempted(more, width, top)]
    return [*parts, Text(), *_affinity(facts, width, top)]


def _cores(facts: dict[str, Any], table: pd.DataFrame, width: int, ascii_only: bool, top: int) -> list[RenderableType]:
    wall = facts["wall_ns"]
    narrow = width < NARROW
    bar = _SHORT_BAR if narrow else _BAR
    fixed = [(bar, ""), (4, "core"), (6, "busy"), (6, "share"), (6 if narrow else 9, "slices"), (7, "tid")]
    out = Listing(width, fixed, ["thread"])
    glyph = "#" if ascii_only else "█"
    for cpu, own in table.groupby("cpu", sort=True):
        busy = int(own["busy_ns"].sum())
        cells = min(bar, round(bar * busy / wall)) if wall else 0
        out.add(
            [Text(glyph * cells, colours.ON_CPU), str(cpu), text.duration(busy), text.percent(busy, wall), text.count(own["slices"].sum(), 6), ""],
            partial(text.fit, f"{len(own)} traced thread{'s' * (len(own) != 1)}"),
            style="bold",
        )
        for row in own.head(top).to_dict("records"):
            figures = ["", "", text.duration(row["busy_ns"]), text.percent(row["busy_ns"], wall), text.count(row["slices"], 6), str(row["tid"])]
            out.add(figures, partial(text.fit, row["name"]))
    return [text.title("What the traced threads had of each core", "share: of the time recorded", width), out]


def _at_a_time(more: dict[str, Any]) -> RenderableType:
    spent = more["cores_at_a_time"]
    whole = sum(row["ns"] for row in spent)
    shares = [f"{row['cores'] or 'none'} for {text.percent(row['ns'], whole)}" for row in spent if row["ns"]]
    of_the_time = ", ".join([f"{first} of the time" for first in shares[:1]] + shares[1:])
    return Text.assemble((f"{more['busy_cores']:.2f} cores busy on average", "bold"), f"   {of_the_time}")


def _off(more: dict[str, Any], width: int) -> list[RenderableType]:
    out = Listing(width, [(7, "threads"), (6, "total")], ["waiting for", "mostly in"])
    for row in more["kept_off"]:
        name = (
            partial(text.function, row["qualname"], row["file"], row["first_line"]) if text.known(row["qualname"]) else partial(text.fit, "(no call)")
        )
        out.add([f"{row['threads']:.2f}", text.duration(row["ns"])], partial(text.fit, _KEPT_OFF.get(row["kind"], row["kind"])), name)
    note = f"threads: on average; {more['busy_cores']:.2f} had one"
    return [text.title("What kept threads off the cores", note, width), out]


def _functions(more: dict[str, Any], width: int, top: int) -> list[RenderableType]:
    table = pd.DataFrame(more["functions"])
    out = Listing(width, [(6, "self"), (5, "busy")], ["on core", "function"])
    total = _total(table)
    for func_id, own in ((f, table[table["func_id"] == f]) for f in total.index[:top]):
        where = "  ".join(f"{row['cpu']}: {text.percent(row['self_on_cpu_ns'], total[func_id])}" for row in own.head(3).to_dict("records"))
        one = own.iloc[0]
        busy = f"{one['busy_cores']:.2f}" if text.known(one["busy_cores"]) else text.NOTHING
        name = partial(text.function, one["qualname"], one["file"], one["first_line"])
        out.add([text.duration(total[func_id]), busy], partial(text.fit, where), name)
    shown = f"{min(top, len(total)):,} of {more['functions_in_all']:,}; busy: cores the process had meanwhile"
    return [text.title("Functions on cores", shown, width), out]


def _moves(more: dict[str, Any], width: int, top: int) -> list[RenderableType]:
    fixed = [(9, "times"), (5, "from"), (5, "to")]
    out = Listing(width, fixed, ["in"])
    for row in more["migrations"][:top]:
        name = partial(text.function, row["qualname"], row["file"], row["first_line"]) if row["func_id"] >= 0 else partial(text.fit, "(no call)")
        out.add([text.count(row["times"]), str(row["cpu_before"]), str(row["cpu_after"])], name)
    whole = sum(row["times"] for row in more["migrations"])
    return [text.title("Moved to another core", f"{plural(whole, 'time')}; by the innermost call", width), out]


def _throttled(more: dict[str, Any], wall_ns: int) -> RenderableType:
    spent, threads = text.duration(more["throttled_ns"]), more["throttled_ns"] / max(1, wall_ns)
    return Text.assemble(
        ("No CPU quota left", "bold"),
        f"   for {spent} of threads that could have run, {threads:.2f} of them on average: their control group is throttled",
    )


def _rivals(more: dict[str, Any], width: int, top: int) -> list[RenderableType]:
    out = Listing(width, [(6, "had it"), (6, "share"), (8, "tid")], ["thread", "control group"])
    whole = sum(row["ns"] for row in more["rivals"])
    for row in more["rivals"][:top]:
        whose = "this program's own" if row["traced"] else f"pid {row['pid']}"
        name = f"{text.clean(row['name'] or 'unknown')} ({whose})" if row["tid"] else "none: the core was waking up"
        figures = [text.duration(row["ns"]), text.percent(row["ns"], whole), str(row["tid"])]
        out.add(figures, partial(text.fit, name), partial(text.cut_left, text.clean(row["cgroup"])))
    note = f"{min(top, len(more['rivals'])):,} of {len(more['rivals']):,}"
    return [text.title("Who had the cores that threads waited for", note, width), out]


def _preempted(more: dict[str, Any], width: int, top: int) -> list[RenderableType]:
    fixed = [(6, "lost"), (9, "times"), (8, "tid")]
    out = Listing(width, fixed, ["by"])
    for row in more["preempted_by"][:top]:
        whose = "this program's own" if row["traced"] else f"pid {row['pid']}" if row["pid"] is not None else "ended since"
        name = f"{text.clean(row['name'])} ({whose})" if row["tid"] else "the idle thread: moved to another core, or throttled"
        out.add([text.duration(row["ns"]), text.count(row["times"]), str(row["tid"])], partial(text.fit, name))
    return [text.title("Preempted", "by which thread; lost: time until it had a core again", width), out]


def _affinity(facts: dict[str, Any], width: int, top: int) -> list[RenderableType]:
    seen = facts["cores"]["affinity"]
    masks = sorted({row["cpus"] for row in seen})
    if not masks:
        return [Text("Which cores the threads may run on was not recorded.")]
    if len(masks) == 1:
        return [Text.assemble(("Affinity", "bold"), f"   every thread may run on {masks[0]}")]
    fixed = [(8, "since"), (12, "cores"), (8, "tid")]
    out = Listing(width, fixed, ["thread"])
    for row in seen[:top]:
        since = text.duration(max(0, row["ts"] - facts["start_ns"]))
        out.add([since, text.fit(row["cpus"], 12), str(row["tid"])], partial(text.fit, row["name"]))
    return [text.title("Affinity", "where a thread may run; when that was first seen or changed", width), out]
