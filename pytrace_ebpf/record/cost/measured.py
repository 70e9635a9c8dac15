"""What tracing a call costs: measured in a small loop of the tracer's own, and from that and what the agent times of its own callbacks, in the program itself.

What the agent cannot time is the way of the interpreter to its callback and back. In a small loop that is the rest of what a call costs. In a program that
touches more than the caches hold it is longer, by the same factor, it is assumed, as what the agent does itself: both meet the same misses.

CPython 3.10 and 3.11 run all Python code slower while a thread has a profile function, whoever's: each instruction looks for it, and by 3.11 none is the
specialized one. By what share that is so a loop tells; for how long there is such code, the agent measures from one event to the next.
"""

from dataclasses import dataclass
from typing import NamedTuple, Self

_ENOUGH = 100  # events: with fewer the mean of what they took says little
_LEAST_WITHIN_NS = 5.0  # of a call: less is not to be divided by


class Measured(NamedTuple):
    """In a process of the tracer's own, by another process of a program's interpreter; ns of CPU time."""

    alone: float  # a call of fib, and with a source
    recorded: float
    within: float = 0.0  # of that, in the agent's callbacks, for the call and its return; 0: not known
    code: float = 0.0  # of the time of a loop without calls, the share by which the source's hooks slow it

    @property
    def ns_per_call(self) -> float:
        """What tracing adds."""
        return max(0.0, round(self.recorded - self.alone, 1))

    @property
    def way_ns(self) -> float:
        """What of that is neither the agent's nor that the code of fib, which takes `alone`, is slower: the interpreter's way to the callbacks and back."""
        return max(0.0, self.recorded - self.within - self.alone / (1 - self.code))


@dataclass(frozen=True)
class Timed:
    """What the agent measured of its own callbacks in one program: sums over those that were timed."""

    events: int = 0
    ns: float = 0.0  # by the clock
    gaps: int = 0  # events from which on it was timed for how long Python's code ran until the next one
    code_ns: float = 0.0  # that, CPU time

    def __add__(self, other: Self) -> "Timed":
        return Timed(self.events + other.events, self.ns + other.ns, self.gaps + other.gaps, self.code_ns + other.code_ns)

    @property
    def share(self) -> float:
        """Of the program's CPU time in Python, what the callbacks take; 0 where nothing was timed."""
        if not self.events or not self.gaps or not self.ns:
            return 0.0
        within = self.ns / self.events
        return within / (within + self.code_ns / self.gaps)

    def price(self, loop: Measured | None, of_loop: float) -> "Price":
        """In this program; in a small loop, where a call costs `of_loop`, that is `loop`, None where it was not measured."""
        if loop is None or not loop.within or self.events < _ENOUGH:
            return Price(of_loop, of_loop)
        within = 2 * self.ns / self.events
        if not loop.code:
            return Price(of_loop, within + loop.way_ns * max(1.0, within / max(_LEAST_WITHIN_NS, loop.within)))
        code_ns = max(0.0, self.code_ns / max(1, self.gaps) - loop.way_ns / 2)
        return Price(of_loop, within + loop.way_ns, loop.code * code_ns)


class Price(NamedTuple):
    """ns of CPU time."""

    of_loop: float  # that a call costs in a small loop
    of_call: float  # and in this program
    of_code: float = 0.0  # by which Python's code is slower from one event to the next, written or not
