"""A flight recorder, in the place of a trace that is written: what is recorded is held in memory, and becomes a trace when something happens."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pytrace_ebpf.errors import PytraceError
from pytrace_ebpf.record.flight.conditions import SNAP
from pytrace_ebpf.record.flight.held import Held, Segment
from pytrace_ebpf.record.flight.watch import Trigger, Watch
from pytrace_ebpf.record.flight.written import Written
from pytrace_ebpf.record.options import Keep, Options
from pytrace_ebpf.record.output import ready
from pytrace_ebpf.record.output.collect import Collector
from pytrace_ebpf.record.output.directory import Output
from pytrace_ebpf.record.rights.user import as_caller

_KEEP, _NOTHING = Keep(seconds=10.0), Keep(seconds=0.0)


class FlightRecorder:
    """What output.recorded.Recorded is to a recording, for any number of traces, none of them at first."""

    def __init__(self, options: Options, argv: Sequence[str], metadata: Mapping[str, Any]) -> None:
        """`metadata` as of Recorded. Raises UsageError where no trace could be written."""
        assert options.flight is not None
        self._options, self._argv, self._flight = options, list(argv), options.flight
        with as_caller():  # now rather than when something has happened
            output = Output(options.output)
            output.abandon((), ())
            output.close()
        self.start_ns = time.monotonic_ns()
        self.collector = Collector(self.start_ns)
        self.cost: dict[str, Any] = {"source": None, "ns_per_call": None}
        self._watch, self._held = Watch(self._flight), Held(options.keep or (_NOTHING if self._flight.begins else _KEEP))
        self._asked: list[Trigger] = []
        self._first: Trigger | None = None  # of --from-call
        self._writing: Written | None = None
        self._closing: list[Written] = []
        self._begun = self._size = 0
        self._last_ns: int | None = None  # of what set off the last one
        self._skipped, self._skipped_in_all = Counter[str](), 0
        self._said: list[str] = []
        self._was_short = self._is_over = False
        self.traces: list[Path] = []  # those that are whole
        self.full: str | None = None
        self.failed = False

    @property
    def directory(self) -> Path:
        """Where the last trace is; RuntimeError where there is none."""
        if not self.traces:
            raise RuntimeError("no trace was written")
        return self.traces[-1]

    @property
    def seconds(self) -> float:
        """How long it has lasted."""
        return (time.monotonic_ns() - self.start_ns) / 1e9

    def snap(self, ts: int) -> None:
        """Write a trace of what is held, and of what comes: somebody asked for it at `ts`."""
        self._asked.append(Trigger(SNAP, ts))

    def take_said(self) -> list[str]:
        """What happened since the last call, a sentence each."""
        self._settle()
        said, self._said = self._said, []
        return said

    def cut(self, metadata: Mapping[str, Any], final: bool = False) -> None:
        """Close a segment, and see whether something happened in it."""
        self._is_over = final
        ready.make_ready()
        segment = Segment(*self.collector.cut(final))
        came_true = self._watch.take(segment)
        self._held.add(segment)
        if self._held.is_short and not self._was_short:
            self._was_short = True
            self._said.append("what is held has reached its bound of memory, so it is less than --retain asks for; --include PATTERN records less")
        if self._writing is not None:
            self._writing.take([segment], metadata)
        if self._first is not None:
            self._begin_with(self._first, metadata)
        asked, self._asked = self._asked, []
        for trigger in sorted([*came_true, *asked], key=lambda each: each.ts):
            self._take(trigger, metadata)
        if final and self._first is not None:
            self._begin_with(self._first, metadata)
        if self._writing is not None and (final or segment.end_ns >= self._writing.until_ns or self._writing.full):
            self._end(metadata)
        self._settle()

    def _take(self, trigger: Trigger, metadata: Mapping[str, Any]) -> None:
        early = self._last_ns is not None and trigger.ts < self._last_ns + int(self._flight.every_s * 1e9) and trigger.condition != SNAP
        if self._flight.begins:  # once all is there that is from before it; later calls begin nothing
            self._first = None if self._begun else self._first or trigger
            self._held.drops_nothing = self._first is not None
            return
        if self._writing is not None:
            self._writing.meet(trigger)
        elif early or self._begun >= self._flight.traces or self.full:
            self._skipped[trigger.condition] += trigger.count
            self._skipped_in_all += trigger.count
        else:
            self._begin(trigger, metadata)

    def _begin_with(self, trigger: Trigger, metadata: Mapping[str, Any]) -> None:
        """Begin the trace of --from-call."""
        self._first, self._held.drops_nothing = None, False
        self._held.begin_at(trigger.ts)
        self._begin(trigger, metadata)

    def _begin(self, trigger: Trigger, metadata: Mapping[str, Any]) -> None:
        beginning = self._held.beginning()
        segments = [*([beginning] if beginning else []), *self._held.segments]
        room = None if self._options.max_size is None else self._options.max_size - self._size
        try:
            self._writing = Written(self._options, self._argv, metadata, trigger, self._skipped, segments[0].start_ns, room, not self._begun)
        except PytraceError as error:
            self.failed = True
            self._said.append(f"{describe(trigger)}, but {error}")
            return
        self._begun, self._last_ns = self._begun + 1, trigger.ts
        self._skipped.clear()
        self._writing.take(segments, metadata)

    def _end(self, metadata: Mapping[str, Any]) -> None:
        assert self._writing is not None
        self._writing.begin_to_close(metadata, self.cost)
        self._closing.append(self._writing)
        self._writing = None

    def _settle(self, wait: bool = False) -> None:
        """See to the traces that are on the disk by now."""
        for written in [each for each in self._closing if each.is_closed(wait)]:
            self._closing.remove(written)
            self._size += written.size
            self.failed = self.failed or written.failed
            self.traces.append(written.directory)
            self._said.append(f"{describe(written.trigger)}: trace in {written.directory}")
            if written.failed:
                self._said.append(f"{written.full or 'it could not be written'}")
        if self._options.max_size is not None and self._size >= self._options.max_size:
            self.full = f"the traces have reached {self._options.max_size / 1e6:,.1f} MB (--max-size)"
        elif self._begun >= self._flight.traces and not self._writing and not self._closing and not (self._flight.begins and self._is_over):
            was = f"{self._begun} trace{'s were' if self._begun > 1 else ' was'} written (--traces)"
            self.full = "the time that --for gives is over" if self._flight.begins else was

    def finish(self, metadata: Mapping[str, Any], end_ns: int) -> None:
        """Look at what is left, and write it where something has happened; `end_ns`: when the recording ended."""
        self.cut(metadata, final=True)
        self._settle(wait=True)
        if self._skipped_in_all:
            self._said.append(f"{self._skipped_in_all:,} more came true too early after others for a trace of their own (--every, --traces)")
        if not self._begun:
            self._said.append("no trace was written" if self._flight.begins else "nothing set it off: no trace was written")
        self._said += self._watch.never_met()

    def abandon(self) -> None:
        """Nothing was recorded."""


def describe(trigger: Trigger) -> str:
    """What came true, and where, in a few words."""
    if trigger.condition == SNAP:
        return "a snapshot was asked for"
    if trigger.condition.startswith("--from-call "):
        return f"recorded from the first call of {trigger.name} on"
    who = f"thread {trigger.tid} of process {trigger.pid}"
    where = f"{trigger.name} in {who}" if trigger.name else who
    return f"'{trigger.condition}' came true: {where}"
