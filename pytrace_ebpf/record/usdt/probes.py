"""The BPF programs on CPython's USDT probes of functions, collections and imports: planned for a binary, loaded, attached."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pytrace_ebpf.errors import TargetError
from pytrace_ebpf.record.cpython.layout import Layout
from pytrace_ebpf.record.kernel.bpf import Programs
from pytrace_ebpf.record.kernel.map import possible_cpus
from pytrace_ebpf.record.kernel.ring import Taken
from pytrace_ebpf.record.kernel.uprobes import Point, Uprobes
from pytrace_ebpf.record.parsing.elf import PT_REGS, Argument, Binary, Probe

ONLY_THE_AGENT = "use --source agent"
_RINGS = {"functions": 8 << 20, "call_sites": 8 << 20, "long_call_sites": 4 << 20}  # bytes
# Exported functions that a healthy program never runs: a uprobe on one raises a semaphore and never traps.
_COLD = ("Py_FatalError", "Py_EndInterpreter", "PyErr_BadInternalCall")


# Of struct frame_layout, in frames.h: fields of Layout.
_LAYOUT = (
    "frame_code", "frame_previous", "frame_owner", "owner_shim", "frame_position", "frame_stacktop", "generator_state",
    "yield_opcode", "code_flags", "code_first_line", "code_qualname", "code_start", "string_data",
)  # fmt: skip
_ABSENT = -(1 << 31)
Operand = tuple[int, int, bool, int, int]  # struct operand, in operands.h
_UNKNOWN: Operand = (0, 0, False, 0, 0)


@dataclass(frozen=True)
class Plan:
    """What to load and attach for one interpreter binary: the settings of calls_usdt.c and the uprobes."""

    layout: tuple[int, ...]
    lines: tuple[int, ...]
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
    return Plan(frame_layout(layout), _line_layout(layout), of_calls[0], of_calls[1], firsts[0], firsts[1], layout.version >= (3, 15), tuple(points))


def frame_layout(layout: Layout) -> tuple[int, ...]:
    """The fields of struct frame_layout, in frames.h."""
    return (*(_ABSENT if (value := getattr(layout, name)) is None else value for name in _LAYOUT), 0)


def _line_layout(layout: Layout) -> tuple[int, ...]:
    """The fields of struct line_layout, in calls_usdt.c."""
    ends = (layout.frame_previous + 8, layout.frame_code + 8, layout.frame_position + 8, (layout.frame_owner or 0) + 1)
    return (max(ends) + 7 & ~7, layout.code_lines, 2 if layout.version == (3, 10) else 1, 0)


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

    def __init__(self, planned: Plan, ring_pages: int, follow: bool = True) -> None:
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
        }
        sizes = {"calls": ring_pages * 4096, **_RINGS, "drafts": 2 * cpus, "works": 2 * cpus}
        self._programs = Programs("calls_usdt.c", settings, sizes)
        self._calls = self._programs.ring("calls", self._programs.dtype("call_event"))
        self._functions = self._programs.ring("functions", self._programs.dtype("function_event"))
        self._sites = [self._programs.ring(f"{name}s", self._programs.dtype(f"{name}_event")) for name in ("call_site", "long_call_site")]
        self._control = self._programs.map("control")
        self._walks = self._programs.map("walks")
        self._opened = self._programs.map("opened")
        self._uprobes = Uprobes(self._programs, planned.points, follow)
        self.attached: dict[int, list[Callable[[], None]]] = {}  # process -> what detaches from it
        # The kernel waits for grace periods when a uprobe goes: tens of milliseconds each, side by side here.
        self._closing = ThreadPoolExecutor(8, "detach")

    def attach(self, pid: int, path: str) -> None:
        """Attach to `pid`, whose interpreter is the file at `path`. Raises TargetError; leaves nothing behind then."""
        self._set(attached=int(self._control.get(0)["attached"]) + 1)
        try:
            self.attached[pid] = self._uprobes.attach(pid, path)
        except OSError as error:
            if not Path(f"/proc/{pid}/exe").exists():
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

    def losses(self) -> np.ndarray:
        """Cumulative counts per loss class, int64."""
        return self._programs.losses()

    def close(self) -> None:
        """Detach from every process."""
        self.detach_all()
        self._closing.shutdown()
        self._programs.close()
