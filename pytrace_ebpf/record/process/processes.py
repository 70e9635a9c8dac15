"""The traced processes and threads, kept up to date from scheduling events; rows of two tables."""

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pytrace_ebpf.patterns import Mains
from pytrace_ebpf.record.cpython.frames import CodeInfo, read_codes
from pytrace_ebpf.record.identity.identities import NOT_SAID, Identities
from pytrace_ebpf.record.output.tables import Columns, columns_of
from pytrace_ebpf.record.parsing import sandbox
from pytrace_ebpf.record.process.ending import KNOWN, NOT_KNOWN, OF_AGENT, OUT_OF_MEMORY, ending, from_status, groups_of, limit_of
from pytrace_ebpf.record.process.naming import Naming, comm_of
from pytrace_ebpf.record.process.programs import Ran
from pytrace_ebpf.record.process.readings import Readings
from pytrace_ebpf.record.process.shares import Shares
from pytrace_ebpf.record.process.target import MOST_INTERPRETERS, Target, as_text, command_line, is_zombie, threads
from pytrace_ebpf.record.recorder import Recorder, Rows
from pytrace_ebpf.trace.schema import AGENT, SchedKind

_COMM_LENGTH = 15
_MOST_ENDED = 1000  # processes
_ENDS_S = 0.3
_MOST_EARLY = 10_000  # threads
_MOST_INSIDE = 1000  # threads of a process whose ids in its own pid namespace are kept, the youngest
_LONGEST = 5000  # characters of a thread's interpreters

News = list[tuple[SchedKind, dict[str, int]]]  # what happened to processes: forks, execs, last exits, in order


class Processes(Recorder):
    """Rows of `processes` and `threads`, keyed; a changed row is handed out again."""

    def __init__(self, names: bool = True, shares: Shares | None = None, user: Callable[[int], int] = lambda pid: 0) -> None:
        """`names`: threads have the names that they and their interpreters give them, which have to be read again and again.

        `shares`: what that costs users, and `user` tells whose a process is, where they are of several.
        """
        self._names = names
        self.readings = Readings(shares, "names", sandbox.parsers)
        self.processes: dict[int, dict[str, Any]] = {}
        self.threads: dict[tuple[int, int], dict[str, Any]] = {}
        self.targets: dict[int, Target] = {}  # of the Pythons among them
        self.mains, self.ran = Mains(), Ran()
        self._program_start_ns: dict[int, int] = {}
        self._first_call_ns: dict[int, int] = {}  # of a living process, whatever its program was then
        self._ends: Counter[int] = Counter()  # what the exits of each process's threads said of its end, joined by or
        self._ended_early: dict[int, dict[str, Any]] = {}
        self._groups: dict[int, str] = {}  # the control groups of each
        self._alive: Counter[int] = Counter()  # threads per process
        self._gone: dict[tuple[int, int], dict[str, Any]] = {}  # threads that had ended when rows were taken last
        self.inside: dict[int, dict[int, int]] = {}  # of processes in another pid namespace, ids in there to those here, as each thread was born
        self.births: dict[int, int] = {}  # when each was forked, of those of which that was reported
        self._early: dict[tuple[int, int], str] = {}  # `interpreters` of threads whose beginning was not reported yet
        self._naming, self._identities = Naming(self.readings, user), Identities(self.readings, user)
        self._changed: set[int | tuple[int, int]] = set()
        self._news: News = []
        self.turns = 0  # how often they were taken
        self.last_ns: int | None = None  # when the recording ended; what ends later ends then

    def _now(self) -> int:
        return time.monotonic_ns() if self.last_ns is None else self.last_ns

    def observe(self, drained: Rows) -> None:
        """Learn from rows of `sched`; where nothing reports what begins and ends, look."""
        for columns in drained.get("sched", ()):
            self.learn(columns)
        if "cputime" in drained:
            self.look()
        self._name_threads()

    def learn(self, events: Columns) -> None:
        """Learn from columns of `sched`, which may be of a recording that has no such rows."""
        self._news += self.take_in(events)

    def take_news(self) -> News:
        """What happened to processes since the last call."""
        self.turns += 1
        news, self._news = self._news, []
        return news

    def cut(self) -> Rows:
        """Rows of `processes` and `threads` that are new or changed."""
        self.refresh()
        if self.last_ns is not None:
            self._name_threads(all_=True)
        processes, threads = self.take_changed()
        return {"processes": [columns_of(processes)], "threads": [columns_of(threads)]}

    def close(self) -> None:
        """Read no more names."""
        self.readings.close()
        self.readings.join(_ENDS_S)

    def add_python(self, target: Target, source: str | None, start_ns: int) -> None:
        """A Python whose function events are recorded from `start_ns` on; `source` None: not yet, or not at all."""
        gil_start, gil_end = target.gil_range()
        self.mains.add(target.command)
        self.targets[target.pid] = target
        self._naming.forget(target.pid)
        self._put_process(
            target.pid,
            ppid=target.ppid,
            executable=target.executable,
            command=target.command,
            python_version=target.version_text,
            source=source,
            gil_start=gil_start,
            gil_end=gil_end,
            interpreters=target.interpreters(),
            start_ns=start_ns,
            **self._identities.begun(target.process),
        )
        self.add_threads(target.pid, start_ns)
        self._read_names(target.pid)
        self._naming.begun(target.pid)

    def is_recorded(self, pid: int, since_ns: int) -> bool:
        """Whether the program that `pid` has been since then has a source of function events already."""
        row = self.processes.get(pid)
        return row is not None and row["source"] is not None and self._program_start_ns[pid] >= since_ns

    def had_no_agent(self, pid: int, at_ns: int) -> bool:
        """Whether a process is known to have had no agent at that moment, which a child that it forked would have with it."""
        row = self.processes.get(pid)
        return row is not None and (row["source"] == "usdt" or (row["source"] == "agent" and self._program_start_ns[pid] > at_ns))

    def set_source(self, pid: int, source: str, version: str, start_ns: int) -> None:
        """A process that was a Python with recorded calls, as was learned when it had ended already."""
        if pid not in self.processes:
            self.add_other(pid, 0, start_ns)
        row, began_ns, earliest_ns = self.processes[pid], *(of.get(pid, start_ns) for of in (self._program_start_ns, self._first_call_ns))
        if (row["end_ns"] or start_ns) >= start_ns:  # else another one has its number now
            earliest_ns = self.births.get(pid, earliest_ns)
        row["start_ns"] = self._first_call_ns[pid] = min(start_ns, earliest_ns)
        if row["source"] is None or began_ns <= start_ns:  # else it is another program by now
            row |= {"source": source, "python_version": version}
            self._program_start_ns[pid] = max(start_ns, began_ns)
        if not self._alive[pid] and row["end_ns"] is None:  # none of its threads was ever seen, so that nothing else will report its end
            row["end_ns"] = self._now()
        self._changed.add(pid)

    def clear_source(self, pid: int) -> None:
        """No function event comes from this process after all."""
        self._change(pid, {"source": None})

    def add_other(self, pid: int, ppid: int, start_ns: int) -> None:
        """A followed process that is no traceable Python: only its scheduling is recorded, unless its calls came before its fork was reported."""
        if self.is_recorded(pid, start_ns):
            return
        self.targets.pop(pid, None)
        executable = command = ""
        try:
            executable = as_text(str(Path(f"/proc/{pid}/exe").readlink()))
            command = command_line(pid)
        except OSError:
            if pid in self.processes:  # it ended: what is known of it already stays
                return
        self._put_process(
            pid, ppid=ppid, executable=executable, command=command, python_version=None, source=None,
            gil_start=0, gil_end=0, interpreters=0, start_ns=start_ns,
        )  # fmt: skip

    def let_go(self, pid: int) -> None:
        """A living Python is traced no longer: to the trace it ends now."""
        for key in [key for key, thread in self.threads.items() if key[0] == pid and thread["end_ns"] is None]:
            self._end_thread(key, self._now())
        if pid in self.targets:  # none of its threads was ever seen
            self._end(pid, self._now())

    def describe(self, pid: int, command: str, executable: str) -> None:
        """A process that was just forked and is about to run this program."""
        command, executable = as_text(command), as_text(executable)
        self.processes[pid] |= {"command": command, "executable": executable}
        self.ran.forked(pid)
        for (owner, _), thread in self.threads.items():
            if owner == pid:
                thread["name"] = thread["comm"] = Path(executable).name[:_COMM_LENGTH]  # as exec will call it

    def executed(self, pid: int, ts: int) -> None:
        """A process became another program at `ts`."""
        if program := self.ran.executed(pid, ts) if pid in self.processes else {}:
            self._change(pid, program)

    def add_threads(self, pid: int, start_ns: int) -> None:
        """Every thread that `pid` has right now."""
        with contextlib.suppress(OSError):
            for tid in threads(pid):
                self._add_thread(pid, tid, start_ns)

    def take_in(self, events: Columns) -> News:
        """Learn from columns of `sched`; returns the process-level news in order: forks, execs, last exits."""
        news: News = []
        of_interest = np.flatnonzero((events["kind"] >= SchedKind.FORK) & (events["kind"] <= SchedKind.SNAPSHOT))
        for at in of_interest.tolist():  # one step per thread, not per switch
            kind = SchedKind(int(events["kind"][at]))
            row = {name: int(events[name][at]) for name in ("ts", "pid", "tid", "other_pid", "other_tid", "state", "address")}
            key = row["pid"], row["tid"]
            if kind == SchedKind.FORK:
                self._born_inside(*key, row["address"], row["ts"])
                creator = self.threads.get((row["other_pid"], row["other_tid"]), {})
                self._add_thread(*key, row["ts"], creator.get("comm", ""))
                # One that was listed before this event was read has the time from which its process was listed.
                self.threads[key]["start_ns"] = row["ts"]
                self._changed.add(key)
                if row["pid"] == row["tid"]:
                    news.append((kind, row))
            elif kind == SchedKind.EXEC:
                news.append((kind, row))
            elif kind == SchedKind.SNAPSHOT:
                if key in self.threads and row["ts"] < self.threads[key]["start_ns"]:  # it was seen before it was listed
                    self.threads[key]["start_ns"] = row["ts"]
                    self._changed.add(key)
            elif key in self.threads and self.threads[key]["end_ns"] is None:
                status, before = row["state"], self._ends[row["pid"]]
                self._ends[row["pid"]] = status | (before & OUT_OF_MEMORY) if status & KNOWN else before
                if status & OF_AGENT:
                    self._rename(key, AGENT, AGENT)
                self._end_thread(key, row["ts"])
                if not self._alive[row["pid"]]:
                    news.append((kind, row))
        return news

    def _born_inside(self, pid: int, tid: int, number: int, ts: int) -> None:
        if pid == tid:  # a new process, which may have the number of an old one
            self.inside.pop(pid, None)
            self.births[pid] = ts
        if number:
            numbers = self.inside.setdefault(pid, {})
            numbers.pop(number, None)
            numbers[number] = tid
            if len(numbers) > _MOST_INSIDE:
                del numbers[next(iter(numbers))]

    def found(self, kind: SchedKind, pid: int, creator: int) -> None:
        """News of a process by somebody who looks: FORK, a copy of `creator`, or EXEC, another program. Nothing where there is such news already."""
        if all(row["pid"] != pid for _, row in self._news):
            row = {"ts": self._now(), "pid": pid, "tid": pid, "other_pid": creator, "other_tid": creator, "state": 0}
            self._news.append((kind, row))

    def look(self) -> None:
        """See which threads began and ended since the last look, where no scheduling events report it."""
        now, there = self._now(), set()
        for pid in self.living:
            with contextlib.suppress(OSError):
                tids = threads(pid)
                if tids != (pid,) or not is_zombie(pid):  # one that nobody waits for stays in the list
                    there |= {(pid, tid) for tid in tids}
        for key in there:
            self._add_thread(*key, now)
        for key, thread in self.threads.items():
            if thread["end_ns"] is None and key not in there:
                self._end_thread(key, now)

    def read_codes(self, pid: int, addresses: Sequence[int]) -> dict[int, CodeInfo]:
        """What the code objects at `addresses` of a living Python say; without those that are none (any more)."""
        target = self.targets.get(pid)
        return read_codes(target, addresses) if target is not None else {}

    def refresh(self) -> None:
        """Read again what may have changed: thread names, the GIL of an interpreter that was just starting, and how many interpreters there are."""
        self._read_names()
        for pid, target in list(self.targets.items()):
            row = self.processes[pid]
            if not self._alive[pid] and target.process.has_ended():  # before its threads were ever seen: nothing will report its end
                self._end(pid, self._now())
            if row["end_ns"] is None and not row["gil_end"]:
                row["gil_start"], row["gil_end"] = target.gil_range()
                self._changed.add(pid)
            if row["end_ns"] is None:
                self.made(pid, target.interpreters())
                self._groups[pid] = groups_of(pid) or self._groups.get(pid, "")

    def made(self, pid: int, interpreters: int) -> None:
        """A process has made so many, as itself says: what cannot be is not believed."""
        row = self.processes.get(pid)
        if row is not None and row["interpreters"] < interpreters < MOST_INTERPRETERS:
            self._change(pid, {"interpreters": interpreters})

    def run(self, pid: int, interpreters: dict[int, list[int]]) -> None:
        """Threads make calls of interpreters beside the main one, by tid: as their process says, once for each."""
        for tid, numbers in interpreters.items():
            key = pid, tid
            row = self.threads.get(key) or self._gone.get(key)
            ids = row["interpreters"] if row is not None else self._early.get(key, "")
            ids = " ".join([ids, *map(str, numbers)]).strip() if len(ids) < _LONGEST else ids
            if row is not None:
                row["interpreters"] = ids
                self._changed.add(key)
            elif len(self._early) < _MOST_EARLY:
                self._early[key] = ids

    @property
    def living(self) -> list[int]:
        """Processes that have not ended."""
        return [pid for pid, row in self.processes.items() if row["end_ns"] is None]

    def take_changed(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Rows of (`processes`, `threads`) that are new or changed since the last call."""
        changed, self._changed = self._changed, set()
        processes = [dict(self.processes[k]) for k in changed if isinstance(k, int)]
        there = self._gone | self.threads
        rows = [dict(there[k]) for k in changed if isinstance(k, tuple)]
        ended = [(row["pid"], row["tid"]) for row in rows if row["end_ns"] is not None]
        self._gone = {key: self.threads.pop(key) for key in ended if key in self.threads}  # a service may start any number of them
        self._forget_ended()
        return processes, rows

    def _forget_ended(self) -> None:
        """Keep only so many processes that ended, for what is learned of them late; and the first, which is the target."""
        ended = [pid for pid, row in list(self.processes.items())[1:] if row["end_ns"] is not None]
        for pid in ended[: max(len(ended) - _MOST_ENDED, 0)]:
            del self.processes[pid]
            self.ran.forget(pid)
            self._identities.forget(pid)
            for by_pid in (self._program_start_ns, self._alive, self._ends, self._groups, self.inside, self.births):
                by_pid.pop(pid, None)

    def _read_names(self, pid: int | None = None) -> None:
        """The names of the living threads of `pid`, or of all."""
        for key, thread in self.threads.items() if self._names else ():
            if thread["end_ns"] is None and pid in (None, key[0]) and (comm := comm_of(*key)) not in ("", thread["comm"]):
                self._rename(key, comm if thread["name"] == thread["comm"] else thread["name"], comm)

    def _name_threads(self, all_: bool = False) -> None:
        """What Python calls the living threads, where that is to be read now, or of all."""
        for pid, names in self._naming.names(self.targets, all_) if self._names else ():
            for tid, name in names.items():
                thread = self.threads.get((pid, tid))
                if thread and thread["end_ns"] is None and name != thread["name"]:
                    self._rename((pid, tid), name, thread["comm"])
            if any(owner == pid and tid not in names and thread["end_ns"] is None for (owner, tid), thread in self.threads.items()):
                self._naming.incomplete(pid)
        for pid, columns in self._identities.learned(all_):
            self._change(pid, columns)

    def _rename(self, key: tuple[int, int], name: str, comm: str) -> None:
        self.threads[key] |= {"name": name, "comm": comm}
        self._changed.add(key)

    def _change(self, pid: int, columns: dict[str, Any]) -> None:
        if pid in self.processes:
            self.processes[pid] |= columns
            self._changed.add(pid)

    def _put_process(self, pid: int, **row: Any) -> None:
        self._program_start_ns[pid] = row["start_ns"]
        if row["source"]:
            self._first_call_ns.setdefault(pid, row["start_ns"])
        row["start_ns"] = self._first_call_ns.get(pid, row["start_ns"])
        if row["command"] in ("", "''"):  # of one that is becoming another program or ending right now, maybe as a copy of its creator
            row["command"] = (self.processes.get(pid) or self.processes.get(row["ppid"], row))["command"]
        self.ran.seen(pid, row["command"])
        self._groups[pid] = groups_of(pid) or self._groups.get(pid) or self._groups.get(row["ppid"], "")
        early = self._ended_early.pop(pid, {})
        early |= limit_of(early, self._groups[pid])
        row |= NOT_KNOWN | {"earlier_commands": self.ran.earlier(pid)} | ({} if self._alive[pid] else early)
        self.processes[pid] = {"pid": pid, "end_ns": None} | NOT_SAID | row
        self._changed.add(pid)

    def _add_thread(self, pid: int, tid: int, start_ns: int, inherited: str = "") -> None:
        """`inherited`: the name that it was born with, its creator's."""
        known = self.threads.get((pid, tid))
        if known is None or known["end_ns"] is not None:
            comm = comm_of(pid, tid) or inherited
            row = {"pid": pid, "tid": tid, "name": comm, "start_ns": start_ns, "end_ns": None, "comm": comm}
            self.threads[pid, tid] = row | {"interpreters": self._early.pop((pid, tid), "")}
            self._alive[pid] += 1
            self._changed.add((pid, tid))
            self._naming.begun(pid)

    def _end_thread(self, key: tuple[int, int], ts: int) -> None:
        self.threads[key]["end_ns"] = ts
        self._changed.add(key)
        self._alive[key[0]] -= 1
        if not self._alive[key[0]]:
            self._end(key[0], ts)

    def _end(self, pid: int, ts: int) -> None:
        self.targets.pop(pid, None)
        self._naming.forget(pid)
        self._identities.ended(pid)
        self._first_call_ns.pop(pid, None)
        ended = ending(self._ends.pop(pid, 0), self._groups.get(pid, ""))
        if pid in self.processes:
            self._change(pid, {"end_ns": ts} | ended)
        else:  # before anything else was heard of it
            self._ended_early[pid] = {"end_ns": ts} | ended
            if len(self._ended_early) > _MOST_ENDED:
                del self._ended_early[next(iter(self._ended_early))]

    def waited_for(self, pid: int, status: int) -> None:
        """What wait() gave of a child of this process."""
        if pid in self.processes and self.processes[pid]["exit_signal"] is None:
            self._change(pid, from_status(status))
