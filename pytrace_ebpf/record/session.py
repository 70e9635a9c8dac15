"""The wiring of one recording: sources, scheduling, processes, collector and writer, from the first event to the last."""

import os
import select
import shlex
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from pytrace_ebpf.errors import HostError, TargetError
from pytrace_ebpf.record import host, tables, usage
from pytrace_ebpf.record.collect import Collector
from pytrace_ebpf.record.cputime import CpuTime
from pytrace_ebpf.record.description import clock_anchor, new_manifest
from pytrace_ebpf.record.following import Following
from pytrace_ebpf.record.functions import Functions
from pytrace_ebpf.record.launch import Launched, Started
from pytrace_ebpf.record.native.layers import NativeLayers
from pytrace_ebpf.record.neighbours import Neighbours
from pytrace_ebpf.record.options import Options
from pytrace_ebpf.record.perf_switches import PerfSwitches
from pytrace_ebpf.record.processes import Processes
from pytrace_ebpf.record.sched import SchedProbes
from pytrace_ebpf.record.scheduling import Scheduling
from pytrace_ebpf.record.silence import why_silent
from pytrace_ebpf.record.source import Recording
from pytrace_ebpf.record.sources import Sources
from pytrace_ebpf.record.target import Target, inspect, links_libpython, maps_libpython
from pytrace_ebpf.record.writer import Writer
from pytrace_ebpf.trace import schema
from pytrace_ebpf.trace.schema import LOSS_CLASSES, SchedKind

_NS = 1_000_000_000
# A busy target is read sooner, so that what it writes to is still in the processor's cache.
_BUSY, _BUSY_INTERVAL_S = 50_000, 0.01
_BEGINNING_S = 2
_MOST_WAITING = 2_000_000  # function events in a segment: about 65 MB of memory


@dataclass(frozen=True)
class Status:
    """How a recording is going."""

    seconds: float
    calls: int
    sched: int
    lost: int
    waited_ns: int = 0  # how long the program was held up until this process had read what it wrote
    unserved: tuple[str, ...] = ()  # why some processes have no calls, or no native ones, a sentence each


class Session:
    """One recording. `start` or `launch`, then `run`, then `finish`; `close` in any case."""

    def __init__(self, options: Options, argv: Sequence[str]) -> None:
        self._options, self._argv = options, list(argv)
        self._scheduling: Scheduling
        if options.rootless:
            self._scheduling = PerfSwitches()
        else:
            host.require_ebpf()
            self._scheduling = SchedProbes(options.sched_ring_pages, options.follow)
        tables.warm_up()
        self._functions, self._processes, self._neighbours = Functions(), Processes(), Neighbours()
        self._recording = Recording(self._functions, self._processes, lambda columns: self._collector.add_calls(columns))
        self._sources: Sources | None = None
        self._native = NativeLayers(self._recording, options.layers, options.operators) if options.layers else None
        self._following: Following | None = None
        self._launched: Launched | Started | None = None
        self._main = 0
        self._cost: dict[str, Any] = {"source": None, "ns_per_call": None}
        self._start_ns = time.monotonic_ns()
        self._collector = Collector(self._start_ns)
        self._writer: Writer | None = None

    # -- beginning -----------------------------------------------------------------

    def start(self, pid: int) -> str:
        """Attach to a running process. Returns the sentence that says which source was taken and why. Raises TargetError."""
        target = inspect(pid)
        sources = self._make_sources(launches=False)
        source, why = sources.choose(target)
        source.prepare(target)
        with self._nothing_left_behind():
            self._begin(target)
            self._start_scheduling(pid)
            self._recording.declare(target.pid, source.name, why)
            source.attach(target)
            if self._native is not None:
                self._native.look([target.pid])
        return f"{source.name}: {why}"

    def launch(self, command: Sequence[str]) -> int:
        """Start a program, traced from its first instruction where it is a Python. Returns its pid. Raises TargetError."""
        sources = self._make_sources(launches=True)
        if self._options.rootless:
            self._launched = Started(command, sources.environment, lambda started: self._begin_with_other(started.pid, command))
            return self._launched.pid
        self._launched = Launched(command, sources.environment, self._at_exec)  # calls _at_exec already
        return self._launched.pid

    def _make_sources(self, launches: bool) -> Sources:
        self._sources = Sources(self._options, self._recording, launches)
        self._following = Following(self._recording, self._sources, launches)
        return self._sources

    def _at_exec(self, launched: Launched) -> bool:
        """The launched program stands at its first instruction: probe it if it is a Python; True = done with it."""
        pid = launched.pid
        try:
            if links_libpython(pid):
                launched.step_until(lambda: maps_libpython(pid))
            target = inspect(pid)
        except TargetError:
            self._begin_with_other(pid)
            return False
        with self._nothing_left_behind():
            source, why = self.sources.choose(target)
            source.prepare(target)
            if self._begin(target):
                self._start_scheduling(pid)
            source.begin(target)
        self._recording.declare(target.pid, source.name, why)
        return True

    @property
    def sources(self) -> Sources:
        """The sources, once the recording has begun."""
        if self._sources is None:
            raise RuntimeError("neither start nor launch was called")
        return self._sources

    @contextmanager
    def _nothing_left_behind(self) -> Iterator[None]:
        """Remove the trace directory of a target that turns out not to be traceable."""
        try:
            yield
        except TargetError:
            if self._writer is not None:
                self._writer.abandon()
                self._writer = None
            raise

    def _begin(self, target: Target) -> bool:
        return self._begin_trace(
            {
                "pid": target.pid,
                "command": target.command,
                "executable": target.executable,
                "python_version": target.version_text,
            }
        )

    def _begin_with_other(self, pid: int, command: Sequence[str] = ()) -> None:
        """`command`: what the process is about to become, where it is not that yet."""
        now = time.monotonic_ns()
        self._processes.add_other(pid, os.getpid(), now)
        self._processes.add_threads(pid, now)
        if command:
            self._processes.describe(pid, shlex.join(command), shutil.which(command[0]) or command[0])
        row = self._processes.processes[pid]
        described = {"pid": pid, "command": row["command"], "executable": row["executable"], "python_version": None}
        if self._begin_trace(described):
            self._start_scheduling(pid)

    def _begin_trace(self, target: dict[str, Any]) -> bool:
        """Open the trace directory; False where that was done: a wrapper became the Python that it was to start."""
        if self._writer is not None:
            self._writer.manifest["target"] = target
            return False
        self._main = target["pid"]
        self._start_ns = time.monotonic_ns()
        self._collector = Collector(self._start_ns)
        self._collector.native = self._native is not None
        manifest = new_manifest(self._start_ns, target, self._argv, asdict(self._options))
        self._writer = Writer(self._options.output, manifest | self._news())
        return True

    def _start_scheduling(self, pid: int) -> None:
        try:
            self._scheduling.start(pid)
        except HostError as error:
            if not self._options.rootless:
                raise
            self._scheduling = CpuTime(str(error))
            self._scheduling.start(pid)
        if self._writer is not None:
            self._writer.manifest["scheduling"] = {"source": self._scheduling.name, "why": self._scheduling.why}

    # -- recording -----------------------------------------------------------------

    def run(self, stop: Callable[[], bool], progress: Callable[[Status], None]) -> None:
        """Record until `stop()` is true or the traced program has ended; `progress` is called about once a second."""
        poll = select.poll()
        if self._scheduling.alert_fd is not None:
            poll.register(self._scheduling.alert_fd, select.POLLIN)
        next_cut = time.monotonic() + self._options.segment_s
        interval_s = self._scheduling.interval_s
        while not self._ended() and not stop():  # in this order: who is to be stopped must not have been reaped
            if poll.poll(interval_s * 1000):
                self._scheduling.silence_alerts()
            before = self._collector.counts["call"]
            self._drain()
            # One that has just begun is looked at while it is surely there.
            begins = not self._recording.chosen and self.status().seconds < _BEGINNING_S
            busy = begins or self._collector.counts["call"] - before > _BUSY
            interval_s = min(_BUSY_INTERVAL_S, self._scheduling.interval_s) if busy else self._scheduling.interval_s
            if self._launched is not None:
                self._launched.poll()
            if time.monotonic() >= next_cut or self._collector.waiting > _MOST_WAITING:
                self._cut()
                if self._following is not None:
                    self._following.let_go_of_ended()
                progress(self.status())
                # Longer segments in a long recording, so that neither they nor the manifest become too many.
                next_cut = time.monotonic() + max(self._options.segment_s, self.status().seconds / 3600)

    def status(self) -> Status:
        """The counts so far."""
        return Status(
            (time.monotonic_ns() - self._start_ns) / _NS,
            self._collector.counts["call"],
            self._collector.counts["sched"],
            sum(self._collector.lost.values()),
            self._cost.get("waited_ns", 0),
            tuple(dict.fromkeys(each["why"] for each in self._recording.chosen if each["source"] is None))
            + (self._native.missing() if self._native is not None else ()),
        )

    def _ended(self) -> bool:
        if self._launched is not None:
            return self._launched.status is not None
        row = self._processes.processes.get(self._main)
        return row is not None and row["end_ns"] is not None

    def _drain(self) -> None:
        began_ns = time.monotonic_ns()
        self.sources.drain()
        if self._native is not None:
            self._native.look(self._processes.living)
            self._collector.add_native(*self._native.drain())
        self._collector.counts["function"] = len(self._functions)
        scheduling = self._scheduling.drain()
        self._collector.add_scheduling(scheduling)
        if "sched" in scheduling:
            self._neighbours.see(scheduling["sched"], set(self._processes.processes))
        if "cputime" in scheduling:  # nothing reports what begins and ends
            self._processes.look()
            for pid in self._processes.living:
                self._scheduling.start(pid)
        if self._following is not None and "sched" in scheduling:
            held = self._launched.pid if self._launched is not None and self._launched.held else None
            news = self._processes.take_in(scheduling["sched"])
            self._following.follow(news, held)
            if self._native is not None:
                self._native.reset({row["pid"]: row["tid"] for kind, row in news if kind == SchedKind.EXEC})
            self._following.attach_to_started()
        self._collector.drained_ns = began_ns
        self._count_losses()

    def _count_losses(self) -> None:
        losses = self._scheduling.losses() + self.sources.losses()
        if self._native is not None:
            losses += self._native.losses()
        self._collector.lose(dict(zip(LOSS_CLASSES, losses.tolist(), strict=True)))

    def _cut(self, final: bool = False) -> None:
        self._processes.refresh()
        if self._writer is not None and (main := self._processes.processes.get(self._main)):
            self._writer.manifest["target"] |= {name: main[name] for name in ("command", "executable", "python_version")}
        self._collector.usage += usage.sample(self._processes.living)
        start, end, cut = self._collector.cut(final)
        cut["functions"] = tables.rows_table(schema.FUNCTIONS, self._functions.take_new())
        processes, threads = self._processes.take_changed()
        cut["processes"] = tables.rows_table(schema.PROCESSES, processes)
        cut["neighbours"] = tables.rows_table(schema.NEIGHBOURS, self._neighbours.take_new())
        cut["threads"] = tables.rows_table(schema.THREADS, threads)
        if self._writer is not None:
            self._writer.segment(start, end, cut, self._news())

    def _news(self) -> dict[str, Any]:
        return {
            "sources": list(self._recording.chosen),
            "events": dict(self._collector.counts),
            "lost": {name: count for name, count in self._collector.lost.items() if count},
            "cost": dict(self._cost),
        } | ({"native": self._native.facts()} if self._native is not None else {})

    # -- end -----------------------------------------------------------------------

    def finish(self) -> int | None:
        """Detach, write what is left and the last manifest. Returns the launched program's exit code, else None."""
        self.sources.stop()
        if self._native is not None:
            self._native.stop()
        self._drain()
        end_ns = time.monotonic_ns()
        self.sources.leave()
        self._count_losses()
        self._cost = self.sources.cost()
        if self._native is not None:
            self._cost |= self._native.cost_per_call()
        if self._launched is not None and not self._recording.chosen:
            self._recording.declare(self._main, None, why_silent(self._processes.processes[self._main]["executable"]))
        self._cut(final=True)
        if self._writer is not None:
            clock = [*self._writer.manifest["clock"], clock_anchor()]
            self._writer.close(self._news() | {"state": "complete", "end_ns": end_ns, "clock": clock})
        return self._launched.exit_code if self._launched and self._launched.status is not None else None

    def close(self) -> None:
        """Detach everything, whatever happened."""
        if self._launched is not None:
            self._launched.release()
        if self._sources is not None:
            self._sources.close()
        if self._native is not None:
            self._native.close()
        self._scheduling.close()
