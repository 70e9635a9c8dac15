"""Values that an agent wrote of one process: each with the moment of the event that it belongs to.

A value names its event by the number among those of its thread, and is written before the thread's next event: so that event was
read together with the value, or is the last one that was read before, or comes with the next look.
"""

from collections.abc import Sequence
from itertools import islice

import numpy as np

from pytrace_ebpf.record.agent.arena import Arena, Damaged, Piece
from pytrace_ebpf.record.output.observed_rows import ARRAY, KINDS, SIZED, TENSOR, TEXT
from pytrace_ebpf.record.output.statement_rows import STATEMENT
from pytrace_ebpf.record.output.tables import Columns
from pytrace_ebpf.trace.client_functions import FUNCTIONS
from pytrace_ebpf.trace.observed import VALUE_STATUSES, WHATS

MOST_THREADS = 4096
_SIZES = 8  # bytes of one


class Values:
    """Of one arena."""

    def __init__(self) -> None:
        self.lost = 0  # whose event is not known
        self._names = np.full(1024, None, object)  # by the agent's id
        self._events: dict[int, list[tuple[int, np.ndarray]]] = {}  # by thread: pieces, the number of their first event and when each was
        self._firsts: dict[int, np.ndarray] = {}  # by thread: these numbers
        self._last: dict[int, tuple[int, np.ndarray]] = {}  # by thread: the last event that was read before; the thread that wrote last is last
        self._waiting: list[tuple[int, int, np.ndarray]] = []  # (thread, tid, values) whose event was not there yet

    def name(self, number: int, text: str) -> None:
        """What an id stands for."""
        if number >= len(self._names):
            self._names = np.concatenate((self._names, np.full(number, None, object)))
        self._names[number] = text

    def met(self, pieces: Sequence[Piece], ts: np.ndarray) -> None:
        """These events were read; `ts` of all of them."""
        at = 0
        for piece in pieces:
            self._events.setdefault(piece.thread, []).append((piece.number, ts[at : at + piece.size]))
            at += piece.size

    def take(self, arena: Arena, pieces: Sequence[Piece], tids: dict[int, int], pid: int) -> list[Columns]:
        """Columns of `observed` and of statements.by_table()'s other tables, their values as `record`; all events that were read have been met before. Raises Damaged."""
        waiting, self._waiting = self._waiting, []
        new = [(piece.thread, tids[piece.tid], _checked(arena.values(piece))) for piece in pieces]
        arena.give_back(list(pieces))
        batches = [self._columns(thread, tid, values, pid, again) for some, again in ((waiting, False), (new, True)) for thread, tid, values in some]
        self._go_on()
        return [batch for batch in batches if len(batch["ts"])]

    def _go_on(self) -> None:
        """Of each thread its last event alone is kept, and only of so many threads: any number may have ended."""
        for thread, (number, ts) in ((thread, met[-1]) for thread, met in self._events.items() if met):
            self._last.pop(thread, None)
            self._last[thread] = number + len(ts) - 1, ts[-1:].copy()
        self._events.clear()
        self._firsts.clear()
        for thread in list(islice(self._last, max(0, len(self._last) - MOST_THREADS))):
            del self._last[thread]

    def _columns(self, thread: int, tid: int, values: np.ndarray, pid: int, again: bool) -> Columns:
        ts = self.moments(thread, values["event"])
        known = ts >= 0
        if not known.all():
            if again:
                self._waiting.append((thread, tid, values[~known]))
            else:
                self.lost += int((~known).sum())
            values, ts = values[known], ts[known]
        return {
            "ts": ts,
            "pid": np.full(len(ts), pid, np.int32),
            "tid": np.full(len(ts), tid, np.int32),
            "name": self._named(values["name"]),
            "type": self._named(values["type"]),
            "record": values,
        }

    def moments(self, thread: int, numbers: np.ndarray) -> np.ndarray:
        """When the events of these numbers were, -1 where they were not met."""
        moments = np.full(len(numbers), -1, np.int64)
        if thread not in self._firsts:
            last = [self._last[thread]] if thread in self._last else []
            met = self._events[thread] = [*last, *self._events.get(thread, [])]
            self._firsts[thread] = np.array([number for number, _ in met], np.int64)
        first = self._firsts[thread]
        numbers = np.minimum(numbers, np.uint64(1 << 62)).astype(np.int64)
        place = np.searchsorted(first, numbers, "right") - 1
        for of in np.unique(place[place >= 0]).tolist():  # of the few pieces in which there are such events
            ts, at = self._events[thread][of][1], numbers - first[of]
            known = (place == of) & (at >= 0) & (at < len(ts))
            moments[known] = ts[at[known]]
        return moments

    def _named(self, numbers: np.ndarray) -> np.ndarray:
        named = self._names[np.minimum(numbers, len(self._names) - 1)]
        named[numbers >= len(self._names)] = None
        return named


def _checked(values: np.ndarray) -> np.ndarray:
    """Values that an agent can have written. Raises Damaged."""
    room = values["data"].shape[1]
    right = ((values["what"] < len(WHATS)) | (values["what"] == STATEMENT)) & (values["status"] < len(VALUE_STATUSES)) & (values["kind"] < KINDS)
    right &= (values["size"] <= room) & (values["length"] >= 0) & (values["position"] < 1 << 15)
    has_sizes = np.isin(values["kind"], (ARRAY, TENSOR))
    right &= (values["what"] != STATEMENT) | ((values["kind"] == TEXT) & (values["position"] < len(FUNCTIONS)))
    right &= ~has_sizes | (values["size"] == _SIZES * np.minimum(values["length"], room // _SIZES))
    right &= (values["kind"] != SIZED) | (values["size"] == 0)
    if not right.all():
        raise Damaged("holds a value that no agent writes")
    return values
