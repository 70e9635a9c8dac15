"""One recording that is written for several who asked for it, each of whom has a trace that begins and ends when that one wished.

What the probes yield is drained once; each segment goes to every trace. One that begins later begins with what was known and open
then, as a trace does whose older segments were dropped (horizon.py).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pytrace_ebpf.errors import PytraceError
from pytrace_ebpf.lazy_imports import pa
from pytrace_ebpf.record.options import Options
from pytrace_ebpf.record.output import ready
from pytrace_ebpf.record.output.collect import Collector, counted
from pytrace_ebpf.record.output.description import clock_anchor, new_manifest
from pytrace_ebpf.record.output.directory import Handed
from pytrace_ebpf.record.output.horizon import Horizon
from pytrace_ebpf.record.output.writer import Writer

Tables = Mapping[str, pa.Table]
_NO_COST = {"source": None, "ns_per_call": None}


class Part:
    """The trace of one who asked."""

    def __init__(self, output: Handed, options: Options, argv: Sequence[str]) -> None:
        """`options` of the recording, of which max_size holds for each trace; `argv`: what this one asked for."""
        self._output, self._options, self._argv = output, options, list(argv)
        self._writer: Writer | None = None
        self.counts: dict[str, int] = {}  # as the manifest's `events`, so far
        self.lost: dict[str, int] = {}
        self._clock: list[Any] = []
        self.wants_end = self.is_whole = False
        self.error: PytraceError | None = None  # why there is no trace

    @property
    def full(self) -> str | None:
        """Why no more can be written to it, a sentence; None where nothing forbids it."""
        return self._writer.full if self._writer is not None else None

    @property
    def failed(self) -> bool:
        """Whether that is because it could not be written."""
        return self._writer is not None and self._writer.failed

    @property
    def recording(self) -> bool:
        """Whether it is written to."""
        return self._writer is not None and not self.is_whole

    def begin(self, start_ns: int, metadata: Mapping[str, Any], counts: Mapping[str, int]) -> None:
        """Make the trace. Raises UsageError where nothing can be written there, HostError where its rights cannot be taken on."""
        options = {**self._options.as_recorded(), "output": self._output.path}
        manifest = new_manifest(start_ns, metadata["target"], self._argv, options)
        self.counts, self._clock = dict.fromkeys(counts, 0), manifest["clock"]
        self._writer = Writer(self._output, manifest | self._news(metadata, _NO_COST), self._options.max_size, self._options.keep)

    def take(self, start_ns: int, end_ns: int, tables: Tables, metadata: Mapping[str, Any], cost: Mapping[str, Any]) -> None:
        """Write a segment; one without length has what was known before."""
        assert self._writer is not None
        for name, table in tables.items() if end_ns > start_ns else ():
            for kind, count in counted(name, table.num_rows).items():
                self.counts[kind] = self.counts.get(kind, 0) + count
            if name == "losses":
                for row in table.to_pylist():
                    self.lost[row["class"]] = self.lost.get(row["class"], 0) + row["count"]
        self._writer.segment(start_ns, end_ns, tables, self._news(metadata, cost))

    def close(self, end_ns: int, metadata: Mapping[str, Any], cost: Mapping[str, Any]) -> None:
        """Write the last manifest."""
        assert self._writer is not None
        end = {"state": "complete", "end_ns": end_ns, "clock": [*self._clock, clock_anchor()]}
        self._writer.close(self._news(metadata, cost) | end)
        self.is_whole = True

    def abandon(self) -> None:
        """Remove what begin() made."""
        if self.recording and self._writer is not None:
            self._writer.abandon()
            self._writer = None

    def _news(self, metadata: Mapping[str, Any], cost: Mapping[str, Any]) -> dict[str, Any]:
        return dict(metadata) | {"events": dict(self.counts), "lost": dict(self.lost), "cost": dict(cost)}


class Shared:
    """What output.recorded.Recorded is to a recording, for one trace at first and any number of others that join."""

    failed = False

    def __init__(self, metadata: Mapping[str, Any], first: Part) -> None:
        """`metadata` as of Recorded. Raises UsageError or HostError where the first trace cannot be written."""
        self.start_ns = time.monotonic_ns()
        self.collector = Collector(self.start_ns)
        self.cost: dict[str, Any] = dict(_NO_COST)
        self._horizon: Horizon | None = None
        self._functions: list[pa.Table] = []  # what is recorded later may refer to any of them
        self._parts, self._joining = [first], list[Part]()
        first.begin(self.start_ns, metadata, self.collector.counts)

    def join(self, part: Part) -> None:
        """Let a trace begin with the next segment; what came of that its `error` and `recording` say."""
        self._joining.append(part)

    @property
    def directory(self) -> Path:
        """There are several, which their owners know. Raises RuntimeError."""
        raise RuntimeError("the traces of a shared recording are where those who asked made them")

    @property
    def traces(self) -> list[Path]:
        """Likewise."""
        return []

    @property
    def seconds(self) -> float:
        """How long it has lasted."""
        return (time.monotonic_ns() - self.start_ns) / 1e9

    @property
    def full(self) -> str | None:
        """Why no more should be recorded, a sentence: no trace takes any more."""
        sentences = [part.full for part in self._parts]
        return sentences[0] if sentences and all(sentences) and not self._joining else None

    def snap(self, ts: int) -> None:
        """All of it is written anyway."""

    def take_said(self) -> list[str]:
        """What happened to it since the last call: nothing that concerns all."""
        return []

    def cut(self, metadata: Mapping[str, Any], final: bool = False) -> None:
        """Close a segment: write it to all traces, close those whose time is over, and begin those that join."""
        ready.make_ready()
        start_ns, end_ns, tables = self.collector.cut(final)
        for part in self._parts:
            part.take(start_ns, end_ns, tables, metadata, self.cost)
        for part in [each for each in self._parts if each.wants_end or each.full]:
            part.close(end_ns, metadata, self.cost)
            self._parts.remove(part)
        self._horizon = self._horizon or Horizon()
        self._horizon.take(tables)
        if "functions" in tables:
            self._functions = [pa.concat_tables([*self._functions, tables["functions"]])]
        joining, self._joining = self._joining, []
        for part in joining:
            self._begin(part, end_ns, metadata)

    def _begin(self, part: Part, at_ns: int, metadata: Mapping[str, Any]) -> None:
        assert self._horizon is not None
        try:
            part.begin(at_ns, metadata, self.collector.counts)
        except PytraceError as error:
            part.error = error
            return
        known = {"functions": self._functions[0]} if self._functions else {}
        part.take(at_ns, at_ns, self._horizon.beginning(at_ns) | known, metadata, self.cost)
        self._parts.append(part)

    def finish(self, metadata: Mapping[str, Any], end_ns: int) -> None:
        """Write what is left; `end_ns`: when the recording ended."""
        self.cut(metadata, final=True)
        for part in self._parts:
            part.close(end_ns, metadata, self.cost)
        self._parts = []

    def abandon(self) -> None:
        """Remove what was made: nothing was recorded."""
        for part in self._parts:
            part.abandon()
