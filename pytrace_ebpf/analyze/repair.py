"""Mend one thread's rows where entries and returns do not match: missing ends are put in where the rest proves them.

The rules are those of a stack of activations:
- a return closes its own activation and, as lost returns, whatever is above it;
- an entry that reuses an open activation's frame proves that one and all above it gone;
- a return of an activation that is not open is an orphan: it gets an entry right before it
  (CPython 3.15: a generator resumed by throw() reports only the return);
- frame 0 is unknown: then only the order counts.
A thread's first rows, and the first after a loss, may also be returns of activations entered before them.
Activations whose rows match, with all that they contain, never reach the stack: only what
is damaged, and what encloses it, is looked at one by one.
"""

from dataclasses import dataclass, field

import numpy as np

from pytrace_ebpf.analyze.pairing import OPEN_AT_START, REPAIRED, UNWOUND, Bools, Rows

SETTLED, FIRST, AFTER_LOSS = 0, 1, 2  # how a thread's chunk begins
MARK, LAST = -2, -3  # `given` of a new row: the stamp of the chunk's beginning, of the thread's last row before it


@dataclass
class _Insertions:
    """Rows to put in: before which row, and their columns."""

    at: list[int] = field(default_factory=list)
    ts: list[int] = field(default_factory=list)
    delta: list[int] = field(default_factory=list)
    flags: list[int] = field(default_factory=list)
    given: list[int] = field(default_factory=list)

    def add(self, at: int, ts: int, delta: int, flags: int, given: int = -1) -> None:
        for column, value in zip(vars(self).values(), (at, ts, delta, flags, given), strict=True):
            column.append(value)


def repair(rows: Rows, carried: int, begins: int, mark_ns: int, last_ns: int) -> Rows:
    """One thread's rows, mended so that levels pair them.

    The first `carried` rows are calls carried over. `begins`: SETTLED, FIRST or AFTER_LOSS; in the last two
    `mark_ns` is since when unseen entries may have happened. `last_ns`: the thread's last event before these rows.
    """
    rest = np.flatnonzero(~_sound(rows, carried))
    stack = _Stack(rows, carried, begins, mark_ns, last_ns)
    for row in rest.tolist():
        stack.take(row, int(rows.delta[row]), int(rows.frame[row]))
    put = stack.insertions()
    count = len(put.at)
    new = Rows(
        np.full(count, rows.thread[0]),
        np.array(put.ts, np.int64),
        np.array(put.delta, np.int8),
        np.full(count, -1, np.int32),
        np.zeros(count, np.int64),
        np.full(count, -1, np.int32),
        np.array(put.flags, np.int8),
        np.array(put.given, np.int32),
    )
    mended = rows.insert(np.array(put.at, np.int64), new)
    return mended.take(mended.delta != 0)


def _sound(rows: Rows, carried: int) -> Bools:
    """Rows of activations that match, with everything inside them; never the carried ones, whose ends the stack must see."""
    order = np.argsort(rows.frame, kind="stable")
    frame, entry = rows.frame[order], rows.delta[order] > 0
    pairs = np.flatnonzero((frame[:-1] == frame[1:]) & entry[:-1] & (rows.delta[order][1:] < 0) & (frame[:-1] != 0))
    partner = np.full(len(rows), -1, np.int64)
    partner[order[pairs]] = order[pairs + 1]
    partner[order[pairs + 1]] = order[pairs]
    # An entry whose frame was left open before proves that one gone: no matter how well it fits itself.
    reuse = np.flatnonzero((frame[:-1] == frame[1:]) & entry[:-1] & entry[1:])
    damaged = partner < 0
    damaged[:carried] = True
    damaged[order[reuse + 1]] = True
    candidates = np.flatnonzero(partner >= 0)
    depth = np.cumsum(rows.delta[candidates], dtype=np.int64) - (rows.delta[candidates] > 0)
    by_level = candidates[np.argsort(depth, kind="stable")]
    crossing = partner[by_level[::2]] != by_level[1::2]
    damaged[by_level[::2][crossing]] = True
    damaged[by_level[1::2][crossing]] = True
    until = np.cumsum(damaged)
    first, last = order[pairs], order[pairs + 1]
    whole = (until[last] - until[first] == 0) & ~damaged[first]
    sound = np.zeros(len(rows), bool)
    sound[first[whole]] = True
    sound[last[whole]] = True
    return sound


class _Stack:
    """The open activations of a thread while its damaged rows go by."""

    def __init__(self, rows: Rows, carried: int, begins: int, mark_ns: int, last_ns: int) -> None:
        self._ts, self._carried, self._begins, self._mark_ns, self._last_ns = rows.ts, carried, begins, mark_ns, last_ns
        self._frames: list[int] = []
        self._place: dict[int, int] = {}  # frame -> index in _frames; of two carried with one frame the later
        self._base = 0  # activations from before the loss that are still on the stack
        self._closed = 0  # of those, how many were found to have ended in it
        self._entered = 0  # activations found to have been entered before the chunk began
        self._base_returned = False
        self._put = _Insertions()
        order = np.argsort(rows.frame, kind="stable")
        frame = rows.frame[order]
        self._seen_before = np.zeros(len(rows), bool)
        self._seen_before[order[1:][(frame[1:] == frame[:-1]) & (frame[1:] != 0)]] = True

    def take(self, row: int, delta: int, frame: int) -> None:
        """The next damaged row."""
        if delta > 0:
            self._enter(row, frame)
        elif delta < 0:
            self._leave(row, frame)
        else:
            self._close_down_to(0, row, UNWOUND)

    def insertions(self) -> _Insertions:
        """The rows to put in, beginnings first."""
        start = self._carried if self._begins == AFTER_LOSS else 0
        flags = REPAIRED if self._begins == AFTER_LOSS else OPEN_AT_START
        beginning = _Insertions()
        for _ in range(self._closed):
            beginning.add(start, self._mark_ns, -1, REPAIRED, MARK)
        for _ in range(self._entered):
            beginning.add(start, self._mark_ns, 1, flags, MARK)
        columns = zip(vars(beginning).values(), vars(self._put).values(), strict=True)
        return _Insertions(*(begun + later for begun, later in columns))

    def _enter(self, row: int, frame: int) -> None:
        if row < self._carried:
            self._base += 1
        elif frame in self._place:
            at = self._place[frame]
            if self._may_have_ended_in_loss(at):
                self._close_in_loss(at)
            else:
                self._close_down_to(at, row, REPAIRED)
        self._push(frame)

    def _leave(self, row: int, frame: int) -> None:
        at = self._place.get(frame, -1)
        if at < 0 and self._frames and (frame == 0 or self._frames[-1] == 0):
            at = len(self._frames) - 1
        if at >= 0:
            if self._may_have_ended_in_loss(at):
                self._close_down_to(self._base, row, REPAIRED)
                self._close_in_loss(at + 1)
            self._close_down_to(at + 1, row, REPAIRED)
            self._pop()
        elif self._may_be_older(row, frame):
            self._entered += 1
        else:
            before = int(self._ts[row - 1]) if row > self._carried else self._last_ns
            given = LAST if row == self._carried else -1
            self._put.add(row, before, 1, REPAIRED, given)

    def _may_be_older(self, row: int, frame: int) -> bool:
        """Whether an activation that is not on the stack can have been entered before this chunk's rows."""
        if self._begins == SETTLED or self._seen_before[row]:
            return False
        if self._begins == FIRST:
            return not self._frames
        return len(self._frames) == self._base and not self._base_returned

    def _may_have_ended_in_loss(self, at: int) -> bool:
        """Whether an activation of the base can have ended in the loss: once one above it returned later, it has not."""
        return self._begins == AFTER_LOSS and at < self._base and not self._base_returned

    def _push(self, frame: int) -> None:
        if frame:
            self._place[frame] = len(self._frames)
        self._frames.append(frame)

    def _pop(self) -> None:
        self._place.pop(self._frames.pop(), None)
        if len(self._frames) < self._base:
            self._base = len(self._frames)
            self._base_returned = True

    def _close_down_to(self, height: int, row: int, flags: int) -> None:
        while len(self._frames) > height:
            self._put.add(row, int(self._ts[row]), -1, flags)
            self._pop()

    def _close_in_loss(self, height: int) -> None:
        """Activations of the base from `height` up ended within the loss; what was entered since stays."""
        gone = self._base - height
        if gone > 0:
            self._closed += gone
            stay = self._frames[:height] + self._frames[self._base :]
            self._base = height
            self._frames, self._place = [], {}
            for frame in stay:
                self._push(frame)
