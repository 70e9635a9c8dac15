"""Reads what is recorded by numbers (names, lines, the rules of files) beside the loop that takes in everything, and in turns: each user's as he has cost least.

Where all is of one user, who asked for it, it is read at once.
"""

import threading
import time
from collections import deque
from collections.abc import Callable

from pytrace_ebpf.record.parsing.sandbox import PerThread
from pytrace_ebpf.record.process.shares import ALLOWANCE_S, Shares

_MOST_WAITING = 64  # jobs of a user
_LOOK_S = 0.5  # while all who wait are left alone
# At the end: after which who has cost so much lately, or costs so much then, gets no more.
_FAIR_S, _DEAR_S, _LAST_OF_ONE_S, _MOMENT_S = 0.5, ALLOWANCE_S / 3, 1.0, 0.1

Job = Callable[[], None]


class Readings:
    """One thread, and what waits for it. What goes wrong there is raised by the next do()."""

    def __init__(self, shares: Shares | None, name: str, asked: PerThread | None = None) -> None:
        """`shares`: None, everything is done at once, by who asks for it. `asked`: of what the thread asks one of its own."""
        self._shares = shares
        self._asked, self._own = asked, asked.new() if asked and shares else None
        self._waiting: dict[int, deque[Job]] = {}
        self._changed = threading.Condition()
        self._closing = False
        self._busy: int | None = None  # for whom it does something
        self._failed: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"pytrace-{name}", daemon=True) if shares else None
        if self._thread:
            self._thread.start()

    @property
    def beside(self) -> bool:
        """Whether it is done by a thread of its own."""
        return self._shares is not None

    def is_left_alone(self, user: int) -> bool:
        """Whether nothing is done for a user now."""
        return self._shares is not None and (self._closing or self._shares.is_left_alone(user))

    def do(self, user: int, job: Job) -> bool:
        """Do something for a user: in his turn, or now. False, and it is not done: too much of his waits, or he is left alone."""
        if self._shares is None:
            job()
            return True
        if self._failed is not None:
            raise self._failed
        if self._shares.is_left_alone(user):
            return False
        with self._changed:
            jobs = self._waiting.setdefault(user, deque())
            if self._closing or len(jobs) >= _MOST_WAITING:
                return False
            jobs.append(job)
            self._changed.notify_all()
        return True

    def finish(self, within_s: float) -> bool:
        """Wait for what waits, but so long at most, and not for that of users who have cost much; returns whether all was done."""
        end_s, whole = time.monotonic() + within_s, True
        with self._changed:
            began = {user: self._cost_s(user) for user in self._users()}
            if not self._changed.wait_for(lambda: not self._users(), min(within_s, _FAIR_S)):
                while time.monotonic() < end_s and (users := self._users()):
                    dear = {user for user in users if self._cost_s(user) > min(_DEAR_S, began.get(user, 0.0) + _LAST_OF_ONE_S)}
                    whole = not dear and whole
                    for user in dear:
                        self._waiting.pop(user, None)
                    if users <= dear:
                        break
                    self._changed.wait(_MOMENT_S)
            return whole and not self._users()

    def _users(self) -> set[int]:
        """For whom something is done, or waits."""
        return {*self._waiting, *([self._busy] if self._busy is not None else [])}

    def _cost_s(self, user: int) -> float:
        return self._shares.spent_s(user) if self._shares else 0.0

    def close(self) -> None:
        """Do nothing more, and wait for nothing: what is being done has no more answers from a process of its own."""
        with self._changed:
            self._closing = True
            self._waiting.clear()
            self._changed.notify_all()
        if self._own:
            self._own.abandon()

    def join(self, within_s: float) -> None:
        """After close(): wait for the end of the thread."""
        if self._thread:
            self._thread.join(within_s)

    def _run(self) -> None:
        assert self._shares is not None
        if self._asked and self._own:
            self._asked.use(self._own)
        while taken := self._next(self._shares):
            user, job = taken
            try:
                with self._shares.charged(user):
                    job()
            except BaseException as error:
                self._failed = error
                self.close()
            with self._changed:
                self._busy = None
                self._changed.notify_all()

    def _next(self, shares: Shares) -> tuple[int, Job] | None:
        with self._changed:
            while not self._closing:
                user = shares.next([user for user, jobs in self._waiting.items() if jobs])
                if user is not None:
                    self._busy = user
                    job = self._waiting[user].popleft()
                    if not self._waiting[user]:
                        del self._waiting[user]
                    return user, job
                self._changed.wait(_LOOK_S if any(self._waiting.values()) else None)
        return None
