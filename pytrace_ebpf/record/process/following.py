"""Children of the traced processes: each is traced as soon as it is there, by the source that serves it."""

from collections.abc import Callable, Sequence
from functools import partial

from pytrace_ebpf.errors import HostError, TargetError
from pytrace_ebpf.record.cpython.frames import open_frames
from pytrace_ebpf.record.process.pinned import Ended
from pytrace_ebpf.record.process.processes import News
from pytrace_ebpf.record.process.target import NotPython, Target, inspect, its_own_doing
from pytrace_ebpf.record.recorder import Recorder
from pytrace_ebpf.record.source import CallSource, Recording
from pytrace_ebpf.record.source_selection.sources import Sources
from pytrace_ebpf.trace.schema import SchedKind


class Following:
    """Reacts to forks, execs and ends of processes."""

    def __init__(self, recording: Recording, sources: Sources, recorders: Sequence[Recorder]) -> None:
        """`sources` is one of `recorders`, all of which learn of an exec."""
        self._recording, self._sources, self._recorders = recording, sources, recorders
        self.preloaded = False  # whether children bring the agent with them, as a program that was launched does
        self._processes = recording.processes
        self._ended: set[int] = set()
        self._adopted = 0  # processes that had a source when it was last quiet
        self._starting: dict[int, tuple[Target, CallSource, str]] = {}  # Pythons that are not ready to be attached to

    def follow(self, news: News, held: int | None) -> None:
        """React to what happened, in order; `held` is stopped at its first instruction, which launch.py handles."""
        for kind, row in news:
            if kind == SchedKind.EXIT:
                self._ended.add(row["pid"])
                continue
            if kind == SchedKind.FORK:
                self._processes.ran.forked(row["pid"])
            if kind == SchedKind.EXEC:
                self._reset(row)
                self._processes.executed(row["pid"], row["ts"])
                if row["pid"] != held:
                    self._adopt(row, inspect, executed=True)
            elif row["state"]:  # vfork: it is still its creator's memory, until it calls exec
                self._processes.add_other(row["pid"], row["other_pid"], row["ts"])
            elif creator := self._processes.targets.get(row["other_pid"]):  # at once: it runs already, as a copy of its creator
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
                    with its_own_doing(pid):
                        source.attach(target)
                except (TargetError, HostError) as error:
                    self._recording.declare(pid, None, str(error))

    def let_go_of_ended(self) -> None:
        """Release processes that ended, in a second without new ones: meanwhile the kernel attaches no probes."""
        if self._adopted == len(self._recording.chosen):
            for source in self._sources:
                source.detach(self._ended)
            self._ended.clear()
        self._adopted = len(self._recording.chosen)

    def _adopt(self, row: dict[str, int], look: Callable[[int], Target], executed: bool = False) -> None:
        pid = row["pid"]
        try:
            target = look(pid)
            with its_own_doing(pid):
                source, why = self._choose(target, executed)
            if source.name == "agent":
                # A forked child has its creator's agent, a launched program its own: either starts by itself, and may have already.
                recorded = self._processes.is_recorded(pid, row["ts"])
                if executed or not recorded:
                    calls_came = recorded or (self.preloaded and executed and self._started_itself(pid))  # of this program or the one before
                    self._processes.add_python(target, source.name if calls_came else None, row["ts"])
                if not self.preloaded and (executed or self._processes.had_no_agent(row["other_pid"], row["ts"])):
                    self._starting[pid] = target, source, why
            else:
                with its_own_doing(pid):
                    source.attach(target)
                self._recording.declare(pid, source.name, why)
        except (TargetError, HostError) as error:  # its scheduling is recorded all the same
            self._processes.add_other(pid, row["other_pid"], row["ts"])
            if not isinstance(error, NotPython | Ended) and not self._processes.is_recorded(pid, row["ts"]):
                self._recording.declare(pid, None, str(error))

    def _started_itself(self, pid: int) -> bool:
        """Whether the process reported by itself that its calls are recorded, and since when: only the agent does."""
        row = self._processes.processes.get(pid)
        return row is not None and row["source"] == "agent"

    def _choose(self, target: Target, executed: bool) -> tuple[CallSource, str]:
        """Remove the source of the program before exec from the new one, which it could harm."""
        source = None
        try:
            source, why = self._sources.choose(target, executed)
            return source, why
        finally:
            for other in self._sources:
                if other is not source:
                    other.detach({target.pid})

    def _reset(self, row: dict[str, int]) -> None:
        """exec: the open calls of the thread are gone, and so is what was known of its frames and of its source."""
        for recorder in self._recorders:
            recorder.reset(row["pid"], row["tid"], row["ts"])
        if not self._started_itself(row["pid"]):  # what was attached to it, maybe since, was meant for the program before
            self._processes.clear_source(row["pid"])
        if row["pid"] in self._processes.targets:
            self._sources.undrained.reset([(row["pid"], row["tid"])], row["ts"])
