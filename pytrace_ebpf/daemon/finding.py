"""Finds the Python processes that the policy is about, as they start: a look at /proc every second.

Each process is looked at when it is new, a few times while it is young (it may still call exec), and then every ten seconds in turn, so
that a look takes some milliseconds however many there are. Users share the places that there are for processes to be sampled: of who has most of them one
goes when another comes who has fewer.
"""

import time
from collections import Counter, deque
from dataclasses import dataclass, replace

from pytrace_ebpf.daemon.configuration import Configuration
from pytrace_ebpf.daemon.policy import IGNORE, RECORD, SAMPLE, Rule, decide, read
from pytrace_ebpf.errors import HostError, TargetError
from pytrace_ebpf.record.identity.choosing import Identified
from pytrace_ebpf.record.process import descriptors
from pytrace_ebpf.record.process.matching import Key, Looking, command, key_of, processes
from pytrace_ebpf.record.process.shares import Places
from pytrace_ebpf.record.process.target import Target

_YOUNG_S = 5.0
_TURNS = 10  # looks in which every process is looked at once


@dataclass
class _Seen:
    since_s: float
    key: Key | None  # None: not wanted
    rule: Rule


class Finding(Looking):
    """Those to sample are handed to the session; those to record besides are taken by take_to_record()."""

    patient = True

    def __init__(self, configuration: Configuration) -> None:
        super().__init__()
        self._policy, self._otherwise = configuration.rules, configuration.otherwise
        self.most = min(configuration.max_processes, descriptors.enough_for())  # that are sampled
        self._identified = Identified(self.shares) if any(rule.asks_who for rule in self._policy) else None
        self._places: Places[int] = Places(self.most)
        self._to_let_go: deque[int] = deque()
        self._seen: dict[int, _Seen] = {}
        self._turn = 0
        self._handed: dict[int, Key] = {}  # to be sampled
        self._to_record: deque[tuple[int, Rule]] = deque()
        self._recorded: set[Key] = set()
        self._left_out: dict[int, Key] = {}  # not sampled because there are so many, the first of them first

    def take_to_record(self) -> list[tuple[int, Rule]]:
        """Processes that came to be recorded since the last call, and by which rule."""
        return [self._to_record.popleft() for _ in range(len(self._to_record))]

    @property
    def handed(self) -> int:
        """Living processes that were handed out to be sampled."""
        return len(self._handed)

    @property
    def left_out(self) -> int:
        """Living processes that are not sampled because there are so many."""
        return len(self._left_out)

    @property
    def ignored(self) -> int:
        """Processes that the policy leaves out, of whatever kind."""
        return sum(seen.rule.action == IGNORE for seen in list(self._seen.values()))

    def _takes(self, pid: int, key: Key, found: Target | TargetError | HostError) -> bool:
        rule = self._seen[pid].rule
        if isinstance(found, Exception):
            return True
        if rule.action == RECORD and key not in self._recorded:
            self._recorded.add(key)
            self._to_record.append((pid, rule))
        user = self._users.get(key, 0)
        if not self._places.has_room(user):
            self._left_out[pid] = key
            return False
        left = self._places.take(pid, user)
        if left is not None:
            self._left_out[left] = self._handed.pop(left)
            self._to_let_go.append(left)
        self._handed[pid] = key
        self._left_out.pop(pid, None)  # it could not be looked at before
        return True

    def take_let_go(self) -> list[int]:
        """Processes of users with many of them, which are not sampled any longer as others came."""
        if self._looking is not None:  # who goes may not have been handed out yet
            return []
        return [self._to_let_go.popleft() for _ in range(len(self._to_let_go))]

    def users(self) -> dict[int, dict[str, int]]:
        """Of each user the living processes that are sampled, and those that are not because there are so many."""
        out = Counter(user for key in list(self._left_out.values()) if (user := self._users.get(key)) is not None)
        sampled = self._places.by_user()
        return {user: {"sampled": sampled.get(user, 0), "too_many": out[user]} for user in sampled.keys() | out.keys()}

    def _leave_out(self, pid: int, key: Key) -> None:
        self._left_out[pid] = key

    def _fitting(self) -> dict[int, Key]:
        now, there = time.monotonic(), processes()
        self._turn = (self._turn + 1) % _TURNS
        seen = {pid: known for pid in there if (known := self._seen.get(pid))}
        for pid in there:
            known = seen.get(pid)
            if known is None or now - known.since_s < _YOUNG_S or pid % _TURNS == self._turn:
                seen[pid] = self._see(pid, known, now)
        self._seen = seen
        if self._identified:
            self._identified.keep(seen)
        self._handed = {pid: key for pid, key in self._handed.items() if pid in seen and seen[pid].key == key}
        self._left_out = {pid: key for pid, key in self._left_out.items() if pid in seen and seen[pid].key == key}
        self._recorded = {key for key in self._recorded if key[0] in seen and seen[key[0]].key == key}
        for pid in [pid for pid in self._places if pid not in self._handed]:
            self._places.leave(pid)
        for pid in self._next_in(self.most - len(self._places)):
            self._judged.discard(self._left_out.pop(pid))
        return {pid: each.key for pid, each in seen.items() if each.key}

    def _next_in(self, free: int) -> list[int]:
        """Of those that are left out so many as there are places, of users with few of them first: others ended, and these are looked at again."""
        held, found = Counter(self._places.by_user()), list[int]()
        waiting = {pid: self._users.get(key, 0) for pid, key in self._left_out.items()} if free > 0 else {}
        for _ in range(min(free, len(waiting))):
            pid = min(waiting, key=lambda pid: held[waiting[pid]])
            held[waiting.pop(pid)] += 1
            found.append(pid)
        return found

    def _see(self, pid: int, known: _Seen | None, now: float) -> _Seen:
        key = key_of(pid)
        if known and known.key == key and known.rule.action in (SAMPLE, RECORD):
            return known
        words = command(pid) if key else b""
        process = read(pid, words) if words else None
        if process is None or key_of(pid) != key:  # it ended meanwhile, or is a thread of the kernel
            return _Seen(known.since_s if known else now, None, Rule(IGNORE))
        if self._identified and key:
            process = replace(process, who=self._identified.of(pid, key))
        rule = decide(self._policy, self._otherwise, process)
        since = known.since_s if known and known.key in (key, None) else now
        return _Seen(since, None if rule.action == IGNORE else key, rule)
