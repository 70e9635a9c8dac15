"""The last seconds of a recording, as a picture: segments go in as they are closed, and what is older than the window drops out."""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from pytrace_ebpf.analyze.live.live_states import LiveStates
from pytrace_ebpf.analyze.live.live_sums import KEYS, Sums, sums
from pytrace_ebpf.analyze.live.weights import Weights
from pytrace_ebpf.derive.scheduling import syscalls
from pytrace_ebpf.trace.losses import PARTLY
from pytrace_ebpf.trace.sampled import NATIVE
from pytrace_ebpf.trace.schema import PROCESSES, SAMPLES, STACKS
from pytrace_ebpf.trace.snapshot import OUTSIDE, TIMES, Facts, Rows, Snapshot

_MOST = {"threads": 1000, "functions": 1500, "lines": 500, "waits": 500}  # rows of a picture: those with most time
_MOST_OTHERS = 10_000  # threads of other programs, whose names are kept


@dataclass(frozen=True)
class _Segment:
    start_ns: int
    end_ns: int
    sums: Sums


class Window:
    """Memory is bounded by the functions of the programs, the threads that live, and the sums of the window's segments."""

    def __init__(self, seconds: float, machine: str, period_ns: int) -> None:
        """`machine`: what `uname -m` says; `period_ns`: time that a sample stands for."""
        self._span_ns, self._machine, self._period_ns = int(seconds * 1e9), machine, period_ns
        self._states, self._weights = LiveStates(machine), Weights(period_ns)
        self._segments: deque[_Segment] = deque()
        self._names: dict[int, tuple[str, str, str, int]] = {}
        self._natives: set[int] = set()
        self._processes: dict[int, dict[str, Any]] = {}
        self._threads: dict[tuple[int, int], dict[str, Any]] = {}
        self._others: dict[int, str] = {}  # names of other programs' threads
        self._last: dict[tuple[int, int], int] = {}  # function in which a thread was seen last
        self._now = pd.DataFrame({"pid": [], "tid": []})  # intervals that go on
        self._lost = 0
        self._facts = Facts()

    def take(self, start_ns: int, end_ns: int, tables: Mapping[str, pa.Table], spent_ns: int | None = None) -> None:
        """The next segment, its tables as in a trace's; `spent_ns`: CPU time of the tracer meanwhile."""
        self._meet(tables)
        intervals = self._states.segment(tables.get("sched"), end_ns, tables.get("losses"))
        samples, stacks = (tables.get(table.name, table.arrow.empty_table()).to_pandas() for table in (SAMPLES, STACKS))
        weighed = self._weights.take(samples, intervals)
        found = sums(weighed, stacks, np.array(sorted(self._natives), np.int64), intervals)
        self._last |= found.last.to_dict()
        self._segments.append(_Segment(start_ns, end_ns, found))
        while self._segments[0].end_ns <= end_ns - self._span_ns:
            self._segments.popleft()
        self._now = intervals[intervals["goes_on"]]
        losses = tables["losses"].to_pylist() if "losses" in tables else []
        lost = sum(row["count"] for row in losses if row["class"] not in PARTLY)
        self._lost += lost
        rows = {name: tables[name].num_rows if name in tables else 0 for name in ("samples", "sched")}
        seconds_ns = end_ns - self._segments[0].start_ns
        self._facts = Facts(end_ns, seconds_ns, end_ns - start_ns, rows["samples"], rows["sched"], lost, self._lost, spent_ns, self._period_ns)
        self._forget(end_ns - self._span_ns)

    @property
    def pids(self) -> list[int]:
        """The processes that have not ended."""
        return [pid for pid, row in self._processes.items() if row["end_ns"] is None]

    def snapshot(self) -> Snapshot:
        """The picture as it stands."""
        added = {name: self._added(name) for name in KEYS}
        threads = self._thread_rows(added["threads"])
        waits = added["waits"]
        if len(waits):
            numbers = waits["syscall"].to_numpy()
            waits["syscall"] = [syscalls.name(int(number), self._machine) for number in numbers]
        tables = {"threads": threads} | {name: _rows(added[name]) for name in ("functions", "lines", "waits")}
        used = {row["func_id"] for rows in tables.values() for row in rows}
        processes = [
            {"pid": pid, "command": row["command"], "python": row["python_version"] or "", "ended": row["end_ns"] is not None}
            for pid, row in sorted(self._processes.items())
        ]
        names = {number: self._names[number] for number in sorted(used) if number in self._names}
        by = {row["by_tid"] for row in tables["waits"]}
        return Snapshot(self._facts, processes, **tables, names=names, others={tid: name for tid, name in self._others.items() if tid in by})

    def _meet(self, tables: Mapping[str, pa.Table]) -> None:
        for row in tables["functions"].to_pylist() if "functions" in tables else []:
            self._names[row["func_id"]] = row["qualname"] or row["name"], row["module"], row["file"], row["first_line"]
            if row["function_layer"] == NATIVE:
                self._natives.add(row["func_id"])
        if "processes" in tables:
            self._processes |= {row["pid"]: row for row in tables["processes"].to_pylist()}
            self._states.know(pd.DataFrame(list(self._processes.values()), columns=PROCESSES.arrow.names))
        if "neighbours" in tables:
            others = self._others | dict(zip(*(tables["neighbours"][name].to_pylist() for name in ("tid", "name")), strict=True))
            self._others = dict(list(others.items())[-_MOST_OTHERS:])
        for row in tables["threads"].to_pylist() if "threads" in tables else []:
            self._threads[row["pid"], row["tid"]] = row

    def _forget(self, since_ns: int) -> None:
        """What ended before the window; of all processes the one that ended last is kept."""
        for rows in (self._threads, self._processes):
            ended = [key for key, row in rows.items() if row["end_ns"] is not None and row["end_ns"] < since_ns]
            for key in ended if len(ended) < len(rows) else ended[:-1]:
                del rows[key]  # type: ignore[arg-type] # its own
        self._last = {key: func_id for key, func_id in self._last.items() if key in self._threads}

    def _added(self, name: str) -> pd.DataFrame:
        """The sums of the window, most time first, the first _MOST of them."""
        table = pd.concat([segment.sums.tables[name] for segment in self._segments] or [pd.DataFrame({key: [] for key in KEYS[name]})])
        table = table.groupby(KEYS[name], sort=False).sum().reset_index()
        weight = table[[column for column in (*TIMES, "wait_ns", "queue_ns") if column in table]].sum(axis=1)
        return table.iloc[np.argsort(-weight.to_numpy(), kind="stable")[: _MOST[name] if name != "threads" else None]].reset_index(drop=True)

    def _thread_rows(self, added: pd.DataFrame) -> Rows:
        """Threads that live, and those that ended within the window: the busiest first."""
        of = {(row["pid"], row["tid"]): row for row in _rows(added)}
        now = {(row["pid"], row["tid"]): row for row in _rows(self._now)}
        out = []
        for key, row in self._threads.items():
            state, times = now.get(key), of.get(key, {})
            out.append({
                "pid": key[0], "tid": key[1], "name": row["name"] or "", "ended": row["end_ns"] is not None,
                "state": state["state"] if state and isinstance(state["state"], str) else "", "kind": state["kind"] if state else "",
                "syscall": syscalls.name(state["syscall"], self._machine) if state else "",
                "since_ns": self._facts.end_ns - state["began_ns"] if state else 0, "cpu": state["cpu"] if state else -1,
                "func_id": self._last.get(key, OUTSIDE),
                **{name: times.get(name, 0) for name in (*TIMES, "gil_held_ns", "samples")},
            })  # fmt: skip
        out.sort(key=lambda row: (-(row["on_cpu_ns"] + row["runq_wait_ns"] + row["gil_wait_ns"]), row["ended"], row["pid"], row["tid"]))
        return out[: _MOST["threads"]]


def _rows(table: pd.DataFrame) -> Rows:
    columns: Iterable[list[Any]] = (table[name].tolist() for name in table)
    return [dict(zip(table.columns, row, strict=True)) for row in zip(*columns, strict=True)]
