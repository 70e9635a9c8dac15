"""One trace of a flight recorder: what is held when it is set off, and what comes after."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from pytrace_ebpf.record.flight.held import Segment
from pytrace_ebpf.record.flight.watch import Trigger
from pytrace_ebpf.record.options import Options
from pytrace_ebpf.record.output.collect import counted
from pytrace_ebpf.record.output.description import clock_anchor, new_manifest
from pytrace_ebpf.record.output.writer import Writer

_MOST_LISTED = 100  # of what came true while it was written

_Given = tuple[Segment, dict[str, Any]]


class Written:
    """A trace directory that is being written, of segments that are given in the order of time."""

    def __init__(
        self,
        options: Options,
        argv: Sequence[str],
        metadata: Mapping[str, Any],
        trigger: Trigger,
        skipped: Mapping[str, int],
        start_ns: int,
        room: int | None,
        first: bool,
    ) -> None:
        """`skipped`: how often each condition came true without a trace, since the one before; `room`: bytes that it may have.

        Not the `first`: where its name is taken it has another one. Raises UsageError where nothing can be written there.
        """
        assert options.flight is not None
        self.trigger, self.until_ns = trigger, trigger.ts + int(options.flight.after_s * 1e9)
        self._more: list[Trigger] = []
        self._unlisted = 0
        self._skipped = dict(skipped)
        self._counts, self._lost, self._end_ns = Counter[str](), Counter[str](), start_ns
        manifest = new_manifest(start_ns, metadata["target"], argv, options.as_recorded())
        self._clock = manifest["clock"]
        self._writer = Writer(options.output, manifest | self._news(metadata), room, another=not first)
        self._path, self._is_whole = self._writer.directory, False
        self._given: SimpleQueue[_Given | dict[str, Any]] = SimpleQueue()
        self._thread = threading.Thread(target=self._write, name="trace")
        self._thread.start()

    @property
    def directory(self) -> Path:
        """Where it is, by the name that it has now; once it is closed by the one that it had last."""
        return self._path

    @property
    def size(self) -> int:
        """Bytes so far."""
        return self._writer.size

    @property
    def full(self) -> str | None:
        """Why no more can be written, a sentence."""
        return self._writer.full

    @property
    def failed(self) -> bool:
        """Whether not all of it could be written; known once it is closed."""
        return self._writer.failed or not self._is_whole

    def take(self, segments: Iterable[Segment], metadata: Mapping[str, Any]) -> None:
        """Hand these over to be written, in a thread of its own: what was held is more than a disk takes at once."""
        for segment in segments:
            for name, table in segment.tables.items() if segment.end_ns > segment.start_ns else ():
                self._counts.update(counted(name, table.num_rows))
                if name == "losses":
                    for row in table.to_pylist():
                        self._lost[row["class"]] += row["count"]
            self._end_ns = segment.end_ns
            self._given.put((segment, self._news(metadata)))

    def meet(self, trigger: Trigger) -> None:
        """Something else came true meanwhile."""
        if len(self._more) < _MOST_LISTED:
            self._more.append(trigger)
        else:
            self._unlisted += trigger.count

    def begin_to_close(self, metadata: Mapping[str, Any], cost: Mapping[str, Any]) -> None:
        """No more will be given."""
        end = {"cost": dict(cost), "state": "complete", "end_ns": self._end_ns, "clock": [*self._clock, clock_anchor()]}
        self._given.put(self._news(metadata) | end)

    def is_closed(self, wait: bool = False) -> bool:
        """Whether all that was given is on the disk, after begin_to_close()."""
        if wait:
            self._thread.join()
        return not self._thread.is_alive()

    def _write(self) -> None:
        while isinstance(given := self._given.get(), tuple):
            segment, news = given
            self._writer.segment(segment.start_ns, segment.end_ns, segment.tables, news)
            self._path = self._writer.directory
        self._writer.close(given)
        self._is_whole = True

    def _news(self, metadata: Mapping[str, Any]) -> dict[str, Any]:
        more = [_described(trigger) for trigger in self._more]
        trigger = _described(self.trigger) | {"more": more, "unlisted": self._unlisted, "skipped": self._skipped}
        cost = {"cost": {"source": None, "ns_per_call": None}}  # measured at the end alone
        return cost | dict(metadata) | {"events": dict(self._counts), "lost": dict(self._lost), "trigger": trigger}


def _described(trigger: Trigger) -> dict[str, Any]:
    return {name: value for name, value in asdict(trigger).items() if value is not None}
