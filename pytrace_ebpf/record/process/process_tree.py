"""Who is whose child, as /proc has it now."""

import os
from pathlib import Path

from pytrace_ebpf.lazy_imports import psutil
from pytrace_ebpf.record.process import stat


def children(pid: int) -> list[int]:
    """The processes that `pid` has started and that are there; none where it has ended."""
    try:
        return [child.pid for child in psutil.Process(pid).children()]
    except psutil.Error:
        return []


def parent(pid: int) -> int:
    """The process that started `pid`, or that took it over; 0 where there is none. Raises OSError where `pid` has ended."""
    return int(stat.fields(Path(f"/proc/{pid}/stat").read_bytes())[stat.PARENT])


def ancestors(pid: int) -> set[int]:
    """`pid` and those from which it descends."""
    found: set[int] = set()
    try:
        while pid and pid not in found:
            found.add(pid)
            pid = parent(pid)
    except OSError:
        pass
    return found


def is_ours(pid: int) -> bool:
    """Whether `pid` is this process, descends from it, or is one from which it descends: their command lines may be ours."""
    return pid in ancestors(os.getpid()) or os.getpid() in ancestors(pid)
