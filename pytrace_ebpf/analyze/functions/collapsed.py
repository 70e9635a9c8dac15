"""A calling-context tree with fewer rows of the same sums: imports as one function, or libraries as a part of the own code that called them."""

import numpy as np
import numpy.typing as npt
import pandas as pd

from pytrace_ebpf.analyze.functions.own_code import nearest_own
from pytrace_ebpf.derive.calls.nesting import levels
from pytrace_ebpf.trace.states import SPLIT

_MACHINERY, _ENTRY = ("importlib._bootstrap", "<frozen importlib._bootstrap>"), "_find_and_load"
_BODY = "<module>"
MODULE_OF_IMPORTS = "<import>"
"""Module of what imports are."""
_SELF = ["self_ns", "self_unknown_ns", *(f"self_{name}" for name in SPLIT)]
_NONE = -1

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


def imports_as_one(tree: pd.DataFrame, functions: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Of `tree` (schema.TREE) the rows with all that is called in an import as a call of one function, "imports (12 modules)"; and `functions` with that one.

    node_id and parent_id stay. Where nothing was imported both are as they were.
    """
    into, function = _imports(tree, functions), tree["func_id"].to_numpy(np.int64)
    if not (into >= 0).any():
        return tree, functions
    bodies = functions.loc[functions["name"] == _BODY, "func_id"]
    modules = len(np.unique(function[(into >= 0) & np.isin(function, bodies)]))
    number = int(functions["func_id"].max()) + 1
    name = f"imports ({modules:,} module{'' if modules == 1 else 's'})"
    row = functions.iloc[:1].assign(
        func_id=number, file="", name=name, qualname=name, first_line=-1, module=MODULE_OF_IMPORTS, flags=0, function_layer="import"
    )
    out = _added_up(tree, np.where(into >= 0, into, np.arange(len(tree))), [*_SELF, "calls"])
    folded = np.isin(out.index, np.unique(into[into >= 0]))
    out.loc[folded, "func_id"] = number
    out.loc[folded, ["outermost", "outermost_of_module"]] = True
    return out.reset_index(drop=True), pd.concat([functions, row], ignore_index=True)


def in_imports_alone(tree: pd.DataFrame, functions: pd.DataFrame) -> Ints:
    """The func_ids of functions that were called in imports and nowhere else."""
    into, function = _imports(tree, functions), tree["func_id"].to_numpy(np.int64)
    return np.setdiff1d(function[into >= 0], function[into < 0])


def _imports(tree: pd.DataFrame, functions: pd.DataFrame) -> Ints:
    """Of each row of `tree` the place of the row of the outermost import that it is or is called in; -1 for none."""
    begins = (functions["module"].isin(_MACHINERY) & (functions["name"] == _ENTRY)) | (functions["function_layer"] == "import")
    function, parent = (tree[name].to_numpy(np.int64) for name in ("func_id", "parent_id"))
    starts = np.isin(function, functions.loc[begins, "func_id"]) & (tree["depth"].to_numpy() >= 0)
    into = np.where(starts, np.arange(len(tree)), _NONE)
    if starts.any():
        for here in levels(tree["depth"].to_numpy(np.int64)):
            above = np.where(parent[here] >= 0, into[parent[here]], _NONE)
            into[here] = np.where(above >= 0, above, into[here])
    return into


def outermost_of(tree: pd.DataFrame, func_ids: Ints) -> pd.DataFrame:
    """The rows of `tree` that are of these functions and lie below no other such row: in their totals no moment counts twice."""
    inside, parent = within(tree, func_ids), tree["parent_id"].to_numpy(np.int64)
    return tree[inside & ~((parent >= 0) & inside[parent])]


def within(tree: pd.DataFrame, func_ids: Ints) -> Bools:
    """Which rows of `tree` are of these functions, or lie below one that is."""
    parent, depth = (tree[name].to_numpy(np.int64) for name in ("parent_id", "depth"))
    inside: Bools = tree["func_id"].isin(func_ids).to_numpy() & (depth >= 0)
    for here in levels(depth):
        inside[here] |= (parent[here] >= 0) & inside[parent[here]]
    return inside


def into_own_code(tree: pd.DataFrame, functions: pd.DataFrame) -> pd.DataFrame:
    """Of `tree` the rows of own code, whose self times have those of what they called that is not; without what no own code called."""
    nearest = nearest_own(tree, functions)[0]
    kept = (nearest >= 0) & (tree["depth"].to_numpy() >= 0)
    return _added_up(tree[kept], nearest[kept], _SELF).reset_index(drop=True)


def _added_up(tree: pd.DataFrame, into: Ints, columns: list[str]) -> pd.DataFrame:
    """The rows that others are added to (`into`: of each row the label of the one that it is added to), with the sums of `columns`; null where that of one is
    not known whose self_on_cpu_ns is."""
    groups = tree.groupby(into)
    out = tree[tree.index.to_numpy() == into].copy()
    for column in columns:
        sums = groups[column].sum(min_count=1)
        unsplit = (tree[column].isna() & tree["self_on_cpu_ns"].notna()).groupby(into).any()
        out[column] = sums.mask(unsplit).reindex(out.index).astype(tree[column].dtype)
    return out
