"""The format of Callgrind, for KCachegrind, QCachegrind and callgrind_annotate: time by source line, and who called whom from which line.

One position (the line) and an event for each part of the time, in nanoseconds. Own time stands at the lines that have it where lines were recorded
(`--lines exact`) or sampled, else at the line of the function's `def`. https://valgrind.org/docs/manual/cl-format.html
"""

from array import array
from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np
import pandas as pd

from pytrace_ebpf.analyze.samples.by_line import by_line
from pytrace_ebpf.analyze.samples.sampling import period_of
from pytrace_ebpf.printable import printable
from pytrace_ebpf.view.export import small
from pytrace_ebpf.view.export.parts import PARTS, column, known
from pytrace_ebpf.view.states import with_off

SUFFIX = ".callgrind"
_EVENTS = {
    "ns": ("Wall", "wall time"), "on_cpu_ns": ("OnCpu", "on a core"), "runq_wait_ns": ("RunQueue", "in the run queue"),
    "gil_wait_ns": ("Gil", "waiting for the GIL"), "blocked_ns": ("Blocked", "blocked"), "off_cpu_ns": ("OffCpu", "off the core"),
    "unknown_ns": ("Unknown", "not recorded"),
}  # fmt: skip
_NOBODY = -1
_AT_ONCE = 10_000  # functions


def write(trace: Any, out: BinaryIO, least: float | None = None) -> str:
    """Write the own time of each line, and the calls made from each, of `trace` or a window of it. `least`, and what is returned: as of small.write()."""
    tree = trace.tree()
    own, calls, shown = _own(trace, tree), _calls(trace, tree), known(trace, tree)
    total = tree[tree["outermost"]].groupby("func_id")[column("ns", "")].sum()
    functions = trace.functions()
    return small.write(lambda share: _chunks(trace, *_large(own, calls, total, share), shown, functions), out, least)


def _large(own: pd.DataFrame, calls: pd.DataFrame, total: pd.Series, share: float) -> tuple[pd.DataFrame, pd.DataFrame]:
    """`own` and `calls` with functions that have less than `share` of all time, with what they call, as small.OTHER: within that there are no calls."""
    limit = share * float(own[column("ns", "self_")].sum())
    if not limit:
        return own, calls
    names = set(total.index[total < limit])
    parts = [name for name in own if name not in ("func_id", "line")]
    mine = own["func_id"].isin(names)
    rest = pd.DataFrame([{"func_id": small.OTHER, "line": None} | own.loc[mine, parts].sum().to_dict()])
    kept = calls.assign(**{name: calls[name].mask(calls[name].isin(names), small.OTHER) for name in ("caller_id", "func_id")})
    kept = kept[(kept["caller_id"] != small.OTHER) | (kept["func_id"] != small.OTHER)]
    kept = kept.assign(call_line=kept["call_line"].mask(kept["caller_id"] == small.OTHER))
    numbers = [name for name in kept if name not in ("caller_id", "call_line", "func_id")]
    kept = kept.groupby(["caller_id", "call_line", "func_id"], as_index=False, dropna=False)[numbers].sum(min_count=1)
    return pd.concat([own[~mine], rest]) if mine.any() else own, kept


def _chunks(trace: Any, own: pd.DataFrame, calls: pd.DataFrame, shown: list[str], functions: pd.DataFrame) -> Iterator[bytes]:
    names = _Names(functions)
    yield _head(trace, own, shown).encode()
    for rows, callees in _by_function(own, calls):
        func_id = rows[0]["func_id"]
        lines = [f"\n{names.file(func_id)}\n{names.function(func_id)}\n"]
        lines += [f"{names.line(func_id, row['line'])} {_costs(row, 'self_', shown)}\n" for row in rows]
        for row in callees:
            to, first = row["func_id"], names.line(row["func_id"], None)
            lines.append(f"{names.file(to, 'cfl')}\n{names.function(to, 'cfn')}\ncalls={row['calls']} {first}\n")
            lines.append(f"{names.line(func_id, row['call_line'])} {_costs(row, '', shown)}\n")
        yield "".join(lines).encode()


def _by_function(own: pd.DataFrame, calls: pd.DataFrame) -> Iterator[tuple[list[dict[str, Any]], list[dict[str, Any]]]]:
    """The rows of each function in `own`, and those of what it calls; of some functions at a time, as rows of a million would take gigabytes."""
    own, calls = own.sort_values("func_id", kind="stable"), calls.sort_values("caller_id", kind="stable")
    functions, first = np.unique(own["func_id"].to_numpy(np.int64), return_index=True)
    first = np.append(first, len(own))
    low, high = (np.searchsorted(calls["caller_id"].to_numpy(np.int64), functions, side=side) for side in ("left", "right"))
    for at in range(0, len(functions), _AT_ONCE):
        end = min(at + _AT_ONCE, len(functions))
        mine, theirs = own.iloc[first[at] : first[end]].to_dict("records"), calls.iloc[low[at] : high[end - 1]].to_dict("records")
        for k in range(at, end):
            yield mine[first[k] - first[at] : first[k + 1] - first[at]], theirs[low[k] - low[at] : high[k] - low[at]]


def _own(trace: Any, tree: pd.DataFrame) -> pd.DataFrame:
    """func_id, line (null: that of the `def`), and the parts of self time."""
    parts = _parts(tree, "self_")
    functions = tree[tree["calls"] > 0].groupby("func_id", as_index=False)[parts].sum(min_count=1)
    period = period_of(trace)
    lines = by_line(trace, period, 0).assign(self_unknown_ns=0) if period else trace.lines()
    if not len(lines):
        return with_off(functions.assign(line=None))
    without = functions[~functions["func_id"].isin(lines["func_id"])]
    return with_off(pd.concat([lines[["func_id", "line", *parts]], without]))


def _calls(trace: Any, tree: pd.DataFrame) -> pd.DataFrame:
    """caller_id, call_line (null: not known), func_id, calls, and the parts of total time; without those that no function called."""
    if not period_of(trace):
        sites = trace.call_sites()
        return with_off(sites[sites["caller_id"] != _NOBODY])
    above = tree.set_index("node_id")["func_id"]
    edges = tree.assign(caller_id=tree["parent_id"].map(above).fillna(_NOBODY).astype(int))
    edges = edges[(edges["caller_id"] != _NOBODY) & edges["outermost"]]
    sums = edges.groupby(["caller_id", "func_id"], as_index=False)[["calls", *_parts(tree, "")]].sum(min_count=1)
    return with_off(sums.assign(call_line=None))


def _parts(tree: pd.DataFrame, prefix: str) -> list[str]:
    return [column(name, prefix) for name in PARTS if column(name, prefix) in tree]


def _costs(row: dict[str, Any], prefix: str, shown: list[str]) -> str:
    found = (row[column(name, prefix)] for name in shown)
    return " ".join("0" if pd.isna(each) else str(int(each)) for each in found)


def _head(trace: Any, own: pd.DataFrame, shown: list[str]) -> str:
    target = trace.manifest["target"]
    events = "".join(f"event: {name} : {title} [ns]\n" for name, title in (_EVENTS[each] for each in shown))
    sums = " ".join(str(int(own[column(name, "self_")].sum())) for name in shown)
    command = printable(str(target.get("command") or target.get("executable") or "?"))
    return (
        f"# callgrind format\nversion: 1\ncreator: pytrace-ebpf\npid: {target['pid']}\ncmd: {command}\n"
        f"positions: line\n{events}events: {' '.join(_EVENTS[name][0] for name in shown)}\nsummary: {sums}\n"
    )


class _Names:
    """Names of files and functions, written out the first time and by number from then on; and their lines."""

    def __init__(self, functions: pd.DataFrame) -> None:
        same = functions.duplicated(["qualname", "file"], keep=False)
        names = zip(functions["qualname"], functions["first_line"], same, strict=True)
        # Of a million functions each object counts: of files, which are fewer, there is one.
        self._names = [*(f"{printable(name)}:{line}" if twice else printable(name) for name, line, twice in names), small.OTHER_NAME, "(unknown)"]
        files: dict[str, str] = {}
        found = (printable(file) or f"{module}" for file, module in zip(functions["file"], functions["module"], strict=True))
        self._files = [*(files.setdefault(file, file) for file in found), small.OTHER_NAME, "(unknown)"]
        self._lines = array("q", np.append(np.maximum(functions["first_line"].to_numpy(np.int64), 0), [0, 0]).tobytes())
        func = np.append(functions["func_id"].to_numpy(np.int64), small.OTHER) - small.OTHER  # none is less
        places = np.full(int(func.max()) + 1, -1)
        places[func] = np.arange(len(func))
        self._places = array("q", places.tobytes())
        self._numbers: dict[str, dict[str, int]] = {"file": {}, "function": {}}

    def file(self, func_id: int, key: str = "fl") -> str:
        """The line that says in which file a function is."""
        return f"{key}={self._numbered('file', self._files[self._at(func_id)])}"

    def function(self, func_id: int, key: str = "fn") -> str:
        """The line that names a function."""
        return f"{key}={self._numbered('function', self._names[self._at(func_id)])}"

    def line(self, func_id: int, line: Any) -> int:
        """A line of a function's, that of its `def` where it is not known; 0 where that is not known either."""
        return self._lines[self._at(func_id)] if line is None or pd.isna(line) or line < 0 else int(line)

    def _at(self, func_id: int) -> int:
        place = func_id - small.OTHER
        return self._places[place] if place < len(self._places) else -1

    def _numbered(self, what: str, name: str) -> str:
        numbers = self._numbers[what]
        known = numbers.get(name)
        if known is not None:
            return f"({known})"
        numbers[name] = number = len(numbers) + 1
        return f"({number}) {name}"
