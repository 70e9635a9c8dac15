"""What agents measured of their own callbacks, in the programs that they are in: a few of all events are timed."""

from collections.abc import Iterable

from pytrace_ebpf.record.agent.arena import Arena
from pytrace_ebpf.record.agent.traced import Traced
from pytrace_ebpf.record.measured import Timed

_MOST_ENDED = 100  # processes whose sums are kept
_MOST_NS = 20_000.0  # of a callback, and _MOST_CODE_NS until the next one: more than an agent adds up in the mean is not believed
_MOST_CODE_NS = 1e9


def of_arena(arena: Arena, ns_per_stamp: float) -> Timed:
    """Its sums."""
    events, ns, gaps, code_ns = (arena.counted(name) for name in ("timed", "timed_ticks", "timed_code", "timed_code_ns"))
    return Timed(events, min(ns * ns_per_stamp, events * _MOST_NS), gaps, min(float(code_ns), gaps * _MOST_CODE_NS))


class Timings:
    """By process."""

    def __init__(self) -> None:
        self._ended: dict[int, Timed] = {}  # of processes whose arenas are closed

    def close(self, traced: Traced, ns_per_stamp: float) -> None:
        """It adds nothing any more."""
        self._ended[traced.ids.pid] = self._ended.pop(traced.ids.pid, Timed()) + of_arena(traced.arena, ns_per_stamp)
        if len(self._ended) > _MOST_ENDED:
            self._ended.pop(next(iter(self._ended)))

    def now(self, all_traced: Iterable[Traced], ns_per_stamp: float) -> dict[int, Timed]:
        """Of all of them, from their beginning."""
        living = {traced.ids.pid: of_arena(traced.arena, ns_per_stamp) + self._ended.get(traced.ids.pid, Timed()) for traced in all_traced}
        return self._ended | living
