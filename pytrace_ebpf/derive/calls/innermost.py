"""Which call was open innermost on a thread at a moment, and of which function it is, without rows of calls."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from pytrace_ebpf.derive.scheduling.last_at import last_at
from pytrace_ebpf.derive.store import checked_rows
from pytrace_ebpf.rebuild.answers import Answers, Library
from pytrace_ebpf.rebuild.library import NO_ANSWER
from pytrace_ebpf.rebuild.shards import Shards

NO_CALL = -1
_ASKED = "asked"
_FUNCTIONS = [Answers._fields.index(name) for name in ("entry", "own", "own_called")]

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.integer[Any]]


class Moments:
    """Moments that are asked for while engines go over a trace: of each thread and moment once, for as long as somebody wants to know."""

    def __init__(self, engines: Shards, library: Library) -> None:
        """`library`: as of Engine.ask()."""
        self._engines, self._library = engines, library
        self._key, self._ts = np.zeros((2, 0), np.int64)
        self._found = engines.ask(self._key, self._ts, library)

    def __len__(self) -> int:
        return len(self._key)

    def ask(self, key: Ints, ts: Ints) -> None:
        """From here on these moments ts of threads (pid << 32 | tid), in any order, and no others: what is known of them is kept."""
        order = np.lexsort((ts, key))
        key, ts = key[order], ts[order]
        first = np.append(True, (key[1:] != key[:-1]) | (ts[1:] != ts[:-1])) if len(key) else np.zeros(0, bool)
        key, ts = key[first], ts[first]
        known = self.answers(key, ts)
        self._key, self._ts = key, ts
        self._found = self._engines.ask(key, ts, self._library, known)

    def state(self) -> dict[str, Ints]:
        """What is asked and known, for resume()."""
        return {_ASKED: np.stack((self._key, self._ts, *(column.astype(np.int64) for column in self._found())))}

    def resume(self, state: Mapping[str, Ints]) -> None:
        """Go on from there, with engines that do. Raises KeyError, and ValueError for what is no such state."""
        key, ts, *known = checked_rows(state[_ASKED], np.dtype(np.int64), 2 + len(Answers._fields))
        if not np.array_equal(np.lexsort((ts, key)), np.arange(len(key))) or any((known[at] >= len(self._library)).any() for at in _FUNCTIONS):
            raise ValueError("no such state")
        self._key, self._ts = key, ts
        self._found = self._engines.ask(key, ts, self._library, Answers(*known))

    def settle(self, ns: int) -> None:
        """Answer those before `ns` by the calls that are open now, whatever is still to come."""
        self._engines.settle(ns)

    def answers(self, key: Ints, ts: Ints) -> Answers:
        """What is known of moments by now; NO_ANSWER of one that is not known, or was not asked for."""
        place = last_at(self._key, self._ts, key, ts)
        there = place >= 0
        there[there] = self._ts[place[there]] == ts[there]
        out = Answers(*np.full((len(Answers._fields), len(key)), NO_ANSWER, np.int64))
        for column, found in zip(out, self._found(), strict=True):
            column[there] = found[place[there]]
        return out
