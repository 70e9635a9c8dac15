"""The tables of a trace that are made of its other tables: when they are made, and where they are kept."""

import hashlib
import json
import tempfile
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from pytrace_ebpf.errors import TraceError
from pytrace_ebpf.trace import derived
from pytrace_ebpf.trace.files import Files
from pytrace_ebpf.trace.parts import Part
from pytrace_ebpf.trace.schema import REQUESTS, STEPS, TABLES, Table

DERIVATION = 18  # one more with each change of what derive/ makes of a trace


class Maker(Protocol):
    """Makes derived tables (pytrace_ebpf.open gives the real one)."""

    def together(self, trace: Any, name: str) -> Sequence[str]:
        """The tables that are made with `name` for next to nothing, and that one."""

    def make(self, trace: Any, into: Mapping[str, Path], beside: Sequence[Any]) -> Mapping[str, derived.Settled | None]:
        """Write tables, by name, into their folders, as few passes as can be; `beside`: what else (derive.sink.Sink) these passes are asked for.

        Returns what no later segment changes of each.
        """

    def findings(self, trace: Any) -> Any:
        """As Trace.findings()."""

    def critical_path(self, trace: Any, request_ids: Sequence[int] | None, function: str | None) -> Any:
        """As Trace.critical_path()."""


class Deriving:
    """What a Trace has of it; of a window nothing is kept."""

    directory: Path
    manifest: dict[str, Any]
    request_patterns: tuple[str, ...]
    step_patterns: tuple[str, ...]
    _files: Files

    @property
    @abstractmethod
    def start_ns(self) -> int:
        """When recording began."""

    @property
    @abstractmethod
    def end_ns(self) -> int:
        """When it ended."""

    def _start_deriving(self, maker: Maker) -> None:
        self._maker = maker
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._derived: dict[str, list[Part]] = {}

    def derive(self, *names: str, beside: Sequence[Any] = ()) -> None:
        """Derive the tables of these names that are not kept yet, in as few passes as can be.

        `beside`: what else these passes are asked for (derive.sink.Sink). Where no table is left to derive there is no pass.
        """
        wanted = dict.fromkeys(each for name in names for each in self._maker.together(self, name))
        missing = [TABLES[name] for name in wanted if name not in self._derived and not self._has_kept(TABLES[name])]
        if missing:
            self._derived |= self._make(missing, beside)

    def _has_kept(self, spec: Table) -> bool:
        parts = derived.kept(self._files, spec, self._derived_key(spec))
        if parts is not None:
            self._derived[spec.name] = parts
        return parts is not None

    def _derived_parts(self, spec: Table) -> list[Part]:
        if spec.name not in self._derived and not self._has_kept(spec):
            self.derive(spec.name)
        return self._derived[spec.name]

    def _kept(self, spec: Table) -> list[Part]:
        return derived.kept(self._files, spec, self._derived_key(spec)) or []

    def _derived_key(self, spec: Table) -> str:
        """What a derived table depends on: how it is derived, the schema, and which segments there are."""
        source = [DERIVATION, spec.arrow.to_string(), self.manifest["segments"], self.start_ns, self.end_ns]
        source += [self.request_patterns] if spec is REQUESTS else [self.step_patterns] if spec is STEPS else []
        return hashlib.sha256(json.dumps(source, sort_keys=True).encode()).hexdigest()

    def _make(self, tables: Sequence[Table], beside: Sequence[Any], keep: bool = True) -> dict[str, list[Part]]:
        """Make derived tables, and `keep` them in a directory that is ours; else, and where we may not write, for as long as this lives."""
        keys = [(spec, self._derived_key(spec)) for spec in tables]

        def make(into: dict[str, Path]) -> Mapping[str, derived.Settled | None]:
            try:
                return self._maker.make(self, into, beside)
            finally:
                pa.default_memory_pool().release_unused()  # what events were unpacked in is of no more use

        if keep and self._files.ours:
            parts = derived.build(self._files, keys, make)
            if parts is not None:
                return parts
        place = self._elsewhere()
        parts = derived.build(place, keys, make)
        if parts is None:
            raise TraceError(f"{place.directory} cannot be written: name a place with room in TMPDIR.")
        return parts

    def _elsewhere(self) -> Files:
        """A directory that is there for as long as this lives."""
        self._temporary = self._temporary or tempfile.TemporaryDirectory(prefix="pytrace-ebpf-derived-")
        return Files(Path(self._temporary.name))

    def pieces(self, name: str) -> derived.Pieces:
        """The folder `name` for derived data that is no table: of its directory or, where nothing is and nothing can be kept there, elsewhere."""
        pieces = derived.Pieces(self._files, name)
        return pieces if pieces.writable or pieces.names() else derived.Pieces(self._elsewhere(), name)

    def settled(self, spec: Table) -> derived.Settled | None:
        """What an earlier derivation of a table says that no later segment changes."""
        return derived.settled(self._files, spec)

    def take_over(self, spec: Table, what: derived.Settled, into: Path) -> bool:
        """Put the parts of what is settled of a table into the folder `into` where it is derived anew; False: none of them."""
        return derived.take_over(self._files, spec, what, into)
