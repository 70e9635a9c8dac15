"""The paths that calls come by, the nodes of the calling-context tree: what lies above each is found once a path, not once a call."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from pytrace_ebpf.derive.calls.nesting import levels
from pytrace_ebpf.rebuild.library import NO_THREAD
from pytrace_ebpf.rules.rule import Group

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
NONE = -1


class Paths:
    """Takes the nodes of an engine (rebuild.library.NODE) as they become more. Arrays are by the number of a node.

    `groups`: masks of functions by func_id, one more at the end for those unknown, of each of which it is known where it lies above;
    `in_python`: such a mask, of the functions that count as callers.
    """

    def __init__(self, groups: Mapping[Group, Bools], in_python: Bools) -> None:
        self._groups, self._in_python = groups, in_python
        self.parent, self.function, self._caller = (np.zeros(0, np.int64) for _ in range(3))
        self._known, self._nameless = (np.zeros(0, np.bool_) for _ in range(2))
        self._outermost = {group: np.zeros(0, np.int64) for group in groups}

    def grow(self, nodes: npt.NDArray[np.void]) -> None:
        """Take in those that are new. A caller's comes before."""
        first, new = len(self.parent), slice(len(self.parent), None)
        added = nodes[new]
        if not len(added):
            return
        of_thread, depth = added["thread"] != NO_THREAD, added["depth"].astype(np.int64)
        self.parent = np.append(self.parent, added["parent"].astype(np.int64))
        self.function = np.append(self.function, np.where(of_thread, NONE, added["func_id"].astype(np.int64)))
        self._known, self._nameless = np.append(self._known, of_thread), np.append(self._nameless, np.zeros(len(added), np.bool_))
        self._caller = np.append(self._caller, np.full(len(added), NONE))
        self._outermost = {group: np.append(own, np.full(len(added), NONE)) for group, own in self._outermost.items()}
        depth = np.where(of_thread | (self.parent[new] == 0), 0, depth + 1)  # below the root of all stand threads, and what the tree had no room for
        for here in levels(depth):
            self._derive(here + first)

    def _derive(self, here: Ints) -> None:
        """What those just below others take from them."""
        up = self.parent[here]
        calls, above = self.function[up], np.where(self._is_root(up), NONE, up)
        self._known[here] = self._known[up]
        self._nameless[here] = self._nameless[up] | ((above != NONE) & (calls < 0))
        self._caller[here] = np.where((above == NONE) | self._in_python[calls] | (calls < 0), above, self._caller[up])
        for group, own in self._outermost.items():
            own[here] = np.where(own[up] != NONE, own[up], np.where((above != NONE) & self._groups[group][calls], up, NONE))

    def _is_root(self, nodes: Ints) -> Bools:
        """Whether they are a thread's own, and no calls'."""
        return (nodes == 0) | ((self.parent[nodes] == 0) & self._known[nodes])

    def known(self, nodes: Ints) -> Bools:
        """Whether it is known what is above."""
        return self._known[nodes]

    def nameless(self, nodes: Ints) -> Bools:
        """Whether a caller above has no name."""
        return self._nameless[nodes]

    def outermost(self, group: Group, nodes: Ints) -> Ints:
        """The node of the outermost caller that is in a group, NONE for none: the call itself is no caller of it."""
        return self._outermost[group][nodes]

    def caller(self, nodes: Ints) -> Ints:
        """The node of the innermost caller that is a function of Python or not known, NONE for none."""
        return self._caller[nodes]

    def functions(self, node: int) -> tuple[int, ...]:
        """The func_ids from the outermost call down to the node's own, -1 unknown."""
        found = []
        while node > 0 and not self._is_root(np.array([node]))[0]:
            found.append(int(self.function[node]))
            node = int(self.parent[node])
        return tuple(found[::-1])
