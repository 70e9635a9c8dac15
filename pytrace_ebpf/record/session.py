"""The wiring of one recording: probes, processes, collector and writer, from the first probe to the last manifest."""

import os
import select
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from pytrace_ebpf.errors import TargetError, UsageError
from pytrace_ebpf.record import frames, host, opening, qualnames, tables, usage
from pytrace_ebpf.record.calibrate import cost_per_call
from pytrace_ebpf.record.collect import Collector
from pytrace_ebpf.record.description import clock_anchor, new_manifest
from pytrace_ebpf.record.functions import Functions, ProbeIds, Qualify
from pytrace_ebpf.record.launch import Launched
from pytrace_ebpf.record.processes import Processes
from pytrace_ebpf.record.sched import SchedProbes
from pytrace_ebpf.record.source_usdt import OFF, ON, WALK, Plan, UsdtSource, plan
from pytrace_ebpf.record.target import Target, inspect, links_libpython, maps_libpython, truthful
from pytrace_ebpf.record.writer import Writer
from pytrace_ebpf.trace import schema
from pytrace_ebpf.trace.schema import LOSS_CLASSES, CallKind, SchedKind

_TICK_MS = 50  # news of children come at once by an alert; each tick costs about half a millisecond of CPU
_NS = 1_000_000_000


@dataclass(frozen=True)
class Options:
    """What a recording is asked for."""

    output: Path
    source: str = "auto"
    follow: bool = True
    segment_s: float = 1.0
    call_ring_pages: int = 16384  # 64 MiB: 1.6 million events
    sched_ring_pages: int = 4096


@dataclass(frozen=True)
class Status:
    """How a recording is going."""

    seconds: float
    calls: int
    sched: int
    lost: int


@dataclass
class _Loaded:
    target: Target  # the first process of this interpreter
    owner: os.stat_result  # of that process
    source: UsdtSource
    ids: ProbeIds


class Session:
    """One recording. `start` or `launch`, then `run`, then `finish`; `close` in any case."""

    def __init__(self, options: Options, argv: Sequence[str]) -> None:
        if options.source == "agent":
            raise UsageError("the agent source is not part of this version; use --source usdt, or leave the option out")
        self._options, self._argv = options, list(argv)
        host.require_ebpf()
        self._sched = SchedProbes(options.sched_ring_pages, options.follow)
        self._loaded: dict[Plan, _Loaded] = {}
        self._functions, self._processes = Functions(), Processes()
        self._ended_pids: set[int] = set()
        self._adopted = 0  # processes attached to at the last cut
        self._innermost = opening.Innermost()
        self._qualnames: dict[int, Qualify] = {}
        self._untold_frames = 0
        self._sources: list[dict[str, Any]] = []
        self._launched: Launched | None = None
        self._main = 0
        self._cost: dict[str, Any] = {"source": "usdt", "ns_per_call": None}
        self._start_ns = time.monotonic_ns()
        self._collector = Collector(self._start_ns)
        self._writer: Writer | None = None

    # -- beginning -----------------------------------------------------------------

    def start(self, pid: int) -> str:
        """Attach to a running process. Returns the sentence that says which source was taken and why. Raises TargetError."""
        target = inspect(pid)
        why = self._check(target)
        loaded = self._load(target)
        self._begin(target)
        self._collector.add_sched(self._sched.add_process(pid))
        with self._nothing_left_behind():
            self._open(target, loaded)
        self._declare(target, why)
        return why

    def launch(self, command: Sequence[str]) -> int:
        """Start a program, traced from its first instruction where it is a Python. Returns its pid. Raises TargetError."""
        self._launched = Launched(command, self._at_exec)  # calls _at_exec already
        return self._launched.pid

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
            why = self._check(target)
            loaded = self._load(target)
            if self._begin(target):
                self._collector.add_sched(self._sched.add_process(pid))
            start_ns = time.monotonic_ns()
            self._attach(target, loaded)
        loaded.source.record(ON)
        self._processes.add_python(target, loaded.source.name, start_ns)
        self._declare(target, why)
        return True

    @contextmanager
    def _nothing_left_behind(self) -> Iterator[None]:
        """Remove the trace directory of a target that turns out not to be traceable."""
        try:
            yield
        except TargetError:
            if self._writer is not None:
                self._writer.abandon()
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

    def _begin_with_other(self, pid: int) -> None:
        now = time.monotonic_ns()
        self._processes.add_other(pid, os.getpid(), now)
        self._processes.add_threads(pid, now)
        row = self._processes.processes[pid]
        described = {"pid": pid, "command": row["command"], "executable": row["executable"], "python_version": None}
        if self._begin_trace(described):
            self._collector.add_sched(self._sched.add_process(pid))

    def _begin_trace(self, target: dict[str, Any]) -> bool:
        """Open the trace directory; False where that was done: a wrapper became the Python that it was to start."""
        if self._writer is not None:
            self._writer.manifest["target"] = target
            return False
        self._main = target["pid"]
        self._start_ns = time.monotonic_ns()
        self._collector = Collector(self._start_ns)
        manifest = new_manifest(self._start_ns, target, self._argv, vars(self._options))
        self._writer = Writer(self._options.output, manifest | self._news())
        return True

    # -- processes -----------------------------------------------------------------

    def _check(self, target: Target) -> str:
        serves, sentence = truthful(target)
        if not serves:
            raise TargetError(sentence)
        return sentence

    def _load(self, target: Target) -> _Loaded:
        if target.layout is None:
            raise TargetError(f"the structures of this Python in process {target.pid} are not known")
        planned = plan(target.binary, target.layout)
        if planned not in self._loaded:
            self._loaded[planned] = _Loaded(
                target,
                Path(f"/proc/{target.pid}").stat(),
                UsdtSource(planned, self._options.call_ring_pages),
                ProbeIds(self._functions),
            )
        return self._loaded[planned]

    def _attach(self, target: Target, loaded: _Loaded) -> None:
        loaded.source.attach(target.pid, target.binary_path)
        self._qualnames[target.pid] = qualnames.for_process(target.pid, target.library)

    def _open(self, target: Target, loaded: _Loaded) -> None:
        """Attach to a process in the middle of its work, and learn the frames that are open."""
        self._drain_calls(loaded)
        self._attach(target, loaded)
        start_ns = time.monotonic_ns()
        loaded.source.record(WALK)
        walk_ns = time.monotonic_ns()
        stacks = frames.open_frames(target)
        loaded.source.record(ON)
        time.sleep(0.002)  # a probe that saw WALK may still be walking
        opened = opening.Opening(target, start_ns, walk_ns, loaded.source.walked(), stacks)
        calls, untold = opening.apply(
            opened, self._calls_and_open_frames(loaded), self._functions, self._qualnames[target.pid]
        )
        self._untold_frames += untold
        self._innermost.expect(opened)
        self._collector.add_calls(self._innermost.drop_entered(tables.call_columns(calls)))
        self._processes.add_python(target, loaded.source.name, start_ns)

    def _calls_and_open_frames(self, loaded: _Loaded) -> np.ndarray:
        calls = loaded.source.drain_calls(np.copy)
        self._introduce(loaded)
        told = calls["kind"] != CallKind.OPEN
        calls["func"][told] = loaded.ids.func_ids(calls["func"][told]).view(np.uint32)
        return calls

    def _declare(self, target: Target, why: str) -> None:
        self._sources.append({"pid": target.pid, "source": "usdt", "why": why})

    def _follow(self, news: list[tuple[SchedKind, dict[str, int]]]) -> None:
        for kind, row in news:
            if kind == SchedKind.EXIT:
                self._ended_pids.add(row["pid"])
                continue
            if kind == SchedKind.EXEC:
                self._reset(row)
                if self._launched is not None and self._launched.held and row["pid"] == self._launched.pid:
                    continue  # stands at its first instruction: _at_exec sees to it
                self._adopt(row, inspect)
            elif row["state"]:  # vfork: it is still its creator's memory, until it calls exec
                self._processes.add_other(row["pid"], row["other_pid"], row["ts"])
            elif creator := self._processes.targets.get(row["other_pid"]):  # every moment counts: it is a copy
                self._adopt(row, lambda pid: replace(creator, pid=pid, ppid=creator.pid))
            else:
                self._adopt(row, inspect)

    def _adopt(self, row: dict[str, int], look: Callable[[int], Target]) -> None:
        try:
            target = look(row["pid"])
            why = self._check(target)
            loaded = self._load(target)
            if target.pid in loaded.source.attached:  # exec of the same interpreter: its probes are on it already
                self._processes.add_python(target, loaded.source.name, row["ts"])
            else:
                self._open(target, loaded)
            self._declare(target, why)
        except TargetError:  # no Python, or it is gone already: its scheduling is recorded all the same
            self._processes.add_other(row["pid"], row["other_pid"], row["ts"])

    def _reset(self, row: dict[str, int]) -> None:
        """exec: the open calls of the thread are gone, and so is what was known of its frames."""
        event = None
        for loaded in self._loaded.values():
            loaded.source.forget_walk(row["tid"])
            event = np.zeros(1, loaded.source.call_dtype)
        if event is not None and row["pid"] in self._processes.targets:
            event["ts"], event["pid_tgid"] = row["ts"], row["pid"] << 32 | row["tid"]
            event["kind"], event["line"], event["func"] = CallKind.RESET, -1, 0xFFFFFFFF
            self._collector.add_calls(tables.call_columns(event))

    def _detach_ended(self) -> None:
        """Remove the probes of processes that ended, in a quiet second: meanwhile the kernel attaches no other ones."""
        if self._adopted == len(self._sources):
            for pid in self._ended_pids:
                for loaded in self._loaded.values():
                    loaded.source.detach(pid)
            self._ended_pids.clear()
        self._adopted = len(self._sources)

    # -- recording -----------------------------------------------------------------

    def run(self, stop: Callable[[], bool], progress: Callable[[Status], None]) -> None:
        """Record until `stop()` is true or the traced program has ended; `progress` is called about once a second."""
        poll = select.poll()
        poll.register(self._sched.alert_fd, select.POLLIN)
        next_cut = time.monotonic() + self._options.segment_s
        while not stop() and not self._ended():
            if poll.poll(_TICK_MS):
                self._sched.silence_alerts()
            self._drain()
            if self._launched is not None:
                self._launched.poll()
            if time.monotonic() >= next_cut:
                self._cut()
                self._detach_ended()
                progress(self.status())
                # Longer segments in a long recording, so that neither they nor the manifest become too many.
                next_cut += max(self._options.segment_s, self.status().seconds / 3600)

    def status(self) -> Status:
        """The counts so far."""
        return Status(
            (time.monotonic_ns() - self._start_ns) / _NS,
            self._collector.counts["call"],
            self._collector.counts["sched"],
            sum(self._collector.lost.values()),
        )

    def _ended(self) -> bool:
        if self._launched is not None:
            return self._launched.status is not None
        row = self._processes.processes.get(self._main)
        return row is not None and row["end_ns"] is not None

    def _introduce(self, loaded: _Loaded) -> None:
        introduced = loaded.source.drain_functions()
        loaded.ids.introduce(introduced, lambda pid: self._qualnames.get(pid, _no_qualname), self._processes.read_code)
        self._collector.counts["function"] = len(self._functions)

    def _drain_calls(self, loaded: _Loaded) -> None:
        calls = loaded.source.drain_calls(tables.call_columns)
        self._introduce(loaded)
        if (calls["kind"] == CallKind.OPEN).any():  # of a process that is not being opened
            calls = tables.where(calls, calls["kind"] != CallKind.OPEN)
        calls["func_id"] = loaded.ids.func_ids(calls["func_id"].view(np.uint32))
        self._collector.add_calls(self._innermost.drop_entered(calls))

    def _drain(self) -> None:
        began_ns = time.monotonic_ns()
        for loaded in list(self._loaded.values()):
            self._drain_calls(loaded)
        sched = self._sched.drain()
        self._collector.add_sched(sched)
        self._follow(self._processes.take_in(sched))
        self._collector.drained_ns = began_ns
        self._collector.lose(dict(zip(LOSS_CLASSES, self._losses().tolist(), strict=True)))

    def _losses(self) -> np.ndarray:
        total = self._sched.programs.losses()
        for loaded in self._loaded.values():
            total += loaded.source.losses()
        total[LOSS_CLASSES.index("stack_depth")] += self._untold_frames
        return total

    def _cut(self, final: bool = False) -> None:
        self._processes.refresh()
        self._collector.usage += usage.sample(self._processes.living)
        start, end, cut = self._collector.cut(final)
        cut["functions"] = tables.rows_table(schema.FUNCTIONS, self._functions.take_new())
        processes, threads = self._processes.take_changed()
        cut["processes"] = tables.rows_table(schema.PROCESSES, processes)
        cut["threads"] = tables.rows_table(schema.THREADS, threads)
        if self._writer is not None:
            self._writer.segment(start, end, cut, self._news())

    def _news(self) -> dict[str, Any]:
        return {
            "sources": list(self._sources),
            "events": dict(self._collector.counts),
            "lost": {name: count for name, count in self._collector.lost.items() if count},
            "cost": dict(self._cost),
        }

    # -- end -----------------------------------------------------------------------

    def finish(self) -> int | None:
        """Detach, write what is left and the last manifest. Returns the launched program's exit code, else None."""
        for loaded in self._loaded.values():
            loaded.source.record(OFF)
        self._drain()
        end_ns = time.monotonic_ns()
        for loaded in self._loaded.values():
            loaded.source.detach_all()
        self._measure_cost()
        self._cut(final=True)
        if self._writer is not None:
            clock = [*self._writer.manifest["clock"], clock_anchor()]
            self._writer.close(self._news() | {"state": "complete", "end_ns": end_ns, "clock": clock})
        return self._launched.exit_code if self._launched and self._launched.status is not None else None

    def _measure_cost(self) -> None:
        if first := next(iter(self._loaded.values()), None):
            self._cost["ns_per_call"] = cost_per_call(first.source, first.target, first.owner.st_uid, first.owner.st_gid)

    def close(self) -> None:
        """Detach everything, whatever happened."""
        if self._launched is not None:
            self._launched.release()
        for loaded in self._loaded.values():
            loaded.source.close()
        self._sched.close()


def _no_qualname(file: str, first_line: int, name: str) -> str | None:
    return None
