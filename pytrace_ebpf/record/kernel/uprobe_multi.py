"""Many uprobes of one file in one step, each with a cookie of its own: BPF links of kind uprobe_multi (Linux 6.6)."""

import errno
import os
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from typing import NamedTuple

from pytrace_ebpf.errors import HostError, PytraceError
from pytrace_ebpf.record.kernel import registering, system_calls
from pytrace_ebpf.record.kernel.abilities import calling
from pytrace_ebpf.record.kernel.bpf import Programs

_RETURN = 1
_UNSUPPORTED = 524  # the kernel's own ENOTSUPP
REFUSED = (errno.EINVAL, errno.ENOEXEC, errno.EIO, errno.EOPNOTSUPP, _UNSUPPORTED)  # what it says of an instruction


class Uprobe(NamedTuple):
    """The file offset to probe, the cookie that the program gets, and the file offset of the semaphore to raise (0 = none)."""

    offset: int
    cookie: int = 0
    semaphore: int = 0


@cache
def serves() -> bool:
    """Whether the kernel has such links, of whole processes, as a try shows: Linux 6.10 has, and 6.6 with its later updates. Raises HostError where it lets nobody try."""
    try:
        program = system_calls.load_program("tried", system_calls.KPROBE, calling(), system_calls.UPROBE_MULTI)
    except HostError:
        os.close(system_calls.load_program("tried", system_calls.KPROBE, calling()))
        return False
    try:
        return sees_processes(program)
    finally:
        os.close(program)


def sees_processes(program: int) -> bool:
    """Whether a link sees all threads of a process: a kernel that checks its id refuses a wrong one before it looks at the file, which is not valid either."""
    for pid, expected in ((0, errno.EBADF), (0xFFFFFFFF, errno.EINVAL)):
        try:
            os.close(attach(program, "/", [Uprobe(1)], pid))
        except OSError as error:
            if error.errno == expected:
                continue
        return False
    return True


def attach(program: int, path: str, uprobes: Sequence[Uprobe], pid: int, at_return: bool = False) -> int:
    """Attach to one process; returns a descriptor, whose closing detaches. Raises OSError."""
    return _link(program, path, uprobes, pid, _RETURN if at_return else 0, system_calls.UPROBE_MULTI)


def load_session(programs: Programs, name: str) -> int | None:
    """Load a program for attach_session(); None where the kernel has no such links (before Linux 6.13)."""
    with suppress(HostError):
        program = programs.program(name, attach_type=system_calls.UPROBE_SESSION)
        try:  # refused before it looks at the file, which is not valid either
            os.close(attach_session(program, "/", [Uprobe(1)], 0))
        except OSError as error:
            return program if error.errno == errno.EBADF else None
    return None


def attach_session(program: int, path: str, uprobes: Sequence[Uprobe], pid: int) -> int:
    """The same as attach(), at the functions' beginnings and, where the program returns 0 there, at their returns."""
    return _link(program, path, uprobes, pid, 0, system_calls.UPROBE_SESSION)


def _link(program: int, path: str, uprobes: Sequence[Uprobe], pid: int, flags: int, attach_type: int) -> int:
    offsets, cookies, semaphores = ([uprobe[i] for uprobe in uprobes] for i in range(3))
    with registering.placing(path, pid, offsets):
        return system_calls.link_uprobes(program, path, offsets, cookies, semaphores, flags, pid, attach_type)


def attach_all(program: int, path: str, uprobes: Sequence[Uprobe], pid: int, at_return: bool = False) -> tuple[list[int], set[int]]:
    """Attach to one process: (descriptors, cookies of the uprobes whose instruction the kernel refuses).

    One refusal fails the whole link, so the uprobes are halved until the refused one is alone. Raises OSError for other reasons.
    """
    links: list[int] = []
    refused: set[int] = set()
    parts = [list(uprobes)]
    try:
        while parts:
            part = parts.pop()
            try:
                links.append(attach(program, path, part, pid, at_return))
            except OSError as error:
                if error.errno not in REFUSED:
                    raise
                if len(part) == 1:
                    refused.add(part[0].cookie)
                else:
                    parts += [part[: len(part) // 2], part[len(part) // 2 :]]
    except (OSError, PytraceError):
        for link in links:
            registering.close(link)
        raise
    return links, refused
