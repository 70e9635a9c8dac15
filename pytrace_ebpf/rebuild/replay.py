"""What threads did, played again with other lengths, by the compiled library."""

from ctypes import byref
from typing import Any

import numpy as np
import numpy.typing as npt

from pytrace_ebpf.errors import HostError
from pytrace_ebpf.rebuild.library import ReplayHost, ReplaySteps, ReplayThreads, columns, library

WORK, WAIT, PAUSE, SIGNAL, MARK = range(5)
NOBODY, NEVER = -1, -1
CORE_NS, GIL_NS = 4_000_000, 5_000_000
"""For how long a thread keeps a core that others wait for (about what Linux gives), and the GIL (sys.getswitchinterval())."""

Integers = npt.NDArray[np.integer[Any]]


def replay(
    steps: tuple[Integers, Integers, Integers], threads: tuple[Integers, Integers], cores: int | None, signals: int, marks: int
) -> npt.NDArray[np.int64]:
    """The moment of each mark, ns from 0 on; NEVER where its thread does not come to it.

    steps: kind, value and whether with the GIL, by thread and in their order. WORK and PAUSE are of value ns; SIGNAL number value (below `signals`) is what one
    thread may WAIT for, and the step behind that is left out where it is given already; of MARK number value (below `marks`) the moment is told.
    threads: of each the place of its first step, and one more; the number of its process's GIL, NOBODY none. cores: None for as many as there are threads.
    Raises HostError where there is not enough memory.
    """
    kind, locked = (np.ascontiguousarray(steps[place], np.uint8) for place in (0, 2))
    value, first = np.ascontiguousarray(steps[1], np.int64), np.ascontiguousarray(threads[0], np.int64)
    gil, found = np.ascontiguousarray(threads[1], np.int32), np.full(marks, NEVER, np.int64)
    never_taken = np.iinfo(np.int64).max // 2
    host = ReplayHost(cores or max(1, len(gil)), CORE_NS if cores else never_taken, GIL_NS, int(gil.max(initial=NOBODY)) + 1, signals)
    given = columns(ReplaySteps, kind=kind, value=value, locked=locked)
    struct = ReplayThreads(first.ctypes.data, gil.ctypes.data, len(gil))
    if not library().replay(byref(given), byref(struct), byref(host), found.ctypes.data):
        raise HostError("there is not enough memory to play this trace again")
    return found
