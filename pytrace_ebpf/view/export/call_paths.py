"""The calling-context tree walked from caller to callee: each path once, whatever the number of calls."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pandas as pd

from pytrace_ebpf.view.export.small import OTHER

NO_CONTEXT = -2  # stands for a caller: of calls for whose contexts there was no room in the tree, or that lie deeper than is shown
_AT_ONCE = 1 << 16  # rows
MOST_FRAMES = 1024  # of a path: a file has each as a whole

Ints = npt.NDArray[np.int64]


Merged = tuple[list[tuple[int, int]], list[int]]
"""Nodes of all threads by their path: (caller, func_id) of each, -1 for none; and the sum of their weights."""


def paths(tree: pd.DataFrame, weight: Ints) -> Iterator[tuple[list[int], int]]:
    """(func_ids from the outermost in, weight) of every different path in `tree` (schema.TREE) with a weight; of each row one is given.

    Nodes of one path are taken together, and those below MOST_FRAMES frames by their function, under NO_CONTEXT. The list is the same
    one each time, with other contents.
    """
    return paths_in(merged(tree, weight))


def paths_in(nodes: Merged, least: float = 0.0) -> Iterator[tuple[list[int], int]]:
    """The same, of merged(). A path with less than the share `least` of all weight, with all below it, is under OTHER in its caller."""
    parent, own = nodes
    limit = least * sum(own)
    children: dict[int, list[int]] = {}  # most call nothing
    for node, (above, _) in enumerate(parent):
        children.setdefault(above, []).append(node)
    small = _taken_out(parent, children, own, limit) if limit else {}
    path: list[int] = []
    if small.get(-1):
        yield [OTHER], small[-1]
    waiting = [iter(children.get(-1, ()))]  # at each depth
    while waiting:
        node = next(waiting[-1], -1)
        if node < 0:
            waiting.pop()
            continue
        del path[len(waiting) - 1 :]
        path.append(parent[node][1])
        if own[node]:
            yield path, own[node]
        if small.get(node):
            yield [*path, OTHER], small[node]
        waiting.append(iter(children.get(node, ())))


def _taken_out(parent: list[tuple[int, int]], children: dict[int, list[int]], own: list[int], limit: float) -> dict[int, int]:
    """Take the children with less than `limit`, with all below them, out of `children`; the weight of those of each node."""
    totals = list(own)
    for node in range(len(parent) - 1, -1, -1):  # a caller stands before what it calls
        if (above := parent[node][0]) >= 0:
            totals[above] += totals[node]
    small: dict[int, int] = {}
    for node, below in children.items():
        kept = [child for child in below if totals[child] >= limit]
        if len(kept) < len(below):
            small[node] = sum(totals[child] for child in below) - sum(totals[child] for child in kept)
            children[node] = kept
    return small


def merged(tree: pd.DataFrame, weight: Ints) -> Merged:
    """What paths() takes together, of `tree` and the weight of each of its rows."""
    number: dict[tuple[int, int], int] = {}
    sums: list[int] = []
    of_row: list[int] = []
    cut: dict[int, int] = {}  # of what lies deeper than is shown: its NO_CONTEXT
    for parent, depth, pid, func, own in _rows(tree, weight):
        if depth < 0:  # a thread
            of_row.append(-1)
            continue
        above = of_row[parent] if parent >= 0 else -1
        if pid < 0:
            above = number.setdefault((-1, NO_CONTEXT), len(number))
        elif depth >= MOST_FRAMES:
            above = cut[above] if depth > MOST_FRAMES else number.setdefault((above, NO_CONTEXT), len(number))
        key = number.setdefault((above, func), len(number))
        sums += [0] * (len(number) - len(sums))
        sums[key] += own
        of_row.append(key)
        if depth >= MOST_FRAMES:
            cut[key] = above
    return list(number), sums


def _rows(tree: pd.DataFrame, weight: Ints) -> Iterator[tuple[int, int, int, int, int]]:
    """Of each row the place of its caller's, -1 for none, depth, pid, func_id and weight; Python's numbers of some rows at a time."""
    place = pd.Index(tree["node_id"]).get_indexer(tree["parent_id"])
    columns = (place, *(tree[name].to_numpy(np.int64) for name in ("depth", "pid", "func_id")), weight)
    for at in range(0, len(tree), _AT_ONCE):
        yield from zip(*(column[at : at + _AT_ONCE].tolist() for column in columns), strict=True)
