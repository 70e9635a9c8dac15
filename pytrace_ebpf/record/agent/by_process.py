"""What agents count in the arenas of their processes, by process: a process may have several arenas one after the other, and counts on in the next."""

from collections.abc import Callable, Iterable
from typing import Any, Generic, Protocol, Self, TypeVar

from pytrace_ebpf.record.agent.traced import Traced

_MOST_ENDED = 100  # processes whose sums are kept


class _Sum(Protocol):
    def __add__(self, other: Any, /) -> Self: ...


Sum = TypeVar("Sum", bound=_Sum)


class ByProcess(Generic[Sum]):
    """Memory is bounded by the processes that live, and by _MOST_ENDED that have ended."""

    def __init__(self, counted: Callable[[Traced], Sum], nothing: Sum) -> None:
        """`counted`: what an arena has; `nothing`: what a process has without one."""
        self._counted, self._nothing = counted, nothing
        self._ended: dict[int, Sum] = {}  # of arenas that are closed

    def close(self, traced: Traced) -> None:
        """Its arena counts no more."""
        self._ended[traced.ids.pid] = self._of(traced, self._ended.pop(traced.ids.pid, self._nothing))
        if len(self._ended) > _MOST_ENDED:
            self._ended.pop(next(iter(self._ended)))

    def now(self, all_traced: Iterable[Traced]) -> dict[int, Sum]:
        """Of all of them, from their beginning."""
        return self._ended | {traced.ids.pid: self._of(traced, self._ended.get(traced.ids.pid, self._nothing)) for traced in all_traced}

    def _of(self, traced: Traced, before: Sum) -> Sum:
        return before + self._counted(traced)
