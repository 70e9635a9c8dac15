"""Takes a core before other programs do, for what is short and is asked for where all cores are busy."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_LOWEST = 1  # of real-time priorities: whatever else runs at one comes first
_MOST_S = 3.0  # then this process, and what it started, go on as any other

_over: threading.Event | None = None  # set when the priority is let go


@contextmanager
def first(after_s: float = 0.0) -> Iterator[None]:
    """In here, from so many seconds on, for some seconds and until let_go(), this process and what it starts run before all that has no real-time priority.

    Root alone may, and only where nobody chose another priority for this process, as by `nice`. A nice value would not do: sessions and control groups
    share the cores among themselves first. A traced program's own code is never started with it (drop_privileges.py).
    """
    global _over
    if (_over is not None and not _over.is_set()) or not _may() or after_s == float("inf"):
        yield
        return
    over = threading.Event()
    try:
        threading.Thread(target=_watch, args=(over, after_s), name="priority", daemon=True).start()
    except RuntimeError:  # there is no room for one, so nothing would end it
        yield
        return
    _over = over
    if not after_s:
        _take()
    try:
        yield
    finally:
        if _over is over:
            let_go()


def let_go() -> None:
    """Give it back, in all threads of this process and of those that it started; nothing happens where it was not taken, or is back."""
    if _over is None or _over.is_set():
        return
    _over.set()
    _give_all_back()


def _may() -> bool:
    try:
        return os.geteuid() == 0 and os.sched_getscheduler(0) == os.SCHED_OTHER and os.getpriority(os.PRIO_PROCESS, 0) <= 0
    except (AttributeError, OSError):  # no Linux
        return False


def _take() -> None:
    for task in [int(entry.name) for entry in Path("/proc/self/task").iterdir()]:
        with suppress(OSError):  # a thread that has just ended; no such privilege
            if os.sched_getscheduler(task) == os.SCHED_OTHER:
                os.sched_setscheduler(task, os.SCHED_RR, os.sched_param(_LOWEST))


def _watch(over: threading.Event, after_s: float) -> None:
    if after_s:
        if over.wait(after_s):
            return
        _take()
        if over.is_set():  # just now
            _give_all_back()
    if not over.wait(_MOST_S):
        let_go()


def _give_all_back() -> None:
    while sum(_give_back(tid) for tid in _threads(os.getpid())):  # again, as one may have started another meanwhile
        pass


def _give_back(tid: int) -> bool:
    """Whether it had it."""
    with suppress(OSError):
        if os.sched_getscheduler(tid) == os.SCHED_RR and os.sched_getparam(tid).sched_priority == _LOWEST:
            os.sched_setscheduler(tid, os.SCHED_OTHER, os.sched_param(0))
            return True
    return False


def _threads(pid: int) -> Iterator[int]:
    """Of a process, and of those that it started."""
    with suppress(OSError):
        for task in list(Path(f"/proc/{pid}/task").iterdir()):
            yield int(task.name)
            with suppress(OSError):
                for child in (task / "children").read_text().split():
                    yield from _threads(int(child))
