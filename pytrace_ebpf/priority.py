"""Takes a core before other programs do, for what is short and is asked for where all cores are busy."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_LOWEST = 1  # of real-time priorities: whatever else runs at one comes first


@contextmanager
def first() -> Iterator[None]:
    """In here this process, and what it starts, runs before all that has no real-time priority, where it may: root may.

    What it does has to be bounded by itself. A nice value would not do: sessions and control groups share the cores among themselves first.
    """
    policy, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    with suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(_LOWEST))
    try:
        yield
    finally:
        with suppress(OSError):
            os.sched_setscheduler(0, policy, parameters)
