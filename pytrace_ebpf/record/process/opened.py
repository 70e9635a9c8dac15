"""What a process's descriptors refer to, as /proc tells, and which of them a system call waits for.

Links and tables of /proc are the kernel's own words; no file of the target is opened, and its memory is read as everywhere (process/memory.py).
"""

import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from typing import NamedTuple

from pytrace_ebpf.record.kernel.waiting_calls import CALLS, ON_DESCRIPTOR, ON_EPOLL, ON_POLL, ON_SELECT
from pytrace_ebpf.record.process.memory import Memory
from pytrace_ebpf.record.process.pinned import Pinned

LISTENS = 10  # TCP_LISTEN
_MOST = 64  # descriptors of one call
_MOST_BYTES = 8 << 20  # of a table of sockets
ANONYMOUS = {
    "[eventpoll]": "epoll", "[eventfd]": "eventfd", "[timerfd]": "timerfd", "[signalfd]": "signalfd",
    "inotify": "inotify", "[pidfd]": "pidfd", "[io_uring]": "io_uring",
}  # fmt: skip
"""Kinds of schema.RESOURCES by what the kernel calls files that no file system has."""
_MAPPED = "::ffff:"


class Opened(NamedTuple):
    """What a descriptor refers to: `link` is that of /proc, the rest as in schema.RESOURCES. `peer`: the link of the other end in the same network."""

    link: str
    kind: str
    name: str = ""
    local_name: str = ""
    listens: bool = False
    peer: str = ""

    @property
    def inode(self) -> int:
        """Of a socket or a pipe; 0 of others."""
        number = self.link.partition(":[")[2].rstrip("]")
        return int(number) if number.isdecimal() else 0


class _Socket(NamedTuple):
    """A row of /proc/net/tcp and its like; `local` and `remote` as the kernel writes them, `name` of a unix socket."""

    protocol: str
    local: str
    remote: str
    state: int
    name: str = ""


class Descriptors:
    """Of one process, at one moment: tables are read when they are first needed, and once."""

    def __init__(self, process: Pinned, memory: Memory) -> None:
        self._process, self._memory = process, memory

    def waited_for(self, call: str, arguments: Sequence[int]) -> list[int]:
        """The descriptors that system call `call` waits for. Raises OSError, ValueError, IndexError, MemoryFault and struct.error where it cannot be said."""
        if call in CALLS[ON_DESCRIPTOR]:
            return [signed(arguments[0])]
        if call in CALLS[ON_EPOLL]:
            lines = self._process.read(f"fdinfo/{signed(arguments[0])}", _MOST_BYTES).decode(errors="replace").splitlines()
            return sorted(int(line.split()[1]) for line in lines if line.startswith("tfd:"))[:_MOST]
        if call in CALLS[ON_POLL]:
            count = min(arguments[1] & 0xFFFFFFFF, _MOST)
            raw = self._memory.read(arguments[0], 8 * count) if count else b""
            return [number for number, _, _ in struct.iter_unpack("<ihh", raw) if number >= 0]
        if call in CALLS[ON_SELECT]:
            count = min(max(signed(arguments[0]), 0), 1024)
            size = -(-count // 64) * 8  # words of the kernel's, as far as it reads
            bits = [int.from_bytes(self._memory.read(at, size), "little") for at in arguments[1:4] if at]
            return [number for number in range(count) if any(each >> number & 1 for each in bits)][:_MOST]
        return []

    def of(self, number: int) -> Opened:
        """What a descriptor refers to. Raises OSError where there is none."""
        link = self._process.link(f"fd/{number}")
        kind, _, rest = link.partition(":")
        if kind == "socket":
            return self._socket(link, rest.strip("[]"))
        if kind == "pipe":
            return Opened(link, "pipe")
        if kind == "anon_inode":
            return Opened(link, ANONYMOUS.get(rest, "other"), "" if rest in ANONYMOUS else rest)
        return Opened(link, "file", link)

    def _socket(self, link: str, inode: str) -> Opened:
        found = self._sockets.get(inode)
        if found is None:
            return Opened(link, "socket")
        if found.protocol == "unix":
            return Opened(link, "unix", found.name)
        kind, (_, port), local = found.protocol.removesuffix("6"), _parsed(found.remote), _address(found.local)
        if kind == "tcp" and found.state == LISTENS:
            return Opened(link, kind, local, local, True)
        if not port:
            return Opened(link, kind, local, local)
        other = self._by_ends.get((found.remote, found.local), inode)
        return Opened(link, kind, _address(found.remote), local, False, "" if other == inode else f"socket:[{other}]")

    def connections(self) -> dict[tuple[str, str], str]:
        """The links of the TCP sockets of the process's network by their own end and the other one."""
        rows = (words for protocol in ("tcp", "tcp6") for words in self._rows(protocol))
        return {(_address(words[1]), _address(words[2])): f"socket:[{words[9]}]" for words in rows}

    @cached_property
    def _sockets(self) -> dict[str, _Socket]:
        """Of the process's network, by inode."""
        found = {}
        for protocol in ("tcp", "tcp6", "udp", "udp6"):
            for words in self._rows(protocol):
                found[words[9]] = _Socket(protocol, words[1], words[2], int(words[3], 16))
        for words in self._rows("unix"):
            # Whoever binds a socket chooses its name, which may hold what looks like further rows: of an inode that comes twice no name is believed.
            named = _Socket("unix", "", "", int(words[5], 16), "" if words[6] in found else " ".join(words[7:]))
            if found.get(words[6], named).protocol == "unix":
                found[words[6]] = named
        return found

    @cached_property
    def _by_ends(self) -> dict[tuple[str, str], str]:
        """Inodes of sockets by their own end and the other one: with each thread that waits the table is not searched again."""
        return {(each.local, each.remote): inode for inode, each in reversed(self._sockets.items())}

    def _rows(self, table: str) -> Iterator[list[str]]:
        with suppress(OSError):
            for line in self._process.read(f"net/{table}", _MOST_BYTES).decode(errors="replace").splitlines()[1:]:
                words = line.split()
                if len(words) >= (7 if table == "unix" else 10):
                    yield words


def signed(value: int) -> int:
    """An argument that is an int of 32 bits."""
    return (value & 0xFFFFFFFF) - (1 << 32) * (value >> 31 & 1)


def port_of(name: str) -> int:
    """That of address:port."""
    return int(name.rpartition(":")[2])


def end(address: bytes, port: int) -> str:
    """An end of a connection, as it is written: 10.0.0.7:5432, [::1]:80; an address of IPv4 in one of IPv6 as the former."""
    if len(address) == 4:
        return f"{socket.inet_ntop(socket.AF_INET, address)}:{port}"
    text = socket.inet_ntop(socket.AF_INET6, address)
    return f"{text.removeprefix(_MAPPED)}:{port}" if text.startswith(_MAPPED) and "." in text else f"[{text}]:{port}"


def _parsed(written: str) -> tuple[bytes, int]:
    """The address (words of the machine's byte order) and the port."""
    address, _, port = written.partition(":")
    raw = bytes.fromhex(address)
    return b"".join(raw[at : at + 4][::-1] for at in range(0, len(raw), 4)), int(port, 16)


def _address(written: str) -> str:
    return end(*_parsed(written))
