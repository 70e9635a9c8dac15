"""Which request a stack answers: the program's own function that a server or framework called, as of derive/sinks/requests.py."""

import numpy as np
import numpy.typing as npt
import pandas as pd

from pytrace_ebpf.derive.calls import own_code
from pytrace_ebpf.derive.calls.entry_points import kinds
from pytrace_ebpf.derive.calls.nesting import levels

NONE = -1
Ints = npt.NDArray[np.int64]


class LiveRequests:
    """Memory is bounded by the functions that answer requests, and by the program's own."""

    def __init__(self) -> None:
        self._entries = self._namers = self._own = np.zeros(0, np.int64)

    def meet(self, functions: pd.DataFrame) -> None:
        """Functions (schema.FUNCTIONS) that were not known before, or have a name by now."""
        own = functions["func_id"][own_code.own(functions)].to_numpy(np.int64)
        entries = kinds(functions).index.to_numpy(np.int64)
        self._own, self._entries = np.union1d(self._own, own), np.union1d(self._entries, entries)
        handlers = kinds(functions, handlers_only=True).index.to_numpy(np.int64)
        self._namers = np.union1d(self._namers, np.setdiff1d(np.union1d(entries, handlers), own))

    def endpoints(self, stacks: pd.DataFrame) -> "pd.Series[int]":
        """By stack_id the function that answers the request in which that of `stacks` (schema.STACKS, a caller first) stands: func_id, NONE where it is in none."""
        table = stacks.sort_values("stack_id", ignore_index=True)
        ids, function = table["stack_id"].to_numpy(np.int64), table["func_id"].to_numpy(np.int64)
        parent = pd.Series(np.arange(len(ids)), ids).reindex(table["parent_id"]).fillna(NONE).to_numpy(np.int64)
        depth = np.zeros(len(ids), np.int64)
        for row, above in enumerate(parent.tolist()):
            depth[row] = depth[above] + 1 if above >= 0 else 0
        is_entry, is_own, leads = np.isin(function, self._entries), np.isin(function, self._own), np.isin(function, self._namers)
        request, found = np.where(is_entry, function, NONE), np.full(len(ids), NONE, np.int64)
        for here in levels(depth):
            up = parent[here]
            request[here] = np.where(request[up] >= 0, request[up], request[here])
            found[here] = np.where(found[up] >= 0, found[up], np.where(leads[up] & is_own[here], function[here], NONE))
            leads[here] |= leads[up] & ~is_own[here]
        return pd.Series(np.where(request >= 0, np.where(found >= 0, found, request), NONE), ids)
