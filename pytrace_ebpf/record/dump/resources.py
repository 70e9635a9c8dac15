"""What a system call waits for: the file, the peer, the pipe or the child behind its arguments, as /proc tells.

Links and tables of /proc are the kernel's own words; no file of the target is opened, and its memory is read as everywhere (process/memory.py).
"""

import os
import struct
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

from pytrace_ebpf.record.process.matching import processes
from pytrace_ebpf.record.process.memory import Memory, MemoryFault
from pytrace_ebpf.record.process.pinned import Pinned
from pytrace_ebpf.record.scheduling.waiting_calls import CALLS, ON_DESCRIPTOR, ON_EPOLL, ON_POLL, ON_SELECT
from pytrace_ebpf.trace.resources import SERVICES

_CHILDREN = ("wait4", "waitid")
_LISTENS = 10  # TCP_LISTEN
_MOST = 64  # descriptors of one call
_MOST_BYTES = 8 << 20  # of a table of sockets
_SEARCH_S = 0.2  # for the processes at the other ends


class Socket(NamedTuple):
    """A row of /proc/net/tcp and its like; `local` and `remote` as the kernel writes them, `name` of a unix socket."""

    protocol: str
    local: str
    remote: str
    state: int
    name: str = ""


class Resources:
    """Of one process, at one moment: tables are read when they are first needed, and once."""

    def __init__(self, process: Pinned, memory: Memory) -> None:
        self._process, self._memory = process, memory
        self._held: dict[str, list[int]] | None = None  # processes by what their descriptors refer to

    def of(self, call: str, arguments: Sequence[int]) -> list[str]:
        """What system call `call` with these arguments waits for, in words; nothing where it waits for no object, or that cannot be said."""
        with suppress(OSError, ValueError, IndexError, MemoryFault, struct.error):
            if call in _CHILDREN:
                return [self._child(call, arguments)]
            return list(dict.fromkeys(self._known(self._descriptors(call, arguments))))
        return []

    def _known(self, numbers: Iterable[int]) -> Iterator[str]:
        """Of those that are open still: poll() takes others, too."""
        for number in numbers:
            with suppress(OSError, ValueError):
                yield self.descriptor(number)

    def _descriptors(self, call: str, arguments: Sequence[int]) -> Sequence[int]:
        if call in CALLS[ON_DESCRIPTOR]:
            return [_signed(arguments[0])]
        if call in CALLS[ON_EPOLL]:
            lines = self._process.read(f"fdinfo/{_signed(arguments[0])}", _MOST_BYTES).decode(errors="replace").splitlines()
            return sorted(int(line.split()[1]) for line in lines if line.startswith("tfd:"))[:_MOST]
        if call in CALLS[ON_POLL]:
            count = min(arguments[1] & 0xFFFFFFFF, _MOST)
            raw = self._memory.read(arguments[0], 8 * count) if count else b""
            return [number for number, _, _ in struct.iter_unpack("<ihh", raw) if number >= 0]
        if call in CALLS[ON_SELECT]:
            count = min(max(_signed(arguments[0]), 0), 1024)
            size = -(-count // 64) * 8  # words of the kernel's, as far as it reads
            bits = [int.from_bytes(self._memory.read(at, size), "little") for at in arguments[1:4] if at]
            return [number for number in range(count) if any(each >> number & 1 for each in bits)][:_MOST]
        return []

    def descriptor(self, number: int) -> str:
        """What a descriptor refers to. Raises OSError where there is none."""
        link = self._process.link(f"fd/{number}")
        kind, _, rest = link.partition(":")
        inode = rest.strip("[]")
        if kind == "socket":
            return self._socket(inode)
        if kind == "pipe":
            return "a pipe" + self._at_the_other_end(link)
        if kind == "anon_inode":
            return inode
        terminal = link.startswith(("/dev/pts/", "/dev/tty"))
        return f"{'terminal' if terminal else 'file'} {link}"

    def _socket(self, inode: str) -> str:
        found = self._sockets.get(inode)
        if found is None:
            return "a socket"
        if found.protocol == "unix":
            return f"unix socket {found.name}" if found.name else "a unix socket"
        if found.state == _LISTENS and found.protocol.startswith("tcp"):
            return f"tcp, listening on {_address(found.local)}"
        protocol, (_, port) = found.protocol.removesuffix("6"), _parsed(found.remote)
        if not port:
            return f"{protocol} {_address(found.local)}"
        service = f" ({SERVICES[port]})" if port in SERVICES else ""
        other = next(
            (number for number, each in self._sockets.items() if each.local == found.remote and each.remote == found.local and number != inode), None
        )
        return f"{protocol} {_address(found.remote)}{service}" + ("" if other is None else self._at_the_other_end(f"socket:[{other}]"))

    @cached_property
    def _sockets(self) -> dict[str, Socket]:
        """Of the process's network, by inode."""
        found = {}
        for protocol in ("tcp", "tcp6", "udp", "udp6"):
            for words in self._rows(protocol):
                found[words[9]] = Socket(protocol, words[1], words[2], int(words[3], 16))
        for words in self._rows("unix"):
            # Whoever binds a socket chooses its name, which may hold what looks like further rows: of an inode that comes twice no name is believed.
            named = Socket("unix", "", "", int(words[5], 16), "" if words[6] in found else " ".join(words[7:]))
            if found.get(words[6], named).protocol == "unix":
                found[words[6]] = named
        return found

    def _rows(self, table: str) -> Iterator[list[str]]:
        with suppress(OSError):
            for line in self._process.read(f"net/{table}", _MOST_BYTES).decode(errors="replace").splitlines()[1:]:
                words = line.split()
                if len(words) >= (7 if table == "unix" else 10):
                    yield words

    def _child(self, call: str, arguments: Sequence[int]) -> str:
        number = _signed(arguments[0]) if call == "wait4" else _signed(arguments[1]) if arguments[0] == os.P_PID else -1
        return f"child process {number}{_named(number)}" if number > 0 else "any child process"

    def _at_the_other_end(self, link: str) -> str:
        others = [pid for pid in self._holders().get(link, ()) if pid != self._process.pid]
        return f", process {others[0]}{_named(others[0])}" if others else ""

    def _holders(self) -> dict[str, list[int]]:
        """Which processes have pipes and sockets open, as far as there is time to look; numbers are those of this /proc."""
        if self._held is None:
            self._held = {}
            until_s = time.monotonic() + _SEARCH_S
            for pid in reversed(processes()):
                if time.monotonic() > until_s:
                    break
                with suppress(OSError):
                    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
                        link = str(descriptor.readlink())
                        if link.startswith(("pipe:", "socket:")):
                            self._held.setdefault(link, []).append(pid)
        return self._held


def _signed(value: int) -> int:
    """An argument that is an int of 32 bits."""
    return (value & 0xFFFFFFFF) - (1 << 32) * (value >> 31 & 1)


def _named(pid: int) -> str:
    """By the kernel's name for it: its command line is memory of its own."""
    with suppress(OSError):
        return f" ({Path(f'/proc/{pid}/comm').read_text(errors='replace').strip()})"
    return ""


def _parsed(written: str) -> tuple[bytes, int]:
    """The address (words of the machine's byte order) and the port."""
    address, _, port = written.partition(":")
    raw = bytes.fromhex(address)
    return b"".join(raw[at : at + 4][::-1] for at in range(0, len(raw), 4)), int(port, 16)


def _address(written: str) -> str:
    raw, port = _parsed(written)
    address = ip_address(raw)
    mapped = getattr(address, "ipv4_mapped", None)
    address = mapped or address
    return f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"
