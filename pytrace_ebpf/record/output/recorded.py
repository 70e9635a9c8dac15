"""A trace that is being written: opened, cut into segments, finished."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pytrace_ebpf.record.options import Options
from pytrace_ebpf.record.output import ready
from pytrace_ebpf.record.output.collect import Collector
from pytrace_ebpf.record.output.description import clock_anchor, new_manifest
from pytrace_ebpf.record.output.writer import Writer


class Recorded:
    """The directory, what was collected for it, and its manifest; the metadata in the manifest is given by the caller that closes a segment."""

    def __init__(self, options: Options, argv: Sequence[str], metadata: Mapping[str, Any]) -> None:
        """`metadata`: the manifest's keys as they stand; `target` among them. Raises UsageError where nothing can be written there."""
        self.start_ns = time.monotonic_ns()
        self.collector = Collector(self.start_ns)
        self.cost: dict[str, Any] = {"source": None, "ns_per_call": None}
        manifest = new_manifest(self.start_ns, metadata["target"], argv, options.as_recorded())
        self._writer = Writer(options.output, manifest | self._news(metadata), options.max_size, options.keep)

    @property
    def directory(self) -> Path:
        """Where it is, by the name that it has now."""
        return self._writer.directory

    @property
    def traces(self) -> list[Path]:
        """This one."""
        return [self.directory]

    def snap(self, ts: int) -> None:
        """All of it is written anyway."""

    def take_said(self) -> list[str]:
        """What happened to it since the last call: nothing that is worth a sentence before its end."""
        return []

    @property
    def seconds(self) -> float:
        """How long it has lasted."""
        return (time.monotonic_ns() - self.start_ns) / 1e9

    @property
    def full(self) -> str | None:
        """Why no more should be recorded, a sentence; None where nothing forbids it."""
        return self._writer.full

    @property
    def failed(self) -> bool:
        """Whether that is because it could not be written."""
        return self._writer.failed

    def cut(self, metadata: Mapping[str, Any], final: bool = False) -> None:
        """Close a segment, and write the manifest with this metadata after it."""
        ready.make_ready()
        start, end, tables = self.collector.cut(final)
        self._writer.segment(start, end, tables, self._news(metadata))

    def finish(self, metadata: Mapping[str, Any], end_ns: int) -> None:
        """Write what is left; `end_ns`: when the recording ended."""
        self.cut(metadata, final=True)
        clock = [*self._writer.manifest["clock"], clock_anchor()]
        self._writer.close(self._news(metadata) | {"state": "complete", "end_ns": end_ns, "clock": clock})

    def abandon(self) -> None:
        """Remove the directory: nothing was recorded."""
        self._writer.abandon()

    def _news(self, metadata: Mapping[str, Any]) -> dict[str, Any]:
        lost = {name: count for name, count in self.collector.lost.items() if count}
        return {"events": dict(self.collector.counts), "lost": lost, "cost": dict(self.cost)} | dict(metadata)
