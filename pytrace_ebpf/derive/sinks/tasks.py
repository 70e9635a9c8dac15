"""Coroutines as whole calls: the resumes of each joined, with the coroutine that awaits it and the task that drives it.

A call of a plain function that yielded is one of a greenlet that was switched away from, and counts as a coroutine that its caller awaits.
A resume continues the last call on its frame, whose number a coroutine keeps from its creation to its end. The calls
are read a part at a time; from part to part go the coroutines that are suspended, and those that began in a call that is still open. Memory is
bounded by the largest part, these, and the table that is made. Of generators, which are often most of what yields, only the calls of one part
matter: coroutines may begin within them, and take or leave their frames. Where nothing is a coroutine none of their calls is made a row of.
The same pass keeps the sums of the calls where these are not kept yet.
"""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from pytrace_ebpf.derive.arrow_table import to_arrow
from pytrace_ebpf.derive.sink import AgainError, Needs, RowsOf, RowsSink
from pytrace_ebpf.derive.store import State, checked_rows
from pytrace_ebpf.rebuild.shards import Shards
from pytrace_ebpf.trace.frames import values_and_mask
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.trace.schema import CALL_LOSSES, TASK_STATUSES, TASKS
from pytrace_ebpf.trace.segments import part_name
from pytrace_ebpf.trace.states import SPLIT
from pytrace_ebpf.trace.writing import write

GENERATOR, COROUTINE, ASYNC_GENERATOR = 0x20, 0x80, 0x200  # co_flags
NONE = -1
_CALLS = (
    "call_id", "parent_id", "pid", "tid", "func_id", "start_ns", "end_ns", "wall_ns", *SPLIT, "frame", "resumed", "yielded", "status",
)  # fmt: skip
_ROW = np.dtype(
    [
        ("coroutine_id", "i8"), ("parent_call", "i8"), ("pid", "i4"), ("tid", "i4"), ("func_id", "i4"), ("frame", "i8"),
        ("start_ns", "i8"), ("end_ns", "i8"), ("resumes", "i8"), ("run_ns", "i8"), *((name, "i8") for name in SPLIT),
        ("longest_ns", "i8"), ("longest_call_id", "i8"), ("resumed", "?"), ("thrown", "?"), ("yielded", "?"), ("status", "i1"),
    ]
)  # fmt: skip
"""One resume, or those of a coroutine so far: `resumed` of the first, yielded and thrown (its entry was not reported) of the last. Of the split -1 is null."""

Ints = npt.NDArray[np.int64]
_Rows = npt.NDArray[Any]
_NO_IDS = np.zeros(0, np.int64)
_NO_PAIRS = np.zeros((2, 0), np.int64)
_STATUS = {status: number for number, status in enumerate(TASK_STATUSES)} | {"repaired": 0}


class Tasks(RowsSink):
    """Writes schema.TASKS, from the resumes of coroutines, a segment of the calls at a time."""

    table = TASKS
    columns = _CALLS

    def __init__(self, trace: Trace, into: Path | None = None) -> None:
        super().__init__(trace, into)
        functions = trace.functions()
        ids, flags = functions["func_id"].to_numpy(), functions["flags"].to_numpy() & (GENERATOR | COROUTINE | ASYNC_GENERATOR)
        self._functions, self._generators = ids[flags != 0], ids[flags == GENERATOR]
        # Whether anything may be a coroutine; greenlets may be where no function is a coroutine's.
        self._any = len(self._generators) < len(self._functions)

    @property
    def idle(self) -> bool:
        return not any(segment["rows"].get("events") for segment in self.trace.segments)

    def needs(self) -> Needs:
        return Needs(rows_of=self.rows_of(), sums=True, alone=not self._any)

    def rows_of(self) -> RowsOf:
        wanted, never = (self._functions, _NO_IDS) if self._any else (_NO_IDS, self._generators)
        return RowsOf(wanted, True, never)

    def begin(self, engines: Shards, first: int, state: State | None) -> None:
        self._engines = engines
        self._suspended = np.zeros(0, _ROW)
        self._finished: list[_Rows] = []
        # (2, n): coroutine_id, the call that it began in or one that this lies in; new ones, and by that call those of which it is still open.
        self._began: list[Ints] = []
        self._open: dict[int, list[Ints]] = {}
        self._parents: list[Ints] = []  # (2, n): coroutine_id, parent_id
        if state is not None:
            self._resume(state)
        super().begin(engines, first, state)

    def taken(self, place: int) -> None:
        super().taken(place)
        if self._began or self._open:
            self._forget_what_ended(self._engines.open_calls())

    def end(self) -> None:
        super().end()
        rows, parents = self.finish()
        if len(rows):
            write(TASKS, _table(rows, parents), self.into / part_name(0))

    def state(self) -> State:
        began = [*self._began, *(each for own in self._open.values() for each in own)]
        pairs = {name: np.concatenate([_NO_PAIRS, *own], axis=1) for name, own in (("began", began), ("parents", self._parents))}
        return {"suspended": self._suspended, "finished": np.concatenate((np.zeros(0, _ROW), *self._finished)), **pairs}

    def _resume(self, state: State) -> None:
        suspended, finished = (checked_rows(state[name], _ROW) for name in ("suspended", "finished"))
        began, parents = (checked_rows(state[name], _NO_PAIRS.dtype, 2) for name in ("began", "parents"))
        self._suspended, self._finished, self._began, self._parents = suspended, [finished], [began], [parents]
        self._any = self._any or any(map(len, (suspended, finished, began[0])))

    def part(self, calls: pd.DataFrame) -> None:
        if not self._any and len(calls):
            self._any = True  # greenlets: generators matter from the beginning
            raise AgainError
        new = _rows(calls)
        rows = np.concatenate((self._suspended, self._beside_coroutines(new)))
        order = np.lexsort((rows["coroutine_id"], rows["start_ns"], rows["frame"], rows["pid"]))
        rows, is_new = rows[order], order >= len(self._suspended)
        begins = _begins(rows)
        joined = _join(rows, np.flatnonzero(begins))
        whose = joined["coroutine_id"][np.cumsum(begins) - 1]
        own = self._is_asynchronous(rows)
        self._began.append(np.stack((whose, rows["parent_call"]))[:, begins & is_new & own])
        self._find_parents(new, np.stack((rows["coroutine_id"], whose))[:, is_new & own])
        followed = np.append(_same_frame(joined), False)[: len(joined)]
        abandoned = joined["yielded"] & followed
        joined["status"][abandoned] = np.maximum(joined["status"][abandoned], _STATUS["abandoned"])
        own = self._is_asynchronous(joined)
        goes_on = joined["yielded"] & ~followed
        self._suspended = joined[own & goes_on]
        self._finished.append(joined[own & ~goes_on])

    def finish(self) -> tuple[_Rows, Ints]:
        """(coroutines in the order of coroutine_id, the parent_id of each)."""
        trace, left = self.trace, self._suspended
        thrown = left["thrown"]  # nothing came after: it did not yield, what was thrown into it left it
        left["status"] = np.maximum(left["status"], np.where(thrown, _STATUS["unwound"], _STATUS["open_at_end"]))
        processes = trace.processes().set_index("pid")
        end = processes["end_ns"].reindex(left["pid"]).fillna(trace.end_ns).to_numpy(np.int64)
        left["end_ns"] = np.where(thrown, left["end_ns"], np.maximum(left["end_ns"], end))
        rows = np.concatenate((np.zeros(0, _ROW), *self._finished, left))
        rows = rows[np.argsort(rows["coroutine_id"])]
        if not trace.losses()["class"].isin(CALL_LOSSES).any():  # else the beginning is not known
            start = processes["start_ns"].reindex(rows["pid"]).fillna(trace.start_ns).to_numpy(np.int64)
            rows["start_ns"] = np.where(rows["resumed"], np.minimum(rows["start_ns"], start), rows["start_ns"])
        rows["status"] = np.where(rows["resumed"], np.maximum(rows["status"], _STATUS["open_at_start"]), rows["status"])
        known = np.concatenate([_NO_PAIRS, *self._parents], axis=1)
        known = known[:, np.argsort(known[0])]
        return rows, look_up(known[0], known[1], rows["coroutine_id"])

    def _is_asynchronous(self, rows: _Rows) -> npt.NDArray[np.bool_]:
        return (rows["func_id"] >= 0) & ~np.isin(rows["func_id"], self._generators)

    def _beside_coroutines(self, rows: _Rows) -> _Rows:
        """Those of coroutines, and of generators those on frames that coroutines have or had: these say that one was abandoned."""
        own = self._is_asynchronous(rows)
        frames = np.concatenate((rows["frame"][own], self._suspended["frame"]))  # in another process it is another one: then it is a row too many
        return rows[own | np.isin(rows["frame"], frames)] if len(frames) else rows[:0]

    def _find_parents(self, rows: _Rows, whose: Ints) -> None:
        """Of coroutines that began: whose call it was in; that may end in a later part.

        `rows`: all calls that ended in this one. `whose`: (2, n), call and coroutine of those of coroutines.
        """
        rows = rows[np.argsort(rows["coroutine_id"])]
        ids, outside = rows["coroutine_id"], rows["parent_call"]
        whose = whose[:, np.argsort(whose[0])]
        # What is found in a generator's call, such as __await__, is looked for in the call around it.
        generator = ~self._is_asynchronous(rows)
        open_ = np.fromiter(self._open, np.int64, len(self._open))
        ended = open_[look_up(ids, ids, open_) != NONE]
        wanted = np.concatenate([*self._began, *(pairs for call in ended for pairs in self._open.pop(call))], axis=1)
        while True:
            at = look_up(ids, np.arange(len(ids)), wanted[1])
            through = np.append(generator, False)[at]
            found = (at != NONE) & ~through
            self._parents.append(np.stack((wanted[0, found], look_up(whose[0], whose[1], ids[at[found]]))))
            wanted[1, through] = outside[at[through]]
            wanted = wanted[:, ~found & (wanted[1] != NONE)]
            if not through.any():
                break
        self._began = [wanted]

    def _forget_what_ended(self, open_calls: Ints) -> None:
        """What began in a call of which no row is to come has no parent: that call was a plain function's."""
        began = np.concatenate([_NO_PAIRS, *self._began], axis=1)
        began = began[:, np.isin(began[1], open_calls)]
        began = began[:, np.argsort(began[1], kind="stable")]
        calls, first = np.unique(began[1], return_index=True)
        still = np.isin(np.fromiter(self._open, np.int64, len(self._open)), open_calls)
        self._open = {call: pairs for (call, pairs), is_open in zip(self._open.items(), still, strict=True) if is_open}
        for call, pairs in zip(calls.tolist(), np.split(began, first[1:], axis=1), strict=False):
            self._open.setdefault(call, []).append(pairs)
        self._began = []


def _rows(calls: pd.DataFrame) -> _Rows:
    out = np.zeros(len(calls), _ROW)
    for name in ("pid", "tid", "func_id", "frame", "start_ns", "end_ns", "resumed", "yielded"):
        out[name] = calls[name].to_numpy()
    out["coroutine_id"] = out["longest_call_id"] = calls["call_id"].to_numpy()
    out["parent_call"], out["resumes"] = calls["parent_id"].to_numpy(), 1
    out["run_ns"] = out["longest_ns"] = calls["wall_ns"].to_numpy()
    for name in SPLIT:
        own, known = values_and_mask(calls[name])
        out[name] = np.where(known, own, -1)
    out["status"] = calls["status"].astype("object").map(_STATUS).to_numpy(np.int8)
    out["thrown"] = (calls["status"] == "repaired").to_numpy()
    # Where the source does not distinguish frames it is not known what a resume continues.
    return out[(out["frame"] != 0) | ~(out["resumed"] | out["yielded"])]


def _same_frame(rows: _Rows) -> npt.NDArray[np.bool_]:
    """Of each row but the first: whether it is on the frame of the one before."""
    known = rows["frame"][1:] != 0
    return known & (rows["frame"][1:] == rows["frame"][:-1]) & (rows["pid"][1:] == rows["pid"][:-1])


def _begins(rows: _Rows) -> npt.NDArray[np.bool_]:
    """Which rows begin a coroutine, the others going on with that of the row before."""
    begins = np.ones(len(rows), bool)
    continues = rows["resumed"][1:] | (rows["thrown"][1:] & rows["yielded"][:-1])
    begins[1:] = ~(continues & _same_frame(rows) & (rows["func_id"][1:] == rows["func_id"][:-1]))
    return begins


def _join(rows: _Rows, first: Ints) -> _Rows:
    """One row for each run of rows that begins at `first`."""
    if not len(first):
        return rows[:0]
    last = np.append(first[1:], len(rows)) - 1
    out = rows[first]
    for name in ("end_ns", "yielded", "thrown"):
        out[name] = rows[name][last]
    for name in ("resumes", "run_ns", *SPLIT):
        out[name] = np.add.reduceat(rows[name], first)
    for name in SPLIT:
        out[name][np.minimum.reduceat(rows[name], first) < 0] = -1
    out["longest_ns"] = np.maximum.reduceat(rows["longest_ns"], first)
    is_longest = np.flatnonzero(rows["longest_ns"] == np.repeat(out["longest_ns"], last - first + 1))
    out["longest_call_id"] = rows["longest_call_id"][is_longest[np.searchsorted(is_longest, first)]]
    out["status"] = np.maximum.reduceat(rows["status"], first)
    return out


def look_up(keys: Ints, values: Ints, wanted: Ints) -> Ints:
    """The value of each wanted key, NONE where there is none; `keys` ascend."""
    if not len(keys):
        return np.full(len(wanted), NONE, np.int64)
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[at] == wanted, values[at], NONE)


def _outermost(ids: Ints, parents: Ints) -> Ints:
    """The last in each one's line of parents, itself where it has none; `ids` ascend."""
    top = np.where(parents == NONE, ids, parents)
    while True:
        further = look_up(ids, top, top)
        further = np.where(further == NONE, top, further)
        if (further == top).all():
            return top
        top = further


def _table(rows: _Rows, parents: Ints) -> pa.Table:
    columns: dict[str, pa.Array] = {
        "task_id": pa.array(_outermost(rows["coroutine_id"], parents)),
        "parent_id": pa.array(parents),
        "awaited_ns": pa.array(rows["end_ns"] - rows["start_ns"] - rows["run_ns"]),
        "status": pa.DictionaryArray.from_arrays(rows["status"].astype(np.int32), list(TASK_STATUSES)),
    }
    return to_arrow(TASKS, rows, columns)
