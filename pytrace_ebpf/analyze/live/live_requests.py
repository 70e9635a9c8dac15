"""Which requests stacks answer: by the program's own function that a server or framework called, as of derive/sinks/requests.py."""

import numpy as np
import numpy.typing as npt
import pandas as pd

from pytrace_ebpf.derive.calls import entry_points, own_code
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
        entries = entry_points.kinds(functions).index.to_numpy(np.int64)
        self._own, self._entries = np.union1d(self._own, own), np.union1d(self._entries, entries)
        self._namers = np.union1d(self._namers, entry_points.namers(functions, entries, own))

    def endpoints(self, tree: pd.DataFrame) -> Ints:
        """By row of a `tree` of stacks (func_id, parent_id, depth) the function that answers the request in which that stands; NONE where it is in none."""
        function, parent, depth = (tree[name].to_numpy(np.int64) for name in ("func_id", "parent_id", "depth"))
        entry = np.where(np.isin(function, self._entries), function, NONE)
        named = np.where(entry_points.endpoints(tree, self._namers, self._own), function, NONE)
        for here in levels(depth):
            for outermost in (entry, named):
                above = outermost[parent[here]]
                outermost[here] = np.where(above >= 0, above, outermost[here])
        return np.where(entry >= 0, np.where(named >= 0, named, entry), NONE)
