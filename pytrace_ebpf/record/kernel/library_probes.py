"""Programs at many places of a library: by one link where the kernel has those of kind uprobe_multi, else by a perf event for each.

A perf event begins in half a millisecond and ends in some hundred: the kernel waits until no core can be in it, and every tracer of the host that begins or ends waits with it, so
that several threads end no more of them in a second.
"""

import mmap
import os
import time
from collections.abc import Sequence

from pytrace_ebpf.errors import PytraceError
from pytrace_ebpf.record.kernel import registering, uprobe_multi
from pytrace_ebpf.record.kernel.bpf import Programs
from pytrace_ebpf.record.kernel.system_calls import UPROBE_MULTI, link_uprobe, open_uprobe
from pytrace_ebpf.record.kernel.uprobe_multi import Uprobe


def seconds_to_remove() -> float | None:
    """How long this kernel takes to remove such a probe that is a perf event; None where it cannot be tried."""
    file = os.memfd_create("pytrace-ebpf", os.MFD_CLOEXEC)
    try:
        os.write(file, bytes(mmap.PAGESIZE))
        probe = open_uprobe(None, f"/proc/self/fd/{file}", 0, os.getpid(), 0)
    except OSError:
        return None
    finally:
        os.close(file)
    began = time.monotonic()
    registering.close(probe)
    return time.monotonic() - began


class LibraryProbes:
    """Attaches one object's programs to libraries of any number of processes."""

    def __init__(self, programs: Programs, names: Sequence[str]) -> None:
        """`names`: of the programs. Raises HostError where the kernel refuses them."""
        self.in_one_step = uprobe_multi.serves()
        self._loaded = {name: programs.program(name, attach_type=UPROBE_MULTI if self.in_one_step else 0) for name in names}

    def attach(self, program: str, path: str, uprobes: Sequence[Uprobe], pid: int, at_return: bool = False) -> list[int]:
        """Attach to one process; returns descriptors, whose closing detaches. Raises OSError."""
        if self.in_one_step:
            return [uprobe_multi.attach(self._loaded[program], path, uprobes, pid, at_return)]
        links, refused = self._each(program, path, uprobes, pid, at_return)
        if refused:
            for link in links:
                registering.close(link)
            raise next(iter(refused.values()))
        return links

    def attach_all(self, program: str, path: str, uprobes: Sequence[Uprobe], pid: int, at_return: bool = False) -> tuple[list[int], set[int]]:
        """The same but for what the kernel refuses: (descriptors, cookies of those)."""
        if self.in_one_step:
            return uprobe_multi.attach_all(self._loaded[program], path, uprobes, pid, at_return)
        links, refused = self._each(program, path, uprobes, pid, at_return)
        return links, {*refused}

    def _each(self, program: str, path: str, uprobes: Sequence[Uprobe], pid: int, at_return: bool) -> tuple[list[int], dict[int, OSError]]:
        links: list[int] = []
        refused: dict[int, OSError] = {}
        try:
            with registering.placing(path, pid, [uprobe.offset for uprobe in uprobes]):
                for uprobe in uprobes:
                    try:
                        links.append(link_uprobe(self._loaded[program], path, uprobe.offset, pid, uprobe.cookie, at_return))
                    except OSError as error:
                        if error.errno not in uprobe_multi.REFUSED:
                            raise
                        refused[uprobe.cookie] = error
        except (OSError, PytraceError):
            for link in links:
                registering.close(link)
            raise
        return links, refused
