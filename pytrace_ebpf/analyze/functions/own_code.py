"""Time in libraries by the function of the program's own code that led there: a program waits in `socket.recv`, and its author wrote what called it."""

import numpy as np
import numpy.typing as npt
import pandas as pd

from pytrace_ebpf.derive.calls.nesting import levels
from pytrace_ebpf.derive.calls.own_code import foreign
from pytrace_ebpf.rebuild.answers import EVENT_LOOP
from pytrace_ebpf.trace.states import SPLIT

NONE = -1
_SUMS = ["self_ns", "self_unknown_ns", *(f"self_{name}" for name in SPLIT)]

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


def own_callers(tree: pd.DataFrame, functions: pd.DataFrame) -> Ints:
    """For each row of `tree` (schema.TREE) the func_id of the innermost function of the program's own code that it is, or was called through.

    NONE where no call around it is of the program's own code, or none since an event loop's. `functions`: schema.FUNCTIONS.
    """
    nearest, _, _ = nearest_own(tree, functions)
    return np.where(nearest >= 0, tree["func_id"].to_numpy(np.int64)[nearest], NONE)


def nearest_own(tree: pd.DataFrame, functions: pd.DataFrame) -> tuple[Ints, Bools, Bools]:
    """The same as rows of `tree`; and which rows are of own code, and which of an event loop."""
    what = np.append(foreign(functions), 0)  # the last: of an unknown function
    function, parent = (tree[name].to_numpy(np.int64) for name in ("func_id", "parent_id"))
    is_own, is_loop = (what[function] == 0) & (function >= 0), (what[function] & EVENT_LOOP) != 0
    nearest: Ints = np.where(is_own, np.arange(len(tree)), NONE)
    for here in levels(tree["depth"].to_numpy(np.int64)):
        above = np.where(parent[here] >= 0, nearest[parent[here]], NONE)
        nearest[here] = np.where(is_own[here], here, np.where(is_loop[here], NONE, above))
    return nearest, is_own, is_loop


def by_own_code(tree: pd.DataFrame, callers: Ints, func_id: int) -> pd.DataFrame:
    """The self time of one function in `tree` by its own_callers(), `callers`.

    One row for each, the most time first: own_func_id, self_ns, the four parts of it and self_unknown_ns, as of analyze.functions.by_function.
    """
    here = np.flatnonzero(tree["func_id"] == func_id)
    rows = tree[_SUMS].iloc[here].assign(own_func_id=callers[here])
    sums = rows.groupby("own_func_id")[_SUMS]
    table = sums.sum()
    table[table.columns[2:]] = table[table.columns[2:]].where(sums.count().iloc[:, 2:] > 0)  # not known, and not zero
    return table.sort_values("self_ns", ascending=False, kind="stable").reset_index()
