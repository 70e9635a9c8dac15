"""Functions of one version of a program found again in another one, where their lines have moved."""

import numpy as np
import pandas as pd

_NAME = ["function_layer", "module", "qualname"]
_MOST = 200  # functions of one name: of more of them, as generated code has, only those at the same line are found


def aligned(functions: pd.DataFrame, others: pd.DataFrame) -> pd.DataFrame:
    """`functions` (schema.FUNCTIONS) with the first_line that each has in `others`, of the other version; what has none there keeps its own.

    A function is found by its layer, module and qualified name. Where several have the same, as lambdas do, by their line: the
    nearest to where it would be, had it moved as far as the functions around it whose names are their own; no two are found in one.
    """
    own, other = (table[[*_NAME, "first_line"]].drop_duplicates() for table in (functions, others))
    pairs = pd.concat([_few(own).merge(_few(other), on=_NAME, suffixes=("", "_there")), _same_line(own, other)]).drop_duplicates(ignore_index=True)
    several = pairs.duplicated([*_NAME, "first_line"], keep=False) | pairs.duplicated([*_NAME, "first_line_there"], keep=False)
    found = _nearest(pairs[several], pairs[~several])
    lines = pd.concat([pairs[~several], found]).set_index([*_NAME, "first_line"])["first_line_there"]
    keys = pd.MultiIndex.from_frame(functions[[*_NAME, "first_line"]])
    there = lines.reindex(keys).to_numpy(np.float64)
    # Nothing stands at a negative line: a function of that name that is another one is not taken for it.
    taken = keys.isin(pd.MultiIndex.from_frame(other[[*_NAME, "first_line"]]))
    line = functions["first_line"].to_numpy(np.float64)
    return functions.assign(first_line=np.where(np.isnan(there), np.where(taken, -line, line), there).astype(np.int64))


def _few(functions: pd.DataFrame) -> pd.DataFrame:
    """Those of whose name there are not very many."""
    return functions[functions.groupby(_NAME)["first_line"].transform("size") <= _MOST]


def _same_line(functions: pd.DataFrame, others: pd.DataFrame) -> pd.DataFrame:
    """Pairs of those of whose name there are very many."""
    found = functions.merge(others, on=[*_NAME, "first_line"])
    found = found[found.groupby(_NAME)["first_line"].transform("size") > _MOST]
    return found.assign(first_line_there=found["first_line"])


def _nearest(pairs: pd.DataFrame, sure: pd.DataFrame) -> pd.DataFrame:
    """Of candidates in `pairs` those that are taken: the nearest first, each line once on either side. `sure`: pairs of functions with names of their own."""
    if not len(pairs):
        return pairs
    parts = []
    for module, rows in pairs.groupby("module", sort=False):
        known = sure[sure["module"] == module].sort_values("first_line")
        lines, moved = known["first_line"].to_numpy(), (known["first_line_there"] - known["first_line"]).to_numpy()
        above = np.searchsorted(lines, rows["first_line"].to_numpy(), "right") - 1
        shift = moved[np.maximum(above, 0)] if len(moved) else np.zeros(len(rows), np.int64)
        parts.append(rows.assign(off=(rows["first_line"] + shift - rows["first_line_there"]).abs()))
    out = []
    for _, rows in pd.concat(parts).sort_values("off", kind="stable").groupby(_NAME, sort=False):
        here, there = set[int](), set[int]()
        for row in rows.itertuples():
            if row.first_line not in here and row.first_line_there not in there:
                here.add(row.first_line)
                there.add(row.first_line_there)
                out.append(row.Index)
    return pairs.loc[out]
