"""Looks at processes beside each other, one of each user at a time: who makes that take long keeps nobody else waiting.

There are a few lanes, each a thread with a process without rights of its own. Where all are taken and another user waits who has cost less,
who has cost most is put aside: his process is looked at again when it is his turn.
"""

import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from pytrace_ebpf.record.parsing import sandbox
from pytrace_ebpf.record.process import descriptors
from pytrace_ebpf.record.process.shares import Shares

_LONG_S = 1.0  # for which a look has its lane whoever waits
_ENDS_S = 0.3
What = TypeVar("What", bound=Hashable)
Seen = TypeVar("Seen")


@dataclass(eq=False)
class _Look(Generic[What, Seen]):
    what: What
    user: int
    asked: sandbox.Sandbox
    since_s: float
    seen: Seen | None = None
    failed: BaseException | None = None
    is_over: bool = False
    is_aside: bool = False


class Lanes(Generic[What, Seen]):
    """One thread begins looks and takes what they saw."""

    def __init__(self, shares: Shares) -> None:
        """`shares`: who pays for a look."""
        self._shares, self._most = shares, descriptors.looked_at()
        self._looks: dict[int, _Look[What, Seen]] = {}  # by user
        self._threads: dict[int, threading.Thread] = {}
        self._free: list[sandbox.Sandbox] = []
        self._changed = threading.Condition()
        self.is_closed = False

    def start(self) -> None:
        """Begin to start what the first look needs, which imports meanwhile."""
        self._free.append(sandbox.parsers.new())
        self._free[0].start()

    @property
    def users(self) -> set[int]:
        """For whom something is looked at."""
        return set(self._looks)

    def under_way(self) -> set[What]:
        """What is looked at."""
        return {look.what for look in self._looks.values()}

    def has_room(self) -> bool:
        """Whether a look can begin."""
        return len(self._looks) < self._most and not self.is_closed

    def begin(self, what: What, user: int, see: Callable[[], Seen]) -> None:
        """Look at something for a user of whom nothing is looked at, where there is room."""
        look = self._looks[user] = _Look(what, user, self._free.pop() if self._free else sandbox.parsers.new(), time.monotonic())
        self._threads[user] = threading.Thread(target=self._see, args=(look, see), name="pytrace-look", daemon=True)
        self._threads[user].start()

    def take(self) -> list[tuple[What, Seen | None]]:
        """What was seen since the last call; nothing of what was put aside. Raises what went wrong."""
        taken = []
        for look in [look for look in self._looks.values() if look.is_over]:
            del self._looks[look.user], self._threads[look.user]
            self._free.append(look.asked)
            if look.failed is not None:
                raise look.failed
            taken.append((look.what, None if look.is_aside else look.seen))
        return taken

    def wait(self, seconds: float) -> None:
        """Until there is something to take, or so long."""
        with self._changed:
            self._changed.wait_for(lambda: self.is_closed or any(look.is_over for look in self._looks.values()), seconds)

    def is_aside(self, what: What) -> bool:
        """Whether that is still to be seen to."""
        return any(look.what == what and look.is_aside for look in self._looks.values())

    def make_room(self, user: int) -> None:
        """Put aside the look of who has cost most, if it takes long already and that is more than this user has cost."""
        now_s, looks = time.monotonic(), [look for look in self._looks.values() if not look.is_aside]
        cost = {look.user: self._shares.spent_s(look.user) + now_s - look.since_s for look in looks}
        dearest = max(looks, key=lambda look: cost[look.user], default=None)
        if dearest and now_s - dearest.since_s >= _LONG_S and cost[dearest.user] > self._shares.spent_s(user):
            dearest.is_aside = True
            dearest.asked.put_aside()

    def close(self) -> None:
        """Look at nothing more, whatever takes long just now."""
        with self._changed:
            self.is_closed = True
            self._changed.notify_all()
        for asked in [*self._free, *(look.asked for look in list(self._looks.values()))]:
            asked.abandon()
        end_s = time.monotonic() + _ENDS_S
        for thread in list(self._threads.values()):
            thread.join(max(0.0, end_s - time.monotonic()))

    def _see(self, look: _Look[What, Seen], see: Callable[[], Seen]) -> None:
        sandbox.parsers.use(look.asked)
        try:
            with self._shares.charged(look.user):
                look.seen = see()
        except BaseException as error:
            look.failed = error
        with self._changed:
            look.is_over = True
            self._changed.notify_all()
