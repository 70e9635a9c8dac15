"""Why a process could not load the agent: what the kernel refused it, and which of its limits leaves no room."""

import errno
import os
from collections.abc import Mapping
from contextlib import suppress

from pytrace_ebpf.record.process.pinned import Pinned

_MAPPING = (9, 10)  # system calls mmap, mprotect
_WORTH_NAMING = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EACCES, errno.EPERM)
_LEAST_MEMORY = 16 << 20  # of address space, for the library and the stack of its thread, beside the arena
_LEAST_FILES = 2
_NOEXEC = "is it on a file system that forbids execution (noexec), or does a security module forbid it?"


def why_not(process: Pinned, refused: Mapping[int, int]) -> str:
    """A clause on why a library could not be loaded. `refused`: system calls by number, and the errno of each."""
    if used_up := exhausted(process, 0):
        return used_up
    for call, number in refused.items():
        if call in _MAPPING and number in (errno.EACCES, errno.EPERM):
            return f"the kernel lets it execute nothing of that file ({os.strerror(number)}); {_NOEXEC}"
    said = next((os.strerror(number) for number in refused.values() if number in _WORTH_NAMING), "")
    return f"the kernel refuses it something ({said})" if said else _NOEXEC


def exhausted(process: Pinned, arena_bytes: int) -> str:
    """A clause on the limit of a process (setrlimit(2)) that leaves no room for the agent; "" where none is near."""
    with suppress(OSError, ValueError, LookupError):
        limits = _limits(process)
        memory = int(process.status()["VmSize"].split()[0]) << 10
        if (most := limits.get("Max address space")) is not None and most - memory < _LEAST_MEMORY + arena_bytes:
            left = max(0, most - memory) / 1e6
            return f"its limit of address space leaves {left:,.1f} MB (RLIMIT_AS, ulimit -v); prlimit --pid {process.pid} --as=... raises it"
        if (most := limits.get("Max open files")) is not None and most - _open_files(process, most) < _LEAST_FILES:
            return (
                f"it may have {most:,} files open at a time, and has (RLIMIT_NOFILE, ulimit -n); prlimit --pid {process.pid} --nofile=... raises it"
            )
    return ""


def _open_files(process: Pinned, below: int) -> int:
    """How many descriptors it has whose number the limit allows; counts those above, from before the limit was lowered, as none."""
    folder = process.open("fd", os.O_RDONLY | os.O_DIRECTORY)
    try:
        return sum(int(name) < below for name in os.listdir(folder))  # noqa: PTH208 - a descriptor
    finally:
        os.close(folder)


def _limits(process: Pinned) -> dict[str, int]:
    """The soft limits of a process by their names in /proc/PID/limits, but for what is unlimited."""
    found = {}
    for line in process.read("limits").decode(errors="replace").splitlines()[1:]:
        name, soft = line[:26].strip(), line[26:].split()[0]
        if soft != "unlimited":
            found[name] = int(soft)
    return found
