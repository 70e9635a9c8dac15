"""The programs of one file of probes/, loaded: its maps and rings, and what attaches its programs."""

import mmap
import os
import struct
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np

from pytrace_ebpf.errors import HostError
from pytrace_ebpf.record import waiting
from pytrace_ebpf.record.kernel import system_calls
from pytrace_ebpf.record.kernel.bpf_object import MapSpec, compiled
from pytrace_ebpf.record.kernel.map import Map
from pytrace_ebpf.record.kernel.ring import Ring

_ARRAY, _READ_ONLY = 2, 0x80
_OF_MAPS, _ONE = (12, 13), "_one"  # kinds of maps; how the map is called that those in one are like
_LOAD_64, _MAP, _MAP_VALUE = 0x18, 1, 2  # an instruction of two slots, and what its source register says that it loads
_SETTINGS = "settings"  # common.h
_TRACEPOINT = "tracepoint_"


class Programs:
    """One file of probes/ with its maps. Its tracepoint programs are attached at once.

    `settings`: the fields of its struct settings, all of them. They are read-only data, whose values the verifier
    knows: it leaves out what they rule out. `sizes`: elements of maps, bytes of rings, where the C has other ones.
    `only`: of the tracepoint programs these alone, by their tracepoints. `may_lack`: tracepoints that the kernel need not have; those
    that it has not are in `lacking`.
    Raises HostError where the kernel or the headers refuse, with the first line of what they said.
    """

    def __init__(
        self,
        source: str,
        settings: Mapping[str, object] | None = None,
        sizes: Mapping[str, int] | None = None,
        only: Collection[str] | None = None,
        may_lack: Collection[str] = (),
    ) -> None:
        self._source, self._compiled = source, compiled(source)
        self._descriptors: list[int] = []
        self._loaded: dict[tuple[str, int], int] = {}
        self._maps: dict[str, Map] = {}
        self._sizes = dict(sizes or {})
        self.lacking: list[str] = []
        try:
            for spec in sorted(self._compiled.maps, key=lambda spec: spec.kind in _OF_MAPS):
                self._maps[spec.name] = self._map(spec)
            self._settings = self._read_only(settings) if settings else -1
            tracepoints = [name.removeprefix(_TRACEPOINT) for name in self._compiled.programs if name.startswith(_TRACEPOINT)]
            tracepoints = [tracepoint for tracepoint in tracepoints if only is None or tracepoint in only]
            self.load(system_calls.RAW_TRACEPOINT, *(_TRACEPOINT + tracepoint for tracepoint in tracepoints))
            for tracepoint in tracepoints:
                self._attach(tracepoint, self.program(_TRACEPOINT + tracepoint, system_calls.RAW_TRACEPOINT), tracepoint in may_lack)
        except OSError as error:
            self.close()
            raise HostError(f"the kernel refuses {source} ({error.strerror}); see pytrace-ebpf doctor") from error
        except BaseException:
            self.close()
            raise

    def _attach(self, tracepoint: str, program: int, may_lack: bool) -> None:
        try:
            self._descriptors.append(system_calls.open_raw_tracepoint(tracepoint, program))
        except FileNotFoundError:
            if not may_lack:
                raise HostError(f"the kernel has no tracepoint {tracepoint}, which {self._source} needs; see pytrace-ebpf doctor") from None
            self.lacking.append(tracepoint)

    def map(self, name: str) -> Map:
        """A map of the file."""
        return self._maps[name]

    def set_array(self, name: str, key: int, rows: np.ndarray) -> None:
        """Put a new array with these rows into a map of maps, in the place of the one at `key`. Raises OSError."""
        one = self._maps[name + _ONE]
        spec = next(spec for spec in self._compiled.maps if spec.name == name + _ONE)
        fd = system_calls.create_map(spec.name, spec.kind, spec.key.itemsize, spec.value.itemsize, max(len(rows), 1), spec.flags)
        try:
            if len(rows):
                with mmap.mmap(fd, rows.nbytes) as memory:
                    memory[: rows.nbytes] = rows.astype(one.value, copy=False).tobytes()
            self._maps[name].set(key, fd)
        finally:
            os.close(fd)  # the map has it

    def ring(self, name: str, record: np.dtype) -> Ring:
        """A ring of the file, whose records have the dtype `record`."""
        return Ring(self._maps[name].fd, self._sizes[name], record)

    def dtype(self, struct: str) -> np.dtype:
        """The NumPy dtype of a struct that has a LAYOUT, as the compiler laid it out; `char name[n]` is bytes of length n."""
        return self._compiled.structs[struct]

    def program(self, name: str, kind: int = system_calls.KPROBE, attach_type: int = 0) -> int:
        """A program's descriptor, which is this object's; loaded when it is first asked for. Raises HostError."""
        if (name, attach_type) not in self._loaded:
            code = self._instructions(self._compiled.programs[name])
            with waiting.on(f"the kernel, which verifies {name} of {self._source}"):
                self._loaded[name, attach_type] = system_calls.load_program(name, kind, code, attach_type)
            self._descriptors.append(self._loaded[name, attach_type])
        return self._loaded[name, attach_type]

    def load(self, kind: int, *names: str) -> None:
        """Load these programs beside each other: the kernel verifies one on each core. One that it refuses program() says."""

        def loaded(name: str) -> None:
            with suppress(HostError):
                self.program(name, kind)

        with (
            ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads,
            suppress(RuntimeError),
        ):  # there is no room for threads: program() loads them
            list(threads.map(loaded, names))

    def losses(self) -> np.ndarray:
        """Cumulative loss counts, int64, shape (LOSS_CLASSES,)."""
        counts: np.ndarray = self._maps["losses"].get(0)["count"]
        return counts.sum(axis=0).astype(np.int64)

    def missed(self, programs: Iterable[str]) -> int:
        """How often the kernel did not run these tracepoint programs, as each was already running on that core."""
        return sum(system_calls.missed_runs(self._loaded[name, 0]) for name in programs)

    def close(self) -> None:
        """Detach the tracepoints and free programs and maps."""
        for descriptor in reversed(self._descriptors):
            os.close(descriptor)
        self._descriptors.clear()
        self._loaded.clear()
        self._maps.clear()

    def _map(self, spec: MapSpec) -> Map:
        entries = self._sizes.setdefault(spec.name, spec.entries)
        ring = spec.kind == Ring.KIND
        key, value = (0, 0) if ring else (spec.key.itemsize, spec.value.itemsize)
        inner = self._maps[spec.name + _ONE].fd if spec.kind in _OF_MAPS else 0
        fd = system_calls.create_map(spec.name, spec.kind, key, value, entries, spec.flags, inner)
        self._descriptors.append(fd)
        return Map(fd, spec.kind, spec.key, spec.value)

    def _read_only(self, settings: Mapping[str, object]) -> int:
        layout = self._compiled.structs[_SETTINGS]
        row = np.array(tuple(settings[name] for name in layout.names or ()), layout)
        fd = system_calls.create_map(_SETTINGS, _ARRAY, 4, layout.itemsize, 1, _READ_ONLY)
        self._descriptors.append(fd)
        system_calls.update(fd, bytes(4), row.tobytes())
        system_calls.freeze(fd)
        return fd

    def _instructions(self, code: bytes) -> bytes:
        """With the descriptors of this object's maps in it."""
        linked = bytearray(code)
        fds = [self._maps[spec.name].fd for spec in self._compiled.maps]
        at = 0
        while at < len(linked):
            opcode, registers, number = struct.unpack_from("<BBxxi", linked, at)
            if opcode == _LOAD_64 and registers >> 4 == _MAP:
                struct.pack_into("<i", linked, at + 4, fds[number])
            elif opcode == _LOAD_64 and registers >> 4 == _MAP_VALUE:
                struct.pack_into("<i", linked, at + 4, self._settings)
            at += 16 if opcode == _LOAD_64 else 8
        return bytes(linked)
