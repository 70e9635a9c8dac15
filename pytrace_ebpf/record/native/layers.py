"""The probes of the native layers: attached to what every traced process maps, their records drained, and what could not be probed reported.

`NativeLayers` works next to the source of function events, whichever it is: its events are sorted in among theirs by time.
"""

import errno
import os
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self

import numpy as np

from pytrace_ebpf.errors import HostError, TargetError
from pytrace_ebpf.patterns import nearest_names
from pytrace_ebpf.record.kernel import registering
from pytrace_ebpf.record.kernel.bpf import Programs
from pytrace_ebpf.record.kernel.library_probes import LibraryProbes
from pytrace_ebpf.record.kernel.uprobe_multi import Uprobe
from pytrace_ebpf.record.native import calibrate, operators, signature, tensors
from pytrace_ebpf.record.native.findings import natives, signed
from pytrace_ebpf.record.native.mapped import C10, CPP, PATTERNS, WHAT, mapped_libraries
from pytrace_ebpf.record.native.probed_library import Native, throws
from pytrace_ebpf.record.options import Options
from pytrace_ebpf.record.output.tables import Columns, call_columns, when_and_who
from pytrace_ebpf.record.parsing.sandbox import UnansweredError, native_parsers
from pytrace_ebpf.record.process.pinned import Descriptor, Pinned
from pytrace_ebpf.record.process.target import as_text, mapped_file, parse_mappings
from pytrace_ebpf.record.recorder import Recorder, Rows
from pytrace_ebpf.record.source import Recording
from pytrace_ebpf.trace.layers import NUMBERS
from pytrace_ebpf.units import plural

_RINGS = {"calls": (16 << 20, "call_event"), "arguments": (64 << 20, "tensors_event"), "errors": (1 << 20, "error_event")}
_MOST = 8192  # functions
_CATCH = r"__cxa_begin_catch"
# Both take the message as a std::string by reference, behind `this`.
_ERRORS = r"_ZN3c105ErrorC2E(NS_14SourceLocationE)?NSt7__cxx1112basic_string.*"
_PATIENCE_S = 120.0  # for a library: PyTorch's takes seconds
_PLAIN = ((CPP, "caught", _CATCH), (C10, "error_made", _ERRORS))  # library, program, functions of it
_LOOK_S, _LOOK_LATER_S = 0.05, 1.0  # between two looks at what a process has mapped, while it is young and later
_YOUNG_S = 15
_LOOKING = 20  # the pause after reading the mappings, in multiples of the time that took: 2 ms for a process with 240 mappings
_AFTER_RETURN, _STACK_SHIFT = 1 << 32, 33  # in a cookie, next to the function's index: as in probes/native.c
_GONE = (errno.ESRCH, errno.ENOENT)


@dataclass
class _Process:
    since: float
    next_look: float = 0.0
    mapped: set[str] = field(default_factory=set)  # files that were seen to
    links: list[int] = field(default_factory=list)
    pinned: Pinned | None = None


class NativeLayers(Recorder):
    """The probes of the native layers that were asked for, on every traced process that maps their libraries."""

    interval_s = 0.05  # a ring holds 500,000 calls

    def __init__(self, recording: Recording, layers: Sequence[str], patterns: Sequence[str]) -> None:
        """`layers`: names of NATIVE ones; `patterns`: of operators, () for the default set. Raises HostError where the kernel cannot."""
        self._recording, self._layers, self._patterns = recording, tuple(layers), tuple(patterns)
        native_parsers.start()
        self._keys = {layer: layer for layer in layers}  # what is wanted of a library, for store.py
        if "operator" in layers:
            self._keys["operator"] = f"operators {sorted(patterns or operators.DEFAULT)}"
        sizes = {name: size for name, (size, _) in _RINGS.items()}
        self._programs = Programs("native.c", {"tensor_sizes": tensors.SIZES_OFFSET}, sizes | {"natives": _MOST})
        names = ("native_entry", "native_return", "caught", "error_made")
        self._probes = LibraryProbes(self._programs, names)
        self._rings = {name: self._programs.ring(name, self._programs.dtype(event)) for name, (_, event) in _RINGS.items()}
        self._found: dict[tuple[str, str], Sequence[Native]] = {}  # by the library, what is wanted of it, and its path
        self._plain: dict[str, list[int]] = {}
        self._index: dict[Native, int] = {}
        self._func_ids = np.full(_MOST, -1, np.int32)
        self._processes: dict[int, _Process] = {}
        self._next_look = 0.0
        self._closing = ThreadPoolExecutor(2, "detach")
        self._read = self._unknown = 0  # tensors, and those of them that do not fit the layout
        self._probed: dict[tuple[str, str], int] = {}  # (library, layer) -> functions of it
        self._unprobed: set[int] = set()  # functions that the kernel refuses
        self._refused: dict[tuple[str, str], int] = {}  # (library, why) -> functions that have no probe
        self._failed: Counter[tuple[str, str]] = Counter()  # (library, why) -> processes
        self._record(True)

    @classmethod
    def of(cls, options: Options, recording: Recording, _scheduling: Recorder) -> Self:
        """That of --layers and --operators."""
        return cls(recording, options.value_of("layers"), options.value_of("operators") or ())

    def add(self, pid: int) -> None:
        """Attach to what this process has mapped, at once; others are found among those that are known."""
        self.look([*self._processes, pid])

    def look(self, pids: Iterable[int]) -> None:
        """Attach to what these processes have mapped since the last look; a process that is gone is let go of."""
        now, living, reading = time.monotonic(), set(pids), 0.0
        for pid in self._processes.keys() - living:
            self._let_go(self._processes.pop(pid))
        for pid in living:
            process = self._processes.setdefault(pid, _Process(now))
            if not process.next_look or now >= max(process.next_look, self._next_look):  # one that is new at once
                began = time.monotonic()
                mapped = mapped_libraries(pid)
                reading += time.monotonic() - began
                self._see(pid, process, mapped - process.mapped)
                process.next_look = time.monotonic() + (_LOOK_S if now - process.since < _YOUNG_S else _LOOK_LATER_S)
        self._next_look = max(self._next_look, time.monotonic() + _LOOKING * reading)

    def reset(self, pid: int, tid: int, ts: int) -> None:
        """It has other libraries now."""
        if pid in self._processes:
            self._let_go(self._processes.pop(pid))
        self._programs.map("open_natives").delete(tid)

    def drain(self) -> Rows:
        """Rows of `events`, of `arguments`, tensors as they were read, and of `errors`."""
        self.look(self._recording.processes.living)
        arguments = self._rings["arguments"].drain(lambda records: tensors.argument_columns(records, self._func_ids))
        errors = self._rings["errors"].drain(_error_columns)
        calls = self._rings["calls"].drain(call_columns)
        calls["func_id"] = self._func_ids[calls["func_id"]]
        seen, odd = tensors.unknown(arguments)
        self._read, self._unknown = self._read + seen, self._unknown + odd
        return {"events": [calls], "arguments": [arguments], "errors": [errors]}

    def metadata(self) -> dict[str, Any]:
        """The manifest's `native`."""
        functions: Counter[str] = Counter()
        for (library, _), count in self._probed.items():
            functions[library] += count
        metadata = {
            "layers": list(self._layers),
            "functions": dict(functions),
            "tensors_read": self._read,
            "tensors_unknown": self._unknown,
            "missing": list(self.missing()),
        }
        return {"native": metadata}

    def missing(self) -> tuple[str, ...]:
        """What was asked for and is not in the trace so far, a sentence each."""
        said = [
            f"no traced process has loaded {WHAT[layer]}, so there are no calls of layer {layer}"
            for layer in self._layers
            if layer not in {of for (_, of), count in self._probed.items() if count or of == "operator"}
        ]
        names = {native.name.removeprefix("aten::") for native in self._index if native.layer == "operator"}
        if any(layer == "operator" for _, layer in self._probed):
            said += [
                f"--operators {pattern} matches no operator of this PyTorch; {_like(pattern, names | operators.DEFAULT)}"
                for pattern in self._patterns
                if not any(operators.wanted(name, (pattern,)) for name in names)
            ]
        said += [f"{plural(count, 'function')} of {library} without a probe: {why}" for (library, why), count in self._refused.items()]
        said += [f"{library} has no probes in {plural(count, 'process')}: {why}" for (library, why), count in self._failed.items()]
        if self._unknown * 2 > self._read:
            said.append(
                f"{self._unknown} of {self._read} tensors are not laid out as those of PyTorch 2.13, which alone is known: they have no shapes"
            )
        return tuple(said)

    def losses(self) -> np.ndarray:
        """Cumulative counts per loss class, int64."""
        return self._programs.losses()

    def cost(self) -> dict[str, Any]:
        """In ns: what probing adds to a call, and how much of that lies between its own begin and end.

        Empty where it cannot be measured.
        """
        index = len(self._index)
        if index == _MOST:
            return {}
        table = self._programs.map("natives")
        row = np.zeros((), table.value)
        row["tensors"], row["results"] = calibrate.TENSORS, 1
        row["position"][: calibrate.TENSORS] = range(calibrate.TENSORS)
        table.set(index, row)
        probes = (
            ("native_return", Uprobe(calibrate.END, index | calibrate.STACK << _STACK_SHIFT)),
            ("native_entry", Uprobe(calibrate.ENTRY, index)),
        )
        self._record(True)
        try:
            added = calibrate.ns_per_call(self._probes, probes)
        except (OSError, HostError):
            return {}
        finally:
            self._record(False)
        events = self._rings["calls"].drain(np.copy)
        ts = events["ts"][events["func"] == index]
        return {"native_ns_per_call": added, "native_own_ns": float(np.median(ts[1::2] - ts[:-1:2]))} if len(ts) else {}

    def stop(self) -> None:
        """Record nothing from now on."""
        self._record(False)

    def close(self) -> None:
        """Remove every probe and unload the programs."""
        for process in self._processes.values():
            self._let_go(process)
        self._processes.clear()
        self._closing.shutdown()
        self._programs.close()

    def _record(self, recording: bool) -> None:
        self._programs.map("control").set(0, (recording,))

    def _see(self, pid: int, process: _Process, new: set[str]) -> None:
        process.mapped |= new
        for shown in sorted(new):
            name, said = shown.rpartition("/")[2], as_text(shown)
            layers = [layer for layer in self._keys if PATTERNS[layer].fullmatch(name)]
            plain = [(program, pattern) for library, program, pattern in _PLAIN if library.fullmatch(name)]
            if not layers and not plain:
                continue
            try:
                process.pinned = process.pinned or Pinned(pid)
                file = _mapped(process.pinned, shown)
                for layer in layers:
                    self._attach(process, process.pinned, file, said, layer)
                for program, pattern in plain:
                    self._attach_plain(process, process.pinned, file, program, pattern)
            except (UnansweredError, HostError) as error:
                self._failed[said, str(error)] += 1
            except (ValueError, TargetError):  # it is no library, or the process is becoming another program
                pass
            except OSError as error:
                if error.errno not in _GONE:
                    self._failed[said, str(error.strerror)] += 1

    def _attach(self, process: _Process, pinned: Pinned, file: Descriptor, shown: str, layer: str) -> None:
        sign = signed(file, self._keys[layer])
        if (sign, shown) not in self._found:
            given = {"layer": layer, "patterns": self._patterns, "shown": shown}
            read = partial(native_parsers.ask, "natives", given, [file], list[Native], _PATIENCE_S, ("native", *pinned.key))
            self._found[sign, shown] = [native for native in natives(shown, sign, read) if _is_sound(native, layer)]
        found = self._found[sign, shown]
        self._probed.setdefault((shown, layer), 0)
        # What exceptions may pass is not traced without its returns: see code.py.
        known = [(native, self._know(native)) for native in found if native.returns or not throws(native)]
        known = [(native, index) for native, index in known if index >= 0]
        if len(known) < len(found):
            self._refused[shown, "their code cannot be followed, or they are too many"] = len(found) - len(known)
        traced = [(native, index) for native, index in known if index not in self._unprobed]
        returns = [Uprobe(at, index | native.stack << _STACK_SHIFT) for native, index in traced for at in native.returns]
        bare = [Uprobe(native.entry, index | _AFTER_RETURN) for native, index in traced if not native.returns]
        # Returns first: calls that are open already are not reported. Without all of them a function gets no entry.
        self._unprobed |= self._link(pinned.pid, process, file.path, "native_return", returns)
        self._unprobed |= self._link(pinned.pid, process, file.path, "native_return", bare, at_return=True)
        entries = [Uprobe(native.entry, index) for native, index in traced if index not in self._unprobed]
        self._unprobed |= self._link(pinned.pid, process, file.path, "native_entry", entries)
        unprobed = sum(index in self._unprobed for _, index in known)
        if unprobed:
            self._refused[shown, "the kernel cannot put one on their instructions"] = unprobed
        self._probed[shown, layer] = len(known) - unprobed

    def _attach_plain(self, process: _Process, pinned: Pinned, file: Descriptor, program: str, pattern: str) -> None:
        sign = signed(file, pattern)
        if sign not in self._plain:
            self._plain[sign] = native_parsers.ask("symbol_offsets", {"pattern": pattern}, [file], list[int], _PATIENCE_S, ("native", *pinned.key))
        self._link(pinned.pid, process, file.path, program, [Uprobe(at) for at in self._plain[sign]])

    def _link(self, pid: int, process: _Process, path: str, program: str, uprobes: Sequence[Uprobe], at_return: bool = False) -> set[int]:
        """Attach uprobes. Returns the functions that the kernel refuses; one of them must not cost the others."""
        if not uprobes:
            return set()
        links, refused = self._probes.attach_all(program, path, uprobes, pid, at_return)
        process.links += links
        return {cookie & (_AFTER_RETURN - 1) for cookie in refused}

    def _know(self, native: Native) -> int:
        """The index of a function, which its probes report; -1 where there are too many."""
        if native not in self._index:
            if len(self._index) == _MOST:
                return -1
            index = self._index[native] = len(self._index)
            self._func_ids[index] = self._recording.functions.intern_native(
                NUMBERS[native.layer], native.name, native.qualname, native.module, "" if native.layer == "operator" else native.file
            )
            self._describe(native, index)
        return self._index[native]

    def _describe(self, native: Native, index: int) -> None:
        table = self._programs.map("natives")
        row = np.zeros((), table.value)
        row["tensors"], row["results"] = len(native.tensors), native.results
        for i, tensor in enumerate(native.tensors):
            row["position"][i], row["how"][i] = tensor.register, tensor.how
        if native.gemm:
            row["gemm"], row["wide"], row["indirect"] = 1 + native.gemm.first, native.gemm.wide, native.gemm.indirect
            row["data_type"] = tensors.DTYPE_NUMBERS[native.gemm.dtype]
        table.set(index, row)

    def _let_go(self, process: _Process) -> None:
        for link in process.links:
            self._closing.submit(registering.close, link)
        process.links.clear()


def _like(pattern: str, names: Iterable[str]) -> str:
    """What else somebody could ask for."""
    found = nearest_names(pattern.removeprefix("aten::"), sorted(names))
    return f"the nearest names: {', '.join(f'aten::{name}' for name in found)}" if found else "patterns are such as aten::conv* or all"


def _mapped(process: Pinned, shown: str) -> Descriptor:
    """The library that a process has mapped and calls so, open. Raises OSError."""
    for mapping in parse_mappings(process.read("maps")):
        if mapping.executable and mapping.path == shown:
            return mapped_file(process, mapping)
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))


def _is_sound(native: Native, layer: str) -> bool:
    """Whether the probes can take it: it comes from a process that reads what others wrote."""
    gemm = native.gemm
    return (
        native.layer == layer
        and len(native.tensors) <= signature.MOST
        and all(0 <= tensor.register < 1 << 8 for tensor in native.tensors)
        and 0 <= native.results <= signature.MOST
        and 0 <= native.stack < 1 << 30
        and (gemm is None or (0 <= gemm.first < 1 << 7 and gemm.dtype in tensors.DTYPE_NUMBERS))
    )


def _error_columns(records: np.ndarray) -> Columns:
    return {
        **when_and_who(records),
        "text": np.array([raw.partition(b"\0")[0].decode("utf-8", "replace") for raw in records["text"].tolist()], object),
    }
