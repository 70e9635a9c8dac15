"""Signals that ask a recording to stop; the second one ends this process at once, whatever it is doing.

So it may hang in a system call or in a library's code: the kernel itself puts back what a signal does by default, as
the first one is delivered. What was recorded until then is whole, as it is after SIGKILL.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pytrace_ebpf.record.libc import libc

_SA_RESETHAND, _FLAGS_AT, _SIZE = 0x80000000, 136, 152  # of struct sigaction: glibc, musl (x86-64)
_SHOW_CURSOR = b"\x1b[?25h"  # the progress line hides it


class Stopped:
    """Whether one of the awaited signals has come; `clear` awaits the next."""

    def __init__(self, numbers: tuple[int, ...]) -> None:
        self._numbers, self._seen = numbers, False
        self.wake: Callable[[], None] = lambda: None  # called when one has come: who is to stop may sleep
        self._await()

    def __call__(self) -> bool:
        return self._seen

    def clear(self) -> None:
        """Forget the one that came."""
        self._seen = False
        self._await()

    def _see(self, *_: object) -> None:
        self._seen = True
        self.wake()
        for number in self._numbers:
            signal.signal(number, signal.SIG_DFL)
        if sys.stderr.isatty():
            os.write(sys.stderr.fileno(), _SHOW_CURSOR)

    def _await(self) -> None:
        for number in self._numbers:
            signal.signal(number, self._see)
            action = ctypes.create_string_buffer(_SIZE)
            libc.sigaction(number, None, action)
            flags = ctypes.c_uint32.from_buffer(action, _FLAGS_AT)
            flags.value |= _SA_RESETHAND
            libc.sigaction(number, action, None)


def not_ignored(*numbers: int) -> list[int]:
    """Those that are not ignored already, as SIGHUP is by nohup's doing, and SIGINT by a shell's in what a script of its starts in the background."""
    return [number for number in numbers if signal.getsignal(number) != signal.SIG_IGN]


@contextmanager
def stop_signals(*numbers: int) -> Iterator[Stopped]:
    """Turn these signals into an answer to "shall it stop?", for as long as the block runs."""
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        yield Stopped(numbers)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
