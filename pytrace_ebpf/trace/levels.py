"""The levels of a thread's calls, each read when it is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

if TYPE_CHECKING:
    from pytrace_ebpf.trace.reader import Trace


class Levels(Sequence[pd.DataFrame]):
    """The levels of one thread: levels[d] holds its calls of depth d, in the order of call_id."""

    def __init__(self, trace: Trace, tid: int, count: int) -> None:
        """`count`: how many there are."""
        self._trace, self._tid, self._count = trace, tid, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, depth: Any) -> Any:
        if isinstance(depth, slice):
            return [self[d] for d in range(*depth.indices(self._count))]
        if not -self._count <= depth < self._count:
            raise IndexError(f"thread {self._tid} has {self._count} levels")
        return self._trace.calls(tid=self._tid, depth=depth % self._count)

    def __iter__(self) -> Iterator[pd.DataFrame]:
        return (self[depth] for depth in range(self._count))
