"""Python processes by who they are: of a service, in a pod, a container, a unit of systemd; those that run already, and those that start later.

A process may say of itself that it is of any service, so that only selects which processes to inspect, as a command line does (matching.py).
"""

import shlex
import time
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from pytrace_ebpf.errors import HostError, TargetError
from pytrace_ebpf.identity_patterns import Who
from pytrace_ebpf.record.identity.identities import Known
from pytrace_ebpf.record.process.matching import Key, Looking, Matching, command, key_of, processes
from pytrace_ebpf.record.process.pinned import Pinned
from pytrace_ebpf.record.process.shares import Shares, user_of

_FIRST_S = 1.0  # until the second look at a process; each next one comes after twice as long
_LONGEST = 4096  # bytes of a command line


class _Seen(NamedTuple):
    key: Key
    row: Mapping[str, Any]
    due_s: float
    pause_s: float


class Identified:
    """Who processes are, as far as that has come to be known. What it takes to look is charged to their users; of who has cost too much nobody is looked at."""

    def __init__(self, shares: Shares) -> None:
        self._shares, self._seen = shares, dict[int, _Seen]()

    def of(self, pid: int, key: Key) -> Mapping[str, Any]:
        """Columns of trace.identity, command and executable of a process; {} where nothing is known of it."""
        seen, now_s = self._seen.get(pid), time.monotonic()
        if seen is not None and seen.key == key and now_s < seen.due_s:
            return seen.row
        pause_s = 2 * seen.pause_s if seen is not None and seen.key == key else _FIRST_S
        user, row = user_of(pid), seen.row if seen is not None and seen.key == key else {}
        if not self._shares.is_left_alone(user):
            with self._shares.charged(user):
                row = who(pid) or row
        self._seen[pid] = _Seen(key, row, now_s + pause_s, pause_s)
        return row

    def keep(self, pids: Collection[int]) -> None:
        """Forget all others."""
        self._seen = {pid: seen for pid, seen in self._seen.items() if pid in pids}


def who(pid: int) -> dict[str, Any]:
    """Who a process is now, as Identified.of() has it."""
    try:
        process = Pinned(pid)
        known = Known.of(process)
        known.look()
        words = process.read("cmdline", _LONGEST).rstrip(b"\0").split(b"\0")
    except (OSError, TargetError, HostError):
        return {}
    return known.columns | {
        "command": shlex.join(word.decode(errors="replace") for word in words),
        "executable": process.executable_name.encode(errors="replace").decode(),
    }


class Choosing(Looking):
    """Those that fit."""

    def __init__(self, wanted: Who) -> None:
        super().__init__()
        self.sought = f"is known to be of {wanted}"
        self._wanted, self._identified = wanted, Identified(self.shares)

    def _fitting(self) -> dict[int, Key]:
        there = {pid: key for pid in processes() if command(pid) and (key := key_of(pid))}
        self._identified.keep(there)
        return {pid: key for pid, key in there.items() if self._wanted.fits(self._identified.of(pid, key))}


def looking_for(pattern: str) -> Looking:
    """What finds the processes of --match: by who they are, or by their command lines."""
    wanted = Who.parsed(pattern)
    return Choosing(wanted) if wanted else Matching(pattern)
