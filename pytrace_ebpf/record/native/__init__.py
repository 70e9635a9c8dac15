"""Native layers: calls of PyTorch's operators, of BLAS and of the CUDA runtime, by uprobes on the libraries that a process maps.

`NativeLayers` is beside the sources of function events, whatever they are: its events come with theirs and are sorted in by time.
"""

import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from pytrace_ebpf.errors import HostError
from pytrace_ebpf.record import uprobe_multi
from pytrace_ebpf.record.bpf import Programs
from pytrace_ebpf.record.native import libraries, operators, tensors
from pytrace_ebpf.record.native.library import Finder, Native, symbol_offsets
from pytrace_ebpf.record.native.store import natives
from pytrace_ebpf.record.ring import Ring
from pytrace_ebpf.record.source import Recording
from pytrace_ebpf.record.tables import Columns, call_columns
from pytrace_ebpf.trace.schema import LAYERS

_CALL_PAGES, _ARGUMENT_PAGES, _ERROR_PAGES = 4096, 16384, 256
_MOST = 8192  # functions
_TORCH = re.compile(r"libtorch_cpu\.so")
_BLAS = re.compile(r"libtorch_cpu\.so|lib(scipy_)?(openblas|blas|cblas|mkl_rt|mkl_intel_lp64)[\w.+-]*\.so[\d.]*|libdnnl\.so[\d.]*")
_CUDA = re.compile(r"lib(cudart|cuda)[\w.-]*\.so[\d.]*")
_CPP = re.compile(r"libstdc\+\+\.so[\d.]*")
_C10 = re.compile(r"libc10\.so")
_CATCH = "__cxa_begin_catch"
# Both take the message as a std::string by reference, behind `this`.
_ERRORS = re.compile(r"_ZN3c105ErrorC2E(NS_14SourceLocationE)?NSt7__cxx1112basic_string.*")
_LOOK_S, _LOOK_LATER_S = 0.05, 1.0  # between two looks at what a process has mapped, while it is young and later
_YOUNG_S = 15


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
        self._recording = recording
        self._finders: list[tuple[re.Pattern[str], str, Finder]] = []
        if "operator" in layers:
            self._finders.append((_TORCH, f"operators {sorted(patterns)}", operators.Operators(patterns)))
        if "blas" in layers:
            self._finders.append((_BLAS, "blas", libraries.find_blas))
        if "cuda" in layers:
            self._finders.append((_CUDA, "cuda", libraries.find_cuda))
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
        rings = (("calls", _CALL_PAGES, "call_event"), ("arguments", _ARGUMENT_PAGES, "tensors_event"), ("errors", _ERROR_PAGES, "error_event"))
        self._rings = {
            name: Ring(self._programs.table(name).map_fd, pages * 4096, self._programs.dtype(event)) for name, pages, event in rings
        }
        self._index: dict[Native, int] = {}
        self._func_ids = np.full(_MOST, -1, np.int32)
        self._processes: dict[int, _Process] = {}
        self._closing = ThreadPoolExecutor(2, "detach")
        self.read, self.misfits = 0, 0  # tensors, and those of them that no layout known fits
        self.probed: dict[str, int] = {}  # library -> functions of it
        self._record(True)

    def look(self, pids: Iterable[int]) -> None:
        """Attach to what these processes have mapped since the last look; a process that is gone is let go of."""
        now, living = time.monotonic(), set(pids)
        for pid in self._processes.keys() - living:
            self._let_go(self._processes.pop(pid))
        for pid in living:
            process = self._processes.setdefault(pid, _Process(now))
            if now >= process.next_look:
                self._see(pid, process)
                took = time.monotonic() - now
                interval_s = _LOOK_S if now - process.since < _YOUNG_S else _LOOK_LATER_S
                process.next_look = time.monotonic() + max(interval_s, 20 * took if not process.links else interval_s)

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
        self.read, self.misfits = self.read + seen, self.misfits + odd
        return arguments, errors

    def losses(self) -> np.ndarray:
        """Cumulative counts per loss class, int64."""
        return self._programs.losses()

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

    def _see(self, pid: int, process: _Process) -> None:
        for shown in _mapped_libraries(pid) - process.mapped:
            process.mapped.add(shown)
            path, name = f"/proc/{pid}/root{shown}", shown.rpartition("/")[2]
            with suppress(OSError, ValueError):  # it is gone already, or no library
                for pattern, key, find in self._finders:
                    if pattern.fullmatch(name):
                        self._attach(pid, process, path, natives(path, shown, key, find))
                if self._finders and _CPP.fullmatch(name):
                    self._attach_plain(pid, process, path, "caught", lambda symbol: symbol == _CATCH)
                if self._finders and _C10.fullmatch(name):
                    self._attach_plain(pid, process, path, "error_made", lambda symbol: bool(_ERRORS.fullmatch(symbol)))

    def _attach(self, pid: int, process: _Process, path: str, found: Sequence[Native]) -> None:
        # Without its returns an operator is not traced at all: see code.py.
        traced = [native for native in found if native.returns or native.layer != "operator"]
        if not traced:
            return
        ids = [self._know(native) for native in traced]
        returns = [(at, index) for native, index in zip(traced, ids, strict=True) for at in native.returns]
        entered = [(native.entry, index) for native, index in zip(traced, ids, strict=True)]
        trampolines = [(native.entry, index) for native, index in zip(traced, ids, strict=True) if not native.returns]
        # Returns first: of what is open already nothing is told.
        for program, places, at_return in (("native_return", returns, False), ("native_return", trampolines, True), ("native_entry", entered, False)):
            if places:
                offsets, cookies = zip(*places, strict=True)
                process.links.append(uprobe_multi.attach(self._loaded[program], path, offsets, cookies, pid, at_return))
        self.probed[traced[0].file] = len(traced)

    def _attach_plain(self, pid: int, process: _Process, path: str, program: str, wanted: Callable[[str], bool]) -> None:
        offsets = symbol_offsets(path, wanted)
        if offsets:
            process.links.append(uprobe_multi.attach(self._loaded[program], path, offsets, [0] * len(offsets), pid))

    def _know(self, native: Native) -> int:
        if native not in self._index:
            if len(self._index) == _MOST:
                raise HostError(f"more than {_MOST} native functions; ask for fewer by --operators")
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


def _mapped_libraries(pid: int) -> set[str]:
    """Paths of the shared libraries that a process has mapped, as it sees them itself."""
    try:
        lines = Path(f"/proc/{pid}/maps").read_bytes().splitlines()
    except OSError:
        return set()
    paths = {line[line.index(b"/") :] for line in lines if b".so" in line and b" r-xp " in line and b"/" in line}
    return {os.fsdecode(path) for path in paths if not path.endswith(b" (deleted)")}


def _error_columns(records: np.ndarray) -> Columns:
    return {
        "ts": records["ts"].astype(np.int64),
        "pid": (records["pid_tgid"] >> np.uint64(32)).astype(np.int32),
        "tid": records["pid_tgid"].astype(np.uint32).view(np.int32),
        "text": np.array([raw.partition(b"\0")[0].decode("utf-8", "replace") for raw in records["text"].tolist()], object),
    }
