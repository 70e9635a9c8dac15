"""The last seconds of a recording, as a picture: segments go in as they are closed, and what is older than the window drops out."""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from pytrace_ebpf.analyze.findings.sampled import in_rows, worth
from pytrace_ebpf.analyze.findings.sentences import Names, sentence
from pytrace_ebpf.analyze.live.live_requests import LiveRequests
from pytrace_ebpf.analyze.live.live_resources import LiveResources
from pytrace_ebpf.analyze.live.live_states import LiveStates
from pytrace_ebpf.analyze.live.live_sums import KEYS, Sums, sums
from pytrace_ebpf.analyze.live.weights import Weights
from pytrace_ebpf.derive.scheduling import syscalls
from pytrace_ebpf.trace.losses import PARTLY
from pytrace_ebpf.trace.schema import CALL_SITES, FUNCTIONS, PROCESSES, SAMPLES, STACKS
from pytrace_ebpf.trace.snapshot import OUTSIDE, TIMES, Facts, Rows, Snapshot

_MOST = {"threads": 1000, "functions": 1500, "lines": 500, "requests": 500, "waits": 500}  # rows of a picture: those with most time
_FINDINGS_NS, _MOST_FINDINGS, _LEAST = 10 * 10**9, 3, 0.05
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
        self._resources, self._requests = LiveResources(), LiveRequests()
        self._names: dict[int, tuple[str, str, str, int]] = {}
        self._functions = FUNCTIONS.arrow.empty_table().to_pandas()
        self._processes: dict[int, dict[str, Any]] = {}
        self._threads: dict[tuple[int, int], dict[str, Any]] = {}
        self._others: dict[int, str] = {}  # names of other programs' threads
        self._last: dict[tuple[int, int], dict[str, Any]] = {}  # where a thread was seen last, as of Sums.last
        self._now = pd.DataFrame({"pid": [], "tid": []})  # intervals that go on
        self._lost = 0
        self._facts = Facts()

    def take(self, start_ns: int, end_ns: int, tables: Mapping[str, pa.Table], spent_ns: int | None = None) -> None:
        """The next segment, its tables as in a trace's; `spent_ns`: CPU time of the tracer meanwhile."""
        self._meet(tables)
        intervals = self._states.segment(tables.get("sched"), end_ns, tables.get("losses"))
        samples, stacks = (tables.get(table.name, table.arrow.empty_table()).to_pandas() for table in (SAMPLES, STACKS))
        weighed = self._weights.take(samples, intervals)
        found = sums(weighed, stacks, self._functions, intervals, self._resources.called, self._requests)
        self._last |= {(row["pid"], row["tid"]): row for row in _rows(found.last)}
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
        tables = {"threads": threads} | {name: _rows(added[name]) for name in ("functions", "lines", "requests", "waits")}
        used = {row["func_id"] for rows in tables.values() for row in rows}
        processes = [
            {"pid": pid, "command": row["command"], "python": row["python_version"] or "", "ended": row["end_ns"] is not None}
            for pid, row in sorted(self._processes.items())
        ]
        names = {number: self._names[number] for number in sorted(used) if number in self._names}
        by = {row["by_tid"] for row in tables["waits"]}
        return Snapshot(
            self._facts,
            processes,
            **tables,
            findings=self._findings(),
            names=names,
            others={tid: name for tid, name in self._others.items() if tid in by},
        )

    def _meet(self, tables: Mapping[str, pa.Table]) -> None:
        self._resources.take(tables)
        if "functions" in tables:
            met = tables["functions"].to_pandas()
            self._requests.meet(met)
            known = [self._functions, met] if len(self._functions) else [met]
            self._functions = pd.concat(known, ignore_index=True).drop_duplicates("func_id", keep="last")
            for row in tables["functions"].to_pylist():
                self._names[row["func_id"]] = row["qualname"] or row["name"], row["module"], row["file"], row["first_line"]
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
            times = of.get(key, {})
            out.append({
                "pid": key[0], "tid": key[1], "name": row["name"] or "", "ended": row["end_ns"] is not None, **self._moment(now.get(key), self._last.get(key)),
                **{name: times.get(name, 0) for name in (*TIMES, "idle_ns", "gil_held_ns", "samples")},
            })  # fmt: skip
        out.sort(key=lambda row: (row["idle_ns"] - sum(row[name] for name in TIMES), row["ended"], row["pid"], row["tid"]))
        return out[: _MOST["threads"]]

    def _moment(self, now: dict[str, Any] | None, seen: dict[str, Any] | None) -> dict[str, Any]:
        """State and function of a thread as they were together: of now where it was seen since the state began, else of when it was seen."""
        state: dict[str, Any] = {"state": "", "kind": "", "syscall": -1, "since_ns": 0, "cpu": -1}
        if now:
            state = {name: now[name] for name in ("state", "kind", "syscall", "cpu")} | {"since_ns": self._facts.end_ns - now["began_ns"]}
        if seen and (not now or seen["ts"] < now["began_ns"]):
            state = {name: seen[name] for name in state}
        said = {"state": state["state"] if isinstance(state["state"], str) else "", "syscall": syscalls.name(int(state["syscall"]), self._machine)}
        return state | said | {"func_id": seen["func_id"] if seen else OUTSIDE}

    def _findings(self) -> tuple[str, ...]:
        """The largest findings of the last seconds."""
        since_ns = self._facts.end_ns - _FINDINGS_NS
        rows = [segment.sums.standing for segment in self._segments if segment.end_ns > since_ns]
        if not rows:
            return ()
        some = in_rows(pd.concat(rows, ignore_index=True), self._functions, self._period_ns)
        return tuple(sentence(found, self._said, some.at_work_ns) for found in worth(some, _LEAST)[:_MOST_FINDINGS])

    @property
    def _said(self) -> Names:
        return Names(self._functions, CALL_SITES.arrow.empty_table().to_pandas)


def _rows(table: pd.DataFrame) -> Rows:
    columns: Iterable[list[Any]] = (table[name].tolist() for name in table)
    return [dict(zip(table.columns, row, strict=True)) for row in zip(*columns, strict=True)]
