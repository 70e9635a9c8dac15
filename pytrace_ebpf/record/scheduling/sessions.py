"""What PostgreSQL's server processes of this host say of themselves: that a session waits for a lock which another one has.

Each rewrites its own command line: "postgres: user database 127.0.0.1(41234) UPDATE waiting". A wait for a lock and a slow statement look the same from outside.
A program that calls itself so can only speak of connections of its own.
"""

import re
import time
from contextlib import suppress
from typing import Any

from pytrace_ebpf.record.process.matching import command

COMMANDS = ("postgres", "postmaster")
_MOST, _AT_ONCE = 256, 16  # sessions, and of these in one look
_EVERY_S = 0.1
_MORE = 1.25  # a row is handed out again when it has been looked at so much more often
_IDLE = re.compile(rb"(?:idle(?: in transaction(?: \(aborted\))?)?|authentication|startup)$")
_WAITS = b" waiting"

Row = dict[str, Any]


class Sessions:
    """Memory is bounded by _MOST rows. Not for several threads at a time, but for due()."""

    def __init__(self) -> None:
        self._rows: dict[int, Row] = {}  # of schema.RESOURCES; the one that was looked at last is the last
        self._told: dict[int, int] = {}
        self._next_s = 0.0

    def watch(self, row: Row) -> None:
        """Look at the server process of a connection, a row of schema.RESOURCES with its other end, from now on, if it is one."""
        if row["kind"] == "tcp" and row["peer_command"] in COMMANDS and len(self._rows) < _MOST:
            self._rows[int(row["resource_id"])] = row

    def due(self) -> bool:
        """Whether it is time for the next look."""
        return bool(self._rows) and time.monotonic() >= self._next_s

    def look(self) -> list[Row]:
        """Look at some, in turn; the rows that say something new."""
        self._next_s = time.monotonic() + _EVERY_S
        told = []
        for number in list(self._rows)[:_AT_ONCE]:
            row = self._rows.pop(number)
            waits = _waits_for_lock(row)
            if waits is None:
                self._told.pop(number, None)
                continue
            row = row | {"peer_looks": row["peer_looks"] + waits[0], "peer_lock_waits": row["peer_lock_waits"] + waits[1]}
            self._rows[number] = row
            if row["peer_looks"] > _MORE * self._told.get(number, 0):
                self._told[number] = row["peer_looks"]
                told.append(row)
        return told


def _waits_for_lock(row: Row) -> tuple[bool, bool] | None:
    """Whether the server process of a connection works for it, and whether it waits for a lock; None where it is gone, or has another connection."""
    words = b""
    with suppress(OSError):
        words = command(row["peer_pid"]).rstrip()
    address, _, port = row["local_name"].rpartition(":")
    if f" {address.strip('[]')}({port}) ".encode() not in words:
        return None
    return not _IDLE.search(words), words.endswith(_WAITS)
