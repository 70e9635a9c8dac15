"""Who each recorded process is, as that comes to be known: at once by its environment and control groups, some moments later by the node's files and by what it publishes.

A container's names and a program's process context may come when the process has long begun, so they are looked for again, each time after twice as long. A row that
changes is written again, and the last one counts for who reads.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pytrace_ebpf.record.identity import groups
from pytrace_ebpf.record.identity.environment import said, variables
from pytrace_ebpf.record.identity.groups import Groups
from pytrace_ebpf.record.identity.identity import UNKNOWN, identity
from pytrace_ebpf.record.identity.node import names
from pytrace_ebpf.record.identity.published import published
from pytrace_ebpf.record.process import ranks
from pytrace_ebpf.record.process.pinned import Pinned
from pytrace_ebpf.record.process.readings import Readings

_MOST_BYTES = 1 << 20  # of an environment, or of a list of control groups
_FIRST_S = 1.0  # until the second look; each next one comes after twice as long
_LAST_S = 1.0  # for all looks at the end
_LATER_S = 1.0  # where too much of its user's waits

NOT_SAID: dict[str, Any] = ranks.UNKNOWN | UNKNOWN
"""The columns of schema.PROCESSES that a process of which nothing is known has."""


@dataclass
class Known:
    """What is known of one process."""

    process: Pinned | None  # None: it has ended
    groups: Groups = field(default_factory=Groups)
    environment: dict[str, str] = field(default_factory=dict)
    published: dict[str, str] = field(default_factory=dict)
    node: dict[str, str] = field(default_factory=dict)
    columns: dict[str, str | None] = field(default_factory=dict)

    @classmethod
    def of(cls, process: Pinned) -> "Known":
        """By what is read at once."""
        known = cls(process)
        with suppress(OSError):
            known.environment = said(variables(process.read("environ", _MOST_BYTES)))
        with suppress(OSError):
            known.groups = groups.groups(groups.paths(process.read("cgroup", _MOST_BYTES).decode("utf-8", "replace")))
        known.put_together()
        return known

    @property
    def is_unnamed(self) -> bool:
        """Whether it is in a container of which the node does not say yet what it is called."""
        return bool(self.groups.container_id or self.groups.pod_uid) and not self.node

    def look(self) -> None:
        """Learn what comes later: of the node also when the process has ended."""
        if self.groups.believed or self.groups.pod_uid:
            self.node = names(self.groups.container_id, self.groups.pod_uid) or self.node
        if (process := self.process) is not None:
            with suppress(OSError):
                self.published = published(process) or self.published
        self.put_together()

    def put_together(self) -> None:
        """Make the columns of it."""
        self.columns = identity(self.groups, self.environment | self.published, self.node)


class Identities:
    """Those of the processes that are recorded."""

    def __init__(self, readings: Readings, user: Callable[[int], int] = lambda pid: 0) -> None:
        """`readings` do what takes a while; `user`: of a process."""
        self._readings, self._user = readings, user
        self._known: dict[int, Known] = {}
        self._due: dict[int, tuple[float, float]] = {}  # when to look, on time.monotonic(), and how long after that again
        self._next_s = 0.0  # no look is due before
        self._learned: deque[tuple[int, Known]] = deque()

    def begun(self, process: Pinned) -> dict[str, Any]:
        """What is known at once of a process, or of the program that it is now: NOT_SAID's columns."""
        known = self._known[process.pid] = Known.of(process)
        self._due[process.pid], self._next_s = (time.monotonic(), _FIRST_S), 0.0
        return ranks.rank_of(process) | known.columns

    def ended(self, pid: int) -> None:
        """It has, and its files are closed; the node's may still come to name it."""
        if pid in self._known:
            self._known[pid].process = None

    def forget(self, pid: int) -> None:
        """Its row is kept no more."""
        self._known.pop(pid, None)
        self._due.pop(pid, None)

    def learned(self, last: bool = False) -> Iterator[tuple[int, dict[str, str | None]]]:
        """Which processes have other columns since the last call. `last`: look once more for containers without a name."""
        now = time.monotonic()
        if last or self._next_s <= now:
            for pid in [pid for pid, (due, _) in self._due.items() if due <= now or (last and self._known[pid].is_unnamed)]:
                pause_s, known = self._due[pid][1], self._known[pid]
                done = self._readings.do(self._user(pid), partial(self._look, pid, known))
                self._due[pid] = (now + pause_s, 2 * pause_s) if done else (now + _LATER_S, pause_s)
            self._next_s = min((due for due, _ in self._due.values()), default=now + _LATER_S)
        if last:
            self._readings.finish(_LAST_S)
        while self._learned:
            pid, known = self._learned.popleft()
            if self._known.get(pid) is known:
                yield pid, known.columns

    def _look(self, pid: int, known: Known) -> None:
        before = known.columns
        known.look()
        if known.columns != before:
            self._learned.append((pid, known))
