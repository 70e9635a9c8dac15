"""The memory of a process as this one reads it: while no uprobes are placed, and so that what stands still is freed and said."""

import os
import time
from collections.abc import Callable
from contextlib import suppress

from pytrace_ebpf.record import waiting
from pytrace_ebpf.record.kernel import page_servers
from pytrace_ebpf.record.kernel.registering import pages
from pytrace_ebpf.record.process.memory import HasFileno, Memory, Span

_OLD_S, _YOUNG_S = 5.0, 0.05  # until its memory map is read anew: for who is asked about many pages, and for one that is not in it


class Watched(Memory):
    """Memory of a process that is read here."""

    def __init__(self, pid: int, file: HasFileno, pagemap: HasFileno | None, maps: Callable[[], bytes]) -> None:
        """`maps`: reads its /proc/PID/maps."""
        super().__init__(pid, file, pagemap)
        self._maps, self._read_at = maps, 0.0
        self._wait = waiting.On(f"process {pid}, whose memory is read", page_servers.Freeing(pid))

    def read(self, address: int, size: int) -> bytes:
        with pages, self._wait:
            return super().read(address, size)

    def write(self, address: int, content: bytes) -> None:
        with pages, self._wait:
            super().write(address, content)

    def kept(self) -> list[Span]:
        """What the kernel itself brings in where it is not there: all that is of no file, or of one that no user's program serves."""
        return self._kept_for(_OLD_S)

    def _kept_for(self, seconds: float) -> list[Span]:
        if time.monotonic() - self._read_at > seconds:
            with suppress(OSError):  # it has ended
                self._kept, self._read_at = kept(self._maps()), time.monotonic()
        return list(self._kept)

    def _is_kept(self, page: int) -> bool:
        if not super()._is_kept(page):  # of a library that has come since, maybe
            self._kept_for(_YOUNG_S)
        return super()._is_kept(page)


def kept(maps: bytes) -> list[Span]:
    """Of the text of /proc/PID/maps, neighbours joined."""
    served, found = page_servers.of_users(), list[Span]()
    for line in maps.splitlines():
        span, _, _, device, *_ = line.split(maxsplit=4)
        if served and page_servers.serves(os.makedev(*(int(part, 16) for part in device.split(b":"))), served):
            continue
        start, _, end = span.partition(b"-")
        if found and found[-1][1] == int(start, 16):
            found[-1] = found[-1][0], int(end, 16)
        else:
            found.append((int(start, 16), int(end, 16)))
    return found
