"""Placing and removing uprobes so that the host forks on.

The kernel takes the lock of every memory map that has the file in it, one after the other, whichever process a uprobe is for, and while it does
no process of the host can fork. Whoever holds his own lock so stops all of them; so somebody who does is looked for before, nothing of
this process's own holds one meanwhile, and one who comes in between is freed (page_servers.py).
"""

import mmap
import os
import stat
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType

from pytrace_ebpf.errors import HostError, TargetError
from pytrace_ebpf.record import waiting
from pytrace_ebpf.record.kernel import file_status, page_servers

_PATIENCE_S, _LOOK_S = 5.0, 0.2
_FORGOTTEN_S = 30.0  # without such a wait, after which there is patience anew


class Pages:
    """`with` it memory of a program is read, by any number of threads: who reads for one user keeps nobody else waiting. In alone() nobody does."""

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._reading, self._placing = 0, False

    def __enter__(self) -> None:
        with self._changed:
            while self._placing:
                self._changed.wait()
            self._reading += 1

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        with self._changed:
            self._reading -= 1
            if self._placing and not self._reading:
                self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Nobody reads in here; those who come wait."""
        with self._changed:
            while self._placing:
                self._changed.wait()
            self._placing = True
        try:
            with self._changed:
                while self._reading:
                    self._changed.wait()
            yield
        finally:
            with self._changed:
                self._placing = False
                self._changed.notify_all()


pages = Pages()


class _Patience:
    """How long users' file systems have held up the placing of probes, of all together: each probe is placed by itself, and each may be made to wait."""

    def __init__(self) -> None:
        self._spent_s, self._since = 0.0, 0.0

    def spend(self, seconds: float) -> None:
        """So long it was just now."""
        self._spent_s, self._since = self.spent_s() + seconds, time.monotonic()

    def spent_s(self) -> float:
        """Of late."""
        return self._spent_s if time.monotonic() - self._since < _FORGOTTEN_S else 0.0


_patience = _Patience()


@contextmanager
def placing(path: str, pid: int, offsets: Iterable[int]) -> Iterator[None]:
    """In here uprobes are placed on a file, at these offsets, in process `pid`.

    Raises HostError where somebody holds the lock of a memory map and does not let go of it, TargetError for a file that a user's program serves.
    """
    _refuse_what_is_served(path, pid)
    _bring_in(path, offsets)
    _wait_for_who_holds()
    _refuse_after_too_long()
    with pages.alone(), waiting.On(f"the kernel, which places probes in process {pid}", page_servers.Freeing(pid)):
        before, began = page_servers.disconnected.count, time.monotonic()
        try:
            yield
        finally:
            if page_servers.disconnected.count > before:
                _patience.spend(time.monotonic() - began)


@contextmanager
def removing(pid: int = 0) -> Iterator[None]:
    """In here they are removed."""
    with pages.alone(), waiting.On("the kernel, which removes probes", page_servers.Freeing(pid)):
        yield


def close(descriptor: int) -> None:
    """Remove the uprobes of a link or an event."""
    with removing():
        os.close(descriptor)


def _refuse_what_is_served(path: str, pid: int) -> None:
    connections = page_servers.of_users()
    if not connections:
        return
    status = file_status.status(path)
    if stat.S_ISREG(status.st_mode) and page_servers.serves(status.st_dev, connections):
        raise TargetError(
            f"a file of process {pid} lies in a file system that a user's program serves (FUSE), where probes could stop the whole host; use --source agent"
        )


def _bring_in(path: str, offsets: Iterable[int]) -> None:
    """Read the pages that get probes, so that the kernel need not while it holds its locks; some take that for an error of ext4's (CONFIG_EXT4_DEBUG)."""
    with suppress(OSError), open(path, "rb", buffering=0) as file:  # noqa: PTH123 - it may be a descriptor's
        for page in {offset // mmap.PAGESIZE for offset in offsets}:
            os.pread(file.fileno(), 1, page * mmap.PAGESIZE)


def _wait_for_who_holds() -> None:
    before = None
    while held := page_servers.who_holds():
        if before is None:
            before = waiting.On(f"{page_servers.words(held.pid)}, which holds its memory map and waits for a file system that does not answer")
        with before:
            time.sleep(_LOOK_S)
        _patience.spend(_LOOK_S)
        if _patience.spent_s() > _PATIENCE_S:
            raise HostError(
                f"{page_servers.words(held.pid)} holds its memory map and waits for a file system of a user's that does not answer: placing probes now would "
                "keep every process of this host from forking; end that process or its file system, or use --source agent"
            )


def _refuse_after_too_long() -> None:
    if _patience.spent_s() > _PATIENCE_S:
        raise HostError(
            "file systems of users that do not answer held up the placing of probes again and again, and every fork of this host meanwhile; "
            "end them, or use --source agent"
        )
