"""The CPU time of a process, noted early: the longer ago, the shorter the wait until its use of the cores is known.

It is taken as soon as the process id is known, so this module imports next to nothing.
"""

import time
from contextlib import suppress
from pathlib import Path

from pytrace_ebpf.record.process import stat

_CPU_CLOCK = 2  # CPUCLOCK_SCHED of a process: clock ids of include/linux/posix-timers.h
_MOST_KNOWN = 1 << 12

_glances: dict[tuple[int, str], tuple[int, int]] = {}  # by number and start, which make a process: ns, ns of CPU


def note_baseline(pid: int) -> None:
    """Note the CPU time of a process; nothing happens where it does not exist."""
    if len(_glances) == _MOST_KNOWN:
        _glances.clear()
    with suppress(OSError, LookupError):
        start = stat.fields(Path(f"/proc/{pid}/stat").read_bytes())[stat.START]
        _glances[pid, start] = _now(pid)


def cpu_share(key: tuple[int, str], seconds: float) -> float:
    """Cores that all threads of a process, Pinned.key, used together since note_baseline(), or over so many seconds. Raises OSError where it has ended."""
    pid, _ = key
    began_ns, before_ns = _glances.pop(key) if key in _glances else _now(pid)
    time.sleep(max(0.0, seconds - (time.monotonic_ns() - began_ns) / 1e9))
    now_ns, used_ns = _now(pid)
    return max(0, used_ns - before_ns) / (now_ns - began_ns)


def _now(pid: int) -> tuple[int, int]:
    return time.monotonic_ns(), time.clock_gettime_ns(~pid << 3 | _CPU_CLOCK)
