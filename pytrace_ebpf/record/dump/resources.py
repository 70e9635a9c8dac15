"""What a system call waits for, in words: the file, the peer, the pipe or the child behind its arguments, as /proc tells."""

import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

from pytrace_ebpf.record.process.holders import command, holders
from pytrace_ebpf.record.process.memory import Memory, MemoryFault
from pytrace_ebpf.record.process.opened import Descriptors, port_of, signed
from pytrace_ebpf.record.process.pinned import Pinned
from pytrace_ebpf.trace.resources import SERVICES

_CHILDREN = ("wait4", "waitid")
_SEARCH_S = 0.2  # for the processes at the other ends


class Resources:
    """Of one process, at one moment."""

    def __init__(self, process: Pinned, memory: Memory) -> None:
        self._process, self._descriptors = process, Descriptors(process, memory)
        self._held: dict[str, list[int]] | None = None  # processes by what their descriptors refer to

    def of(self, call: str, arguments: Sequence[int]) -> list[str]:
        """What system call `call` with these arguments waits for, in words; nothing where it waits for no object, or that cannot be said."""
        with suppress(OSError, ValueError, IndexError, MemoryFault, struct.error):
            if call in _CHILDREN:
                return [self._child(call, arguments)]
            return list(dict.fromkeys(self._known(self._descriptors.waited_for(call, arguments))))
        return []

    def _known(self, numbers: Iterable[int]) -> Iterator[str]:
        """Of those that are open still: poll() takes others, too."""
        for number in numbers:
            with suppress(OSError, ValueError):
                yield self.descriptor(number)

    def descriptor(self, number: int) -> str:
        """What a descriptor refers to. Raises OSError where there is none."""
        found = self._descriptors.of(number)
        if found.kind == "unix":
            return f"unix socket {found.name}" if found.name else "a unix socket"
        if found.kind in ("tcp", "udp"):
            if found.listens:
                return f"tcp, listening on {found.name}"
            service = SERVICES.get(port_of(found.name), found.kind) if found.name != found.local_name else found.kind
            return f"{service} {found.name}" + (self._at_the_other_end(found.peer) if found.peer else "")
        if found.kind == "socket":
            return "a socket"
        if found.kind == "pipe":
            return "a pipe" + self._at_the_other_end(found.link)
        if found.kind == "file":
            return f"{'terminal' if found.link.startswith(('/dev/pts/', '/dev/tty')) else 'file'} {found.link}"
        return found.link.partition(":")[2].strip("[]")

    def _child(self, call: str, arguments: Sequence[int]) -> str:
        number = signed(arguments[0]) if call == "wait4" else signed(arguments[1]) if arguments[0] == os.P_PID else -1
        return f"child process {number}{_named(number)}" if number > 0 else "any child process"

    def _at_the_other_end(self, link: str) -> str:
        others = [pid for pid in self._holders().get(link, ()) if pid != self._process.pid]
        return f", process {others[0]}{_named(others[0])}" if others else ""

    def _holders(self) -> dict[str, list[int]]:
        """Which processes have pipes and sockets open, as far as there is time to look; numbers are those of this /proc."""
        if self._held is None:
            self._held = holders(_SEARCH_S)
        return self._held


def _named(pid: int) -> str:
    name = command(pid)
    return f" ({name})" if name else ""
