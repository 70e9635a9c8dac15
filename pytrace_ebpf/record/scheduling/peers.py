"""Which process of this host is at the other end of a connection or a pipe that was waited for: looked for beside the recording, and seldom.
What a database's process says of itself (sessions.py) is looked at more often.

What ends sooner than somebody looks stays unknown.
"""

import fcntl
import ipaddress
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pytrace_ebpf.errors import TargetError
from pytrace_ebpf.record.output.tables import Columns
from pytrace_ebpf.record.process.holders import command, holders
from pytrace_ebpf.record.process.matching import processes
from pytrace_ebpf.record.process.opened import Descriptors
from pytrace_ebpf.record.process.pinned import Pinned
from pytrace_ebpf.record.scheduling.sessions import Sessions

_MOST = 4096  # that are looked for at a time
_MOST_NETWORKS = 256
_GET_OWNER = 0xB701  # NS_GET_USERNS of linux/nsfs.h
_FIRST_S, _SEARCH_S = 0.2, 0.5
_SHARE = 0.02  # of a core, at most, for looking: a user may have very many sockets

Row = dict[str, Any]


class _Wanted(NamedTuple):
    row: Row  # of schema.RESOURCES
    tries: int = 0


class Peers:
    """Memory is bounded by _MOST rows, and by the descriptors of the host while it looks at them."""

    def __init__(self) -> None:
        self._sessions = Sessions()
        self._wanted: OrderedDict[int, _Wanted] = OrderedDict()
        self._found: list[Row] = []
        self._next_s, self._lock = 0.0, threading.Lock()
        self._looker: threading.Thread | None = None

    def ask(self, columns: Columns) -> None:
        """Look for the other ends of these, columns of schema.RESOURCES: of connections within the host, of pipes and of unix sockets."""
        kinds = columns["kind"]
        rows = np.flatnonzero((kinds == "pipe") | (kinds == "tcp") | (kinds == "unix"))[-_MOST:]
        with self._lock:
            for at in rows.tolist():
                row = {name: column[at] for name, column in columns.items()}
                if not row["listens"] and (row["kind"] != "tcp" or _is_near(row["name"], row["local_name"])):
                    self._wanted[int(row["resource_id"])] = _Wanted(row)
            while len(self._wanted) > _MOST:
                self._wanted.popitem(last=False)

    def found(self) -> list[Row]:
        """The rows of which the other end, or something new of it, is known since the last call."""
        now = time.monotonic()
        if self._wanted and not self._next_s:
            self._next_s = now + _FIRST_S
        elif self._looker is None or not self._looker.is_alive():
            look = self._look if self._wanted and now >= self._next_s else self._look_at_sessions if self._sessions.due() else None
            if look:
                self._looker = threading.Thread(target=look, name="peers", daemon=True)
                self._looker.start()
        with self._lock:
            found, self._found = self._found, []
        return found

    def _look(self) -> None:
        began = time.thread_time()
        with self._lock:
            wanted = dict(self._wanted)
        held, ends = holders(_SEARCH_S, time.thread_time), _Networks(time.thread_time() + _SEARCH_S)
        for number, (row, tries) in wanted.items():
            others = [pid for pid in self._others(row, held, ends) if pid not in (0, row["pid"])]
            with self._lock:
                if others:
                    self._found.append(row | {"peer_pid": others[0], "peer_command": command(others[0])})
                    self._sessions.watch(self._found[-1])
                if others or tries:  # those that are not there the second time are elsewhere, or gone
                    self._wanted.pop(number, None)
                elif number in self._wanted:
                    self._wanted[number] = _Wanted(row, tries + 1)
        self._next_s = time.monotonic() + max((time.thread_time() - began) / _SHARE, _FIRST_S)

    def _look_at_sessions(self) -> None:
        told = self._sessions.look()
        with self._lock:
            self._found += told

    @staticmethod
    def _others(row: Row, held: Mapping[str, list[int]], ends: "_Networks") -> list[int]:
        """Processes that may have the other end of a row's resource."""
        if row["kind"] == "unix":
            return [int(row["peer_pid"])]
        return held.get(f"pipe:[{row['inode']}]" if row["kind"] == "pipe" else ends.other(row), [])


class _Networks:
    """The sockets of the networks that processes are in, each read once, as far as there is time."""

    def __init__(self, until_s: float) -> None:
        self._until_s = until_s
        self._by_network: dict[str, Mapping[tuple[str, str], str]] = {}
        self._network_of: dict[int, str] = {}

    def other(self, row: Row) -> str:
        """The link of the socket at the other end of a connection; empty where it is not there."""
        ends, pid = (row["name"], row["local_name"]), row["pid"]
        with suppress(OSError, TargetError, ValueError):
            if pid not in self._network_of:
                process = Pinned(int(pid))
                self._network_of[pid] = process.link("ns/net")
                self._read(self._network_of[pid], process)
            found = self._by_network.get(self._network_of[pid], {}).get(ends, "")
            return found if found or _ip(row["name"]).is_loopback else self._elsewhere.get(ends, "")
        return ""

    def _read(self, network: str, process: Pinned) -> None:
        if network not in self._by_network and time.thread_time() < self._until_s:
            self._by_network[network] = Descriptors(process, process.memory).connections()

    @cached_property
    def _elsewhere(self) -> Mapping[tuple[str, str], str]:
        """Of all networks of this host that root has made, as those of containers: a connection that several have is nobody's."""
        looked_at = set(self._by_network)
        for pid in reversed(processes()):
            if time.thread_time() > self._until_s or len(looked_at) >= _MOST_NETWORKS:
                break
            with suppress(OSError, TargetError, ValueError):
                network = str(Path(f"/proc/{pid}/ns/net").readlink())
                if network not in looked_at:
                    looked_at.add(network)
                    process = Pinned(pid)
                    if process.link("ns/net") == network and _is_of_root(process):
                        self._read(network, process)
        found: dict[tuple[str, str], str] = {}
        for connections in self._by_network.values():
            for ends, link in connections.items():
                found[ends] = "" if ends in found else link
        return found


def _is_of_root(process: Pinned) -> bool:
    """Whether the network of a process belongs to this one's own user namespace: what is in that of a user's he has made up as he likes."""
    network = process.open("ns/net")
    try:
        owner = fcntl.ioctl(network, _GET_OWNER)
        with os.fdopen(owner):
            return os.fstat(owner).st_ino == Path("/proc/self/ns/user").stat().st_ino
    finally:
        os.close(network)


def _ip(name: str) -> "ipaddress.IPv4Address | ipaddress.IPv6Address":
    """Of address:port. Raises ValueError."""
    return ipaddress.ip_address(name.rpartition(":")[0].strip("[]"))


def _is_near(name: str, local_name: str) -> bool:
    """Whether an address (with its port) may be one of this host's own, or of a network that is only within it."""
    with suppress(ValueError):
        return _ip(name).is_private or name.rpartition(":")[0] == local_name.rpartition(":")[0]
    return False
