"""What a call costs by the agent, in CPU time: fib in two processes of the target's interpreter, one with the agent in it."""

from collections.abc import Sequence
from contextlib import suppress

from pytrace_ebpf.errors import HostError, TargetError
from pytrace_ebpf.record.agent.agent_library import Clock, Library
from pytrace_ebpf.record.agent.arena import Arena, Damaged, NotYet
from pytrace_ebpf.record.agent.directory import AgentDirectory
from pytrace_ebpf.record.agent.timed import timed
from pytrace_ebpf.record.cost.measured import Measured
from pytrace_ebpf.record.process.pinned import Descriptor
from pytrace_ebpf.record.process.target import Target
from pytrace_ebpf.record.source_selection.calibrate import FibChild

_ROUNDS = 5
_CODE_ROUNDS = 3
_LITTLE = 0.1  # of the time of a loop: less is noise; 3.10's are 0.17


def measured(target: Target | None, options: Sequence[tuple[str, object]], library: Library, clock: Clock) -> Measured | None:
    """Without the agent and with it; `options`: its. None where that cannot be measured."""
    if target is None:
        return None
    with suppress(HostError, TargetError):
        directory = AgentDirectory(list(options), target.process)
        try:
            with FibChild(target) as plain, FibChild(target, directory.environment) as traced:
                rounds = [(plain.ns_per_call(), traced.ns_per_call()) for _ in range(_ROUNDS)]
                share = _share_within(directory, library, clock)
                loops = [(plain.ns_per_turn(), traced.ns_per_turn()) for _ in range(_CODE_ROUNDS)]
        finally:
            directory.remove()
        alone, recorded = (min(of) for of in zip(*rounds, strict=True))
        slowed = 1 - min(of for of, _ in loops) / min(of for _, of in loops)
        return Measured(alone, recorded, share * recorded, round(slowed, 3) if slowed > _LITTLE else 0.0)
    return None


def _share_within(directory: AgentDirectory, library: Library, clock: Clock) -> float:
    """Of the time of fib, what the agent's callbacks took, by its own clock; 0 where it says nothing."""
    for _, file in directory.arenas():
        with suppress(NotYet, Damaged):
            if isinstance(file, Descriptor):
                arena = Arena(file, library.dtypes, directory.arena_bytes)
                return timed(arena, clock.ns_per_stamp).share
    return 0.0


def line_ns(target: Target | None, options: Sequence[tuple[str, object]], library: Library, clock: Clock, ns_per_call: float) -> float | None:
    """What a call takes more where its one line is recorded too."""
    with_lines = measured(target, [*options, ("lines", 1)], library, clock)
    return None if with_lines is None else max(0.0, round(with_lines.ns_per_call - ns_per_call, 1))
