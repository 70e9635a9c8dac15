"""The probes of the native layers: attached to what every traced process maps, their records drained, and what is missing said.

`NativeLayers` is beside the sources of function events, whatever they are: its events come with theirs and are sorted in by time.
"""

import errno
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pytrace_ebpf.record import uprobe_multi
from pytrace_ebpf.record.bpf import Programs
from pytrace_ebpf.record.native import calibrate, libraries, operators, tensors
from pytrace_ebpf.record.native.library import Finder, Native, symbol_offsets, throws
from pytrace_ebpf.record.native.mapped import C10, CPP, PATTERNS, WHAT, mapped_libraries
from pytrace_ebpf.record.native.store import natives, signed
from pytrace_ebpf.record.ring import Ring
from pytrace_ebpf.record.source import Recording
from pytrace_ebpf.record.tables import Columns, call_columns, when_and_who
from pytrace_ebpf.record.uprobe_multi import Place
from pytrace_ebpf.trace.schema import LAYERS

_CALL_PAGES, _ARGUMENT_PAGES, _ERROR_PAGES = 4096, 16384, 256
_MOST = 8192  # functions
_CATCH = "__cxa_begin_catch"
# Both take the message as a std::string by reference, behind `this`.
_ERRORS = re.compile(r"_ZN3c105ErrorC2E(NS_14SourceLocationE)?NSt7__cxx1112basic_string.*")
_LOOK_S, _LOOK_LATER_S = 0.05, 1.0  # between two looks at what a process has mapped, while it is young and later
_YOUNG_S = 15
_LOOKING = 20  # times as long as reading took passes until the next look: a process with 240 mappings took 2 ms
_AFTER_RETURN, _STACK_SHIFT = 1 << 32, 33  # in a cookie, beside the function's index: as in probes/native.c
_GONE = (errno.ESRCH, errno.ENOENT)


@dataclass
class _Process:
    since: float
    next_look: float = 0.0
    mapped: set[str] = field(default_factory=set)  # files that were seen to
    links: list[int] = field(default_factory=list)


class NativeLayers:
    """The probes of the native layers that were asked for, on every traced process that maps their libraries."""

    def __init__(self, recording: Recording, layers: Sequence[str], patterns: Sequence[str]) -> None:
        """`layers`: of LAYERS; `patterns`: of operators, () for the default set. Raises HostError where the kernel cannot."""
        self._recording, self._layers, self._patterns = recording, tuple(layers), tuple(patterns)
        finders: dict[str, tuple[str, Finder]] = {
            "operator": (f"operators {sorted(patterns or operators.DEFAULT)}", operators.Operators(patterns)),
            "blas": ("blas", libraries.find_blas),
            "cuda": ("cuda", libraries.find_cuda),
        }
        self._finders = {layer: finders[layer] for layer in layers}
        self._programs = Programs(
            "native.c",
            {
                "CALL_RING_PAGES": _CALL_PAGES,
                "ARGUMENT_RING_PAGES": _ARGUMENT_PAGES,
                "ERROR_RING_PAGES": _ERROR_PAGES,
                "NATIVES": _MOST,
                "TENSOR_SIZES": tensors.SIZES_OFFSET,
            },
        )
        names = ("native_entry", "native_return", "caught", "error_made")
        self._loaded = {name: uprobe_multi.load(name, self._programs.instructions(name)) for name in names}
        uprobe_multi.require(self._loaded["caught"])
        rings = (("calls", _CALL_PAGES, "call_event"), ("arguments", _ARGUMENT_PAGES, "tensors_event"), ("errors", _ERROR_PAGES, "error_event"))
        self._rings = {
            name: Ring(self._programs.table(name).map_fd, pages * 4096, self._programs.dtype(event)) for name, pages, event in rings
        }
        self._found: dict[tuple[str, str], Sequence[Native]] = {}  # by the library, what is wanted of it, and its path
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

    def reset(self, executed: Mapping[int, int]) -> None:
        """These processes called exec, in the thread that stands for each: they have other libraries now."""
        open_natives = self._programs.table("open_natives")
        for pid, tid in executed.items():
            if pid in self._processes:
                self._let_go(self._processes.pop(pid))
            with suppress(KeyError):
                del open_natives[open_natives.Key(tid)]

    def drain(self) -> tuple[Columns, Columns]:
        """Emit the calls since the last one. Returns columns of `arguments`, tensors as they were read, and of `errors`."""
        arguments = self._rings["arguments"].drain(lambda records: tensors.argument_columns(records, self._func_ids))
        errors = self._rings["errors"].drain(_error_columns)
        calls = self._rings["calls"].drain(call_columns)
        calls["func_id"] = self._func_ids[calls["func_id"]]
        self._recording.emit(calls)
        seen, odd = tensors.unknown(arguments)
        self._read, self._unknown = self._read + seen, self._unknown + odd
        return arguments, errors

    def facts(self) -> dict[str, Any]:
        """What the manifest says of the native layers."""
        functions: Counter[str] = Counter()
        for (library, _), count in self._probed.items():
            functions[library] += count
        return {
            "layers": list(self._layers),
            "functions": dict(functions),
            "tensors_read": self._read,
            "tensors_unknown": self._unknown,
            "missing": list(self.missing()),
        }

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
                f"--operators {pattern} matches no operator of this PyTorch; patterns are such as aten::conv* or all"
                for pattern in self._patterns
                if not any(operators.wanted(name, (pattern,)) for name in names)
            ]
        said += [f"{count} functions of {library} have no probe: {why}" for (library, why), count in self._refused.items()]
        said += [f"{library} has no probes in {count} processes: {why}" for (library, why), count in self._failed.items()]
        if self._unknown * 2 > self._read:
            said.append(
                f"{self._unknown} of {self._read} tensors are not laid out as those of PyTorch 2.13, which alone is known: they have no shapes"
            )
        return tuple(said)

    def losses(self) -> np.ndarray:
        """Cumulative counts per loss class, int64."""
        return self._programs.losses()

    def cost_per_call(self) -> dict[str, float]:
        """For the manifest's `cost`, in ns: what probing adds to a call, and how much of that lies between its own begin and end.

        To be asked when all is drained. Empty where it cannot be measured.
        """
        index = len(self._index)
        if index == _MOST:
            return {}
        table = self._programs.table("natives")
        row = table.Leaf()
        row.tensors, row.results = calibrate.TENSORS, 1
        row.place[: calibrate.TENSORS] = range(calibrate.TENSORS)
        table[table.Key(index)] = row
        probes = (
            (self._loaded["native_return"], Place(calibrate.END, index | calibrate.STACK << _STACK_SHIFT)),
            (self._loaded["native_entry"], Place(calibrate.ENTRY, index)),
        )
        self._record(True)
        try:
            added = calibrate.ns_per_call(probes)
        except OSError:
            return {}
        finally:
            self._record(False)
        events = self._rings["calls"].drain(np.copy)
        ts = events["ts"][events["func"] == index]
        return {"native_ns_per_call": added, "native_own_ns": float(np.median(ts[1::2] - ts[:-1:2]))} if len(ts) else {}

    def stop(self) -> None:
        """Record nothing from now on."""
        self._record(False)

    def leave(self) -> None:
        """Begin to remove every probe."""
        for process in self._processes.values():
            self._let_go(process)
        self._processes.clear()

    def close(self) -> None:
        """Remove every probe and unload the programs."""
        self.leave()
        self._closing.shutdown()
        for program in self._loaded.values():
            os.close(program)
        self._loaded.clear()
        self._programs.close()

    def _record(self, recording: bool) -> None:
        control = self._programs.table("control")
        control[control.Key(0)] = control.Leaf(recording)

    def _see(self, pid: int, process: _Process, new: set[str]) -> None:
        for shown in sorted(new):
            process.mapped.add(shown)
            path, name = f"/proc/{pid}/root{shown}", shown.rpartition("/")[2]
            try:
                for layer in self._finders:
                    if PATTERNS[layer].fullmatch(name):
                        self._attach(pid, process, path, shown, layer)
                if CPP.fullmatch(name):
                    self._attach_plain(pid, process, path, "caught", lambda symbol: symbol == _CATCH)
                if C10.fullmatch(name):
                    self._attach_plain(pid, process, path, "error_made", lambda symbol: bool(_ERRORS.fullmatch(symbol)))
            except ValueError:  # it is no library
                pass
            except OSError as error:
                if error.errno not in _GONE:
                    self._failed[shown, str(error.strerror)] += 1

    def _attach(self, pid: int, process: _Process, path: str, shown: str, layer: str) -> None:
        key, find = self._finders[layer]
        sign = signed(path, key)
        if (sign, shown) not in self._found:
            self._found[sign, shown] = natives(path, shown, sign, find)
        found = self._found[sign, shown]
        self._probed.setdefault((shown, layer), 0)
        # What exceptions may pass is not traced without its returns: see code.py.
        known = [(native, self._know(native)) for native in found if native.returns or not throws(native)]
        known = [(native, index) for native, index in known if index >= 0]
        if len(known) < len(found):
            self._refused[shown, "their code cannot be followed, or they are too many"] = len(found) - len(known)
        traced = [(native, index) for native, index in known if index not in self._unprobed]
        returns = [Place(at, index | native.stack << _STACK_SHIFT) for native, index in traced for at in native.returns]
        bare = [Place(native.entry, index | _AFTER_RETURN) for native, index in traced if not native.returns]
        # Returns first: of what is open already nothing is told. Without all of them a function gets no entry.
        self._unprobed |= self._link(pid, process, path, "native_return", returns)
        self._unprobed |= self._link(pid, process, path, "native_return", bare, at_return=True)
        entries = [Place(native.entry, index) for native, index in traced if index not in self._unprobed]
        self._unprobed |= self._link(pid, process, path, "native_entry", entries)
        unprobed = sum(index in self._unprobed for _, index in known)
        if unprobed:
            self._refused[shown, "the kernel cannot put one on their instructions"] = unprobed
        self._probed[shown, layer] = len(known) - unprobed

    def _attach_plain(self, pid: int, process: _Process, path: str, program: str, wanted: Callable[[str], bool]) -> None:
        self._link(pid, process, path, program, [Place(at) for at in symbol_offsets(path, wanted)])

    def _link(
        self, pid: int, process: _Process, path: str, program: str, places: Sequence[Place], at_return: bool = False
    ) -> set[int]:
        """Probe places. Returns the functions that the kernel refuses; one of them must not cost the others."""
        if not places:
            return set()
        links, refused = uprobe_multi.attach_all(self._loaded[program], path, places, pid, at_return)
        process.links += links
        return {cookie & (_AFTER_RETURN - 1) for cookie in refused}

    def _know(self, native: Native) -> int:
        """The index of a function, by which its probes tell it; -1 where there are too many."""
        if native not in self._index:
            if len(self._index) == _MOST:
                return -1
            index = self._index[native] = len(self._index)
            self._func_ids[index] = self._recording.functions.intern_native(
                LAYERS.index(native.layer), native.name, native.qualname, native.module, "" if native.layer == "operator" else native.file
            )
            self._describe(native, index)
        return self._index[native]

    def _describe(self, native: Native, index: int) -> None:
        table = self._programs.table("natives")
        row = table.Leaf()
        row.tensors, row.results = len(native.tensors), native.results
        for i, place in enumerate(native.tensors):
            row.place[i], row.how[i] = place.register, place.how
        if native.gemm:
            row.gemm, row.wide, row.indirect = 1 + native.gemm.first, native.gemm.wide, native.gemm.indirect
            row.data_type = tensors.DTYPE_NUMBERS[native.gemm.dtype]
        table[table.Key(index)] = row

    def _let_go(self, process: _Process) -> None:
        for link in process.links:
            self._closing.submit(os.close, link)
        process.links.clear()


def _error_columns(records: np.ndarray) -> Columns:
    return {
        **when_and_who(records),
        "text": np.array([raw.partition(b"\0")[0].decode("utf-8", "replace") for raw in records["text"].tolist()], object),
    }
