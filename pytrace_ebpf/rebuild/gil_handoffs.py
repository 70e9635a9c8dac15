"""Which of a segment's events stand next to another thread's, by the compiled library."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pytrace_ebpf.errors import HostError
from pytrace_ebpf.rebuild.engine import columns_of
from pytrace_ebpf.rebuild.library import Acts, library


def gil_handoffs(pieces: Sequence[pa.Table], moments: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Mask of the events that show who has the GIL and stand next to another thread's, or to one of the `moments`; and of some more: the ends of each thread's.

    `pieces`: a segment's rows of schema.EVENTS (ts, pid, tid, kind), one after the other, of which each thread's lie together; times are ns
    from -1 on. What lies between would be put in order only to be left out. Raises HostError where there is not enough memory for the search.
    """
    moments, found = np.sort(moments), np.zeros(sum(map(len, pieces)), np.bool_)
    each = [columns_of(piece, Acts) for piece in pieces]
    if not library().gil_handoffs((Acts * len(each))(*each), len(each), moments.ctypes.data, len(moments), found.ctypes.data):
        raise HostError("there is not enough memory to find who held the GIL")
    return found
