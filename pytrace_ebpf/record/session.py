"""One recording, from the first event to the last: a set of targets, a trace that is written, and the recorders between them."""

import select
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pytrace_ebpf.errors import HostError, TargetError
from pytrace_ebpf.rebuild.library import library
from pytrace_ebpf.record.cost.cost import Cost, Price
from pytrace_ebpf.record.cpython.functions import Functions
from pytrace_ebpf.record.cpython.holdings import Owners
from pytrace_ebpf.record.identity.choosing import looking_for
from pytrace_ebpf.record.kernel import host
from pytrace_ebpf.record.options import Options
from pytrace_ebpf.record.output import ready, tables
from pytrace_ebpf.record.output.recorded import Recorded
from pytrace_ebpf.record.parsing import sandbox
from pytrace_ebpf.record.process.matching import Looking
from pytrace_ebpf.record.process.processes import Processes
from pytrace_ebpf.record.process.targets import Begun, Targets
from pytrace_ebpf.record.recorders import recorders
from pytrace_ebpf.record.source import Recording
from pytrace_ebpf.record.source_selection.sources import Sources
from pytrace_ebpf.record.wakeup import Wakeup
from pytrace_ebpf.trace.losses import PARTLY

if TYPE_CHECKING:
    from pytrace_ebpf.record.flight.recorder import FlightRecorder
    from pytrace_ebpf.record.live.sink import Live, Take
    from pytrace_ebpf.record.output.shared import Part, Shared

    Trace = Recorded | FlightRecorder | Live | Shared

_MOST_WAITING = 2_000_000  # rows of a segment: about 65 MB of memory
_WAITING_S = 0.01
# What writes is imported once no recorder waits for a program to get going, which takes some milliseconds: so long at most.
_CALM_S, _CALM_WITHIN_S = 0.05, 0.3
_OWED_NS = 5_000_000_000  # for which rows are waited for, of which it is not known yet whose they are
_SHOWN_S = 1.0
_PACES = 10  # of the recorders that look seldom, a segment is at least so long


@dataclass(frozen=True)
class Status:
    """How a recording is going."""

    seconds: float
    calls: int
    sched: int
    lost: int
    waited_ns: int = 0  # ns that the program waited for this process to read what it wrote
    price: Price | None = None  # what tracing costs at the moment; None where nothing is known of it
    unserved: tuple[str, ...] = ()  # why some processes have no calls, or no native ones, a sentence each
    said: tuple[str, ...] = ()  # what happened to processes since the last status, a sentence each
    samples: int = 0


class Session:
    """One recording. `start` or `launch`, then `run`, then `finish`; `close` in any case."""

    def __init__(
        self, options: Options, argv: Sequence[str], take: "Take | None" = None, looking: Looking | None = None, first: "Part | None" = None
    ) -> None:
        """`take`: is given each segment as it is closed, every Options.segment_s, and no trace is written. `looking`: finds processes to attach to.

        `first`: the trace that is written, where others may join it.
        """
        self._options, self._argv, self._take, self._first = options, list(argv), take, first
        self._cut_soon = False
        sandbox.parsers.start()  # it imports while BPF is compiled
        if not options.rootless:
            host.require_ebpf()
        looking = looking or (looking_for(options.match) if options.match is not None else None)
        self._wakeup = Wakeup()
        if looking:
            looking.tell = self._wakeup.set
            looking.start()
        self._processes = Processes(not options.lean, looking.shares if looking else None, looking.user if looking else lambda pid: 0)
        functions = Functions(Owners(looking.shares, looking.user) if looking else None, options.lean)
        recording = Recording(functions, self._processes, looking.shares if looking else None)
        self._sources = Sources(options, recording)
        self._cost = Cost(recording, self._sources, options.budget, options.unasked, options.match is not None)
        self._recorders = recorders(options, recording, self._sources, self._cost)
        self._targets = Targets(options, recording, self._sources, self._recorders, self._open, self._drain, looking)
        self._trace: Trace | None = None
        self._said: set[str] = set()

    # -- beginning -----------------------------------------------------------------

    def start(self, *pids: int) -> list[Begun]:
        """Attach to running processes, and to those that the options match.

        Of several one that cannot be traced is left out, which `status` says. Raises TargetError or HostError where none is left.
        """
        with self._nothing_left_behind():
            begun = self._targets.attach(pids)
        importing = ready.begin()
        while importing.is_alive():  # it would hold up who has to attach to what these processes start
            importing.join(_WAITING_S)
            self._drain()
        return begun

    def launch(self, command: Sequence[str]) -> int:
        """Start a program, traced from its first instruction where it is a Python. Returns its pid. Raises TargetError."""
        if (
            self._options.source == "usdt" or self._options.value_of("layers") or self._options.sample
        ):  # see start(); the agent comes to children by itself
            ready.make_ready()
        with self._nothing_left_behind():
            return self._targets.launch(command)

    def _open(self, metadata: Mapping[str, Any]) -> None:
        if self._trace is None:
            self._trace = self._new_trace({**self._metadata(), **metadata})

    @contextmanager
    def _nothing_left_behind(self) -> Iterator[None]:
        """Remove the trace directory of a target that turns out not to be traceable."""
        try:
            library()  # without which nothing could be written: said before a program is touched
            yield
        except (TargetError, HostError):
            self.abandon()
            raise

    def _new_trace(self, metadata: Mapping[str, Any]) -> "Trace":
        # What is seldom asked for takes long to import.
        if self._take is not None:
            from pytrace_ebpf.record.live.sink import Live

            return Live(self._take)
        if self._first is not None:
            from pytrace_ebpf.record.output.shared import Shared

            return Shared(metadata, self._first)
        if self._options.flight is None:
            return Recorded(self._options, self._argv, metadata)
        from pytrace_ebpf.record.flight.recorder import FlightRecorder

        return FlightRecorder(self._options, self._argv, metadata)

    # -- recording -----------------------------------------------------------------

    def run(self, stop: Callable[[], bool], progress: Callable[[Status], None]) -> None:
        """Record until `stop()` is true, the traced programs have ended or the trace is full; `progress` is called about once a second."""
        trace, poll = self._written(), select.poll()
        for recorder in self._recorders:
            if recorder.alert_fd is not None:
                poll.register(recorder.alert_fd, select.POLLIN)
        if self._targets.launched is not None and self._targets.launched.end is not None:
            poll.register(self._targets.launched.end, select.POLLIN)
        poll.register(self._wakeup, select.POLLIN)
        next_shown = time.monotonic() + _SHOWN_S
        next_cut = time.monotonic() + self._segment_s(0)
        calm_by = time.monotonic() + _CALM_WITHIN_S
        # In this order: who is to be stopped must not have been reaped.
        while not self._targets.ended() and not trace.full and not stop():
            interval_s = max(self._cost.pace_s, min(recorder.interval_s for recorder in self._recorders))
            poll.poll(1000 * interval_s)
            self._wakeup.clear()
            self._drain()
            if interval_s >= _CALM_S or time.monotonic() >= calm_by:
                ready.begin()
            with self._nothing_left_behind():
                self._targets.poll()
            due = time.monotonic() >= next_cut or self._cut_soon or trace.collector.waiting > _MOST_WAITING
            if due and trace.collector.can_cut:
                self._cut_soon = False
                self._close_segment()
                trace.cut(self._metadata())
                self._targets.let_go_of_ended()
                next_cut = time.monotonic() + max(self._segment_s(trace.seconds), _PACES * self._cost.pace_s)
            if time.monotonic() >= next_shown:
                progress(self.status())
                next_shown = time.monotonic() + _SHOWN_S
        ready.begin()

    def wake(self) -> None:
        """Have run() ask `stop` at once. May be called by whoever handles a signal."""
        self._wakeup.set()

    def _segment_s(self, recorded_s: float) -> float:
        return self._options.segment_s if self._take else self._options.segment_length(recorded_s)

    @property
    def directory(self) -> Path:
        """Where the trace is. Raises RuntimeError where no recording has begun."""
        return self._written().directory

    @property
    def ended_early(self) -> str | None:
        """Why no more is recorded although the program runs on, a sentence; None where nothing ended it."""
        return self._trace.full if self._trace is not None else None

    @property
    def failed(self) -> bool:
        """Whether that was because the trace could not be written."""
        return self._written().failed

    @property
    def traces(self) -> list[Path]:
        """The traces that are there after finish()."""
        return list(self._written().traces)

    @property
    def ended(self) -> list[dict[str, Any]]:
        """Rows of `processes` of what was asked for, and of what the kernel killed for want of memory, that ended."""
        asked = self._targets.asked
        return [row for pid, row in self._processes.processes.items() if row["end_ns"] is not None and (pid in asked or row["oom_killed"])]

    def snap(self, ts: int) -> None:
        """Where it is held in memory: write a trace of what is held and of what comes, as somebody asked for at `ts` (CLOCK_MONOTONIC)."""
        self._written().snap(ts)

    def join(self, part: "Part") -> None:
        """Write one more trace, which begins now, next to the `first`."""
        self._written().join(part)  # type: ignore[union-attr] # where there was a first it is such
        self.cut_soon()

    def cut_soon(self) -> None:
        """Close the segment that is being recorded, whatever its length."""
        self._cut_soon = True

    def _written(self) -> "Trace":
        if self._trace is None:
            raise RuntimeError("nothing was recorded")
        return self._trace

    def status(self) -> Status:
        """The counts so far, and what was not said before."""
        trace = self._written()
        said = [*self._targets.take_said(), *trace.take_said(), *(sentence for recorder in self._recorders for sentence in recorder.take_said())]
        missing = dict.fromkeys(sentence for recorder in self._recorders for sentence in recorder.missing())
        self._said |= set(said) & missing.keys()
        return Status(
            trace.seconds,
            trace.collector.counts["call"],
            trace.collector.counts["sched"],
            sum(count for name, count in trace.collector.lost.items() if name not in PARTLY),
            trace.cost.get("waited_ns", 0),
            self._cost.price(),
            tuple(sentence for sentence in missing if sentence not in self._said),
            tuple(said),
            trace.collector.counts["sample"],
        )

    @property
    def sampling_ns(self) -> int:
        """CPU time that reading stacks has taken so far, of a recording of samples alone."""
        return sum(recorder.cost().get("sampling_ns", 0) for recorder in self._recorders)

    def _drain(self) -> None:
        self._collect()
        self._targets.follow()

    def _collect(self) -> None:
        collector, began_ns = self._written().collector, time.monotonic_ns()
        drained: dict[str, list[tables.Columns]] = {}
        for recorder in self._recorders:
            rows = recorder.drain()
            collector.add(rows, recorder)
            for name, batches in rows.items():
                drained.setdefault(name, []).extend(batches)
        for recorder in self._recorders:
            recorder.observe(drained)
        owed = [ns for recorder in self._recorders if (ns := recorder.owed_ns) is not None]
        # Rows that come after their segment was closed have unknown times. Whoever fakes an arena holds it up for so long and no longer.
        collector.drained_ns = max(collector.drained_ns, min([began_ns, *owed]), began_ns - _OWED_NS)
        self._count_losses()

    def _count_losses(self) -> None:
        self._written().collector.lose(np.sum([recorder.losses() for recorder in self._recorders], axis=0))

    def _close_segment(self) -> None:
        """Collect what a segment has once."""
        for recorder in self._recorders:
            self._written().collector.add(recorder.cut(), recorder)

    def _metadata(self) -> dict[str, Any]:
        metadata: dict[str, Any] = {}
        for recorder in self._recorders:
            metadata |= recorder.metadata()
        return metadata | (self._targets.metadata() if self._trace is not None else {})

    # -- end -----------------------------------------------------------------------

    def finish(self) -> int | None:
        """Detach, write what is left and the last manifest. Returns the launched program's exit code, else None."""
        trace = self._written()
        for recorder in self._recorders:
            recorder.stop()
        self._drain()
        stopped_ns = time.monotonic_ns()
        end_ns = max([stopped_ns, *(recorder.leave() for recorder in self._recorders)])  # an agent records until it has the GIL to leave with
        trace.collector.end_ns = self._processes.last_ns = end_ns
        self._collect()
        for recorder in self._recorders:
            trace.cost |= recorder.cost()
        self._targets.explain_no_calls()
        self._close_segment()
        for reader in (sandbox.parsers, sandbox.searcher):
            reader.dismiss()
        trace.finish(self._metadata(), end_ns)
        launched = self._targets.launched
        return launched.exit_code if launched and launched.status is not None else None

    def wait(self, stop: Callable[[], bool]) -> int | None:
        """After finish(): let the launched program run on untraced to its end. Returns its exit code, None where none was launched.

        `stop()` is asked several times a second, as in run(); its answer counts for nothing.
        """
        launched = self._targets.launched
        if launched is None:
            return None
        launched.let_run()
        while launched.status is None:
            stop()
            # The agent comes with what the program starts: it learns at once that nobody reads.
            self._sources.drain()
            self._sources.stop()
            time.sleep(_WAITING_S)
            launched.poll()
        return launched.exit_code

    def abandon(self) -> None:
        """Remove what was written: it is not to be recorded after all."""
        if self._trace is not None:
            self._trace.abandon()
            self._trace = None

    def close(self) -> None:
        """Detach everything, whatever happened."""
        self._targets.close()
        for recorder in reversed(self._recorders):
            recorder.close()
