"""Which threads of the target wait in a system call in which it is safe to load a library.

A thread that is stopped just anywhere may hold the lock of malloc, which dlopen needs: it would wait for itself for
ever. One that waits for input, for time or for a lock of the program holds no lock of malloc or of the loader.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass

from pytrace_ebpf import processors
from pytrace_ebpf.record.agent.inject.machine import Registers
from pytrace_ebpf.record.agent.inject.mapped_library import Loader
from pytrace_ebpf.record.process.pinned import Pinned
from pytrace_ebpf.record.process.target import Target

_CALLS = processors.here().calls
_FUTEX, _RESTARTED = _CALLS["futex"], _CALLS["restart_syscall"]
# The least noticeable interruption first; the last ones return EINTR where they have a timeout. A processor need not have all of them.
_NAMES = (
    "futex", "read", "wait4", "waitid", "pause", "accept", "accept4", "recvfrom", "recvmsg", "select", "pselect6", "ppoll", "clock_nanosleep", "nanosleep", "poll",
    # One of the above with a timeout, that the kernel goes on with after a stop.
    "restart_syscall", "epoll_wait", "epoll_pwait", "epoll_pwait2",
)  # fmt: skip
_BENIGN = {_CALLS[name]: name for name in _NAMES if name in _CALLS}
_ORDER = {number: order for order, number in enumerate(_BENIGN)}
_HEAP, _HEAP_HEAD = 1 << 26, 1 << 8  # malloc's arenas begin at multiples of the first; their locks lie below the second, what it gave out further on


@dataclass(frozen=True)
class Blocked:
    """A thread that waits in a system call."""

    tid: int
    number: int
    name: str
    first: int  # argument
    pc: int
    sp: int

    def still(self, registers: Registers) -> bool:
        """Whether the thread, stopped meanwhile, stands where it stood."""
        return registers.stands_in(self.number, self.pc, self.sp)


def blocked_threads(target: Target, loader: Loader) -> list[Blocked]:
    """Those in which a library can be loaded, the best first."""
    gil = target.gil_range()
    found = []
    for tid, number, first, sp, pc in _in_system_calls(target.process):
        name = _BENIGN.get(number)
        if name and not _inside(loader.code, pc) and not _holds_a_lock(number, first, gil, loader):
            found.append(Blocked(tid, number, name, first, pc, sp))
    return sorted(found, key=lambda thread: _ORDER[thread.number])


def wanting_to_run(target: Target) -> list[int]:
    """Threads that run, or wait for nothing but a core or the GIL."""
    first, end = target.gil_range()
    waiting = {
        tid for tid, number, address, _, _ in _in_system_calls(target.process) if not (number in (_FUTEX, _RESTARTED) and first <= address < end)
    }
    return [tid for tid in threads(target.process) if tid not in waiting]


def threads(process: Pinned) -> list[int]:
    """Ids of the threads of a process. Raises OSError when it has ended."""
    folder = process.open("task", os.O_RDONLY | os.O_DIRECTORY)
    try:
        return sorted(map(int, os.listdir(folder)))  # noqa: PTH208 - a descriptor
    finally:
        os.close(folder)


def _in_system_calls(process: Pinned) -> Iterator[tuple[int, int, int, int, int]]:
    """(thread, number, first argument, stack pointer, program counter) of each thread that waits in a system call."""
    for tid in threads(process):
        try:
            words = process.read(f"task/{tid}/syscall").split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if len(words) == 9:
            yield tid, int(words[0]), int(words[1], 16), int(words[7], 16), int(words[8], 16)


def _holds_a_lock(number: int, address: int, gil: tuple[int, int], loader: Loader) -> bool:
    """Whether a thread waits for the GIL, or for a lock of malloc or of the loader, so that it may hold another of them."""
    if number in (_FUTEX, _RESTARTED) and gil[0] <= address < gil[1]:
        return True
    return number == _FUTEX and (_inside(loader.locks, address) or address % _HEAP < _HEAP_HEAD)


def _inside(spans: tuple[tuple[int, int], ...], address: int) -> bool:
    return any(start <= address < end for start, end in spans)
