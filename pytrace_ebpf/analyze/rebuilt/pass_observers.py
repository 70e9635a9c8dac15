"""What else is asked of the engines in the pass that derives the waits of a trace: to read and rebuild it all once more would take as long again."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from weakref import WeakKeyDictionary

import pyarrow as pa

from pytrace_ebpf.rebuild.shards import Shards
from pytrace_ebpf.trace.reader import Trace


class PassObserver:
    """One that goes along: it takes what it needs, and leaves the rest as it is here."""

    def begin(self, engines: Shards) -> None:
        """The engines will take the whole trace, and have taken nothing yet."""

    def scheduled(self, engines: Shards, sched: Sequence[pa.Table], ends_ns: Sequence[int]) -> None:
        """The switches (waits.off_core.SCHED) of the segments that they take next, and their ends."""

    def passing(self, place: int, sched: pa.Table, events: Iterator[pa.Table]) -> Iterator[pa.Table]:
        """The events of the segment at `place`, whose switches are `sched`, on their way to the engines."""
        return events

    def taken(self, start_ns: int) -> None:
        """They have taken these; the last of them began at start_ns."""

    def end(self, engines: Shards) -> None:
        """They have taken all of it, and have finished."""


_OBSERVERS: WeakKeyDictionary[Trace, PassObserver] = WeakKeyDictionary()


@contextmanager
def observing(trace: Trace, observer: PassObserver) -> Iterator[None]:
    """Have `observer` go along, if waits are derived meanwhile."""
    _OBSERVERS[trace] = observer
    try:
        yield
    finally:
        del _OBSERVERS[trace]


def observer_of(trace: Trace) -> PassObserver | None:
    """Who goes along with the pass over `trace`, if anybody does."""
    return _OBSERVERS.get(trace)
