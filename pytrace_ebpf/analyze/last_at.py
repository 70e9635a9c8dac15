"""What happened last at a moment: each thread's moments are searched, all threads at once."""

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


def last_at(keys: Ints, when: Ints, thread: Ints, ts: Ints) -> Ints:
    """Position of the last of the moments (keys, when) that is of `thread` (split.thread_keys) and not after `ts`; -1 none.

    `keys` and `when` are of one length, sorted by key and then time; `thread` and `ts` are of another, as the answer is.
    """
    if not len(keys):
        return np.full(len(thread), -1, np.int64)
    begins = np.append(True, keys[1:] != keys[:-1])
    unique, group = keys[begins], np.cumsum(begins) - 1
    wanted = np.minimum(np.searchsorted(unique, thread), len(unique) - 1)
    # One sorted line of numbers for all threads: each one's moments are lifted above those of the threads before it.
    origin = int(when.min()) - 1
    bits = (int(when.max()) - origin).bit_length()
    moments = np.clip(ts - origin, 0, (1 << bits) - 1)
    at = np.searchsorted((group << bits) | (when - origin), (wanted << bits) | moments, side="right") - 1
    return np.where((at >= 0) & (keys[at] == thread), at, -1)
