"""What agents measured of their own callbacks, in the programs that they are in: a few of all events are timed."""

from pytrace_ebpf.record.agent.arena import Arena
from pytrace_ebpf.record.cost.measured import Timed

_MOST_NS = 20_000.0  # of a callback, and _MOST_CODE_NS until the next one: more than an agent adds up in the mean is not believed
_MOST_CODE_NS = 1e9


def timed(arena: Arena, ns_per_stamp: float) -> Timed:
    """As its process measured it."""
    events, ns, gaps, code_ns = (arena.counted(name) for name in ("timed", "timed_ticks", "timed_code", "timed_code_ns"))
    return Timed(events, min(ns * ns_per_stamp, events * _MOST_NS), gaps, min(float(code_ns), gaps * _MOST_CODE_NS))
