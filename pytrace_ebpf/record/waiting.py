"""Says what this process waits for where that takes long, and has it freed where somebody else's file system holds it up.

A thread that waits in the kernel says nothing itself, and may not be there to be interrupted; so another one looks.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType

LONG_S, SAYS = 2.0, "waiting for "  # after which it is said, and how that begins
_LOOK_S, _FREE_S = 0.25, 0.5  # between two looks; until a wait is tried to be freed
_LOOK_AGAIN_S, _FREE_AGAIN_S = 0.01, 0.02  # the same while somebody stands in the way on and on: hurry()

_MOST_NOW = 5  # in what now() gives

_Entry = tuple[int, int]  # thread, and which of its waits
_now: dict[_Entry, "tuple[On, float, int]"] = {}  # since when, and the thread's id for the kernel
_told: set[_Entry] = set()
_say: Callable[[str], None] | None = None
_quiet = False
_hurry_until = 0.0
_thread: threading.Thread | None = None


def tell(say: Callable[[str], None], quiet: bool = False) -> None:
    """From now on say a sentence for each wait that takes long, unless `quiet`, and for what was done to end one."""
    global _say, _quiet
    _say, _quiet = say, quiet


def hurry(seconds: float) -> None:
    """For so long look quickly: who stood in the way may do so again at once, and every such wait may hold up the whole host."""
    global _hurry_until
    _hurry_until = time.monotonic() + seconds


class On:
    """Reusable, by any thread: `with` it this process waits for `what`.

    `free`: is asked, several times a second, to end a wait of that thread (its id for the kernel, seconds that it has lasted);
    what it did is said at once, a sentence each. It runs with the rights of the thread in which the first wait began.
    """

    def __init__(self, what: str, free: Callable[[int, float], list[str]] | None = None) -> None:
        self.what, self.free = what, free

    def __enter__(self) -> None:
        if _thread is None:
            _start()
        _now[threading.get_ident(), id(self)] = self, time.monotonic(), threading.get_native_id()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        _now.pop((threading.get_ident(), id(self)), None)


@contextmanager
def on(what: str) -> Iterator[None]:
    """In here this process waits for `what`."""
    with On(what):
        yield


def now() -> list[str]:
    """What is waited for, and takes long: some of it, a sentence each; what lasts longest first."""
    since = sorted((since, wait.what) for wait, since, _ in _now.copy().values() if time.monotonic() - since >= LONG_S)
    return [f"{SAYS}{what}, for {time.monotonic() - began:,.0f} s" for began, what in since[:_MOST_NOW]]


def _start() -> None:
    global _thread
    _thread = threading.Thread(target=_watch, name="waiting", daemon=True)
    _thread.start()


def _watch() -> None:
    while True:
        time.sleep(_LOOK_AGAIN_S if _hurries() else _LOOK_S)
        _look()


def _hurries() -> bool:
    return time.monotonic() < _hurry_until


def _look() -> None:
    current, free_s = _now.copy(), min(_FREE_S, _FREE_AGAIN_S) if _hurries() else _FREE_S
    _told.intersection_update(current)
    for entry, (wait, since, tid) in current.items():
        lasted = time.monotonic() - since
        if wait.free is not None and lasted >= free_s:
            with suppress(OSError):
                for sentence in wait.free(tid, lasted):
                    _tell(sentence)
        if lasted >= LONG_S and entry not in _told and entry in _now:
            _told.add(entry)
            if not _quiet:
                _tell(f"{SAYS}{wait.what}")


def _tell(sentence: str) -> None:
    if _say is not None:
        _say(sentence)


def _forget() -> None:
    """A fork has no such thread, and waits for nothing."""
    global _thread
    _thread = None
    _now.clear()


os.register_at_fork(after_in_child=_forget)
