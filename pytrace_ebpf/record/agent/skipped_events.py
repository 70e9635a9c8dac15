"""Events that an agent's hooks looked at and did not write, and how many of them a call of a function has that is left out."""

from collections.abc import Iterable

from pytrace_ebpf.record.agent.traced import Traced

_MOST_ENDED = 100  # processes whose counts are kept
_SWITCHED_OFF = 0x030C0000  # from this version on the interpreter leaves out a function by itself


class Passed:
    """By process, as it counts them."""

    def __init__(self) -> None:
        self._ended: dict[int, int] = {}  # by processes whose arenas are closed

    def close(self, traced: Traced) -> None:
        """It counts no more."""
        self._ended[traced.ids.pid] = self._ended.pop(traced.ids.pid, 0) + traced.arena.counted("passed")
        if len(self._ended) > _MOST_ENDED:
            self._ended.pop(next(iter(self._ended)))

    def now(self, all_traced: Iterable[Traced]) -> dict[int, int]:
        """Of all of them."""
        return self._ended | {traced.ids.pid: traced.arena.counted("passed") + self._ended.get(traced.ids.pid, 0) for traced in all_traced}


def passed_per_left_call(all_traced: Iterable[Traced]) -> int:
    """Up to 3.11 the profile function is called all the same, for the call's beginning and its end."""
    return 2 if any(traced.arena.python < _SWITCHED_OFF for traced in all_traced) else 0
