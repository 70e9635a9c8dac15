"""A trace as one HTML page that needs nothing else: where its time went, to be looked at from all sides; made in bounded memory.

The page itself, page.html beside this, is built of page/ at the root of the repository (`make page`); here its data is put in.
"""

from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pandas as pd

from pytrace_ebpf.analyze.functions.by_function import of_tree
from pytrace_ebpf.analyze.functions.collapsed import imports_as_one
from pytrace_ebpf.services import service_of
from pytrace_ebpf.trace.frames import values_and_mask
from pytrace_ebpf.trace.layers import LAYERS
from pytrace_ebpf.trace.schema import OF_THE_INTERPRETER
from pytrace_ebpf.trace.states import STATES
from pytrace_ebpf.view import colours, findings
from pytrace_ebpf.view.head import head, traced
from pytrace_ebpf.view.page import contexts, timeline
from pytrace_ebpf.view.page.boxes import PARTS
from pytrace_ebpf.view.page.columns import Columns
from pytrace_ebpf.view.page.excerpts import Moments
from pytrace_ebpf.view.page.page_tables import harmless, tables
from pytrace_ebpf.view.text import clean

_PAGE = Path(__file__).with_name("page.html")
_HOLE = b"{{trace}}"
_MOST_WAITS = 20_000  # the longest, which are shown one by one
_WIDTH = 1 << 20  # cells: a sentence is one line
_WAITS = ("pid", "tid", "start_ns", "end_ns", "kind", "syscall", "func_id", "waker_pid", "waker_tid", "holder_tid", "holder_func_id", "waker_func_id")
_TIMES = ("calls", *contexts.TIMES)


def write(trace: Any, facts: dict[str, Any], out: BinaryIO, view: str = "summary") -> None:
    """Write the page of a trace or a window of it; `facts`: those of its report by function (cli/report.py); `view`: what it is opened at (page/source/main.js)."""
    columns = Columns()
    page = {"view": view, **_found(trace, facts, columns)}
    template = _PAGE.read_bytes()
    before, hole, after = template.partition(_HOLE)
    assert hole
    out.write(before)
    out.write(columns.packed(page).encode())
    out.write(after)


def _found(trace: Any, facts: dict[str, Any], columns: Columns) -> dict[str, Any]:
    trace.progress("Summing", None)
    others = tables(trace, trace.tree(), facts)
    tree, functions = trace.tree(), trace.functions()
    if not facts.get("imports"):
        tree, functions = imports_as_one(tree, functions)
    table = of_tree(tree, functions)
    threads = _threads(trace, tree)
    lanes = timeline.Lanes(threads)
    waits = _waits(trace, facts)
    kept = Moments(trace, facts["calls"], waits)
    picture = timeline.calls(trace, lanes, kept.watch)
    boxes = picture.made()
    trace.progress("Writing the page", None)
    if merged := bool((boxes["calls"] > 1).any()) and not facts["sampled"]:
        kept.add_slowest(boxes, table, lanes)
    return {
        "title": traced(facts),
        "lines": [clean(line.plain) for line in head(facts, facts["calls"], _WIDTH)],
        "sentence": clean(facts["sentence"]) if facts.get("sentence") else None,
        "findings": findings.sentences(facts.get("findings") or []),
        "wall_ns": trace.end_ns - trace.start_ns,
        "from_ns": trace.start_ns - trace.whole.start_ns,
        "calls": facts["calls"],
        "thread_count": facts["threads"],
        "sampled": bool(facts["sampled"]),
        "split": harmless(facts["split"]),
        "divided": trace.scheduling["source"] == "bpf" or bool(facts["sampled"]),
        "parts": [*([state.label, state.colour] for state in STATES), ["off CPU", colours.BLOCKED], ["not recorded", colours.UNKNOWN]],
        "part_names": list(PARTS),
        "layers": [[layer.name, layer.colour] for layer in LAYERS],
        "functions": _functions(functions, table, columns),
        "threads": {name: [clean(each) if name == "name" else each for each in column] for name, column in threads.to_dict("list").items()},
        "processes": _processes(trace),
        "calls_of": timeline.packed(boxes, trace.start_ns, columns),
        "states_of": timeline.packed(timeline.states(trace, lanes), trace.start_ns, columns),
        "merged_below_ns": picture.least_ns if merged else 0,
        "moments": kept.packed(columns) if merged else [],
        "waits": _packed_waits(waits, lanes, trace.start_ns, columns),
        "tree": contexts.together(tree, columns),
        "tree_by_thread": contexts.by_thread(tree, lanes, columns),
        "pairs": contexts.pairs(tree, columns),
        "tables": others,
    }


def _threads(trace: Any, tree: pd.DataFrame) -> pd.DataFrame:
    """pid, tid, name, python (whether it made calls): those with calls first, by process and in the order in which they began."""
    rows = trace.threads()[["pid", "tid", "name", "start_ns"]].drop_duplicates(["pid", "tid"])
    own = tree.loc[tree["depth"] < 0, ["pid", "tid"]].drop_duplicates()
    rows = own.assign(python=1).merge(rows, how="outer", on=["pid", "tid"])
    rows = rows.assign(python=rows["python"].fillna(0).astype("int64"), name=rows["name"].astype("object"))[rows["pid"] >= 0]
    rows = rows.sort_values(["python", "pid", "start_ns", "tid"], ascending=[False, True, True, True], kind="stable", ignore_index=True)
    return rows.astype({"name": object})[["pid", "tid", "name", "python"]].assign(name=rows["name"].where(rows["name"].notna(), "thread"))


def _processes(trace: Any) -> dict[int, str]:
    """The program of each pid: its script or module, else its executable."""
    return {int(row["pid"]): clean(service_of(row) or row["command"]) for row in trace.processes().to_dict("records")}


def _functions(functions: pd.DataFrame, table: pd.DataFrame, columns: Columns) -> dict[str, Any]:
    """By the number that they have in the page, func_id: name, number in `files`, line, layer, and the times of the report by function."""
    count = int(functions["func_id"].max()) + 1 if len(functions) else 0
    rows = functions.set_index("func_id").reindex(np.arange(count))
    files, numbers = pd.Categorical(rows["file"]), {layer.name: number for number, layer in enumerate(LAYERS)}
    layer, layers = pd.factorize(rows["function_layer"])
    func = table["func_id"].to_numpy(np.int64)
    named = (func >= 0) & (func < count)

    def times(name: str) -> npt.NDArray[np.int64]:
        known = np.zeros(count, np.int64)
        known[func[named]] = values_and_mask(table[name])[0][named]
        return known

    return {
        "names": [clean(name) for name in rows["qualname"].astype(object)],
        "files": [clean(name) for name in files.categories],
        "file": columns.add(files.codes),
        "line": columns.add(rows["first_line"].fillna(-1)),
        "layer": columns.add(np.append([numbers.get(name, 0) for name in layers], 0)[layer]),
        **{name: columns.add(times(name)) for name in _TIMES},
    }


def _waits(trace: Any, facts: dict[str, Any]) -> pd.DataFrame:
    """The longest waits, the longest first."""
    if facts["sampled"] or facts["scheduling"]["source"] not in ("bpf", "perf"):
        return pd.DataFrame(columns=list(_WAITS))
    longest: list[pd.DataFrame] = []
    for part in trace.waits_by_part(_WAITS):
        both = pd.concat([*longest, part.astype({"kind": "object", "syscall": "object"})], ignore_index=True)
        order = (both["start_ns"] - both["end_ns"]).argsort(kind="stable")[:_MOST_WAITS]
        longest = [both.iloc[order]]
    return longest[0] if longest else pd.DataFrame(columns=list(_WAITS))


def _packed_waits(waits: pd.DataFrame, lanes: timeline.Lanes, origin: int, columns: Columns) -> dict[str, Any]:
    """By thread and in the order of time: thread, start, length, kind (a place in `kinds`, likewise of calls), func, by (the thread that held the GIL, took the
    core or woke it: its place, -1 another's, -2 not known), tid of that, by_func."""
    gil = (waits["kind"] == "gil").to_numpy(bool)
    pid = waits["pid"].to_numpy(np.int64)
    tid = np.where(gil, waits["holder_tid"], waits["waker_tid"].fillna(-1)).astype(np.int64)
    whose = np.where(gil, pid, waits["waker_pid"].fillna(-1)).astype(np.int64)
    by_func = np.where(gil, waits["holder_func_id"], waits["waker_func_id"]).astype(np.int64)
    thread = lanes.of(pid, waits["tid"].to_numpy(np.int64))
    start, end = waits["start_ns"].to_numpy(np.int64), waits["end_ns"].to_numpy(np.int64)
    words = (
        waits["kind"]
        .astype(object)
        .str.cat(waits["syscall"].astype(object).mask(waits["kind"].isin(OF_THE_INTERPRETER)).fillna(""), sep=" ")
        .str.strip()
        if len(waits)
        else pd.Series([], dtype=object)
    )
    kinds = pd.Categorical(words)
    by = np.where(tid > 0, lanes.of(whose, tid), np.where(tid < 0, -2, -1))
    order = np.lexsort((start, thread))
    found = {
        "thread": thread,
        "start": start - origin,
        "length": end - start,
        "kind": kinds.codes,
        "func": waits["func_id"],
        "by": by,
        "tid": tid,
        "by_func": by_func,
    }
    return {
        "kinds": [clean(kind) for kind in kinds.categories],
        **{name: columns.add(np.asarray(each, np.int64)[order]) for name, each in found.items()},
    }
