"""The state of a recording at a moment (open calls, living threads): a trace can begin with it when older segments are dropped."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from pytrace_ebpf.lazy_imports import pa, pc
from pytrace_ebpf.rebuild.stacks import Stacks
from pytrace_ebpf.trace.schema import EVENTS, SCHED_LOSSES, TABLES, CallKind, SchedKind

# Rows that are named once, by their key: more of them are kept than are likely to be met again.
_NAMED = {"neighbours": "tid", "resources": "resource_id"}
_MOST_NAMED = 1 << 16
# The last scheduling row of a thread -> the row that describes its state where the trace begins.
_CARRIED = {SchedKind.FORK: SchedKind.WAKING, SchedKind.EXEC: SchedKind.SNAPSHOT}

Row = dict[str, Any]


class Horizon:
    """The open calls, living threads and processes, and what each thread was doing, from one segment after the other."""

    def __init__(self) -> None:
        """Raises HostError where the compiled library is missing."""
        self._stacks = Stacks()
        self._sched, self._cputime = (TABLES[name].arrow.empty_table() for name in ("sched", "cputime"))
        self._processes: dict[int, Row] = {}
        self._threads: dict[tuple[int, int], Row] = {}
        self._named: dict[str, OrderedDict[int, Row]] = {name: OrderedDict() for name in _NAMED}
        self._losses: list[Row] = []

    def take(self, tables: Mapping[str, pa.Table]) -> None:
        """Take in the tables of the next segment. Raises HostError."""
        if "events" in tables:
            self._stacks.take(tables["events"])
        self._take_small(tables)
        if "sched" in tables:
            self._sched = _last_states(pa.concat_tables([self._sched, tables["sched"]]))
        lost = [row["end_ns"] for row in self._losses if row["class"] in SCHED_LOSSES]
        if lost and len(self._sched):
            self._sched = self._sched.filter(pc.greater(self._sched["ts"], max(lost)))
        if "cputime" in tables:
            samples = pa.concat_tables([self._cputime, tables["cputime"]])
            self._cputime = samples.take(pa.array(_lasts(_keys(samples))))

    def _take_small(self, tables: Mapping[str, pa.Table]) -> None:
        rows = {name: tables[name].to_pylist() if name in tables else [] for name in ("processes", "threads", "losses", *_NAMED)}
        self._processes |= {row["pid"]: row for row in rows["processes"]}
        self._threads |= {(row["pid"], row["tid"]): row for row in rows["threads"]}
        for name, key in _NAMED.items():
            self._name(self._named[name], {row[key]: row for row in rows[name]})
        for using in {"sched", "samples"} & tables.keys():  # a connection that is used on, and was named long ago
            used = pc.unique(tables[using]["resource_id"]).to_pylist()
            self._name(self._named["resources"], {number: row for number in used if (row := self._named["resources"].get(number))})
        self._losses += rows["losses"]
        ended = [
            key for key in ((row["pid"], row["tid"]) for row in rows["threads"]) if self._threads.get(key, {"end_ns": None})["end_ns"] is not None
        ]
        if ended:
            pid, tid = np.array(ended, np.int32).T
            self._stacks.forget(pid, tid)

    @staticmethod
    def _name(known: OrderedDict[int, Row], rows: Mapping[int, Row]) -> None:
        for key, row in rows.items():
            known[key] = row
            known.move_to_end(key)
        while len(known) > _MOST_NAMED:
            known.popitem(last=False)

    def beginning(self, at_ns: int) -> dict[str, pa.Table]:
        """The tables of a segment without length at which a trace begins that has only what follows; what has ended is forgotten."""
        self._processes = {pid: row for pid, row in self._processes.items() if row["end_ns"] is None}
        ended = np.array([pid << 32 | tid for (pid, tid), row in self._threads.items() if row["end_ns"] is not None], np.int64)
        self._threads = {key: row for key, row in self._threads.items() if row["end_ns"] is None}
        self._losses = [row for row in self._losses if row["end_ns"] > at_ns]
        # The row of a thread that has only begun may not have come yet.
        self._sched, self._cputime = (rows.filter(pa.array(~np.isin(_keys(rows), ended))) for rows in (self._sched, self._cputime))
        small = {
            "processes": self._processes.values(),
            "threads": self._threads.values(),
            **{name: rows.values() for name, rows in self._named.items()},
            "losses": self._losses,
        }
        tables = {name: pa.Table.from_pylist([_since(row, at_ns) for row in rows], TABLES[name].arrow) for name, rows in small.items()}
        return tables | {"events": opened(self._stacks.open_calls(), at_ns), "sched": _at(self._sched, at_ns), "cputime": self._cputime}


def opened(calls: Mapping[str, npt.NDArray[np.int64]], at_ns: int) -> pa.Table:
    """Open calls, as rebuild.stacks has them, as rows of `events` of a trace that begins at `at_ns`."""
    count = len(calls["pid"])
    fixed = {"ts": np.full(count, at_ns), "kind": np.full(count, CallKind.OPEN, np.int8)}
    return pa.table({name: ({**calls, **fixed})[name] for name in EVENTS.arrow.names}, schema=EVENTS.arrow)


def _since(row: Row, at_ns: int) -> Row:
    """A process or thread as one that the recording met when it began."""
    return row | {"start_ns": max(row["start_ns"], at_ns)} if "pid" in row and "start_ns" in row else row


def _keys(rows: pa.Table) -> npt.NDArray[np.int64]:
    return rows["pid"].to_numpy().astype(np.int64) << 32 | rows["tid"].to_numpy()


def _lasts(keys: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Where each key stands last, in order."""
    _, backwards = np.unique(keys[::-1], return_index=True)
    return np.sort(len(keys) - 1 - backwards)


def _last_states(sched: pa.Table) -> pa.Table:
    """Of rows of `sched` in the order of time those that say what each thread does at their end; a thread that has a core is not woken."""
    kind, keys = sched["kind"].to_numpy(), _keys(sched)
    wakes = kind == SchedKind.WAKING
    last_switch, woken = (_last_of(keys, np.flatnonzero(which)) for which in (~wakes & (kind != SchedKind.MIGRATE), wakes))
    last = []
    for key in last_switch | woken:  # one step per thread
        at, wake = last_switch.get(key, -1), woken.get(key, -1)
        before = SchedKind(kind[at]) if at >= 0 else None
        if before != SchedKind.EXIT:
            last.append(wake if wake > at and before not in (SchedKind.IN, SchedKind.EXEC) else at)
    return sched.take(pa.array(np.sort(np.array(last, np.int64))))


def _last_of(keys: npt.NDArray[np.int64], rows: npt.NDArray[np.int64]) -> dict[int, int]:
    """The last of `rows` by key."""
    lasts = rows[_lasts(keys[rows])]
    return dict(zip(keys[lasts].tolist(), lasts.tolist(), strict=True))


def _at(sched: pa.Table, at_ns: int) -> pa.Table:
    """The same as rows of the moment `at_ns`."""
    kinds = [SchedKind(kind) for kind in sched["kind"].to_pylist()]
    fresh = {
        "ts": np.full(len(kinds), at_ns),
        "kind": np.array([_CARRIED.get(kind, kind) for kind in kinds], np.int8),
        "state": np.where([kind == SchedKind.EXEC for kind in kinds], 0, sched["state"].to_numpy()).astype(np.int32),
    }
    return pa.table({name: fresh.get(name, sched[name]) for name in sched.column_names}, schema=sched.schema)
