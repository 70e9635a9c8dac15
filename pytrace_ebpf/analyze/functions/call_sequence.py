"""The layered call sequence of a thread, walked like a skip list: an entry leads to those it contains in the level below."""

from collections.abc import Sequence
from typing import Any, overload

import numpy as np
import numpy.typing as npt
import pandas as pd

from pytrace_ebpf.trace.frames import to_frame
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.trace.schema import CALLS
from pytrace_ebpf.trace.states import SPLIT

COST = ("wall_ns", *SPLIT)
COLUMNS = (
    "call_id", "parent_id", "last_descendant_id", "next_sibling_id", "depth", "layer", "pid", "tid", "func_id",
    "start_ns", "end_ns", *COST, "self_wall_ns", "worker_on_cpu_ns", "status",
)  # fmt: skip
_NAMES = {"qualname": "", "file": "", "first_line": -1}  # and what they are of a function that is not known


class Entry:
    """One call: when, what it cost, and the way to the calls around it.

    call_id, depth, layer, tid, func_id, start_ns, end_ns, status as in schema.CALLS; name, file, first_line of its
    function ("" and -1 where that is unknown); below: how many calls it contains, in all levels.
    """

    def __init__(self, walk: "_Walk", row: dict[str, Any]) -> None:
        self._walk, self._row = walk, row
        self.call_id, self.depth, self.tid, self.func_id = (int(row[c]) for c in ("call_id", "depth", "tid", "func_id"))
        self.start_ns, self.end_ns = int(row["start_ns"]), int(row["end_ns"])
        self.layer, self.status = str(row["layer"]), str(row["status"])
        self.name, self.file, self.first_line = str(row["qualname"]), str(row["file"]), int(row["first_line"])
        self.below = int(row["last_descendant_id"]) - self.call_id

    @property
    def cost(self) -> dict[str, int | None]:
        """COST in nanoseconds: the wall time and its four parts, None for what was not recorded."""
        return {name: None if pd.isna(self._row[name]) else int(self._row[name]) for name in COST}

    def children(self) -> "Entries":
        """The entries that it contains in the level below. Only the part of the trace that holds them is read."""
        if not self.below:
            return self._walk.none
        inside = (self.call_id + 1, self.call_id + self.below)
        return self._walk.entries(ids=inside, depth=self.depth + 1, start_ns=self.start_ns, end_ns=self.end_ns + 1)

    def parent(self) -> "Entry | None":
        """The entry of the level above that contains it; None for an outermost one."""
        parent = int(self._row["parent_id"])
        return None if parent < 0 else self._walk.entries(ids=(parent, parent), start_ns=self.start_ns - 1, end_ns=self.start_ns + 1)[0]

    def next(self) -> "Entry | None":
        """The entry after it under the same parent; what lies below this one is skipped."""
        following = int(self._row["next_sibling_id"])
        return None if following < 0 else self._walk.entries(ids=(following, following), start_ns=self.end_ns)[0]

    def siblings(self) -> "Entries":
        """All entries under the same parent, this one too, in the order of time."""
        parent = self.parent()
        if parent is not None:
            return parent.children()
        return self._walk.entries(pid=int(self._row["pid"]), tid=self.tid, depth=self.depth)

    def __repr__(self) -> str:
        return f"<{self.name or 'unknown function'}: {self.cost['wall_ns']} ns, {self.below} calls below>"


class Entries(Sequence[Entry]):
    """Entries of one level in the order of time; `table` has them as rows: COLUMNS and qualname, file, first_line."""

    def __init__(self, walk: "_Walk", table: pd.DataFrame) -> None:
        self._walk, self.table = walk, table

    def longest(self) -> Entry:
        """The entry with the most wall time. Raises ValueError where there is none."""
        if not len(self.table):
            raise ValueError("no entry in this sequence")
        return self[int(self.table["wall_ns"].to_numpy().argmax())]

    def __len__(self) -> int:
        return len(self.table)

    @overload
    def __getitem__(self, at: int) -> Entry: ...
    @overload
    def __getitem__(self, at: slice) -> "Entries": ...
    def __getitem__(self, at: int | slice) -> "Entry | Entries":
        if isinstance(at, slice):
            return Entries(self._walk, self.table.iloc[at].reset_index(drop=True))
        return Entry(self._walk, {str(name): column.iloc[at] for name, column in self.table.items()})


def _with_last(values: npt.NDArray[Any], last: Any) -> npt.NDArray[Any]:
    return np.concatenate((values, np.array([last], values.dtype)))


class _Walk:
    """The trace that entries come from, and the names of its functions, read once."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        functions = trace.functions()
        self._functions = pd.Index(functions["func_id"])
        self._names = {name: _with_last(functions[name].to_numpy(), unknown) for name, unknown in _NAMES.items()}
        self.none = self._named(to_frame(CALLS.arrow.empty_table().select(COLUMNS), CALLS))

    def entries(self, **where: Any) -> Entries:
        """The calls that `where` (of Trace.calls) selects."""
        return self._named(self._trace.calls(columns=COLUMNS, **where))

    def _named(self, calls: pd.DataFrame) -> Entries:
        places = self._functions.get_indexer(calls["func_id"])  # -1, the last one, for none
        return Entries(self, calls.assign(**{name: values[places] for name, values in self._names.items()}))


def outermost(trace: Trace, tid: int, pid: int | None = None) -> Entries:
    """The top level of a thread: its calls of depth 0, in the order of time. Empty where it made none."""
    return _Walk(trace).entries(pid=pid, tid=tid, depth=0)


def entry(trace: Trace, call_id: int) -> Entry:
    """The entry of one call. Raises KeyError where the trace has no such call."""
    found = _Walk(trace).entries(ids=(call_id, call_id))
    if not len(found):
        raise KeyError(f"no call {call_id} in {trace.directory}")
    return found[0]
