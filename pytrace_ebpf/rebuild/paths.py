"""The paths that the calls of one thread come to, numbered by the compiled library."""

import numpy as np
import numpy.typing as npt

from pytrace_ebpf.errors import HostError
from pytrace_ebpf.rebuild.library import library

Ints = npt.NDArray[np.int64]
_NO_MEMORY = (1 << 64) - 1


def paths(does: Ints) -> tuple[Ints, Ints, Ints]:
    """Of events, each the number (0 to 2^31 - 1) of what begins or -1 where the innermost call ends.

    Returns, by path, the caller's path (-1 none; it comes before) and what begins there; and the path after each event, -1 out of all calls.
    """
    does = np.ascontiguousarray(does, np.int64)
    parent, of, after = (np.empty(len(does), np.int64) for _ in range(3))
    count = library().paths(does.ctypes.data, len(does), *(each.ctypes.data for each in (parent, of, after)))
    if count == _NO_MEMORY:
        raise HostError("there is not enough memory for the paths of this trace's calls")
    return parent[:count], of[:count], after
