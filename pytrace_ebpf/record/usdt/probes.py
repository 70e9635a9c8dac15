"""The BPF programs on CPython's USDT probes of functions, collections and imports: planned for a binary, loaded, attached."""

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from pytrace_ebpf.errors import TargetError
from pytrace_ebpf.record.cpython.layout import Layout
from pytrace_ebpf.record.kernel.bpf import Programs
from pytrace_ebpf.record.kernel.map import possible_cpus
from pytrace_ebpf.record.kernel.ring import Taken
from pytrace_ebpf.record.kernel.uprobes import Point, Uprobes
from pytrace_ebpf.record.parsing.elf import PT_REGS, Argument, Binary, Probe
from pytrace_ebpf.record.usdt.matching import automaton

ONLY_THE_AGENT = "use --source agent"
_RINGS = {"functions": 8 << 20, "call_sites": 8 << 20, "long_call_sites": 4 << 20}  # bytes
_OBJECT_RING_BYTES = 64 << 20  # 82,000 objects
# Exported functions that a healthy program never runs: a uprobe on one raises a semaphore and never traps.
_COLD = ("Py_FatalError", "Py_EndInterpreter", "PyErr_BadInternalCall")


# Of struct frame_layout, in frames.h: fields of Layout.
_LAYOUT = (
    "frame_code", "frame_previous", "frame_owner", "owner_shim", "frame_position", "frame_stacktop", "generator_state",
    "yield_opcode", "code_flags", "code_first_line", "code_qualname", "code_start", "string_data",
)  # fmt: skip
# Of struct object_layout, in calls_usdt.c: objects of the interpreter's own, then fields of Layout.
_OBJECTS = (
    "_Py_NoneStruct", "_Py_TrueStruct", "_Py_FalseStruct", "PyFloat_Type", "PySet_Type", "PyFrozenSet_Type", "PyByteArray_Type", "PyCell_Type",
    "_PyAsyncGenWrappedValue_Type",
)  # fmt: skip
_OBJECT_LAYOUT = (
    "frame_locals", "code_arguments", "code_keyword_only", "code_locals", "code_variables", "code_kinds", "code_cells", "code_cell_arguments",
    "tuple_items", "type_cached_keys", "string_length", "string_state", "string_data_wide", "frame_top", "return_opcode", "code_bytes",
    "thread_frame", "cframe_frame", "thread_exception", "interpreter_gil", "gil_holder",
)  # fmt: skip
_NOWHERE = 1  # no object is so near to another
_ABSENT = -(1 << 31)
Operand = tuple[int, int, bool, int, int]  # struct operand, in operands.h
_UNKNOWN: Operand = (0, 0, False, 0, 0)


@dataclass(frozen=True)
class Plan:
    """What to load and attach for one interpreter binary: the settings of calls_usdt.c and the uprobes."""

    layout: tuple[int, ...]
    lines: tuple[int, ...]
    objects: tuple[int, ...]
    entry: tuple[Operand, ...]  # of the file, the name, the line and the frame
    leaving: tuple[Operand, ...]
    gc_generation: Operand
    import_name: Operand
    creation_entry: bool
    points: tuple[Point, ...]


def plan(binary: Binary, layout: Layout) -> Plan:
    """Plan the tracing of an interpreter. Raises TargetError where its probes cannot serve."""
    try:
        return _plan(binary, layout)
    except ValueError as error:  # the file says what no compiler wrote
        raise TargetError(f"the probes of this interpreter are not where they can be ({error}); {ONLY_THE_AGENT}") from None


def _plan(binary: Binary, layout: Layout) -> Plan:
    points: list[Point] = []
    if layout.version == (3, 11):
        # 3.11 fires function__entry only while `line` is enabled: raise its semaphore without trapping lines.
        cold = next((address for name in _COLD if (address := binary.symbol(name))), None)
        lines = binary.probes.get("line", ())
        if cold is None or not lines:
            raise TargetError("this CPython 3.11 has no `line` probe, without which its function__entry probe stays silent; " + ONLY_THE_AGENT)
        points.append(Point("function_never", binary.file_offset(cold), lines[0].semaphore_offset))
    of_calls = []
    for program, name in (("function_entry", "function__entry"), ("function_return", "function__return")):
        probes = binary.probes.get(name, ())
        if len(probes) != 1:
            raise TargetError(f"this interpreter has {len(probes)} {name} probes where one is expected; {ONLY_THE_AGENT}")
        of_calls.append(_arguments(probes[0]))
        points.append(Point(program, probes[0].offset, probes[0].semaphore_offset))
    firsts = []
    for program, name in (("gc", "gc__"), ("import", "import__find__load__")):
        starts, ends = (binary.probes.get(name + end, ()) for end in ("start", "done"))
        operands = {_operand(probe.arguments[0]) if probe.arguments else _UNKNOWN for probe in starts}
        served = bool(ends) and len(operands) == 1 and _UNKNOWN not in operands  # else it is traced without
        firsts.append(operands.pop() if served else _UNKNOWN)
        if served:
            points += [Point(f"{program}_start", probe.offset, probe.semaphore_offset) for probe in starts]
            points += [Point(f"{program}_done", probe.offset, probe.semaphore_offset) for probe in ends]
    layouts = frame_layout(layout), _line_layout(layout), object_layout(binary, layout)
    return Plan(*layouts, of_calls[0], of_calls[1], firsts[0], firsts[1], layout.version >= (3, 15), tuple(points))


def frame_layout(layout: Layout) -> tuple[int, ...]:
    """The fields of struct frame_layout, in frames.h."""
    return (*_offsets(layout, _LAYOUT), 0)


def object_layout(binary: Binary, layout: Layout) -> tuple[int, ...]:
    """The fields of struct object_layout, in calls_usdt.c."""
    of_types, runtime = binary.symbol("PyType_Type"), binary.runtime_vaddr
    of_gil = layout.runtime_main_interpreter if layout.runtime_gil is None else layout.runtime_gil[0] + layout.gil_holder
    places = (*map(binary.symbol, _OBJECTS), None if runtime is None else runtime + of_gil)
    distances = (_NOWHERE if of_types is None or place is None else place - of_types for place in places)
    versions = layout.version >= (3, 12), layout.version >= (3, 14), layout.version == (3, 11)
    return (*distances, *_offsets(layout, _OBJECT_LAYOUT), *versions)


def _offsets(layout: Layout, names: tuple[str, ...]) -> tuple[int, ...]:
    return tuple(_ABSENT if (value := getattr(layout, name)) is None else value for name in names)


def _line_layout(layout: Layout) -> tuple[int, ...]:
    """The fields of struct line_layout, in calls_usdt.c."""
    ends = (layout.frame_previous + 8, layout.frame_code + 8, layout.frame_position + 8, (layout.frame_owner or 0) + 1)
    return (max(ends) + 7 & ~7, layout.code_lines, layout.position_unit, 0)


def _operand(argument: Argument) -> Operand:
    """An argument as the programs read it; _UNKNOWN for a form that they do not read."""
    if argument.register is None:
        return _UNKNOWN
    if argument.displacement is None:
        return _register(argument.register)
    if argument.size not in (1, 2, 4, 8) or not -(1 << 31) <= argument.displacement < 1 << 31:
        return _UNKNOWN
    return (PT_REGS[argument.register] + 1, argument.size, argument.signed, 0, argument.displacement)


def _register(name: str) -> Operand:
    return (PT_REGS[name] + 1, 0, False, 0, 0)


def _arguments(probe: Probe) -> tuple[Operand, ...]:
    """Of the file, the name, the line and the frame, the last of which may be _UNKNOWN."""
    for argument in probe.arguments:
        if argument.register is None or argument.displacement is not None:
            raise TargetError(f"the arguments of {probe.name} are in a place this tracer does not read; {ONLY_THE_AGENT}")
    file, name, line = (_operand(argument) for argument in probe.arguments)
    return file, name, line, _register(probe.frame) if probe.frame is not None else _UNKNOWN


class UsdtProbes:
    """The loaded programs of one plan, attachable to any number of processes of that interpreter."""

    def __init__(self, planned: Plan, ring_pages: int, follow: bool = True, args: tuple[str, ...] = ()) -> None:
        """`args`: patterns of functions whose values are read."""
        cpus = max(possible_cpus()) + 1
        settings = {
            "layout": planned.layout,
            "lines": planned.lines,
            "entry": planned.entry,
            "leaving": planned.leaving,
            "gc_generation": planned.gc_generation,
            "import_name": planned.import_name,
            "creation_entry": planned.creation_entry,
            "cpus": cpus,
            "objects": planned.objects,
            "observes": bool(args),
            "pad": 0,
        }
        sizes = {"calls": ring_pages * 4096, **_RINGS, "drafts": 2 * cpus, "works": 2 * cpus}
        if args:
            sizes["objects"] = _OBJECT_RING_BYTES
        self._programs = Programs("calls_usdt.c", settings, sizes)
        self._calls = self._programs.ring("calls", self._programs.dtype("call_event"))
        self._functions = self._programs.ring("functions", self._programs.dtype("function_event"))
        self._sites = [self._programs.ring(f"{name}s", self._programs.dtype(f"{name}_event")) for name in ("call_site", "long_call_site")]
        self._objects = self._programs.ring("objects", self._programs.dtype("object_event")) if args else None
        if args:
            self._programs.map("matcher").set(0, automaton(args))
        self._observed = self._programs.map("observed")
        self._control = self._programs.map("control")
        self._walks = self._programs.map("walks")
        self._opened = self._programs.map("opened")
        self._uprobes = Uprobes(self._programs, planned.points, follow)
        if args:
            self._programs.map("observers").set(0, self._uprobes.load("arguments_step"))
        self.attached: dict[int, list[Callable[[], None]]] = {}  # process -> what detaches from it
        # The kernel waits for grace periods when a uprobe goes: tens of milliseconds each, side by side here.
        self._closing = ThreadPoolExecutor(8, "detach")

    def attach(self, pid: int, path: str) -> None:
        """Attach to `pid`, whose interpreter is the file at `path`. Raises TargetError; leaves nothing behind then."""
        self._set(attached=int(self._control.get(0)["attached"]) + 1)
        try:
            self.attached[pid] = self._uprobes.attach(pid, path)
        except OSError as error:
            try:
                os.readlink(f"/proc/{pid}/exe")  # noqa: PTH115 - of one that has ended it leads nowhere
            except OSError:
                raise TargetError(f"process {pid} ended while it was being attached to") from error
            raise TargetError(f"the kernel refused a probe on process {pid} ({error.strerror})") from error

    def detach(self, pid: int) -> None:
        """Begin to remove every probe from `pid`; the kernel lowers its semaphores. `close` waits for the end of it."""
        for detach in self.attached.pop(pid, ()):
            self._closing.submit(detach)
        self._opened.delete(pid)

    def detach_now(self) -> None:
        """Remove every probe from every process, and come back when they are gone: they may be attached to next."""
        wait([self._closing.submit(detach) for pid in list(self.attached) for detach in self.attached[pid]])
        for pid in list(self.attached):
            self._opened.delete(pid)
        self.attached.clear()

    def detach_all(self) -> None:
        """Begin to detach from every process."""
        for pid in list(self.attached):
            self.detach(pid)

    def record(self, recording: bool, opening: int = 0) -> None:
        """Begin or end to record; in the process `opening` each thread's first event is preceded by its open frames."""
        self._set(recording=recording, opening=opening)

    def _set(self, **fields: int) -> None:
        state = self._control.get(0).copy()
        for name, value in fields.items():
            state[name] = value
        self._control.set(0, state)

    def count(self, pid: int, path: str, seconds: float) -> float:
        """Calls a second of a process that is not attached to, counted for so long; nothing of it is recorded. Raises TargetError."""
        counted = self._programs.map("counted")
        self.attach(pid, path)
        self._set(counting=1)
        began, before = time.monotonic(), int(counted.get(0).sum())
        time.sleep(seconds)
        calls, took = int(counted.get(0).sum()) - before, time.monotonic() - began
        self._set(counting=0)
        for detach in self.attached.pop(pid, ()):  # here and now: it may be attached to next
            detach()
        return calls / took

    def open(self, pid: int) -> None:
        """Have the collections and imports of `pid` recorded too: from now on its open frames are reported or known."""
        self._opened.set(pid, 1)

    def walked(self) -> dict[int, int]:
        """tid -> address of the next frame to walk (0: walked to the end) of the threads that had an event while their process was opened."""
        return {int(tid): int(frame) for tid, frame in self._walks.items()}

    def forget_walk(self, tid: int) -> None:
        """Let `tid` be walked again: its process is another program now."""
        self._walks.delete(tid)

    def drain_calls(self, take: Callable[[np.ndarray], Taken]) -> Taken:
        """What `take` makes of the call_event records since the last call; see Ring.drain.

        Drain the call sites afterwards, and then the functions: then all that these name are known.
        """
        return self._calls.drain(take)

    def drain_sites(self) -> list[np.ndarray]:
        """call_site_event and long_call_site_event records since the last call."""
        return [ring.drain(np.copy) for ring in self._sites]

    def drain_functions(self) -> np.ndarray:
        """function_event records since the last call."""
        return self._functions.drain(np.copy)

    def drain_objects(self) -> np.ndarray:
        """object_event records since the last call. Drain the functions afterwards: then all that these name are known."""
        return self._objects.drain(np.copy) if self._objects else np.empty(0)

    def decide(self, function: int, decision: int) -> None:
        """Say what is read of an observable function: DECIDED and its like of usdt_values.h."""
        with suppress(OSError):  # there are too many of them: it is read, and dropped here
            self._observed.set(function, decision)

    def losses(self) -> np.ndarray:
        """Cumulative counts per loss class, int64."""
        return self._programs.losses()

    def close(self) -> None:
        """Detach from every process."""
        self.detach_all()
        self._closing.shutdown()
        self._programs.close()
