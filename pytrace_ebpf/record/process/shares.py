"""What each user costs whoever looks at the processes of all: whose turn it is, and who is left alone for a while.

Counted is processor time: this process's own, that of the process without rights that reads for it, and the time that a process lets
that one wait in vain, but for what it waited for a core. It fades, half of it in a minute. Who has cost least comes first; who has cost more than his allowance is left alone until
half of that has faded. A user is who the kernel says that a process belongs to; the users of a namespace of users belong to
who made that, since anybody may have thousands of those.
"""

import fcntl
import os
import re
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Generic, TypeVar

HALF_LIFE_S = 60.0
ALLOWANCE_S = 15.0  # CPython with its libraries takes 1 s, PyTorch with all of its own 8
MOST_SAID = 8  # users in a status
_MOST_USERS = 4096
_PARENT, _OWNER = 0xB702, 0xB704  # NS_GET_PARENT, NS_GET_OWNER_UID of linux/nsfs.h
_MOST_NESTED = 32
_UID = re.compile(rb"^Uid:\t(\d+)", re.MULTILINE)
_meter = threading.local()
Who = TypeVar("Who", bound=Hashable)


def add(seconds: float) -> None:
    """So much was spent elsewhere for what this thread is about."""
    _meter.seconds = getattr(_meter, "seconds", 0.0) + max(seconds, 0.0)


def process_s(pid: int) -> float:
    """The processor time of another process so far, 0 where there is none: CPUCLOCK_SCHED of linux/posix-timers.h."""
    with suppress(OSError):
        return time.clock_gettime(~pid << 3 | 2) if pid else 0.0
    return 0.0


def queued_s(pid: int) -> float:
    """For how long another process has waited for a core so far, 0 where that is not known: /proc/PID/schedstat."""
    with suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/schedstat").read_bytes().split()[1]) / 1e9 if pid else 0.0
    return 0.0


class Fading:
    """Sums by user of what fades with time; of very many users those of who has least are forgotten."""

    def __init__(self, half_life_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._half_life_s, self._clock = half_life_s, clock
        self._sums: dict[int, tuple[float, float]] = {}  # (how much, when)

    def of(self, user: int) -> float:
        """What is left of a user's sum."""
        much, since_s = self._sums.get(user, (0.0, 0.0))
        return float(much * 0.5 ** ((self._clock() - since_s) / self._half_life_s))

    def add(self, user: int, much: float) -> float:
        """Add to a user's sum; returns it."""
        if user not in self._sums and len(self._sums) >= _MOST_USERS:
            self._sums = {each: self._sums[each] for each in self.users()[: _MOST_USERS // 2]}
        now = self.of(user) + much
        self._sums[user] = now, self._clock()
        return now

    def users(self) -> list[int]:
        """All, who has most first."""
        return sorted(self._sums, key=lambda user: -self.of(user))


class Shares:
    """May be used by several threads."""

    def __init__(self, allowance_s: float = ALLOWANCE_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._allowance_s, self._spent = allowance_s, Fading(HALF_LIFE_S, clock)
        self._left_alone: set[int] = set()
        self._times = Counter[int]()  # that a user was left alone
        self._in_all: dict[int, float] = {}
        self._said: list[str] = []
        self._lock = threading.Lock()

    def charge(self, user: int, seconds: float) -> None:
        """So much was spent for a user."""
        with self._lock:
            spent = self._spent.add(user, seconds)
            self._in_all[user] = self._in_all.get(user, 0.0) + seconds
            if len(self._in_all) > 2 * _MOST_USERS:
                self._in_all = {each: self._in_all[each] for each in self._spent.users() if each in self._in_all}
                self._left_alone &= self._in_all.keys()
            if spent > self._allowance_s and user not in self._left_alone:
                self._left_alone.add(user)
                self._times[user] += 1
                self._said.append(
                    f"processes of user {user} are left alone for about {HALF_LIFE_S:.0f} s: to look at them took {spent:.1f} s of processor time lately"
                )

    @contextmanager
    def charged(self, user: int) -> Iterator[None]:
        """What this thread does meanwhile, and has done for it, is charged to a user."""
        before, began_s = getattr(_meter, "seconds", 0.0), time.thread_time()
        _meter.seconds = 0.0
        try:
            yield
        finally:
            spent, _meter.seconds = time.thread_time() - began_s + _meter.seconds, before
            self.charge(user, spent)

    def spent_s(self, user: int) -> float:
        """What is left of what a user has cost."""
        with self._lock:
            return self._spent.of(user)

    def is_left_alone(self, user: int) -> bool:
        """Whether nothing more is to be spent on a user now."""
        with self._lock:
            if user in self._left_alone and self._spent.of(user) <= self._allowance_s / 2:
                self._left_alone.discard(user)
                self._said.append(f"processes of user {user} are looked at again")
            return user in self._left_alone

    def next(self, users: Iterable[int]) -> int | None:
        """Whose turn it is among those: who has cost least, and is not left alone."""
        return min((user for user in users if not self.is_left_alone(user)), key=self.spent_s, default=None)

    def take_said(self) -> list[str]:
        """Who is left alone and who no more, since the last call, a sentence each."""
        with self._lock:
            said, self._said = self._said, []
        return said

    def metadata(self) -> dict[str, Any]:
        """The manifest's `left_alone`: who was so far, those who were most often; nothing where nobody was."""
        with self._lock:
            most = self._times.most_common(MOST_SAID)
        return {"left_alone": [{"user": user, "times": times} for user, times in most]} if most else {}

    def status(self, more: Mapping[int, Mapping[str, Any]] | None = None) -> list[dict[str, Any]]:
        """Of those who have cost most lately; `more`: what else is known of users."""
        with self._lock:
            users = self._spent.users()[:MOST_SAID]
            found = [
                {
                    "user": user,
                    "cpu_s": round(self._in_all[user], 3),
                    "lately_s": round(self._spent.of(user), 3),
                    "left_alone": user in self._left_alone,
                }
                for user in users
            ]
        return [each | dict((more or {}).get(int(each["user"]), {})) for each in found]


class Places(Generic[Who]):
    """So many places for all, which users share: of who wants one while all are taken, one of who has most is to go, unless that is himself."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._users: dict[Who, int] = {}  # by who has a place, the oldest first

    def __len__(self) -> int:
        return len(self._users)

    def __contains__(self, who: Who) -> bool:
        return who in self._users

    def __iter__(self) -> Iterator[Who]:
        return iter(list(self._users))

    def has_room(self, user: int) -> bool:
        """Whether a user gets a place, a free one or another one's."""
        return len(self._users) < self.most or self._most()[1] > self.held(user) + 1

    def take(self, who: Who, user: int) -> Who | None:
        """Take a place, where has_room(); returns who is to go for it, if anybody is."""
        left = None
        if len(self._users) >= self.most:
            largest = self._most()[0]
            left = next(each for each in reversed(self._users) if self._users[each] == largest)
            del self._users[left]
        self._users[who] = user
        return left

    def leave(self, who: Who) -> None:
        """Let a place be free."""
        self._users.pop(who, None)

    def held(self, user: int) -> int:
        """Places that a user has."""
        return sum(each == user for each in self._users.values())

    def by_user(self) -> dict[int, int]:
        """Places by user."""
        counts: dict[int, int] = {}
        for user in list(self._users.values()):
            counts[user] = counts.get(user, 0) + 1
        return counts

    def _most(self) -> tuple[int, int]:
        return max(self.by_user().items(), key=lambda each: each[1], default=(0, 0))


def user_of(pid: int) -> int:
    """Who is charged for a process: its real user, or who made the namespace of users that it is in; 0 where it has ended."""
    try:
        content = Path(f"/proc/{pid}/status").read_bytes()
    except OSError:
        return 0
    found = _UID.search(content)
    user = int(found[1]) if found else 0
    with suppress(OSError):
        return _owner(pid) or user
    return user


def _owner(pid: int) -> int:
    """Who made the outermost namespace of users below this process's that a process is in; 0: root did, or it is in none."""
    own = _identity(os.stat("/proc/self/ns/user"))  # noqa: PTH116 - often
    if _identity(os.stat(f"/proc/{pid}/ns/user")) == own:  # noqa: PTH116
        return 0
    fd = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY)
    try:
        for _ in range(_MOST_NESTED):
            above = fcntl.ioctl(fd, _PARENT)
            if _identity(os.fstat(above)) == own:
                os.close(above)
                return int(struct.unpack("I", fcntl.ioctl(fd, _OWNER, bytes(4)))[0])
            fd, below = above, fd
            os.close(below)
    finally:
        os.close(fd)
    return 0


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino
