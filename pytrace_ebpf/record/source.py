"""What a source of function events is to the recording."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from pytrace_ebpf.record.cost.measured import Measured, Timed
from pytrace_ebpf.record.cpython.functions import Functions
from pytrace_ebpf.record.output.tables import Columns
from pytrace_ebpf.record.process.processes import Processes
from pytrace_ebpf.record.process.shares import Shares
from pytrace_ebpf.record.process.target import Target
from pytrace_ebpf.record.recorder import Recorder, Rows
from pytrace_ebpf.trace.schema import CallKind

_MOST_ENDED = 100  # processes that ended, in the manifest


class Recording:
    """What the recorders share: the tables of functions and processes, and the choice of sources."""

    def __init__(self, functions: Functions, processes: Processes, shares: Shares | None = None) -> None:
        """`shares`: what the processes' users cost, where they are of several, and nobody asked for each."""
        self.functions, self.processes, self.shares = functions, processes, shares
        self.chosen: list[dict[str, Any]] = []  # the manifest's `sources`

    def declare(self, pid: int, source: str | None, why: str, estimate: dict[str, Any] | None = None) -> None:
        """Keep for the manifest which source a process is traced by, None for none, and why: the last word counts.

        `estimate`: the fields of a CostEstimate, where the process was looked at beforehand.
        """
        if source is None:
            self.processes.clear_source(pid)
        kept = [each for each in self.chosen if each["pid"] != pid or (source and each["source"])]
        self.chosen[:] = [*kept, {"pid": pid, "source": source, "why": why} | ({"foreseen": estimate} if estimate else {})]
        self._join_ended()

    def source_of(self, pid: int) -> str | None:
        """By which source the calls of a process are recorded at the moment."""
        row = self.processes.processes.get(pid)
        return row["source"] if row is not None and row["end_ns"] is None else None

    def source_at_end(self, pid: int) -> str:
        """By which source the calls of a process were recorded last; "" for none."""
        return (self.processes.processes.get(pid) or {}).get("source") or ""

    def learn(self, pid: int, interpreters: int, threads_taken: int) -> None:
        """At the end of a process's calls: how many interpreters it made, and to how many threads it gave another profile function; 0 not known."""
        self.processes.made(pid, interpreters)
        for each in self.chosen:
            if threads_taken and each["pid"] == pid and each["source"]:
                each["threads_taken"] = threads_taken

    def _join_ended(self) -> None:
        """There may be any number of processes: of many that ended the oldest is only counted, with another of the same source."""
        rows = self.processes.processes
        ended = [each for each in self.chosen[1:] if (row := rows.get(each["pid"])) is None or row["end_ns"] is not None]
        if len(ended) <= _MOST_ENDED:
            return
        oldest = ended[0]
        others = [each for each in self.chosen if each is not oldest and each["source"] == oldest["source"]]
        if others:
            like = next((each for each in others if each["why"] == oldest["why"]), others[0])
            like["others"] = like.get("others", 0) + 1 + oldest.get("others", 0)
            self.chosen[:] = [each for each in self.chosen if each is not oldest]


class Undrained:
    """Rows that a recorder has and that drain() returns next."""

    def __init__(self) -> None:
        self._rows: Rows = {}

    def add(self, columns: Columns, table: str = "events") -> None:
        """Take in columns of a table."""
        if len(columns["ts"]):
            self._rows.setdefault(table, []).append(columns)

    def extend(self, rows: Rows) -> None:
        """Take in columns of several tables."""
        for table, batches in rows.items():
            for columns in batches:
                self.add(columns, table)

    def reset(self, threads: Sequence[tuple[int, int]], ts: int) -> None:
        """All that is open on these threads, (pid, tid), ends at `ts`."""
        pids, tids = (np.array([thread[i] for thread in threads], np.int32) for i in (0, 1))
        count = len(threads)
        unknown: Columns = {"func_id": np.full(count, -1, np.int32), "frame": np.zeros(count, np.int64), "line": np.full(count, -1, np.int32)}
        self.add({"ts": np.full(count, ts), "pid": pids, "tid": tids, "kind": np.full(count, CallKind.RESET, np.int8), **unknown})

    def take(self) -> Rows:
        """Those since the last call."""
        rows, self._rows = self._rows, {}
        return rows


class CallSource(Recorder):
    """A source of function events; from `drain` on nothing knows which one it was.

    A process is not added to it but begun or attached to: which of the two it is, the sources as a whole know.
    """

    name: str
    by_function = True  # it costs nothing, or less, to record no calls of a function

    @property
    def waited_ns(self) -> int:
        """How long the traced programs were held up until this process had read what they wrote."""
        return 0

    def dropped(self) -> dict[int, int]:
        """Events for which there was no room, by process, where that is known."""
        return {}

    def slowdown(self, pid: int) -> float:
        """Of the code of a traced program by what is not counted as calls."""
        return 1.0

    @property
    def first(self) -> Target | None:
        """The first process that it recorded or was prepared for: what a call costs is measured with its interpreter."""
        return None

    def passed(self) -> dict[int, int]:
        """Events that were looked at in the traced programs and not written, by process, as far as that is still known of those that ended."""
        return {}

    def timed(self) -> dict[int, Timed]:
        """What was measured in the traced programs of the source's own work there, by process, as far as that is still known of those that ended."""
        return {}

    @property
    def passed_per_left_call(self) -> int:
        """How many events of a call are looked at all the same while it is left out."""
        return 0

    def prepare(self, target: Target) -> None:
        """Do what takes its time before the recording of `target` begins. Raises TargetError."""

    @property
    def arena_bytes(self) -> int:
        """That a process may fill before it has to wait, or events are lost."""
        return 256 << 20

    def remark(self, _pid: int) -> str:
        """What a person should know of a process that was prepared for, 0: of programs that are started; "" for nothing."""
        return ""

    def begin(self, target: Target) -> None:
        """Record a program that stands at its first instruction. Raises TargetError."""
        raise NotImplementedError

    def attach(self, target: Target) -> None:
        """Record a process in the middle of its work, the frames that are open first. Raises TargetError."""
        raise NotImplementedError

    def detach(self, pids: set[int]) -> None:
        """Let go of processes that ended."""

    def leave_out(self, func_ids: frozenset[int]) -> bool:
        """Record no calls of these functions, or none at all where EVERYTHING (-1) is among them, and again those of all others.

        As soon as may be; whether that is so everywhere by now.
        """
        return not func_ids

    def cost_per_call(self) -> Measured | None:
        """Nanoseconds of CPU time that a call and its return take in the interpreter of `first`, alone and recorded, measured on this machine.

        None where they cannot be. May be called beside the recording, from another thread.
        """
        return None

    def cost_per_line(self, _ns_per_call: float | None) -> float | None:
        """The same of a line, where a call costs so much; None where no lines are recorded."""
        return None
