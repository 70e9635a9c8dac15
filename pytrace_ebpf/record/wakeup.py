"""Wakes the loop of a recording while it sleeps: set by any thread, and by whoever handles a signal."""

import os
from contextlib import suppress

from pytrace_ebpf.record.process.pinned import Descriptor


class Wakeup:
    """To be polled for reading."""

    def __init__(self) -> None:
        self._file = Descriptor(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC))

    def fileno(self) -> int:
        """Its descriptor."""
        return self._file.fileno()

    def set(self) -> None:
        """Wake the loop, now or when it is about to sleep."""
        with suppress(OSError):
            os.eventfd_write(self._file.fileno(), 1)

    def clear(self) -> None:
        """It was heard."""
        with suppress(BlockingIOError):
            os.eventfd_read(self._file.fileno())
