"""Which functions are held by whom, of processes of several users: none takes all places, and what nobody holds any more is forgotten."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from pytrace_ebpf.record.process.shares import Fading, Shares

MOST_OF_ONE = 1 << 17  # that a user has at a time: a large service has 20,000
NEW_OF_ONE, _HALF_LIFE_S = 1 << 17, 600.0  # and that come new, where they are forgotten: 150 a second for ever
_FULL_S = 60.0


class Owners:
    """To whom the functions of processes belong, and what it takes to learn them is charged."""

    def __init__(self, shares: Shares, user: Callable[[int], int]) -> None:
        """`user`: of a process."""
        self._shares, self.user = shares, user

    @contextmanager
    def reading(self, pid: int) -> Iterator[int]:
        """See functions.Functions.reading()."""
        user = self.user(pid)
        with self._shares.charged(user):
            yield user


class Holdings:
    """Not safe for threads by itself."""

    def __init__(self, most: int, forgets: bool, clock: Callable[[], float] = time.monotonic) -> None:
        """`most`: places in all."""
        self.forgets = forgets
        self.forgotten: list[int] = []
        self._free, self._clock = most, clock
        self._owned, self._came = Counter[int](), Fading(_HALF_LIFE_S, clock)
        self._full: dict[int, float] = {}
        self._of: dict[int, tuple[bytes, int]] = {}  # key and owner by func_id
        self._held = Counter[int]()
        self._idle: dict[int, bool] = {}  # whether a segment was closed since

    def takes(self, func_id: int, key: bytes, user: int) -> bool:
        """Whether a user gets one more place: half of those that the others left at most. It is held by nobody yet."""
        owned = self._owned[user]
        if 2 * owned >= self._free + owned or (self.forgets and (owned >= MOST_OF_ONE or self._came.of(user) >= NEW_OF_ONE)):
            self._full[user] = self._clock()
            return False
        self._owned[user] += 1
        self._free -= 1
        if self.forgets:
            self._came.add(user, 1)
            self._of[func_id], self._idle[func_id] = (key, user), False
        return True

    def is_full(self, user: int) -> bool:
        """Whether takes() said no to a user lately."""
        return self._clock() - self._full.get(user, -_FULL_S) < _FULL_S

    def hold(self, func_ids: Iterable[int]) -> None:
        """Keep these."""
        if self.forgets:
            for func_id in func_ids:
                self._held[func_id] += 1
                self._idle.pop(func_id, None)

    def release(self, func_ids: Iterable[int]) -> None:
        """Keep them no longer, unless others do."""
        for func_id in func_ids if self.forgets else ():
            self._held[func_id] -= 1
            if self._held[func_id] <= 0:
                del self._held[func_id]
                self._idle[func_id] = False

    def forget(self) -> list[bytes]:
        """The keys of what nobody held since before the last call; `forgotten` are their ids."""
        self.forgotten = [func_id for func_id, waited in self._idle.items() if waited and func_id in self._of]
        keys = []
        for func_id in self.forgotten:
            key, user = self._of.pop(func_id)
            keys.append(key)
            self._owned[user] -= 1
            self._free += 1
        self._idle = dict.fromkeys((func_id for func_id in self._idle if func_id in self._of), True)
        return keys
