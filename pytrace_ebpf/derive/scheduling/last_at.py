"""What happened last at a moment: each thread's moments are searched, all threads at once."""

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


def thread_keys(pid: npt.NDArray[np.integer], tid: npt.NDArray[np.integer]) -> Ints:
    """One number for (pid, tid), in their order."""
    return (pid.astype(np.int64) << 32) | tid.astype(np.int64)


def last_at(keys: Ints, when: Ints, thread: Ints, ts: Ints) -> Ints:
    """Position of the last of the moments (keys, when) that is of `thread` (thread_keys) and not after `ts`; -1 none.

    `keys` and `when` are of one length, sorted by key and then time; `thread` and `ts` are of another, as the answer is.
    """
    if not len(keys):
        return np.full(len(thread), -1, np.int64)
    begins = np.append(True, keys[1:] != keys[:-1])
    unique, group = keys[begins], np.cumsum(begins) - 1
    wanted = np.minimum(np.searchsorted(unique, thread), len(unique) - 1)
    # One sorted line of numbers for all threads: each one's moments are lifted above those of the threads before it.
    when, ts, bits = narrow(when, ts, len(unique))
    at = np.searchsorted((group << bits) | when, (wanted << bits) | ts, side="right") - 1
    return np.where((at >= 0) & (keys[at] == thread), at, -1)


def narrow(when: Ints, ts: Ints, groups: int) -> tuple[Ints, Ints, int]:
    """(when, ts, bits): other numbers in the same order, below 1 << bits, so small that the number of one of `groups` groups fits above them.

    `when`, at least one, become numbers from 1 on, `ts` from 0 on. Counted from the first moment or, where that takes too
    many bits, ranks: of them no number of rows that memory holds overflows.
    """
    first, last = int(when.min()), int(when.max())
    bits = (last - first + 1).bit_length()
    if bits + groups.bit_length() < 64:
        return when - first + 1, np.where(ts < first, 0, np.minimum(ts, last) - first + 1), bits
    ranks = np.sort(when)
    return np.searchsorted(ranks, when) + 1, np.searchsorted(ranks, ts, side="right"), len(ranks).bit_length()
