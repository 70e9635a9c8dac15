"""The traced processes and threads, kept up to date from scheduling events; rows of two tables."""

import contextlib
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from pytrace_ebpf.record.frames import CodeInfo, read_code
from pytrace_ebpf.record.memory import MemoryFault
from pytrace_ebpf.record.tables import Columns
from pytrace_ebpf.record.target import Target, command_line, threads
from pytrace_ebpf.trace.schema import SchedKind

_COMM_LENGTH = 15


class Processes:
    """Rows of `processes` and `threads`, keyed; a changed row is handed out again."""

    def __init__(self) -> None:
        self.processes: dict[int, dict[str, Any]] = {}
        self.threads: dict[tuple[int, int], dict[str, Any]] = {}
        self.targets: dict[int, Target] = {}  # of the Pythons among them
        self._alive: Counter[int] = Counter()  # threads per process
        self._changed: set[int | tuple[int, int]] = set()

    def add_python(self, target: Target, source: str | None, start_ns: int) -> None:
        """A Python whose function events are recorded from `start_ns` on; `source` None: not yet, or not at all."""
        gil_start, gil_end = target.gil_range()
        self.targets[target.pid] = target
        self._put_process(
            target.pid,
            ppid=target.ppid,
            executable=target.executable,
            command=target.command,
            python_version=target.version_text,
            source=source,
            gil_start=gil_start,
            gil_end=gil_end,
            start_ns=start_ns,
        )
        self.add_threads(target.pid, start_ns)
        self._read_names(target.pid)

    def is_recorded(self, pid: int, since_ns: int) -> bool:
        """Whether the program that `pid` has been since then has a source of function events already."""
        row = self.processes.get(pid)
        return row is not None and row["source"] is not None and row["start_ns"] >= since_ns

    def tell_source(self, pid: int, source: str, version: str, start_ns: int) -> None:
        """A process that was a Python with recorded calls, as was learned when it had ended already."""
        if pid not in self.processes:
            self.add_other(pid, 0, start_ns)
        row = self.processes[pid]
        row |= {"source": source, "python_version": version, "start_ns": start_ns}
        if not self._alive[pid]:  # none of its threads was ever seen, so that nothing else will tell of its end
            row["end_ns"] = time.monotonic_ns()
        self._changed.add(pid)

    def lose_source(self, pid: int) -> None:
        """No function event comes from this process after all."""
        if pid in self.processes:
            self.processes[pid]["source"] = None
            self._changed.add(pid)

    def add_other(self, pid: int, ppid: int, start_ns: int) -> None:
        """A followed process that is no traceable Python: only its scheduling is recorded."""
        self.targets.pop(pid, None)
        executable = command = ""
        try:
            executable = str(Path(f"/proc/{pid}/exe").readlink())
            command = command_line(pid)
        except OSError:
            if pid in self.processes:  # it ended: what is known of it already stays
                return
        self._put_process(
            pid, ppid=ppid, executable=executable, command=command, python_version=None, source=None,
            gil_start=0, gil_end=0, start_ns=start_ns,
        )  # fmt: skip

    def describe(self, pid: int, command: str, executable: str) -> None:
        """What a process that was just started is about to become."""
        self.processes[pid] |= {"command": command, "executable": executable}
        for (owner, _), thread in self.threads.items():
            if owner == pid:
                thread["name"] = Path(executable).name[:_COMM_LENGTH]  # as exec will call it

    def add_threads(self, pid: int, start_ns: int) -> None:
        """Every thread that `pid` has right now."""
        with contextlib.suppress(OSError):
            for tid in threads(pid):
                self._add_thread(pid, tid, start_ns)

    def take_in(self, events: Columns) -> list[tuple[SchedKind, dict[str, int]]]:
        """Learn from columns of `sched`; returns the process-level news in order: forks, execs, last exits."""
        news: list[tuple[SchedKind, dict[str, int]]] = []
        of_interest = np.flatnonzero((events["kind"] >= SchedKind.FORK) & (events["kind"] <= SchedKind.EXIT))
        for at in of_interest.tolist():  # one step per thread, not per switch
            kind = SchedKind(int(events["kind"][at]))
            row = {name: int(events[name][at]) for name in ("ts", "pid", "tid", "other_pid", "other_tid", "state")}
            key = row["pid"], row["tid"]
            if kind == SchedKind.FORK:
                creator = self.threads.get((row["other_pid"], row["other_tid"]), {})
                self._add_thread(*key, row["ts"], creator.get("name", ""))
                # One that was listed before this event was read has the time from which its process was listed.
                self.threads[key]["start_ns"] = row["ts"]
                self._changed.add(key)
                if row["pid"] == row["tid"]:
                    news.append((kind, row))
            elif kind == SchedKind.EXEC:
                news.append((kind, row))
            elif key in self.threads and self.threads[key]["end_ns"] is None:
                self._end_thread(key, row["ts"])
                if not self._alive[row["pid"]]:
                    news.append((kind, row))
        return news

    def look(self) -> None:
        """See which threads began and ended since the last look, where no scheduling events tell of it."""
        now, there = time.monotonic_ns(), set()
        for pid in self.living:
            with contextlib.suppress(OSError):
                there |= {(pid, tid) for tid in threads(pid)}
        for key in there:
            self._add_thread(*key, now)
        for key, thread in self.threads.items():
            if thread["end_ns"] is None and key not in there:
                self._end_thread(key, now)

    def read_code(self, pid: int, address: int) -> CodeInfo | None:
        """The code object at `address` of a living Python, None where there is none (any more)."""
        target = self.targets.get(pid)
        if target is None or target.layout is None:
            return None
        try:
            return read_code(target.memory, target.layout, address)
        except MemoryFault:
            return None

    def refresh(self) -> None:
        """Read again what may have changed: thread names, and the GIL of an interpreter that was just starting."""
        self._read_names()
        for pid, target in self.targets.items():
            row = self.processes[pid]
            if row["end_ns"] is None and not row["gil_end"]:
                row["gil_start"], row["gil_end"] = target.gil_range()
                self._changed.add(pid)

    @property
    def living(self) -> list[int]:
        """Processes that have not ended."""
        return [pid for pid, row in self.processes.items() if row["end_ns"] is None]

    def take_changed(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Rows of (`processes`, `threads`) that are new or changed since the last call."""
        changed, self._changed = self._changed, set()
        processes = [dict(self.processes[k]) for k in changed if isinstance(k, int)]
        rows = [dict(self.threads[k]) for k in changed if isinstance(k, tuple)]
        for row in rows:
            if row["end_ns"] is not None:  # a service may start any number of them
                del self.threads[row["pid"], row["tid"]]
        return processes, rows

    def _read_names(self, pid: int | None = None) -> None:
        """The names of the living threads of `pid`, or of all."""
        for key, thread in self.threads.items():
            mine = thread["end_ns"] is None and pid in (None, key[0])
            if mine and (name := _comm(*key)) not in ("", thread["name"]):
                thread["name"] = name
                self._changed.add(key)

    def _put_process(self, pid: int, **row: Any) -> None:
        if row["command"] in ("", "''"):  # of one that is becoming another program or ending right now
            row["command"] = self.processes.get(pid, row)["command"]
        self.processes[pid] = {"pid": pid, "end_ns": None} | row
        self._changed.add(pid)

    def _add_thread(self, pid: int, tid: int, start_ns: int, inherited: str = "") -> None:
        """`inherited`: the name that it was born with, its creator's."""
        known = self.threads.get((pid, tid))
        if known is None or known["end_ns"] is not None:
            self.threads[pid, tid] = {
                "pid": pid, "tid": tid, "name": _comm(pid, tid) or inherited, "start_ns": start_ns, "end_ns": None,
            }  # fmt: skip
            self._alive[pid] += 1
            self._changed.add((pid, tid))

    def _end_thread(self, key: tuple[int, int], ts: int) -> None:
        self.threads[key]["end_ns"] = ts
        self._changed.add(key)
        self._alive[key[0]] -= 1
        if not self._alive[key[0]]:
            self._end(key[0], ts)

    def _end(self, pid: int, ts: int) -> None:
        self.targets.pop(pid, None)
        if pid in self.processes:
            self.processes[pid]["end_ns"] = ts
            self._changed.add(pid)


def _comm(pid: int, tid: int) -> str:
    try:
        return Path(f"/proc/{pid}/task/{tid}/comm").read_text(errors="replace").rstrip("\n")
    except OSError:
        return ""
