"""Where the program's own code stands in the calling-context tree: who of it called whom, from which depth, and what below an event loop."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pandas as pd

from pytrace_ebpf.analyze.functions.own_code import NONE, nearest_own
from pytrace_ebpf.derive.calls.nesting import levels
from pytrace_ebpf.derive.calls.own_code import OF_COROUTINES, among_loops
from pytrace_ebpf.trace.sampled import NATIVE

BODY = "<module>"  # of a module: what all of it is called from
_BEGINNINGS = (
    "threading",
    "runpy",
    "multiprocessing.process",
    "multiprocessing.spawn",
    "multiprocessing.popen_fork",
    "multiprocessing.popen_spawn_posix",
)
PLACE = ["pid", "tid", "own_func_id"]

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Contexts:
    """Of a `tree` (schema.TREE) and its `functions`; arrays by row of the tree.

    own: the row of the innermost call of own code that it is or was called through, NONE where there is none since an event loop's. above: of a row
    of own code the next such row above it. depth: how many of these there are above, bodies of modules not counted, and one more where a library
    that is more than the beginning of a thread or program called the outermost of them. on_loop: an event loop is above
    it. called: func_id of what `own` called that is not own code and led here, NONE where that is `own` itself.
    """

    tree: pd.DataFrame
    functions: pd.DataFrame
    own: Ints
    above: Ints
    depth: Ints
    on_loop: Bools
    called: Ints

    @cached_property
    def function(self) -> Ints:
        """func_id of each row."""
        return self.tree["func_id"].to_numpy(np.int64)

    @cached_property
    def own_function(self) -> Ints:
        """func_id of `own`, NONE for none."""
        return np.where(self.own >= 0, self.function[self.own], NONE)

    @cached_property
    def places(self) -> pd.DataFrame:
        """By PLACE of each function of own code on each thread: own_depth, the least, and on_loop, whether an event loop is above it anywhere."""
        here = np.flatnonzero(self.own == np.arange(len(self.own)))
        rows = self.tree[["pid", "tid", "func_id"]].iloc[here].set_axis(PLACE, axis=1)
        rows = rows.assign(own_depth=self.depth[here], on_loop=self.on_loop[here])
        return rows.groupby(PLACE, as_index=False).agg({"own_depth": "min", "on_loop": "max"})


def contexts(tree: pd.DataFrame, functions: pd.DataFrame) -> Contexts:
    """The Contexts of a tree."""
    function, parent = (tree[name].to_numpy(np.int64) for name in ("func_id", "parent_id"))
    own, is_own, _ = nearest_own(tree, functions)
    is_loop = np.isin(function, functions["func_id"].to_numpy()[among_loops(functions, OF_COROUTINES)])
    bodies = functions.loc[functions["qualname"] == BODY, "func_id"].to_numpy()
    counted = is_own & ~np.isin(function, bodies)
    (above, called), depth, on_loop = np.full((2, len(tree)), NONE, np.int64), np.zeros(len(tree), np.int64), np.zeros(len(tree), np.bool_)
    first = functions["module"].isin(_BEGINNINGS) | (functions["function_layer"] == NATIVE)
    begins = np.isin(function, functions.loc[first, "func_id"]) | (function < 0)
    for here in levels(tree["depth"].to_numpy(np.int64)):
        up = parent[here]
        begins[here] &= begins[up]
        has = up >= 0
        above[here] = np.where(has, own[up], NONE)
        on_loop[here] = has & (on_loop[up] | is_loop[up])
        caller = above[here]
        depth[here] = np.where(caller >= 0, depth[caller] + counted[caller], ~begins[up])
        called[here] = np.where(is_own[here] | (own[here] < 0), NONE, np.where(own[here] == up, function[here], called[up]))
    return Contexts(tree, functions, own, above, depth, on_loop, called)
