"""How the work and the room that sampling has are shared, where its processes are of several users: nobody's many stacks are at another one's expense."""

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from pytrace_ebpf.record.process.shares import Shares
from pytrace_ebpf.record.sampling.stacks import Program

MOST_NODES = 1 << 18  # of the tree of a segment, where several users have some; a host with 100 busy services has 30,000
MOST_OF_ONE = 1 << 22  # frames and lines kept of all programs of a user
_MOST_KNOWN = 1 << 20  # and of one program; then all its stacks are reported again
_AT_A_TIME = 64  # stack events that are learned in one turn: 2,000 frames
_ANEW_S = 30.0


def parts(reported: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """stack_event records, so many at a time that others get their turn, whole stacks: (stacks, records)."""
    stacks, which = np.unique(reported["stack"], return_inverse=True)
    ends = np.cumsum(np.bincount(which, minlength=len(stacks)))
    at = 0
    while at < len(stacks):
        until = max(at + 1, int(np.searchsorted(ends, (ends[at - 1] if at else 0) + _AT_A_TIME, "right")))
        yield until - at, reported[(which >= at) & (which < until)]
        at = until


def is_to_begin_anew(program: Program, shares: Shares | None, is_full: Callable[[int], bool]) -> bool:
    """Whether all that a program runs is to be reported again: too much of it is known, or there was too much to learn it. `is_full`: of functions, by user."""
    if program.size > _MOST_KNOWN:
        return True
    if shares is None or not (program.stale or is_full(program.user)) or time.monotonic() - program.since_s < _ANEW_S:
        return False
    return not program.learning and not shares.is_left_alone(program.user)


def crowded(programs: Iterable[Program]) -> Program | None:
    """The largest program of a user of whose programs too much is known in all."""
    sizes, largest = Counter[int](), dict[int, Program]()
    for program in programs:
        sizes[program.user] += program.size
        largest[program.user] = max(largest.get(program.user, program), program, key=lambda each: each.size)
    return next((largest[user] for user, size in sizes.items() if size > MOST_OF_ONE), None)


def in_turn(places: Sequence[int], users: Sequence[int], grown: Callable[[], int], most: int = MOST_NODES) -> Iterator[int]:
    """Those of `places`, stacks of `users`, for whose nodes there is room: each user gets the same, and what some do not need the others.

    `grown`: how many nodes there are, so that what a stack takes is seen when the next one is asked for.
    """
    waiting: dict[int, deque[int]] = {}
    for place, user in zip(places, users, strict=True):
        waiting.setdefault(user, deque()).append(place)
    left = most
    while waiting and left > 0:
        share = max(1, left // len(waiting))
        for user in list(waiting):
            began = grown()
            while waiting[user] and grown() - began < share:
                yield waiting[user].popleft()
            left -= grown() - began
            if not waiting[user]:
                del waiting[user]
