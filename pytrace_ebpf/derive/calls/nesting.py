"""How calls nest, found from their ids alone."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pandas as pd

Ints = npt.NDArray[np.int64]


def levels(depth: Ints) -> Iterator[Ints]:
    """The positions in `depth` of each level from 1 on, level by level."""
    order = np.argsort(depth, kind="stable")
    edges = np.searchsorted(depth[order], np.arange(1, int(depth.max(initial=0)) + 2))
    return (order[first:last] for first, last in zip(edges, edges[1:], strict=False))


def above(calls: pd.DataFrame) -> tuple[Ints, Ints]:
    """For each of `calls`, sorted by call_id: the position of the innermost of them that encloses it, -1 if none does, and how many do.

    Needs call_id and last_descendant_id.
    """
    ids, last = calls["call_id"].to_numpy(np.int64), calls["last_descendant_id"].to_numpy(np.int64)
    depth = np.arange(len(ids)) - np.searchsorted(np.sort(last), ids)
    found, outer = np.full(len(ids), -1), np.flatnonzero(depth == 0)
    for here in levels(depth):
        found[here], outer = outer[np.searchsorted(outer, here) - 1], here
    return found, depth
