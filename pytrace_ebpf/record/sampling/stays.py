"""Since when threads are off the core, and what they are in, as the kernel half and /proc have it now."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pytrace_ebpf.record.cpython.parking import FUTEX
from pytrace_ebpf.record.kernel.bpf import Programs
from pytrace_ebpf.record.process import stat
from pytrace_ebpf.record.process.opened import Descriptors
from pytrace_ebpf.record.process.target import Target
from pytrace_ebpf.record.sampling.sampled_process import NO_WAIT
from pytrace_ebpf.record.scheduling.resources import Resources

_PLACES = 4096  # off_cpu.h
_IN_QUEUE, _IN_GIL, _IN_BLOCKED = 2, 3, 4  # events.h, SAMPLE_*


class Stays:
    """By the maps of the programs of samples.c."""

    def __init__(self, programs: Programs, states: bool) -> None:
        """`states`: what threads are in is to be said at all."""
        self._programs, self._states = programs, states

    def since_ns(self, pid: int, tid: int, began_ns: int) -> int:
        """When a thread left the core, `began_ns` at the earliest, when its process came to be sampled; 0: it has one."""
        known = self._left(pid, tid)
        if known is None:  # it has not left it since sampling began
            return 0 if _runs(pid, tid) else began_ns
        left = int(known["since"])
        return max(left, began_ns) if left else 0

    def state(self, tid: int, target: Target) -> int:
        """What a thread that is off the core is in, as SAMPLE_IN_* of events.h."""
        return self._state(tid, target, *_system_call(target.pid, tid)) if self._states else 0

    def wait(self, tid: int, target: Target, descriptors: Descriptors, resources: Resources) -> tuple[int, int, int]:
        """The system call of a thread that is off the core, and what it waits for there, for Away; nothing of one that is not blocked."""
        call, arguments = _system_call(target.pid, tid)
        if not self._states or self._state(tid, target, call, arguments) != _IN_BLOCKED or (call < 0 and _state(target.pid, tid) != "D"):
            return NO_WAIT
        return call, 0, resources.meet(target.pid, descriptors, call, arguments)

    def _state(self, tid: int, target: Target, call: int, arguments: Sequence[int]) -> int:
        left = self._left(target.pid, tid)
        if left is not None and left["runnable"]:
            return _IN_QUEUE
        first, end = target.gil_range()
        return _IN_GIL if call == FUTEX and first <= arguments[0] < end else _IN_BLOCKED

    def _left(self, pid: int, tid: int) -> Any:
        """The thread's struct left, of off_cpu.h; None where it has none."""
        place = self._programs.map("places").get(tid % _PLACES)
        return place["left"] if place["thread"] == pid << 32 | tid else self._programs.map("away").get(tid)


def _system_call(pid: int, tid: int) -> tuple[int, list[int]]:
    """The number of the system call that a thread is in, and its six arguments; -1 and zeros where it is in none."""
    with suppress(OSError, ValueError, IndexError):
        words = Path(f"/proc/{pid}/task/{tid}/syscall").read_text().split()
        if words[0] not in ("running", "-1"):
            return int(words[0]), [int(word, 16) for word in words[1:7]]
    return -1, [0] * 6


def _runs(pid: int, tid: int) -> bool:
    """Whether a thread has a core or waits for one; of one that has ended, too."""
    return _state(pid, tid) in "RZX"


def _state(pid: int, tid: int) -> str:
    """The letter of /proc; that of a dead one where it is gone."""
    try:
        return stat.fields(Path(f"/proc/{pid}/task/{tid}/stat").read_bytes())[stat.STATE]
    except (OSError, IndexError):
        return "X"
