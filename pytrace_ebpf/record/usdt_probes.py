"""The BPF programs on CPython's USDT probes of functions, collections and imports: planned for a binary, loaded, attached."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pytrace_ebpf.errors import TargetError
from pytrace_ebpf.record.bpf import Programs, possible_cpus
from pytrace_ebpf.record.elf import PT_REGS, Argument, Binary, Probe, frame_register
from pytrace_ebpf.record.layout import Layout
from pytrace_ebpf.record.ring import Ring, Taken
from pytrace_ebpf.record.uprobes import Point, Uprobes

ONLY_THE_AGENT = "use --source agent"
_FUNCTION_RING_PAGES = 2048
_FUNCTIONS = 131072
_WALK_STEP = 128
# Exported functions that a healthy program never runs: a uprobe on one raises a semaphore and never traps.
_COLD = ("Py_FatalError", "Py_EndInterpreter", "PyErr_BadInternalCall")


@dataclass(frozen=True)
class Plan:
    """What to load and attach for one interpreter binary: the knobs of calls_usdt.c and the uprobes."""

    knobs: tuple[tuple[str, object], ...]
    points: tuple[Point, ...]


def plan(binary: Binary, layout: Layout) -> Plan:
    """Plan the tracing of an interpreter. Raises TargetError where its probes cannot serve."""
    offsets = {
        "FRAME_CODE": layout.frame_code,
        "FRAME_PREVIOUS": layout.frame_previous,
        "FRAME_OWNER": layout.frame_owner,
        "FRAME_POSITION": layout.frame_position,
        "FRAME_STACKTOP": layout.frame_stacktop,
        "OWNER_SHIM": layout.owner_shim,
        "CODE_FLAGS": layout.code_flags,
        "CODE_FIRST_LINE": layout.code_first_line,
        "CODE_QUALNAME": layout.code_qualname,
        "CODE_START": layout.code_start,
        "STRING_DATA": layout.string_data,
        "GENERATOR_STATE": layout.generator_state,
        "YIELD_VALUE": layout.yield_opcode,
    }
    knobs: dict[str, object] = {name: offset for name, offset in offsets.items() if offset is not None}
    points: list[Point] = []
    if layout.version == (3, 11):
        # 3.11 fires function__entry only while `line` is enabled: raise its semaphore without trapping lines.
        cold = next((address for name in _COLD if (address := binary.symbol(name))), None)
        lines = binary.probes.get("line", ())
        if cold is None or not lines:
            raise TargetError(
                "this CPython 3.11 has no `line` probe, without which its function__entry probe stays silent; "
                + ONLY_THE_AGENT
            )
        points.append(Point("function_never", binary.file_offset(cold), lines[0].semaphore_offset))
    elif layout.version >= (3, 15):
        knobs["CREATION_ENTRY"] = True
    for prefix, program, name in (
        ("ENTRY", "function_entry", "function__entry"),
        ("RETURN", "function_return", "function__return"),
    ):
        probes = binary.probes.get(name, ())
        if len(probes) != 1:
            raise TargetError(f"this interpreter has {len(probes)} {name} probes where one is expected; {ONLY_THE_AGENT}")
        knobs |= _registers(prefix, binary, probes[0])
        points.append(Point(program, probes[0].offset, probes[0].semaphore_offset))
    for knob, program, name in (("GC_GENERATION", "gc", "gc__"), ("IMPORT_NAME", "import", "import__find__load__")):
        starts, ends = (binary.probes.get(name + end, ()) for end in ("start", "done"))
        places = {_place(probe.arguments[0]) if probe.arguments else None for probe in starts}
        if ends and len(places) == 1 and None not in places:  # else it is traced without
            knobs[knob] = places.pop()
            points += [Point(f"{program}_start", probe.offset, probe.semaphore_offset) for probe in starts]
            points += [Point(f"{program}_done", probe.offset, probe.semaphore_offset) for probe in ends]
    return Plan(tuple(knobs.items()), tuple(points))


def _place(argument: Argument) -> str | None:
    """C for an argument's value; None for a place that is not read."""
    if argument.register is None:
        return None
    register = f"ctx->{PT_REGS[argument.register]}"
    if argument.displacement is None:
        return register
    return f"TAKE(__{'s' if argument.signed else 'u'}{8 * argument.size}, {register} + {argument.displacement})"


def _registers(prefix: str, binary: Binary, probe: Probe) -> dict[str, object]:
    knobs: dict[str, object] = {}
    for name, argument in zip(("FILE", "NAME", "LINE"), probe.arguments, strict=True):
        if argument.register is None or argument.displacement is not None:
            raise TargetError(f"the arguments of {probe.name} are in a place this tracer does not read; {ONLY_THE_AGENT}")
        knobs[f"{prefix}_{name}"] = f"ctx->{PT_REGS[argument.register]}"
    frame = frame_register(binary, probe)
    if frame is not None:
        knobs[f"{prefix}_FRAME"] = f"ctx->{PT_REGS[frame]}"
    return knobs


class UsdtProbes:
    """The loaded programs of one plan, attachable to any number of processes of that interpreter."""

    def __init__(self, planned: Plan, ring_pages: int, follow: bool = True) -> None:
        self._programs = Programs(
            "calls_usdt.c",
            dict(planned.knobs)
            | {
                "CPUS": possible_cpus(),
                "CALL_RING_PAGES": ring_pages,
                "FUNCTION_RING_PAGES": _FUNCTION_RING_PAGES,
                "FUNCTIONS": _FUNCTIONS,
                "WALK_STEP": _WALK_STEP,
            },
        )
        self.call_dtype = self._programs.dtype("call_event")
        self._calls = Ring(self._programs.table("calls").map_fd, ring_pages * 4096, self.call_dtype)
        self._functions = Ring(
            self._programs.table("functions").map_fd, _FUNCTION_RING_PAGES * 4096, self._programs.dtype("function_event")
        )
        self._walks = self._programs.table("walks")
        self._opened = self._programs.table("opened")
        self._uprobes = Uprobes(self._programs, planned.points, follow)
        self.attached: dict[int, list[Callable[[], None]]] = {}  # process -> what detaches from it
        # The kernel waits for grace periods when a uprobe goes: tens of milliseconds each, side by side here.
        self._closing = ThreadPoolExecutor(8, "detach")

    def attach(self, pid: int, path: str) -> None:
        """Attach to `pid`, whose interpreter is the file at `path`. Raises TargetError; leaves nothing behind then."""
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
        with suppress(KeyError):
            del self._opened[self._opened.Key(pid)]

    def detach_all(self) -> None:
        """Begin to detach from every process."""
        for pid in list(self.attached):
            self.detach(pid)

    def record(self, recording: bool, opening: int = 0) -> None:
        """Begin or end to record; in the process `opening` each thread's first event is preceded by its open frames."""
        control = self._programs.table("control")
        key = control.Key(0)
        state = control[key]
        state.recording, state.opening = recording, opening
        control[key] = state

    def open(self, pid: int) -> None:
        """Have the collections and imports of `pid` recorded too: from now on its open frames are told or known."""
        self._opened[self._opened.Key(pid)] = self._opened.Leaf(1)

    def walked(self) -> dict[int, int]:
        """tid -> address of the next frame to walk (0: walked to the end) of the threads that had an event while their process was opened."""
        return {key.value: value.value for key, value in self._walks.items()}

    def forget_walk(self, tid: int) -> None:
        """Let `tid` be walked again: its process is another program now."""
        with suppress(KeyError):
            del self._walks[self._walks.Key(tid)]

    def drain_calls(self, take: Callable[[np.ndarray], Taken]) -> Taken:
        """What `take` makes of the call_event records since the last call; see Ring.drain.

        Drain the functions afterwards: then all that these name are known.
        """
        return self._calls.drain(take)

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
        self._uprobes.close()
        self._programs.close()
