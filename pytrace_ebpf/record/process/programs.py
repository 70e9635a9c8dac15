"""Which programs each process was, one after the other: exec replaces a program, and what replaced it may have ended before anybody looks."""

import shlex
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from pytrace_ebpf.record.process.target import as_text, command_line

_FIRST, _LAST = 1, 9  # earlier programs of a process that are kept: it may execute itself again and again
_MOST_TOLD = 1000  # programs whose exec was not met yet
_MORE = " ..."
_ALIKE = 200  # characters that tell whether a command line is the one whose beginning is known


class Ran:
    """The command lines of processes by the order in which they were executed."""

    def __init__(self) -> None:
        self._now: dict[int, str] = {}
        self._copies: set[int] = set()  # that are still their creator's program
        self._first: dict[int, list[str]] = {}
        self._last: dict[int, deque[str]] = {}
        self._told: dict[tuple[int, int], str] = {}

    def take_in(self, records: np.ndarray) -> None:
        """What the kernel told: rows of struct program_event."""
        for record in records:  # one step per program
            words = bytes(record["words"])[: int(record["size"])].ljust(int(record["size"]), b"\0")
            self._told[int(record["pid"]), int(record["ts"])] = _command(words, int(record["count"]))
        for key in list(self._told)[: max(len(self._told) - _MOST_TOLD, 0)]:
            del self._told[key]

    def forked(self, pid: int) -> None:
        """A new process, which may have the number of an old one, is a copy of its creator."""
        self.forget(pid)
        self._copies.add(pid)

    def seen(self, pid: int, command: str) -> None:
        """This is what `pid` is, unless more is known of it."""
        if command:
            self._now.setdefault(pid, command)

    def executed(self, pid: int, ts: int) -> dict[str, Any]:
        """What its row says of the program that `pid` became at `ts`; {} where that is not known."""
        told, there = self._told.pop((pid, ts), ""), _there(pid)
        same = told.endswith(_MORE) and there.startswith(told[:_ALIKE])  # the kernel told its beginning
        known = there if same or not told else told
        if not known:
            return {}
        before = self._now.get(pid)
        if before is not None and pid not in self._copies and (told or known != before):
            first = self._first.setdefault(pid, [])
            if len(first) < _FIRST:
                first.append(before)
            else:
                self._last.setdefault(pid, deque(maxlen=_LAST)).append(before)
        self._copies.discard(pid)
        self._now[pid] = known
        return {"command": known, "executable": _file(pid, known), "earlier_commands": self.earlier(pid)}

    def earlier(self, pid: int) -> list[str]:
        """What it was before, the first one first."""
        return [*self._first.get(pid, ()), *self._last.get(pid, ())]

    def forget(self, pid: int) -> None:
        """It is gone."""
        for by_pid in (self._now, self._first, self._last):
            by_pid.pop(pid, None)
        self._copies.discard(pid)


def _command(words: bytes, count: int) -> str:
    """As command_line() has it; of what was too long the beginning."""
    more = _MORE if words.count(b"\0") < count else ""
    return shlex.join(word.decode(errors="replace") for word in words.split(b"\0")[:count]) + more


def _there(pid: int) -> str:
    """The command line that a process has now; "" where it has ended."""
    with suppress(OSError):
        return command_line(pid).removeprefix("''")
    return ""


def _file(pid: int, command: str) -> str:
    """The file of its program: of one that has ended that is its first argument, where it is a path."""
    with suppress(OSError):
        return as_text(str(Path(f"/proc/{pid}/exe").readlink()))
    first = command.split(" ", 1)[0]
    return first if first.startswith("/") else ""
