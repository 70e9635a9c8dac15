"""What a call costs by the agent, in CPU time: fib in two processes of the target's interpreter, one with the agent in it."""

from collections.abc import Sequence
from contextlib import suppress

from pytrace_ebpf.errors import HostError, TargetError
from pytrace_ebpf.record.agent.directory import AgentDirectory
from pytrace_ebpf.record.process.target import Target
from pytrace_ebpf.record.source_selection.calibrate import FibChild

_ROUNDS = 5


def measured(target: Target | None, options: Sequence[tuple[str, object]]) -> tuple[float, float] | None:
    """ns that a call takes without the agent and with it; `options`: its. None where that cannot be measured."""
    if target is None:
        return None
    with suppress(HostError, TargetError):
        directory = AgentDirectory(list(options), target.process)
        try:
            with FibChild(target) as plain, FibChild(target, directory.environment) as traced:
                rounds = [(plain.ns_per_call(), traced.ns_per_call()) for _ in range(_ROUNDS)]
                return min(alone for alone, _ in rounds), min(recorded for _, recorded in rounds)
        finally:
            directory.remove()
    return None
