"""The chain of work and waits that determined how long something took, walked by the compiled library."""

from typing import Any

import numpy as np
import numpy.typing as npt

from pytrace_ebpf.errors import HostError, UsageError
from pytrace_ebpf.rebuild.library import PathOut, PathSpans, PathThreads, PathWaits, columns, library

ON_CORE, IN_QUEUE, WAITS_FOR, NOT_KNOWN = range(4)
PIECE = np.dtype([("span", "i4"), ("thread", "i4"), ("start", "i8"), ("end", "i8"), ("wait", "i8"), ("through", "i8"), ("kind", "u1")])
"""`kind`: ON_CORE, IN_QUEUE (of `wait`), WAITS_FOR (`wait`), or NOT_KNOWN: before the thread was made; `through`: the wait that led to the thread; -1 none."""
_NO_MEMORY = (1 << 64) - 1
_MOST = 1 << 24  # pieces: some 3 GB where they are shown

Integers = npt.NDArray[np.integer[Any]]


def critical_path(
    waits: tuple[Integers, Integers, Integers, Integers],
    threads: tuple[Integers, Integers],
    spans: tuple[Integers, Integers, Integers],
) -> npt.NDArray[np.void]:
    """The pieces (PIECE) of each span, in the order of time; together they are as long as the span, exactly. All times are ns.

    waits: start, until (it became runnable), end, and the thread that ended it or -1; by thread, of each in the order of time.
    threads: of each the place of its first wait, and one more; whether that is the wait for its first core. spans: thread, from, to.
    Raises HostError where there is not enough memory, and UsageError where there are more than 17 million.
    """
    starts, untils, ends = (np.ascontiguousarray(each, np.int64) for each in waits[:3])
    nexts, thread = np.ascontiguousarray(waits[3], np.int32), np.ascontiguousarray(spans[0], np.int32)
    first, born = np.ascontiguousarray(threads[0], np.int64), np.ascontiguousarray(threads[1], np.uint8)
    begin, end = (np.ascontiguousarray(each, np.int64) for each in spans[1:])
    given = columns(PathWaits, start=starts, until=untils, end=ends, next=nexts), columns(PathThreads, first=first, born=born)
    asked, room = columns(PathSpans, thread=thread, begin=begin, end=end), 4 * len(thread) + 2 * len(starts)
    while True:
        out = {name: np.empty(room, PIECE[name]) for name in PIECE.names or ()}
        count = library().critical_path(*given, asked, columns(PathOut, **out), _MOST)
        if count == _NO_MEMORY:
            raise HostError("there is not enough memory for the critical path of this trace")
        if count > _MOST:
            raise UsageError(f"there are more than {_MOST:,} pieces of critical paths; ask for fewer requests or calls, or for a part of the time.")
        if count <= room:
            break
        room = count
    found = np.empty(count, PIECE)
    for name, values in out.items():
        found[name] = values[:count]
    return found[np.lexsort((found["start"], found["span"]))]
