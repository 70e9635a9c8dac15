"""A recording that is looked at while it goes on: each closed segment is handed to a function, and nothing goes to a disk."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytrace_ebpf.lazy_imports import pa
from pytrace_ebpf.record.output import ready
from pytrace_ebpf.record.output.collect import Collector


@dataclass(frozen=True)
class Closed:
    """What was recorded in [start_ns, end_ns), CLOCK_MONOTONIC.

    tables  by name those of schema.TABLES that have rows in it, with the columns and in the order of a trace's segment: `samples` with the
            `stacks` that they refer to (a number of a stack is never used again, so no older segment is needed), `sched`, `losses`,
            `usage`; and of `functions`, `processes` and `threads` the rows that are new or changed since the segment before
    metadata   the manifest's keys as they stand at its end: `sampling`, `sources`, `target`, ...
    """

    start_ns: int
    end_ns: int
    tables: Mapping[str, pa.Table]
    metadata: Mapping[str, Any]


Take = Callable[[Closed], None]


class Live:
    """What output.recorded.Recorded is to a recording, of which nothing is kept.

    Memory is bounded by the rows of one segment, which Session closes early where they become many; they are let go of as soon as
    `take` has returned, as far as that keeps none. It is called in the thread that records, which drains nothing meanwhile: it should
    take a small part of a segment's time. What it raises ends the recording.
    """

    traces: tuple[Path, ...] = ()
    full: str | None = None
    failed = False

    def __init__(self, take: Take) -> None:
        self._take = take
        self.start_ns = time.monotonic_ns()
        self.collector = Collector(self.start_ns)
        self.cost: dict[str, Any] = {"source": None, "ns_per_call": None}

    @property
    def directory(self) -> Path:
        """There is none: RuntimeError."""
        raise RuntimeError("no trace is written")

    @property
    def seconds(self) -> float:
        """How long it has lasted."""
        return (time.monotonic_ns() - self.start_ns) / 1e9

    def snap(self, ts: int) -> None:
        """Nothing is held."""

    def take_said(self) -> list[str]:
        """Nothing happens to it."""
        return []

    def cut(self, metadata: Mapping[str, Any], final: bool = False) -> None:
        """Close a segment, and hand it over."""
        ready.make_ready()
        self._take(Closed(*self.collector.cut(final), dict(metadata)))

    def finish(self, metadata: Mapping[str, Any], end_ns: int) -> None:
        """Hand over what is left; `end_ns`: when the recording ended."""
        self.cut(metadata, final=True)

    def abandon(self) -> None:
        """Nothing was recorded."""
