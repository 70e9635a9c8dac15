"""Which task calls are of: of the outermost coroutine that they are called through, all of its resumes taken together; else of their thread."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from pytrace_ebpf.rules.calls import RESUMED, YIELDED, Calls, joined
from pytrace_ebpf.rules.paths import NONE, Paths
from pytrace_ebpf.rules.rule import COROUTINE, Group

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
_GROUP: Group = (COROUTINE,)
_FIRST = -2  # tasks have numbers from here downwards: those of threads are not negative


class Tasks:
    """Takes calls a segment at a time. Kept are the numbers of suspended coroutines, and calls within a resume that has not ended."""

    def __init__(self, coroutines: Bools) -> None:
        self._coroutines = coroutines
        self._next, self._suspended = _FIRST, dict[tuple[int, int], int]()  # by process and frame
        self._waiting: list[Calls] = []

    @property
    def above(self) -> Mapping[Group, Bools]:
        """The groups of which it has to be known where they lie above."""
        return {_GROUP: self._coroutines}

    @property
    def left(self) -> int:
        """How many calls wait for the end of what they are called through."""
        return sum(map(len, self._waiting))

    def take(self, calls: Calls, wanted: Bools, paths: Paths) -> tuple[Calls, Ints]:
        """Of the functions `wanted` the calls whose task is known by now, and the number of each one's."""
        resumes = calls.of(self._coroutines)
        resumes = resumes.where(paths.outermost(_GROUP, resumes["node"]) == NONE)
        resumes = resumes.where(np.argsort(resumes["call_id"], kind="stable"))
        task = self._numbers(resumes)
        own = joined([*self._waiting, calls.of(wanted)])
        within = self._coroutines[own["func_id"]] | (paths.outermost(_GROUP, own["node"]) != NONE)
        place = np.searchsorted(resumes["call_id"], own["call_id"], "right") - 1
        found = within & (place >= 0) & (own["call_id"] <= np.append(resumes["last_descendant_id"], -1)[place])
        self._waiting = [own.where(within & ~found)]
        scope = np.where(found, np.append(task, 0)[place], own.thread)
        ready = ~within | found
        return own.where(ready), scope[ready]

    def _numbers(self, resumes: Calls) -> Ints:
        """Of each the number of its task: a new one where it begins, that of its frame where it goes on."""
        order = np.lexsort((resumes["call_id"], resumes["start_ns"], resumes["frame"], resumes["pid"]))
        frame, pid = resumes["frame"][order], resumes["pid"][order]
        goes_on, yields = resumes.has(RESUMED)[order], resumes.has(YIELDED)[order]
        same = np.append(False, (frame[1:] == frame[:-1]) & (pid[1:] == pid[:-1]) & (frame[1:] != 0))[: len(frame)]
        begins = ~same | ~goes_on
        at = np.flatnonzero(begins)
        number = self._next - np.arange(len(at))
        self._next -= len(at)
        for k in np.flatnonzero(goes_on[at]).tolist() if self._suspended else ():
            number[k] = self._suspended.pop((int(pid[at[k]]), int(frame[at[k]])), number[k])
        ends = np.append(at[1:], len(frame)) - 1
        for k in np.flatnonzero(yields[ends] & (frame[ends] != 0)).tolist() if len(at) else ():
            self._suspended[int(pid[ends[k]]), int(frame[ends[k]])] = int(number[k])
        out = np.empty(len(frame), np.int64)
        out[order] = number[np.cumsum(begins) - 1]
        return out
