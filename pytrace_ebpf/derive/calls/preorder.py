"""The order of calls within their threads: how many lie below each, and the begins and ends as they happened."""

import numpy as np
import numpy.typing as npt
import pandas as pd

from pytrace_ebpf.derive.scheduling.last_at import narrow

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


def preorder(calls: pd.DataFrame) -> tuple[Ints, Ints]:
    """(order, below): rows of `calls` by thread and call_id, and how many descendants each row *of that order* has in `calls`.

    Needs call_id, last_descendant_id, pid, tid.
    """
    if not len(calls):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    thread = calls.groupby(["pid", "tid"], sort=False).ngroup().to_numpy()
    ids = calls["call_id"].to_numpy(dtype=np.int64)
    order = np.lexsort((ids, thread))
    last = calls["last_descendant_id"].to_numpy(dtype=np.int64)[order]
    # Ids of different threads may interleave; lifted, each thread's are above those of the threads before it.
    ids, last, bits = narrow(ids[order], last, int(thread.max()) + 1)
    lift = thread[order] << bits
    return order, np.searchsorted(lift | ids, lift | last, side="right") - 1 - np.arange(len(order))


def begin_end(calls: pd.DataFrame) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """(row, is_end), both of length 2 * len(calls): every call's begin and end, per thread, properly nested.

    Also where several lie on the same nanosecond, which sorting by time could not do. Needs depth
    in addition to the columns of preorder(): before a call's begin come the begins of all calls before it and
    the ends of all but the `depth` still open ones.
    """
    order, below = preorder(calls)
    index = np.arange(len(order))
    depth = calls["depth"].to_numpy(dtype=np.int64)[order]
    end = 2 * (index + below) + 1 - depth
    row, is_end = np.empty(2 * len(order), np.int64), np.zeros(2 * len(order), bool)
    row[2 * index - depth] = order
    row[end], is_end[end] = order, True
    return row, is_end


def outermost(calls: pd.DataFrame, key: Ints) -> Bools:
    """Mask of the calls without an ancestor of the same `key` (int64, one per call): those whose times may be added up."""
    order, below = preorder(calls)
    place = np.arange(len(order))
    key = key[order]
    # Threads follow each other in this order, so one running maximum serves all of them.
    reach = pd.Series(place + below).groupby(key, sort=False).cummax().groupby(key, sort=False).shift(fill_value=-1)
    mask = np.empty(len(order), bool)
    mask[order] = reach.to_numpy() < place
    return mask
