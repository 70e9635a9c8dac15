"""Takes a core before other programs do, for what is short and is asked for where all cores are busy."""

import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_LOWEST = 1  # of real-time priorities: whatever else runs at one comes first
_MOST_US = 3_000_000  # of a core, without a wait: then a process that this one started is ended, and this one goes on as any other


@contextmanager
def first() -> Iterator[None]:
    """In here this process, and what it starts, runs before all that has no real-time priority, where it may: root may. In the main thread.

    A nice value would not do: sessions and control groups share the cores among themselves first.
    """
    policy, parameters, limits = os.sched_getscheduler(0), os.sched_getparam(0), resource.getrlimit(resource.RLIMIT_RTTIME)

    def go_back(*_: object) -> None:
        with suppress(OSError):
            os.sched_setscheduler(0, policy, parameters)

    handler = signal.signal(signal.SIGXCPU, go_back)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_RTTIME, (_MOST_US, limits[1]))
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(_LOWEST))
    try:
        yield
    finally:
        go_back()
        resource.setrlimit(resource.RLIMIT_RTTIME, limits)
        signal.signal(signal.SIGXCPU, handler or signal.SIG_DFL)
