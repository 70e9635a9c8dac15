"""Since when threads are off the core, and what they are in, as the kernel half and /proc have it now."""

from contextlib import suppress
from pathlib import Path
from typing import Any

from pytrace_ebpf.record.cpython.parking import FUTEX
from pytrace_ebpf.record.kernel.bpf import Programs
from pytrace_ebpf.record.process import stat
from pytrace_ebpf.record.process.target import Target

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

    def waits_in(self, tid: int, target: Target) -> int:
        """What a thread that is off the core is in, as SAMPLE_IN_* of events.h."""
        if not self._states:
            return 0
        left = self._left(target.pid, tid)
        if left is not None and left["runnable"]:
            return _IN_QUEUE
        first, end = target.gil_range()
        with suppress(OSError, ValueError, IndexError):
            call, address = Path(f"/proc/{target.pid}/task/{tid}/syscall").read_text().split()[:2]
            if int(call) == FUTEX and first <= int(address, 16) < end:
                return _IN_GIL
        return _IN_BLOCKED

    def _left(self, pid: int, tid: int) -> Any:
        """The thread's struct left, of off_cpu.h; None where it has none."""
        place = self._programs.map("places").get(tid % _PLACES)
        return place["left"] if place["thread"] == pid << 32 | tid else self._programs.map("away").get(tid)


def _runs(pid: int, tid: int) -> bool:
    """Whether a thread has a core or waits for one; of one that has ended, too."""
    try:
        return stat.fields(Path(f"/proc/{pid}/task/{tid}/stat").read_bytes())[stat.STATE] in "RZX"
    except (OSError, IndexError):
        return True
