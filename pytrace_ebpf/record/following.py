"""Children of the traced processes: each is traced as soon as it is there, by the source that serves it."""

from collections.abc import Callable
from functools import partial

import numpy as np

from pytrace_ebpf.errors import HostError, TargetError
from pytrace_ebpf.record.frames import open_frames
from pytrace_ebpf.record.source import CallSource, Recording
from pytrace_ebpf.record.sources import Sources
from pytrace_ebpf.record.target import Target, inspect
from pytrace_ebpf.trace.schema import CallKind, SchedKind

News = list[tuple[SchedKind, dict[str, int]]]


class Following:
    """Reacts to processes that begin, become another program, and end."""

    def __init__(self, recording: Recording, sources: Sources, preloaded: bool) -> None:
        """`preloaded`: children bring the agent with them, as the program that was launched did."""
        self._recording, self._sources, self._preloaded = recording, sources, preloaded
        self._processes = recording.processes
        self._ended: set[int] = set()
        self._adopted = 0  # processes that had a source when it was last quiet
        self._starting: dict[int, tuple[Target, CallSource, str]] = {}  # Pythons that are not ready to be attached to

    def follow(self, news: News, held: int | None) -> None:
        """React to what happened, in order; `held` stands at its first instruction and is seen to elsewhere."""
        for kind, row in news:
            if kind == SchedKind.EXIT:
                self._ended.add(row["pid"])
                continue
            if kind == SchedKind.EXEC:
                self._reset(row)
                if row["pid"] != held:
                    self._adopt(row, inspect, executed=True)
            elif row["state"]:  # vfork: it is still its creator's memory, until it calls exec
                self._processes.add_other(row["pid"], row["other_pid"], row["ts"])
            elif creator := self._processes.targets.get(row["other_pid"]):  # every moment counts: it is a copy
                self._adopt(row, partial(creator.forked, tid=row["other_tid"]))
            else:
                self._adopt(row, inspect)

    def attach_to_started(self) -> None:
        """Attach to the programs that have come to their own code since they were started."""
        for pid, (target, source, why) in list(self._starting.items()):
            if pid not in self._processes.targets:
                del self._starting[pid]
            elif target.is_initialized() and open_frames(target):
                del self._starting[pid]
                self._recording.declare(pid, source.name, why)
                try:
                    source.attach(target)
                except (TargetError, HostError) as error:
                    self._recording.declare(pid, None, str(error))

    def let_go_of_ended(self) -> None:
        """Let go of processes that ended, in a quiet second: meanwhile the kernel attaches no other probes."""
        if self._adopted == len(self._recording.chosen):
            for source in self._sources:
                source.detach(self._ended)
            self._ended.clear()
        self._adopted = len(self._recording.chosen)

    def _adopt(self, row: dict[str, int], look: Callable[[int], Target], executed: bool = False) -> None:
        pid = row["pid"]
        try:
            target = look(pid)
            source, why = self._sources.choose(target)
            if source.name == "agent":
                # A fork has its creator's agent, a preloaded program one of its own: each begins by itself, and may have.
                if not self._processes.is_recorded(pid, row["ts"]):
                    self._processes.add_python(target, None, row["ts"])
                if executed and not self._preloaded:
                    self._starting[pid] = target, source, why
            else:
                source.attach(target)
                self._recording.declare(pid, source.name, why)
        except (TargetError, HostError):  # no Python, or it is gone already: its scheduling is recorded all the same
            self._processes.add_other(pid, row["other_pid"], row["ts"])

    def _reset(self, row: dict[str, int]) -> None:
        """exec: the open calls of the thread are gone, and so is what was known of its frames."""
        for source in self._sources:
            source.reset(row["pid"], row["tid"], row["ts"])
        if row["pid"] in self._processes.targets:
            self._recording.emit(
                {
                    "ts": np.array([row["ts"]], np.int64),
                    "pid": np.array([row["pid"]], np.int32),
                    "tid": np.array([row["tid"]], np.int32),
                    "kind": np.array([CallKind.RESET], np.int8),
                    "func_id": np.array([-1], np.int32),
                    "frame": np.array([0], np.int64),
                    "line": np.array([-1], np.int32),
                }
            )
